//! Which kernel runs.

use crate::syscall;

/// The running kernel's version: of `6.18.44-x` it is (6, 18). (0, 0) if it does not say.
pub fn kernel() -> (u32, u32) {
    // SAFETY: zeros are such a structure.
    let mut name: libc::utsname = unsafe { core::mem::zeroed() };
    // SAFETY: one valid structure, which the kernel fills.
    let _ = unsafe { syscall!(uname, &mut name as *mut libc::utsname as usize) };
    version_of(name.release.iter().map(|&byte| byte as u8))
}

fn version_of(release: impl Iterator<Item = u8>) -> (u32, u32) {
    let mut numbers = [0u32; 2];
    let mut at = 0;
    for byte in release {
        match byte {
            b'0'..=b'9' => {
                numbers[at] = numbers[at].saturating_mul(10).saturating_add(u32::from(byte - b'0'))
            }
            b'.' if at == 0 => at = 1,
            _ => break,
        }
    }
    (numbers[0], numbers[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_the_first_two_numbers() {
        for (text, version) in
            [("6.18.44-fc\0", (6, 18)), ("6.1.0-56-cloud", (6, 1)), ("7-rc1", (7, 0)), ("", (0, 0))]
        {
            assert_eq!(version_of(text.bytes()), version, "{text}");
        }
        assert!(kernel() >= (4, 0));
    }
}
