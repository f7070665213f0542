//! The data: JSON records that are a function of their number alone, so that any of them can be made
//! again to compare.
//!
//! They imitate what a session or customer store holds: names, numbers, dates, hexadecimal tokens and
//! prose. A heap full of them shrinks to about 60 % by LZ4 and to about 40 % by zstd, page by page, as
//! that of real services does.

use memfold_stats::Rng;
use std::io::Write;

const SEED: u64 = 0x6d65_6d66_6f6c_6421;

const GIVEN: [&str; 16] = [
    "Anna", "Boris", "Chiara", "David", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Keiko", "Luis",
    "Mira", "Nils", "Olga", "Pavel",
];
const FAMILY: [&str; 16] = [
    "Abel",
    "Berger",
    "Costa",
    "Dubois",
    "Eriksen",
    "Fischer",
    "Garcia",
    "Horvat",
    "Ivanova",
    "Jansen",
    "Kowalski",
    "Lindqvist",
    "Moreau",
    "Novak",
    "Okafor",
    "Petrov",
];
const CITIES: [&str; 8] = ["Bremen", "Porto", "Lyon", "Tartu", "Gdansk", "Graz", "Turku", "Bergamo"];
const GOODS: [&str; 12] = [
    "kettle",
    "lamp",
    "notebook",
    "bicycle pump",
    "rain coat",
    "desk",
    "headphones",
    "tea",
    "paint brush",
    "garden hose",
    "rucksack",
    "alarm clock",
];
const WORDS: [&str; 48] = [
    "the",
    "order",
    "was",
    "left",
    "with",
    "a",
    "neighbour",
    "because",
    "nobody",
    "opened",
    "please",
    "call",
    "before",
    "delivery",
    "customer",
    "asked",
    "for",
    "another",
    "colour",
    "and",
    "returned",
    "first",
    "parcel",
    "invoice",
    "sent",
    "twice",
    "by",
    "mistake",
    "refund",
    "issued",
    "on",
    "Monday",
    "prefers",
    "evening",
    "appointments",
    "speaks",
    "French",
    "has",
    "moved",
    "recently",
    "new",
    "address",
    "confirmed",
    "phone",
    "wrong",
    "size",
    "exchange",
    "agreed",
];

/// The key of a record.
pub fn key(number: u64) -> String {
    format!("customer:{number:08}")
}

/// Appends the record with this number to `out`: about 1 700 bytes of JSON.
pub fn append(number: u64, out: &mut Vec<u8>) {
    let mut rng = Rng::new(SEED).fork(number);
    let given = pick(&mut rng, &GIVEN);
    let family = pick(&mut rng, &FAMILY);
    let mut put = |args: std::fmt::Arguments<'_>| out.write_fmt(args).expect("a vector takes any bytes");
    put(format_args!(
        "{{\"id\":{number},\"name\":\"{given} {family}\",\"email\":\"{}.{}{}@example.org\",\"born\":\"{}\",",
        given.to_lowercase(),
        family.to_lowercase(),
        rng.below(1000),
        date(&mut rng, 1940),
    ));
    put(format_args!(
        "\"address\":{{\"street\":\"{} Street {}\",\"city\":\"{}\",\"zip\":\"{:05}\"}},\"balance\":{}.{:02},",
        pick(&mut rng, &FAMILY),
        rng.below(200) + 1,
        pick(&mut rng, &CITIES),
        rng.below(100_000),
        rng.below(10_000),
        rng.below(100),
    ));
    put(format_args!("\"session\":\"{}\",\"orders\":[", hex(&mut rng, 8)));
    for i in 0..4 + rng.below(4) {
        let comma = if i == 0 { "" } else { "," };
        put(format_args!(
            "{comma}{{\"order\":\"{}\",\"date\":\"{}\",\"item\":\"{}\",\"count\":{},\"price\":{}.{:02}}}",
            hex(&mut rng, 2),
            date(&mut rng, 2015),
            pick(&mut rng, &GOODS),
            rng.below(9) + 1,
            rng.below(500),
            rng.below(100),
        ));
    }
    put(format_args!("],\"notes\":\""));
    for i in 0..90 + rng.below(40) {
        let space = if i == 0 { "" } else { " " };
        put(format_args!("{space}{}", pick(&mut rng, &WORDS)));
    }
    put(format_args!("\"}}"));
}

fn pick<'a>(rng: &mut Rng, from: &[&'a str]) -> &'a str {
    from[rng.below(from.len() as u64) as usize]
}

fn date(rng: &mut Rng, since: u64) -> String {
    format!("{}-{:02}-{:02}", since + rng.below(10), rng.below(12) + 1, rng.below(28) + 1)
}

/// So many words of 64 random bits in hexadecimal.
fn hex(rng: &mut Rng, words: usize) -> String {
    (0..words).map(|_| format!("{:016x}", rng.next_u64())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(number: u64) -> Vec<u8> {
        let mut out = Vec::new();
        append(number, &mut out);
        out
    }

    #[test]
    fn a_value_is_a_function_of_its_number() {
        assert_eq!(value(7), value(7));
        assert_ne!(value(7), value(8));
    }

    #[test]
    fn values_are_json_of_the_size_that_was_said() {
        let mut total = 0;
        for number in 0..500 {
            let value = value(number);
            total += value.len();
            serde_json::from_slice::<serde_json::Value>(&value).unwrap();
        }
        assert!((1_500 * 500..1_900 * 500).contains(&total), "{}", total / 500);
    }
}
