//! Waiting for memory where there is no going on without.
//!
//! What it is not: for places where the pager can do without, which go on without.

use memfold_sys::time::{sleep, Nanos};
use memfold_sys::{Errno, Result};

/// How often, a millisecond apart.
const TRIES: u32 = 1000;

/// Does `work`, again and again while it fails for lack of memory. After a second the error is final.
pub fn patiently<R>(mut work: impl FnMut() -> Result<R>) -> Result<R> {
    for _ in 1..TRIES {
        match work() {
            Err(Errno::ENOMEM) => sleep(Nanos::from_millis(1)),
            result => return result,
        }
    }
    work()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_memory_is_waited_out_and_other_errors_are_not() {
        let mut tries = 0;
        let mut fails_thrice = || {
            tries += 1;
            if tries > 3 {
                Ok(tries)
            } else {
                Err(Errno::ENOMEM)
            }
        };
        assert_eq!(patiently(&mut fails_thrice), Ok(4));
        let mut tries = 0;
        let refused = patiently(|| {
            tries += 1;
            Err::<(), _>(Errno::EINVAL)
        });
        assert_eq!((refused, tries), (Err(Errno::EINVAL), 1));
    }
}
