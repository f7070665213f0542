//! The tier that somebody asks for, as text: `disk=DIR[,size=20G][,after=10m][,seal=no]`, or `redis://HOST[:PORT][,HOST…][,copies=2][,auth=FILE][,wait=5m]
//! [,disk=DIR]` with the same, but always sealed.

use crate::config::{parse_duration, parse_size};
use memfold_sys::time::Nanos;

/// How long a page is stored before it goes below memory, where nobody says, and the least that it may be.
pub const AFTER: Nanos = Nanos::from_secs(600);
const LEAST_AFTER: Nanos = Nanos::from_millis(10);
/// How much the tier may take, bytes, where nobody says; and the range.
pub const SIZE: u64 = 20 << 30;
const SIZES: (u64, u64) = (16 << 20, 512 << 30);
/// How long somebody may wait for what lies on an engine that is away, where nobody says, and the least.
pub const WAIT: Nanos = Nanos::from_secs(300);
const LEAST_WAIT: Nanos = Nanos::from_secs(1);
/// For how long an engine keeps what nobody says is still wanted, where nobody says, and the least.
pub const EXPIRE: Nanos = Nanos::from_secs(3600);
const LEAST_EXPIRE: Nanos = Nanos::from_secs(10);
/// Most copies.
const MOST_COPIES: usize = 8;
/// How the names of engines begin: plainly, and by TLS.
pub const PLAIN: &str = "redis://";
/// See [`PLAIN`].
pub const TLS: &str = "rediss://";

/// What `seal=no` gives up, for people, as it follows on the name of the tier.
pub const UNSEALED: &str = "is not sealed: who can read its files or that disk reads the program's memory there, also after its end, and who \
                            changes it on purpose is not noticed (a checksum finds accidents)";

/// Which tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice<'a> {
    /// Where it is.
    pub place: Where<'a>,
    /// How many bytes it may take.
    pub size: u64,
    /// How long a page must have been stored.
    pub after: Nanos,
    /// Whether nobody else can read and change what lies there. Only a disk alone can do without.
    pub sealed: bool,
}

/// Where a tier is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Where<'a> {
    /// In files in this directory.
    Disk(&'a str),
    /// On engines in the network.
    Engines(Engines<'a>),
}

/// Engines in the network, Redis or Valkey.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Engines<'a> {
    /// The whole text, of which the parts without `=` name engines.
    text: &'a str,
    /// On how many engines each page must be before it is given up here.
    pub copies: Option<usize>,
    /// The file with user and password.
    pub auth: Option<&'a str>,
    /// How long somebody may wait for a page while they are away.
    pub wait: Nanos,
    /// For how long they keep what nobody says is still wanted.
    pub expire: Nanos,
    /// The directory of the files beneath, which have all that the engines have.
    pub disk: Option<&'a str>,
}

impl<'a> Engines<'a> {
    /// Their addresses, `HOST:PORT` or `HOST`.
    pub fn addresses(&self) -> impl Iterator<Item = &'a str> {
        let parts = self.text.split(',').filter(|part| !part.contains('='));
        parts.map(|part| {
            part.strip_prefix(PLAIN).or(part.strip_prefix(TLS)).unwrap_or(part).trim_end_matches('/')
        })
    }

    /// The parts of the text that cannot be changed while they are used.
    fn stays(&self) -> impl Iterator<Item = &'a str> {
        self.text
            .split(',')
            .filter(|part| !["size=", "after=", "seal="].iter().any(|may| part.starts_with(may)))
    }

    /// Whether they are spoken with by TLS.
    pub fn by_tls(&self) -> bool {
        self.text.starts_with(TLS)
    }
}

