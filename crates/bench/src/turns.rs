//! The order of the arms in a repeat.

/// The arms of a repeat, one after the other; another one begins in the next, so that none always follows the same.
pub(crate) fn of<T: Clone>(arms: &[T], repeat: usize) -> impl Iterator<Item = T> + '_ {
    (0..arms.len()).map(move |place| arms[(place + repeat) % arms.len()].clone())
}
