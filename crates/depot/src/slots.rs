//! Which node of a cluster has which keys: the 16384 slots that a cluster shares out (Redis Cluster Specification, "Key distribution model").
//!
//! What it is not: the nodes. It knows their addresses alone.

use redis::Value;

/// How many there are.
const SLOTS: u16 = 16384;

/// The slot of a key without braces.
pub fn of(key: &str) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(key.as_bytes()) % SLOTS
}

/// The slots that a node has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Range {
    /// The first, and the last.
    pub slots: (u16, u16),
    /// Where the node is: host and port.
    pub at: (String, u16),
    /// Whether there is a replica that would take its place.
    pub has_replica: bool,
}

/// What a node answers to `CLUSTER SLOTS`. One that does not know its own name is where it was asked.
pub fn parse(answer: &Value, asked: &str) -> Vec<Range> {
    let Value::Array(ranges) = answer else { return Vec::new() };
    ranges.iter().filter_map(|range| range_of(range, asked)).collect()
}

fn range_of(range: &Value, asked: &str) -> Option<Range> {
    let Value::Array(parts) = range else { return None };
    let [first, last, node, replicas @ ..] = &parts[..] else { return None };
    let Value::Array(node) = node else { return None };
    let host = match node.first()? {
        Value::BulkString(host) if !host.is_empty() => String::from_utf8(host.clone()).ok()?,
        _ => asked.to_owned(),
    };
    let slots = (number(first)?, number(last)?);
    (slots.0 <= slots.1 && slots.1 < SLOTS).then_some(())?;
    Some(Range { slots, at: (host, number(node.get(1)?)?), has_replica: !replicas.is_empty() })
}

fn number(value: &Value) -> Option<u16> {
    match value {
        Value::Int(number) => (*number).try_into().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_slots_that_the_specification_gives_them() {
        // Its test vector, and keys with what `CLUSTER KEYSLOT` of Redis 7 says.
        assert_eq!(crc16::State::<crc16::XMODEM>::calculate(b"123456789"), 0x31C3);
        assert_eq!((of("foo"), of("memfold:1:2:3")), (12182, 16016));
    }

    #[test]
    fn an_answer_is_read_and_what_makes_no_sense_is_left_out() {
        let node = |host: &str, port| {
            Value::Array(vec![
                Value::BulkString(host.into()),
                Value::Int(port),
                Value::BulkString("id".into()),
            ])
        };
        let range = |first, last, nodes: Vec<Value>| {
            Value::Array([Value::Int(first), Value::Int(last)].into_iter().chain(nodes).collect())
        };
        let answer = Value::Array(vec![
            range(0, 5460, vec![node("10.0.0.1", 7000), node("10.0.0.4", 7003)]),
            range(5461, 16383, vec![node("", 7001)]),
            range(9, 99999, vec![node("10.0.0.2", 1)]),
            range(9, 8, vec![node("10.0.0.2", 1)]),
            range(0, 1, vec![]),
            Value::Nil,
        ]);
        let found = parse(&answer, "host");
        let one = Range { slots: (0, 5460), at: ("10.0.0.1".into(), 7000), has_replica: true };
        let other = Range { slots: (5461, 16383), at: ("host".into(), 7001), has_replica: false };
        assert_eq!(found, [one, other]);
        assert_eq!(parse(&Value::Okay, "host"), []);
    }
}
