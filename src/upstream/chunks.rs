//! A body in chunks, read piece by piece. Pure.
//!
//! Strict: lines end in CR LF, sizes are plain hexadecimal. Extensions beside the data are skipped, and bounded.

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;

use super::{
    answer::{self, Unreadable},
    copies::Copies,
};

/// How many bytes of extensions one body may have.
const EXTENSIONS_MAX: usize = 16 << 10;
/// A piece up to this size is copied, so that the buffer can be used again.
const COPY_MAX: usize = 4 << 10;

/// What has been read.
#[derive(Debug, PartialEq)]
pub enum Piece {
    Data(Bytes),
    /// More has to be read first.
    None,
    /// The body is complete.
    End(Option<HeaderMap>),
}

/// A body that comes in chunks.
#[derive(Debug, Default)]
pub struct Chunks {
    at: At,
    extensions: usize,
}

#[derive(Clone, Copy, Debug, Default)]
enum At {
    #[default]
    FirstDigit,
    Size {
        size: u64,
        digits: u8,
    },
    Extension(u64),
    SizeLf(u64),
    Data(u64),
    DataCr,
    DataLf,
    Trailers,
}

impl Chunks {
    /// The next piece of the body in the buffer.
    ///
    /// # Errors
    /// With what is wrong with the body.
    pub fn next(&mut self, buffer: &mut BytesMut) -> Result<Piece, Unreadable> {
        loop {
            match self.at {
                At::Data(left) => return Ok(self.data(left, buffer)),
                At::Trailers => return trailers(buffer),
                _ => {}
            }
            if buffer.is_empty() {
                return Ok(Piece::None);
            }
            let byte = buffer.get_u8();
            self.at = self.step(byte)?;
        }
    }

    fn data(&mut self, left: u64, buffer: &mut BytesMut) -> Piece {
        let taken = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        if taken == 0 {
            return Piece::None;
        }
        let left = left - taken as u64;
        self.at = if left == 0 { At::DataCr } else { At::Data(left) };
        Piece::Data(take(buffer, taken, None))
    }

    /// Reads a byte that is not data.
    fn step(&mut self, byte: u8) -> Result<At, Unreadable> {
        const BAD: Unreadable = "the chunks of its answer cannot be read";
        let hex = char::from(byte).to_digit(16).map(u64::from);
        Ok(match (self.at, byte) {
            (At::FirstDigit, _) => At::Size { size: hex.ok_or(BAD)?, digits: 1 },
            (At::Size { size, .. } | At::Extension(size), b'\r') => At::SizeLf(size),
            (At::Size { size, .. }, b';' | b' ' | b'\t') => At::Extension(size),
            (At::Size { size, digits }, _) => match hex {
                Some(digit) if digits < 16 => At::Size { size: size << 4 | digit, digits: digits + 1 },
                _ => return Err(BAD),
            },
            (At::Extension(_), b'\n') => return Err(BAD),
            (At::Extension(size), _) => {
                self.extensions += 1;
                if self.extensions > EXTENSIONS_MAX {
                    return Err("the chunks of its answer have too many extensions");
                }
                At::Extension(size)
            }
            (At::SizeLf(0), b'\n') => At::Trailers,
            (At::SizeLf(size), b'\n') => At::Data(size),
            (At::DataCr, b'\r') => At::DataLf,
            (At::DataLf, b'\n') => At::FirstDigit,
            (At::SizeLf(_) | At::DataCr | At::DataLf | At::Data(_) | At::Trailers, _) => return Err(BAD),
        })
    }
}

fn trailers(buffer: &mut BytesMut) -> Result<Piece, Unreadable> {
    let Some((length, trailers)) = answer::parse_trailers(buffer)? else { return Ok(Piece::None) };
    buffer.advance(length);
    Ok(Piece::End(Some(trailers).filter(|trailers| !trailers.is_empty())))
}

/// Takes a number of bytes out of a buffer.
pub fn take(buffer: &mut BytesMut, bytes: usize, copies: Option<&mut Copies>) -> Bytes {
    if bytes > COPY_MAX {
        return buffer.split_to(bytes).freeze();
    }
    let piece = &buffer[..bytes];
    let copy = copies.map_or_else(|| Bytes::copy_from_slice(piece), |copies| copies.copy(piece));
    buffer.advance(bytes);
    copy
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads a body that comes in these pieces: its data, its trailers, and how many bytes are left.
    fn read(pieces: &[&[u8]]) -> Result<(Vec<u8>, Option<HeaderMap>, usize), Unreadable> {
        let (mut chunks, mut buffer, mut data) = (Chunks::default(), BytesMut::new(), vec![]);
        for piece in pieces {
            buffer.extend_from_slice(piece);
            loop {
                match chunks.next(&mut buffer)? {
                    Piece::Data(bytes) => data.extend_from_slice(&bytes),
                    Piece::None => break,
                    Piece::End(trailers) => return Ok((data, trailers, buffer.len())),
                }
            }
        }
        Err("not whole")
    }

    #[test]
    fn chunks_are_joined_and_what_stands_beside_them_is_read_over() {
        let (data, trailers, left) =
            read(&[b"4;a=\"b\"\r\nwiki\r\n0A \r\n0123456789\r\n0\r\nx-sum: 1\r\n\r\nHTTP"]).unwrap();
        assert_eq!((data.as_slice(), left), (&b"wiki0123456789"[..], 4));
        assert_eq!(trailers.unwrap()["x-sum"], "1");
        assert_eq!(read(&[b"0\r\n\r\n"]), Ok((vec![], None, 0)));
    }

    #[test]
    fn what_two_readers_could_read_in_two_ways_is_not_read() {
        for bad in [
            &b"4\nwiki\r\n0\r\n\r\n"[..],
            b"4\r\nwiki0\r\n\r\n",
            b"4\r\nwiki\n0\r\n\r\n",
            b"-4\r\nwiki\r\n",
            b"0x4\r\nwiki\r\n",
            b"\r\n",
            b" 4\r\nwiki\r\n",
            b"4;a\nb\r\nwiki\r\n",
            b"10000000000000000\r\n",
            b"0\r\nbad trailer\r\n\r\n",
            b"0\r\n\nHTTP",
            b"0\r\nx: y\n\r\n",
            b"0\r\nx: y\r\n\n",
            b"0\r\nx: y\n",
        ] {
            assert!(read(&[bad]).is_err_and(|why| why != "not whole"), "{:?}", String::from_utf8_lossy(bad));
        }
        let extensions = [b"1;".to_vec(), vec![b'x'; EXTENSIONS_MAX + 1]].concat();
        assert!(read(&[&extensions]).is_err_and(|why| why != "not whole"));
    }

    proptest! {
        #[test]
        fn however_it_is_cut_it_reads_the_same(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..6_000), 0..5),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let mut text = vec![];
            for part in &parts {
                text.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
                text.extend_from_slice(part);
                text.extend_from_slice(b"\r\n");
            }
            text.extend_from_slice(b"0\r\n\r\n");
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
            let (data, trailers, left) = read(&pieces).unwrap();
            prop_assert_eq!((data, trailers, left), (parts.concat(), None, 0));
            // The body is not complete one byte earlier.
            let last = text.len() - 1;
            prop_assert!(read(&[&text[..last]]).is_err());
        }
    }
}