/// What is wrong with the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadTier<'a> {
    /// There is no such kind of tier.
    Kind(&'a str),
    /// No directory is named.
    Directory,
    /// No engine is named so.
    Address(&'a str),
    /// A password on the command line.
    Password,
    /// There is no such part.
    Part(&'a str),
    /// The size cannot be read, or is below 16M or above 512G.
    Size(&'a str),
    /// The age cannot be read, or is below 10 ms.
    After(&'a str),
    /// Neither yes nor no.
    Seal(&'a str),
    /// Unsealed bytes for engines in the network.
    SealOfEngines,
    /// Unsealed bytes on a disk of a program that wants what it erased to be nowhere.
    SealOfWiped,
    /// Not a number of copies.
    Copies(&'a str),
    /// A time that cannot be read, or is too short: its name, and the least.
    Time(&'static str, &'a str, &'static str),
}

impl core::fmt::Display for BadTier<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            BadTier::Kind(kind) => write!(f, "`{kind}` is no tier: disk=DIR is one, and redis://HOST:PORT"),
            BadTier::Directory => f.write_str("disk= wants a directory: disk=/var/tmp"),
            BadTier::Address(address) => {
                write!(f, "`{address}` names no engine: redis://HOST:PORT is needed, and HOST:PORT for more of them")
            }
            BadTier::Password => f.write_str(
                "a password must not stand on a command line: name a file that has it, with auth=FILE",
            ),
            BadTier::Part(part) => write!(
                f,
                "`{part}` is no part of a tier: size=20G and after=10m are; of one on a disk also seal=no, of one on the network copies=, auth=, wait=, expire= and disk="
            ),
            BadTier::Size(size) => write!(f, "size={size}: a size from 16M to 512G is needed"),
            BadTier::After(after) => {
                write!(f, "after={after}: a time such as 30s or 10m is needed, 10ms or more")
            }
            BadTier::Seal(seal) => write!(f, "seal={seal}: yes or no is needed"),
            BadTier::SealOfEngines => f.write_str(
                "seal=no is for a disk alone: what goes to engines in the network is always sealed, and so is what lies on a disk beneath them; \
                 leave seal=no out, or name the disk alone, disk=DIR,seal=no",
            ),
            BadTier::SealOfWiped => f.write_str(
                "seal=no leaves what the program erased on the disk, which --wipe and the profile `secure` are to prevent: leave seal=no out, or those",
            ),
            BadTier::Copies(copies) => write!(
                f,
                "copies={copies}: a number from 1 to {MOST_COPIES} is needed"
            ),
            BadTier::Time(name, time, least) => {
                write!(f, "{name}={time}: a time such as 5m is needed, {least} or more")
            }
        }
    }
}

impl<'a> Choice<'a> {
    /// Reads it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &'a str) -> Result<Choice<'a>, BadTier<'a>> {
        let first = text.split(',').next().unwrap_or("");
        let place = match first.strip_prefix("disk=") {
            Some("") => return Err(BadTier::Directory),
            Some(directory) => Where::Disk(directory),
            None if first.starts_with(PLAIN) || first.starts_with(TLS) => Where::Engines(Engines {
                text,
                copies: None,
                auth: None,
                wait: WAIT,
                expire: EXPIRE,
                disk: None,
            }),
            None => return Err(BadTier::Kind(first.split_once('=').map_or(first, |(kind, _)| kind))),
        };
        let mut choice = Choice { place, size: SIZE, after: AFTER, sealed: true };
        for part in text.split(',').skip(1) {
            choice.take(part)?;
        }
        if let Where::Engines(engines) = &mut choice.place {
            engines.check()?;
            if !choice.sealed {
                return Err(BadTier::SealOfEngines);
            }
        }
        Ok(choice)
    }

    /// Takes in one of the parts behind the first.
    fn take(&mut self, part: &'a str) -> Result<(), BadTier<'a>> {
        match (part.split_once('='), &mut self.place) {
            (Some(("size", size)), _) => {
                self.size = parse_size(size)
                    .filter(|size| (SIZES.0..=SIZES.1).contains(size))
                    .ok_or(BadTier::Size(size))?;
            }
            (Some(("after", after)), _) => {
                self.after = at_least(after, LEAST_AFTER).ok_or(BadTier::After(after))?;
            }
            (Some(("seal", seal)), _) => {
                self.sealed = match seal {
                    "yes" => true,
                    "no" => false,
                    _ => return Err(BadTier::Seal(seal)),
                };
            }
            (Some(("copies", copies)), Where::Engines(engines)) => {
                let number = copies.parse().ok().filter(|number| (1..=MOST_COPIES).contains(number));
                engines.copies = Some(number.ok_or(BadTier::Copies(copies))?);
            }
            (Some(("disk", "")), _) => return Err(BadTier::Directory),
            (Some(("disk", directory)), Where::Engines(engines)) => engines.disk = Some(directory),
            (Some(("auth", file)), Where::Engines(engines)) => engines.auth = Some(file),
            (Some(("wait", wait)), Where::Engines(engines)) => {
                engines.wait = at_least(wait, LEAST_WAIT).ok_or(BadTier::Time("wait", wait, "1s"))?;
            }
            (Some(("expire", time)), Where::Engines(engines)) => {
                engines.expire = at_least(time, LEAST_EXPIRE).ok_or(BadTier::Time("expire", time, "10s"))?;
            }
            (None, Where::Engines(_)) => {}
            _ => return Err(BadTier::Part(part)),
        }
        Ok(())
    }

    /// Whether only the size and the age of the two differ.
    pub fn is_at_same_place(&self, other: &Choice<'_>) -> bool {
        match (self.place, other.place) {
            (Where::Disk(one), Where::Disk(place)) => one == place && self.sealed == other.sealed,
            (Where::Engines(one), Where::Engines(other)) => one.stays().eq(other.stays()),
            _ => false,
        }
    }

    /// Where it is, for people: the directory, or the first engine.
    pub fn name(&self) -> &'a str {
        match self.place {
            Where::Disk(directory) => directory,
            Where::Engines(engines) => engines.text.split(',').next().unwrap_or(""),
        }
    }

    /// The engines, if it is on any.
    pub fn engines(&self) -> Option<Engines<'a>> {
        match self.place {
            Where::Engines(engines) => Some(engines),
            Where::Disk(_) => None,
        }
    }

    /// The directory of its files, if it has any: it is on a disk, or one is beneath its engines.
    pub fn directory(&self) -> Option<&'a str> {
        match self.place {
            Where::Disk(directory) => Some(directory),
            Where::Engines(engines) => engines.disk,
        }
    }
}

impl<'a> Engines<'a> {
    /// Looks at the addresses.
    fn check(&mut self) -> Result<(), BadTier<'a>> {
        for part in self.text.split(',').filter(|part| !part.contains('=')) {
            if part.contains("//") && part.starts_with(TLS) != self.by_tls() {
                return Err(BadTier::Address(part));
            }
        }
        for address in self.addresses() {
            let port =
                address.rsplit_once(':').filter(|(host, _)| !host.contains(':') || host.ends_with(']'));
            let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port != 0);
            match port {
                _ if address.contains('@') => return Err(BadTier::Password),
                Some((host, port)) if host.is_empty() || !is_port(port) => {
                    return Err(BadTier::Address(address))
                }
                None if address.is_empty() => return Err(BadTier::Address(address)),
                _ if address.contains(['/', '?', '#', ' ']) => return Err(BadTier::Address(address)),
                _ => {}
            }
        }
        Ok(())
    }
}

