//! A body in chunks, as stores send it: however it is cut, the decoder finds the same data and the same end, and where it
//! finds an end, a strict parser does too.
#![no_main]

mod reference;

use bytes::BytesMut;
use fencegate::upstream::chunks::{Chunks, Piece};
use libfuzzer_sys::fuzz_target;

/// The data and what is left behind it; `None` where it has no end, or is no body in chunks.
fn decode(pieces: &[&[u8]]) -> Option<(Vec<u8>, Vec<u8>)> {
    let (mut chunks, mut buffer, mut data) = (Chunks::default(), BytesMut::new(), vec![]);
    for (place, piece) in pieces.iter().enumerate() {
        buffer.extend_from_slice(piece);
        loop {
            match chunks.next(&mut buffer).ok()? {
                Piece::Data(more) => data.extend_from_slice(&more),
                Piece::None => break,
                Piece::End(_) => return Some((data, [&buffer[..], &pieces[place + 1..].concat()].concat())),
            }
        }
    }
    None
}

fuzz_target!(|bytes: &[u8]| {
    let whole = decode(&[bytes]);
    let singles: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(decode(&singles), whole, "byte by byte");
    if let Some((data, rest)) = whole {
        let (read, _, left) = reference::chunks(bytes).expect("a strict parser finds an end, too");
        assert_eq!((read, left), (data, &rest[..]));
    }
});
