//! A long row of numbers: in memory while it is short, and in a temporary file without a name once it is not.
//!
//! Invariants: blocks begin at multiples of [`BLOCK`]; what is in the file is whole blocks, but for a column made by
//! [`Column::of_len`]. Several threads can read a column at the same time.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Numbers that are read at once.
pub const BLOCK: usize = 1 << 15;
/// Numbers that stay in memory: 32 MiB of them.
const MOST_IN_MEMORY: usize = 8 << 20;

/// The numbers.
#[derive(Default, Debug)]
pub struct Column {
    file: Option<File>,
    /// Numbers that are in the file.
    filed: u64,
    /// Those after them.
    tail: Vec<u32>,
}

impl Column {
    /// A column of zeros, to be filled by [`Column::set`].
    ///
    /// # Errors
    /// When there is no place for a temporary file.
    pub fn of_len(len: u64) -> io::Result<Column> {
        if len <= MOST_IN_MEMORY as u64 {
            return Ok(Column { tail: vec![0; len as usize], ..Column::default() });
        }
        Ok(Column { file: Some(tempfile::tempfile()?), filed: len, tail: Vec::new() })
    }

    /// How many numbers there are.
    pub fn len(&self) -> u64 {
        self.filed + self.tail.len() as u64
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a number.
    ///
    /// # Errors
    /// When it cannot be written to the temporary file.
    pub fn push(&mut self, number: u32) -> io::Result<()> {
        self.tail.push(number);
        let most = if self.file.is_some() { BLOCK } else { MOST_IN_MEMORY };
        if self.tail.len() < most {
            return Ok(());
        }
        if self.file.is_none() {
            self.file = Some(tempfile::tempfile()?);
        }
        let tail = std::mem::take(&mut self.tail);
        let file = self.file.as_ref().expect("made above");
        for part in tail.chunks(BLOCK) {
            file.write_all_at(&bytes(part), self.filed * 4)?;
            self.filed += part.len() as u64;
        }
        Ok(())
    }

    /// Writes a block of a column made by [`Column::of_len`].
    ///
    /// # Errors
    /// When it cannot be written to the temporary file.
    pub fn set(&mut self, start: u64, numbers: &[u32]) -> io::Result<()> {
        match &self.file {
            Some(file) => file.write_all_at(&bytes(numbers), start * 4),
            None => {
                self.tail[start as usize..][..numbers.len()].copy_from_slice(numbers);
                Ok(())
            }
        }
    }

    /// The places at which blocks begin, ascending.
    pub fn starts(&self) -> impl DoubleEndedIterator<Item = u64> {
        let len = self.len();
        (0..len.div_ceil(BLOCK as u64)).map(|block| block * BLOCK as u64)
    }

    /// The block that begins at `start`; `buffer` may be needed to hold it.
    ///
    /// # Errors
    /// When it cannot be read from the temporary file.
    pub fn block<'a>(&'a self, start: u64, buffer: &'a mut Vec<u32>) -> io::Result<&'a [u32]> {
        let len = (self.len() - start).min(BLOCK as u64) as usize;
        match &self.file {
            Some(file) if start < self.filed => {
                let mut raw = vec![0; len * 4];
                file.read_exact_at(&mut raw, start * 4)?;
                buffer.clear();
                let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                buffer.extend(raw.chunks_exact(4).map(word));
                Ok(buffer)
            }
            _ => Ok(&self.tail[(start - self.filed) as usize..][..len]),
        }
    }
}

fn bytes(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(column: &Column) -> Vec<u32> {
        let mut buffer = Vec::new();
        column.starts().flat_map(|start| column.block(start, &mut buffer).unwrap().to_vec()).collect()
    }

    #[test]
    fn a_column_gives_what_it_was_given_in_memory_and_in_a_file() {
        for len in [0, 1, BLOCK, BLOCK + 1, MOST_IN_MEMORY, MOST_IN_MEMORY + BLOCK + 7] {
            let given: Vec<u32> = (0..len as u32).map(|n| n.wrapping_mul(2_654_435_761)).collect();
            let mut pushed = Column::default();
            given.iter().for_each(|&number| pushed.push(number).unwrap());
            assert_eq!(pushed.file.is_some(), len >= MOST_IN_MEMORY);
            assert!(numbers(&pushed) == given, "pushed {len}");
            let mut set = Column::of_len(len as u64).unwrap();
            for start in set.starts().rev() {
                let start = start as usize;
                set.set(start as u64, &given[start..(start + BLOCK).min(len)]).unwrap();
            }
            assert!(numbers(&set) == given, "set {len}");
        }
    }
}
