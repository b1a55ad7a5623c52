//! Buffers that begin at a cache line, so that no vector of a row lies in two.

use crate::error::{Result, filled};
use std::ops::{Deref, DerefMut};

/// Bytes of a cache line, and of the longest vector.
const LINE: usize = 64;

/// Values of which the first lies at a multiple of 64 bytes. The default is empty.
#[derive(Default)]
pub struct Aligned<T> {
    /// The allocation, whose address stays.
    values: Vec<T>,
    first: usize,
}

impl<T: Clone> Aligned<T> {
    /// `len` copies of `value`, whose size divides 64, or the error that names what the memory was for.
    pub fn filled(len: usize, value: T, what: &'static str) -> Result<Aligned<T>> {
        let mut values = filled(len.saturating_add(LINE / size_of::<T>() - 1), value, what)?;
        let first = values.as_ptr().align_offset(LINE).min(values.len() - len);
        values.truncate(first + len);
        Ok(Aligned { values, first })
    }
}

impl<T> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values[self.first..]
    }
}

impl<T> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.values[self.first..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_any_length_begin_at_a_line() {
        for len in [0, 1, 15, 16, 1000] {
            let (wide, narrow) = (Aligned::filled(len, 1.5_f32, "").unwrap(), Aligned::filled(len, 7_u16, "").unwrap());
            assert!(wide.as_ptr().align_offset(LINE) == 0 && narrow.as_ptr().align_offset(LINE) == 0);
            assert_eq!((&*wide, &*narrow), (&*vec![1.5; len], &*vec![7; len]));
        }
        assert!(Aligned::<f32>::default().is_empty());
    }
}
