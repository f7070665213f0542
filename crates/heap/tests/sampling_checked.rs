//! Sampled blocks where blocks are checked.

use memfold_heap::*;
use std::thread;

#[test]
fn checked_blocks_are_sampled_and_forgotten_when_they_are_freed() {
    harden(0x1234_5678_9abc_def1, |what, address, _| panic!("{what} at {address:#x}"));
    assert!(sample(2 << 10, 0..0));
    let blocks: Vec<usize> = (0..10_000).map(|i| malloc([100, 3000, 80_000][i % 3]) as usize).collect();
    let live = summary().live;
    assert!(live > 5_000, "{live}");
    // SAFETY: each block is freed once.
    thread::spawn(move || blocks.into_iter().for_each(|block| unsafe { free(block as *mut u8) }))
        .join()
        .unwrap();
    assert_eq!(summary().live, 0);
    sample(0, 0..0);
}
