//! The tier that somebody asks for, as text: `disk=DIR[,size=20G][,after=10m]`.

use crate::config::{parse_duration, parse_size};
use memfold_sys::time::Nanos;

/// How long a page is stored before it goes below memory, where nobody says, and the least that it may be.
pub const AFTER: Nanos = Nanos::from_secs(600);
const LEAST_AFTER: Nanos = Nanos::from_millis(10);
/// How much the tier may take, bytes, where nobody says; and the range.
pub const SIZE: u64 = 20 << 30;
const SIZES: (u64, u64) = (16 << 20, 512 << 30);

/// Which tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice<'a> {
    /// The directory of its files.
    pub directory: &'a str,
    /// How many bytes they may have together.
    pub size: u64,
    /// How long a page must have been stored.
    pub after: Nanos,
}

/// What is wrong with the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadTier<'a> {
    /// There is no such kind of tier.
    Kind(&'a str),
    /// No directory is named.
    Directory,
    /// There is no such part.
    Part(&'a str),
    /// The size cannot be read, or is below 16M or above 512G.
    Size(&'a str),
    /// The age cannot be read, or is below 10 ms.
    After(&'a str),
}

impl core::fmt::Display for BadTier<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            BadTier::Kind(kind) => write!(f, "`{kind}` is no tier: disk=DIR is one"),
            BadTier::Directory => f.write_str("disk= wants a directory: disk=/var/tmp"),
            BadTier::Part(part) => write!(f, "`{part}` is no part of a tier: size=20G and after=10m are"),
            BadTier::Size(size) => write!(f, "size={size}: a size from 16M to 512G is needed"),
            BadTier::After(after) => {
                write!(f, "after={after}: a time such as 30s or 10m is needed, 10ms or more")
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
        let mut parts = text.split(',');
        let first = parts.next().unwrap_or("");
        let Some(directory) = first.strip_prefix("disk=") else {
            return Err(BadTier::Kind(first.split_once('=').map_or(first, |(kind, _)| kind)));
        };
        if directory.is_empty() {
            return Err(BadTier::Directory);
        }
        let mut choice = Choice { directory, size: SIZE, after: AFTER };
        for part in parts {
            match part.split_once('=') {
                Some(("size", size)) => {
                    choice.size = parse_size(size)
                        .filter(|size| (SIZES.0..=SIZES.1).contains(size))
                        .ok_or(BadTier::Size(size))?;
                }
                Some(("after", after)) => {
                    let value = parse_duration(after).map(Nanos).filter(|&value| value >= LEAST_AFTER);
                    choice.after = value.ok_or(BadTier::After(after))?;
                }
                _ => return Err(BadTier::Part(part)),
            }
        }
        Ok(choice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_is_read_with_what_holds_where_nobody_says() {
        let disk = Choice { directory: "/var/tmp", size: SIZE, after: AFTER };
        assert_eq!(Choice::parse("disk=/var/tmp"), Ok(disk));
        let all = Choice { size: 1 << 30, after: Nanos::from_secs(30), ..disk };
        assert_eq!(Choice::parse("disk=/var/tmp,size=1G,after=30s"), Ok(all));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, wrong) in [
            ("tape=/x", BadTier::Kind("tape")),
            ("", BadTier::Kind("")),
            ("disk=", BadTier::Directory),
            ("disk=/x,fast", BadTier::Part("fast")),
            ("disk=/x,size=1K", BadTier::Size("1K")),
            ("disk=/x,size=much", BadTier::Size("much")),
            ("disk=/x,after=0", BadTier::After("0")),
        ] {
            assert_eq!(Choice::parse(text), Err(wrong), "{text}");
        }
    }
}
