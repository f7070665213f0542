//! A thread that does something again and again until it is told to end.
//!
//! Invariants: ending waits for the thread, and the work is done one last time before it ends, so that no time at the
//! end goes unseen. It takes no more than one part in [`LEAST_PAUSE`] of the time, so that it does not disturb what it watches.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The work rests for so many times as long as it took.
const LEAST_PAUSE: u32 = 200;

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub struct Ticker<T> {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<T>>,
}

impl<T: Send + 'static> Ticker<T> {
    /// Calls `tick` with `state` every `interval`, more rarely if it takes long, and the first time after one of them.
    pub fn start(
        interval: Duration,
        mut state: T,
        mut tick: impl FnMut(&mut T) + Send + 'static,
    ) -> Ticker<T> {
        let (end, ended) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut pause = interval;
            while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let began = Instant::now();
                tick(&mut state);
                pause = interval.max(began.elapsed() * LEAST_PAUSE);
            }
            tick(&mut state);
            state
        });
        Ticker { end: Some(end), thread: Some(thread) }
    }

    /// Ends it and returns what it has gathered; `None` if it panicked.
    pub fn finish(mut self) -> Option<T> {
        self.end = None;
        self.thread.take().and_then(|thread| thread.join().ok())
    }
}

impl<T> Drop for Ticker<T> {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_is_done_at_least_once_even_when_it_ends_at_once() {
        let ticker = Ticker::start(Duration::from_secs(3600), 0, |count| *count += 1);
        assert_eq!(ticker.finish(), Some(1));
    }

    #[test]
    fn work_that_takes_long_is_done_rarely() {
        let ticker = Ticker::start(Duration::from_millis(1), 0, |count| {
            *count += 1;
            thread::sleep(Duration::from_millis(50));
        });
        thread::sleep(Duration::from_millis(300));
        // Once after the interval, once at the end.
        assert_eq!(ticker.finish(), Some(2));
    }

    #[test]
    fn the_work_is_repeated() {
        let (told, heard) = mpsc::channel();
        let ticker = Ticker::start(Duration::from_millis(1), 0, move |count| {
            *count += 1;
            let _ = told.send(());
        });
        (0..3).for_each(|_| heard.recv().unwrap());
        assert!(ticker.finish().unwrap() >= 3);
    }
}
