//! The rows of keyed writes.

use super::{
    CodecFault,
    bytes::{Reader, Writer},
};
use crate::fence::{
    BootMs, WallMs,
    idempotency::{Entry, KeptResponse, Response, Since},
};

const NONE: u8 = 0;
const WHOLE: u8 = 1;
const DROPPED: u8 = 2;

/// A keyed write's value.
#[must_use]
pub fn encode_entry(entry: &Entry) -> Vec<u8> {
    let Entry { payload, seq, lease_id, at, since, attempt, answer } = entry;
    let row = Writer::row().u64(seq.get()).text(lease_id.as_str()).u64(at.0).u64(*attempt);
    let row = match payload {
        None => row.u8(0),
        Some(payload) => row.u8(1).bytes(payload),
    };
    let row = match answer {
        KeptResponse::None => row.u8(NONE),
        KeptResponse::Dropped { status } => row.u8(DROPPED).u32((*status).into()),
        KeptResponse::Whole(Response { status, headers, body }) => {
            let count = u32::try_from(headers.len()).expect("headers are bounded");
            let row = row.u8(WHOLE).u32((*status).into()).u32(count);
            headers.iter().fold(row, |row, (name, value)| row.text(name).blob(value)).blob(body)
        }
    };
    // Last, and absent in rows of earlier versions.
    match since {
        None => row.done(),
        Some(Since { run, boot }) => row.u64(*run).u64(boot.0).done(),
    }
}

/// Reads a keyed write.
///
/// # Errors
/// When the bytes are not such a row.
pub fn decode_entry(value: &[u8]) -> Result<Entry, CodecFault> {
    let mut reader = Reader::row(value)?;
    let (seq, lease_id) = (reader.seq()?, reader.lease_id()?);
    let (at, attempt) = (WallMs(reader.u64()?), reader.u64()?);
    let payload = if reader.flag()? { Some(reader.array()?) } else { None };
    let answer = match reader.u8()? {
        NONE => KeptResponse::None,
        DROPPED => KeptResponse::Dropped { status: status(&mut reader)? },
        WHOLE => {
            let (status, count) = (status(&mut reader)?, reader.u32()?);
            let headers = (0..count).map(|_| Ok((reader.text()?.to_owned(), reader.blob()?.to_vec())));
            let headers = headers.collect::<Result<_, CodecFault>>()?;
            KeptResponse::Whole(Response { status, headers, body: reader.blob()?.to_vec() })
        }
        _ => return Err(CodecFault("an answer of no known kind")),
    };
    let since = if reader.is_at_end() { None } else { Some(Since { run: reader.u64()?, boot: BootMs(reader.u64()?) }) };
    reader.end()?;
    Ok(Entry { payload, seq, lease_id, at, since, attempt, answer })
}

fn status(reader: &mut Reader<'_>) -> Result<u16, CodecFault> {
    u16::try_from(reader.u32()?).map_err(|_| CodecFault("a status that is none"))
}
