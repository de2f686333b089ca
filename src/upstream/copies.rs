//! Small pieces of what was read, copied so that the buffer that they were read into can be used again.

use bytes::{Bytes, BytesMut};

/// How much memory pieces share. More: fewer allocations. Less: a piece that is kept for long keeps less memory.
const SHARED_BYTES: usize = 4 << 10;
/// A longer piece has memory of its own.
const SMALL_BYTES: usize = 1 << 10;

/// Where copies are made. Copies that follow each other share an allocation.
#[derive(Debug, Default)]
pub struct Copies(BytesMut);

impl Copies {
    #[must_use]
    pub fn copy(&mut self, piece: &[u8]) -> Bytes {
        if piece.len() > SMALL_BYTES {
            return Bytes::copy_from_slice(piece);
        }
        if self.0.capacity() < piece.len() {
            // Takes the memory of earlier copies again, if none of them is left.
            self.0.reserve(SHARED_BYTES);
        }
        self.0.extend_from_slice(piece);
        self.0.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_stay_what_they_are_whatever_is_copied_behind_them() {
        let mut copies = Copies::default();
        let kept: Vec<(Vec<u8>, Bytes)> = (0..3_000_usize)
            .map(|number| {
                let piece = vec![u8::try_from(number % 251).unwrap(); number % 1_300];
                let copy = copies.copy(&piece);
                (piece, copy)
            })
            .filter(|(piece, _)| piece.len() % 3 != 0)
            .collect();
        assert!(kept.iter().all(|(piece, copy)| piece == copy));
    }
}
