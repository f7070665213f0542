//! `memfold ctl PID set tier`: a tier for a program that runs without one, and another size and age of the one that it has.

use crate::exit;
use crate::run::launch::known_tier;
use anyhow::{anyhow, Error, Result};
use memfold_pager::tier::choice::{BadTier, Choice};

/// What a tier's text may begin with that changes the one that there is.
const PARTS: [&str; 2] = ["size=", "after="];

fn is_of_parts(value: &str) -> bool {
    PARTS.iter().any(|part| value.starts_with(part))
}

/// Whether the value makes sense, whoever it is for.
///
/// # Errors
/// It does not (exit code 2).
pub fn check(value: &str) -> Result<()> {
    let refused = |why: String| exit::usage(format!("invalid value '{value}' for tier: {why}"));
    if is_of_parts(value) {
        return Choice::parse(&changed("disk=/", value))
            .map(drop)
            .map_err(|wrong| refused(wrong.to_string()));
    }
    known_tier(value).map(drop).map_err(refused)
}

/// The whole text of the tier for a process that has `now`, or none.
///
/// # Errors
/// It is to be changed, and there is none; or it can only be had from the start.
pub fn whole(pid: u32, now: &str, value: &str) -> Result<String> {
    if is_of_parts(value) {
        if now.is_empty() {
            return Err(anyhow!(
                "process {pid} has no tier whose {value} could be set: name one, `memfold ctl {pid} set tier disk=/var/tmp,{value}`"
            ));
        }
        return Ok(changed(now, value));
    }
    let text = known_tier(value).map_err(exit::usage)?;
    match Choice::parse(&text) {
        Ok(choice) if choice.engines().is_some() && now.is_empty() => Err(anyhow!(
            "a tier on the network is there from the start: `memfold run --tier {value} -- CMD`; process {pid} can be given a disk, `memfold ctl {pid} set tier disk=/var/tmp`"
        )),
        _ => Ok(text),
    }
}

/// The text `now` with the parts of `value` in place of its own.
fn changed(now: &str, value: &str) -> String {
    let stays = |part: &&str| !value.split(',').any(|new| new.split('=').next() == part.split('=').next());
    let parts = now.split(',').enumerate().filter(|(n, part)| *n == 0 || stays(part)).map(|(_, part)| part);
    parts.chain([value]).collect::<Vec<_>>().join(",")
}

/// What hinders the process, with the remedy.
pub fn explain(pid: u32, now: &str, text: &str, error: Error) -> Error {
    let is = |number: i32| error.to_string().contains(nix::errno::Errno::from_raw(number).desc());
    let place = |text| {
        let (name, sealed) =
            Choice::parse(text).map_or((text, true), |choice| (choice.name(), choice.sealed));
        (name, if sealed { "is sealed" } else { "is not sealed" })
    };
    let ((there, there_is), (name, is_wanted)) = (place(now), place(text));
    if is(libc::EPERM) && Choice::parse(text).is_ok_and(|choice| !choice.sealed) {
        return anyhow!("process {pid}: {}", BadTier::SealOfWiped);
    }
    if is(libc::EEXIST) {
        let stays = if there == name && there_is != is_wanted {
            format!("which {there_is}, and stays so")
        } else {
            format!("and what lies there cannot move to {name}")
        };
        return anyhow!(
            "process {pid} has a tier at {there} already, {stays}: only its size and age change, \
             `memfold ctl {pid} set tier size=20G,after=10m`"
        );
    }
    error.context(format!("process {pid} has no tier in {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_take_the_place_of_those_that_there_were() {
        assert_eq!(changed("disk=/x", "size=1G"), "disk=/x,size=1G");
        assert_eq!(changed("disk=/x,after=1m,size=2G", "size=1G"), "disk=/x,after=1m,size=1G");
        assert_eq!(
            changed("redis://a,b,size=2G,after=1s", "after=2s,size=1G"),
            "redis://a,b,after=2s,size=1G"
        );
    }

    #[test]
    fn what_makes_no_sense_or_cannot_be_is_refused_with_the_remedy() {
        assert!(check("size=1K").unwrap_err().to_string().contains("16M"));
        assert!(check("tape=/x").unwrap_err().to_string().contains("disk=DIR"));
        check("after=1m,size=1G").unwrap();
        assert!(whole(7, "", "size=1G").unwrap_err().to_string().contains("disk=/var/tmp,size=1G"));
        assert!(whole(7, "", "redis://a").unwrap_err().to_string().contains("memfold run --tier"));
        assert_eq!(whole(7, "disk=/x", "after=1m").unwrap(), "disk=/x,after=1m");
    }
}