fn at_least(text: &str, least: Nanos) -> Option<Nanos> {
    parse_duration(text).map(Nanos).filter(|&value| value >= least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;
    use std::vec::Vec;

    #[test]
    fn a_tier_is_read_with_what_holds_where_nobody_says() {
        let disk = Choice { place: Where::Disk("/var/tmp"), size: SIZE, after: AFTER, sealed: true };
        assert_eq!(Choice::parse("disk=/var/tmp"), Ok(disk));
        let all = Choice { size: 1 << 30, after: Nanos::from_secs(30), ..disk };
        assert_eq!(Choice::parse("disk=/var/tmp,size=1G,after=30s"), Ok(all));
        assert_eq!((disk.name(), disk.directory()), ("/var/tmp", Some("/var/tmp")));
    }

    #[test]
    fn a_tier_is_sealed_unless_somebody_says_no_of_a_disk_alone() {
        let read = |text| Choice::parse(text).unwrap();
        let plain = read("disk=/var/tmp,seal=no,size=1G");
        assert!(!plain.sealed);
        assert!(read("disk=/var/tmp").sealed && read("disk=/var/tmp,seal=yes").sealed);
        assert!(read("redis://a,seal=yes,disk=/x").sealed);
        // What lies there was written one way, and cannot be read the other.
        assert!(!plain.is_at_same_place(&read("disk=/var/tmp")));
        assert!(plain.is_at_same_place(&read("disk=/var/tmp,after=1s,seal=no")));
        let wrong = BadTier::SealOfEngines.to_string();
        assert!(wrong.contains("leave seal=no out") && wrong.contains("disk=DIR,seal=no"), "{wrong}");
    }

    #[test]
    fn engines_are_read_with_what_is_said_of_them() {
        let one = Choice::parse("redis://cache:6379").unwrap();
        let engines = one.engines().unwrap();
        assert_eq!(engines.addresses().collect::<Vec<_>>(), ["cache:6379"]);
        assert_eq!((engines.copies, engines.wait, engines.by_tls()), (None, WAIT, false));
        assert_eq!((one.name(), one.directory()), ("redis://cache:6379", None));
        let text =
            "rediss://a:1,b:2,rediss://[::1]:3/,copies=3,auth=/etc/x,wait=10s,after=1s,size=1G,expire=10m";
        let three = Choice::parse(text).unwrap();
        let engines = three.engines().unwrap();
        assert_eq!(engines.addresses().collect::<Vec<_>>(), ["a:1", "b:2", "[::1]:3"]);
        assert_eq!((engines.copies, engines.auth, engines.by_tls()), (Some(3), Some("/etc/x"), true));
        assert_eq!((engines.wait, three.after), (Nanos::from_secs(10), Nanos::from_secs(1)));
        let both = Choice::parse("redis://a,disk=/var/tmp,after=1s").unwrap();
        assert_eq!((both.name(), both.directory()), ("redis://a", Some("/var/tmp")));
        assert_eq!(both.engines().unwrap().addresses().count(), 1);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, wrong) in [
            ("tape=/x", BadTier::Kind("tape")),
            ("", BadTier::Kind("")),
            ("disk=", BadTier::Directory),
            ("disk=/x,fast", BadTier::Part("fast")),
            ("disk=/x,copies=2", BadTier::Part("copies=2")),
            ("disk=/x,seal=maybe", BadTier::Seal("maybe")),
            ("disk=/x,seal=", BadTier::Seal("")),
            ("redis://a:1,seal=no", BadTier::SealOfEngines),
            ("redis://a:1,seal=no,disk=/x", BadTier::SealOfEngines),
            ("redis://a:1,disk=/x,seal=no", BadTier::SealOfEngines),
            ("rediss://a:1,seal=no", BadTier::SealOfEngines),
            ("disk=/x,size=1K", BadTier::Size("1K")),
            ("disk=/x,size=much", BadTier::Size("much")),
            ("disk=/x,after=0", BadTier::After("0")),
            ("redis://", BadTier::Address("")),
            ("redis://a:x", BadTier::Address("a:x")),
            ("redis://a:1,rediss://b:2", BadTier::Address("rediss://b:2")),
            ("redis://me:secret@a:1", BadTier::Password),
            ("redis://a:1,disk=", BadTier::Directory),
            ("redis://a:1,copies=9", BadTier::Copies("9")),
            ("redis://a:1,copies=0", BadTier::Copies("0")),
            ("redis://a:1,wait=0", BadTier::Time("wait", "0", "1s")),
            ("redis://a:1,speed=1", BadTier::Part("speed=1")),
        ] {
            assert_eq!(Choice::parse(text), Err(wrong), "{text}");
        }
    }
}
