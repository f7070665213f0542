//! The controller that says how many pages a pass should free.

/// Divisors of the proportional, the integral and the derivative part, and the bound of the integral in setpoints
/// (FreeBSD 12, `sys/pidctrl.h`).
const KPD: i64 = 3;
const KID: i64 = 4;
const KDD: i64 = 8;
const BOUND: i64 = 4;

/// A proportional-integral-derivative controller that can only ask for work, not for the opposite: its integral and its
/// output are never negative (FreeBSD 12, `pidctrl_daemon` in `subr_pidctrl.c`; Roberson, 2017).
///
/// Several calls within an interval count as one at its beginning: each asks only for what the ones before did not.
#[derive(Clone, Debug, Default)]
pub struct Pid {
    error: i64,
    old_error: i64,
    integral: i64,
    output: i64,
    /// Time since the interval began, ns.
    passed: u64,
}

impl Pid {
    /// How many more pages are to be freed, when `free` are and `setpoint` should be, `elapsed` ns after the last call.
    pub fn ask(&mut self, setpoint: usize, free: usize, elapsed: u64, interval: u64) -> usize {
        let mut error = setpoint as i64 - free as i64;
        self.passed = self.passed.saturating_add(elapsed);
        if self.passed >= interval {
            self.passed = 0;
            self.old_error = self.error;
            (self.error, self.output) = (0, 0);
        } else {
            error -= self.error - self.output;
        }
        self.error += error;
        self.integral = (self.integral + error).clamp(0, setpoint as i64 * BOUND);
        let derivative = self.error - self.old_error;
        let output = self.error / KPD + self.integral / KID + derivative / KDD;
        let more = (output - self.output).max(0);
        self.output += more;
        more as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lasting_shortage_is_answered_with_more_each_interval_and_none_with_nothing() {
        let mut pid = Pid::default();
        assert_eq!(pid.ask(120, 120, 10, 10), 0);
        // 24 too few: 24/3 + 24/4 + 24/8, then the integral grows and the error stays.
        assert_eq!(pid.ask(120, 96, 10, 10), 8 + 6 + 3);
        assert_eq!(pid.ask(120, 96, 10, 10), 8 + 12);
        assert_eq!(pid.ask(120, 200, 10, 10), 0);
    }

    #[test]
    fn a_second_call_in_an_interval_asks_only_for_what_the_first_did_not() {
        let mut pid = Pid::default();
        assert_eq!(pid.ask(120, 96, 10, 10), 17);
        // All 17 were freed: what is left of the error is what the first call would have left too.
        assert_eq!(pid.ask(120, 113, 1, 10), 0);
    }
}
