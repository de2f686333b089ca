//! The table's schema: every key family, its bytes and its value. Only this module knows them.
//!
//! | first byte | key | value | changed by |
//! |---|---|---|---|
//! | `m` | | [`Meta`]: format, incarnation, run, clean flag, key fingerprint, [`RouteFingerprint`](crate::route::RouteFingerprint), [`Lineage`](super::lineage::Lineage) | start, stop, restore, reload |
//! | `h` | | [`Hlc`]: the mark, not behind any stamp in the table | ledger, with each batch and each second |
//! | `r` | object_id | [`Record`]: fence, state, the lease at the fence. Never deleted | ledger |
//! | `l` | object_id, 0, lease_seq (8 bytes, big endian) | [`LeaseRow`] | ledger; deleted a day after its end |
//! | `i` | lease_id | object_id and lease_seq of that lease | with its `l` row |
//! | `q` | holder_id, 0, request_id | [`RequestRow`]: what that request was granted | ledger; deleted with its leases |
//! | `c` | object_id, 0, lease_seq | a fence certificate for that lease, as it was signed. Never deleted | ledger |
//! | `p` | object_id, 0, lease_seq | a certificate that moves the fence too far, until an operator confirms | ledger |
//! | `g` | migration id | [`MigrationRow`]: how far it is | ledger; deleted a day after its end |
//! | `j` | object_id | [`JournalHead`]: how many writes have settled, and the hash over them. Never deleted | ledger |
//! | `e` | object_id, 0, number (8 bytes, big endian) | [`JournalEntry`]: one settled write | ledger; the oldest are deleted |
//! | `k` | object_id, 0, holder_id, 0, idempotency key | [`Entry`](crate::fence::idempotency::Entry): a keyed write, and its answer | ledger; deleted after `idempotency.keep_ms` |
//! | `t` | time (8 bytes, big endian), and the rest of a `k` key | nothing: the key dates from then | with its `k` row |
//!
//! Ids hold no control characters, so byte 0 separates them. Numbers are big endian, so keys sort as numbers. Every
//! value begins with [`FORMAT`]. A value has exactly one encoding, and all other bytes fail to decode. Secrets are
//! not stored: decoding a record makes them anew from the table's key.

mod authority;
mod bytes;
mod keyed;
mod rows;

use thiserror::Error;

pub use authority::{JournalEntry, JournalHead, MigrationRow, Wrote, decode_signed, encode_signed};
pub use keyed::{decode_entry, encode_entry};
pub use rows::{Context, Meta, RequestRow};

use self::bytes::{Reader, Writer};
use crate::fence::{
    Hlc, HolderId, LeaseId, LeaseRow, LeaseSeq, MigrationId, ObjectId, Record, RequestId, WallMs,
    idempotency::{IdempotencyKey, Scope},
};

/// The version of every value.
pub const FORMAT: u8 = 2;

/// Bytes that are not a row of this table.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("a row does not decode: {0}")]
pub struct CodecFault(pub &'static str);

/// A key of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    Meta,
    Mark,
    Record(ObjectId),
    Lease(ObjectId, LeaseSeq),
    LeaseIndex(LeaseId),
    Request(HolderId, RequestId),
    Certificate(ObjectId, LeaseSeq),
    Parked(ObjectId, LeaseSeq),
    Migration(MigrationId),
    Journal(ObjectId),
    JournalEntry(ObjectId, u64),
    Keyed(Scope),
    KeyedAt(u64, Scope),
}

/// A key family's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    Meta,
    Mark,
    Record,
    Lease,
    LeaseIndex,
    Request,
    Certificate,
    Parked,
    Migration,
    Journal,
    JournalEntry,
    Keyed,
    KeyedAt,
}

impl Family {
    pub const ALL: [Self; 13] = [
        Self::Meta,
        Self::Mark,
        Self::Record,
        Self::Lease,
        Self::LeaseIndex,
        Self::Request,
        Self::Certificate,
        Self::Parked,
        Self::Migration,
        Self::Journal,
        Self::JournalEntry,
        Self::Keyed,
        Self::KeyedAt,
    ];

    #[must_use]
    pub const fn byte(self) -> u8 {
        match self {
            Self::Meta => b'm',
            Self::Mark => b'h',
            Self::Record => b'r',
            Self::Lease => b'l',
            Self::LeaseIndex => b'i',
            Self::Request => b'q',
            Self::Certificate => b'c',
            Self::Parked => b'p',
            Self::Migration => b'g',
            Self::Journal => b'j',
            Self::JournalEntry => b'e',
            Self::Keyed => b'k',
            Self::KeyedAt => b't',
        }
    }

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Meta => "meta",
            Self::Mark => "mark",
            Self::Record => "records",
            Self::Lease => "leases",
            Self::LeaseIndex => "lease ids",
            Self::Request => "requests",
            Self::Certificate => "certificates",
            Self::Parked => "parked certificates",
            Self::Migration => "migrations",
            Self::Journal => "journals",
            Self::JournalEntry => "journal entries",
            Self::Keyed => "idempotency keys",
            Self::KeyedAt => "idempotency keys by time",
        }
    }

    /// The range of the keys of keyed writes that were remembered up to a time.
    #[must_use]
    pub fn keyed_until(at: WallMs) -> (Vec<u8>, Vec<u8>) {
        let from = vec![Self::KeyedAt.byte()];
        let until = [&from[..], &at.0.saturating_add(1).to_be_bytes()].concat();
        (from, until)
    }

    /// The range of this family's keys whose next bytes are `prefix`.
    #[must_use]
    pub fn range(self, prefix: &str) -> (Vec<u8>, Vec<u8>) {
        let mut from = vec![self.byte()];
        from.extend_from_slice(prefix.as_bytes());
        let mut until = from.clone();
        // The first key after all keys with the prefix. UTF-8 never has the byte 0xff.
        until.push(0xff);
        (from, until)
    }

    /// The range of this family's keys of one object that end with a number.
    #[must_use]
    pub fn range_of(self, object: &ObjectId) -> (Vec<u8>, Vec<u8>) {
        let mut from = vec![self.byte()];
        from.extend_from_slice(object.as_str().as_bytes());
        let mut until = from.clone();
        from.push(0);
        until.push(1);
        (from, until)
    }
}

/// Room for most keys.
const KEY_BYTES: usize = 64;

impl Key {
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(KEY_BYTES);
        self.encode_into(&mut bytes);
        bytes
    }

    /// Appends the key's bytes.
    pub fn encode_into(&self, bytes: &mut Vec<u8>) {
        bytes.push(self.family().byte());
        match self {
            Self::Meta | Self::Mark => {}
            Self::Record(object) | Self::Journal(object) => bytes.extend_from_slice(object.as_str().as_bytes()),
            Self::Lease(object, seq) | Self::Certificate(object, seq) | Self::Parked(object, seq) => {
                encode_numbered(bytes, object, seq.get());
            }
            Self::Migration(id) => bytes.extend_from_slice(id.as_str().as_bytes()),
            Self::JournalEntry(object, number) => encode_numbered(bytes, object, *number),
            Self::Keyed(scope) => encode_scope(bytes, scope),
            Self::KeyedAt(at, scope) => {
                bytes.extend_from_slice(&at.to_be_bytes());
                encode_scope(bytes, scope);
            }
            Self::LeaseIndex(lease) => bytes.extend_from_slice(lease.as_str().as_bytes()),
            Self::Request(holder, request) => {
                bytes.extend_from_slice(holder.as_str().as_bytes());
                bytes.push(0);
                bytes.extend_from_slice(request.as_str().as_bytes());
            }
        }
    }

    /// Reads a key.
    ///
    /// # Errors
    /// When the bytes are not a key of this schema.
    pub fn decode(key: &[u8]) -> Result<Self, CodecFault> {
        let (&family, rest) = key.split_first().ok_or(CodecFault("an empty key"))?;
        match family {
            b'm' if rest.is_empty() => Ok(Self::Meta),
            b'h' if rest.is_empty() => Ok(Self::Mark),
            b'r' => Ok(Self::Record(object(rest)?)),
            b'l' => numbered_seq(rest).map(|(object, seq)| Self::Lease(object, seq)),
            b'c' => numbered_seq(rest).map(|(object, seq)| Self::Certificate(object, seq)),
            b'p' => numbered_seq(rest).map(|(object, seq)| Self::Parked(object, seq)),
            b'g' => Ok(Self::Migration(MigrationId::new(text(rest)?).map_err(|_| CodecFault("a bad migration id"))?)),
            b'j' => Ok(Self::Journal(object(rest)?)),
            b'e' => numbered(rest).map(|(object, number)| Self::JournalEntry(object, number)),
            b'k' => scope(rest).map(Self::Keyed),
            b't' => {
                let (at, rest) = rest.split_first_chunk().ok_or(CodecFault("a key without a time"))?;
                scope(rest).map(|scope| Self::KeyedAt(u64::from_be_bytes(*at), scope))
            }
            b'i' => Ok(Self::LeaseIndex(LeaseId::new(text(rest)?).map_err(|_| CodecFault("a bad lease id"))?)),
            b'q' => {
                let (holder, request) =
                    text(rest)?.split_once('\0').ok_or(CodecFault("a request key without a separator"))?;
                let holder = HolderId::new(holder).map_err(|_| CodecFault("a bad holder id"))?;
                let request = RequestId::new(request).map_err(|_| CodecFault("a bad request id"))?;
                Ok(Self::Request(holder, request))
            }
            _ => Err(CodecFault("a key of no known family")),
        }
    }

    #[must_use]
    pub fn family(&self) -> Family {
        match self {
            Self::Meta => Family::Meta,
            Self::Mark => Family::Mark,
            Self::Record(_) => Family::Record,
            Self::Lease(..) => Family::Lease,
            Self::LeaseIndex(_) => Family::LeaseIndex,
            Self::Request(..) => Family::Request,
            Self::Certificate(..) => Family::Certificate,
            Self::Parked(..) => Family::Parked,
            Self::Migration(_) => Family::Migration,
            Self::Journal(_) => Family::Journal,
            Self::JournalEntry(..) => Family::JournalEntry,
            Self::Keyed(_) => Family::Keyed,
            Self::KeyedAt(..) => Family::KeyedAt,
        }
    }
}

fn encode_numbered(bytes: &mut Vec<u8>, object: &ObjectId, number: u64) {
    bytes.extend_from_slice(object.as_str().as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(&number.to_be_bytes());
}

fn numbered(rest: &[u8]) -> Result<(ObjectId, u64), CodecFault> {
    let (head, number) = rest.split_last_chunk().ok_or(CodecFault("a key without a number"))?;
    let head = head.strip_suffix(&[0]).ok_or(CodecFault("a key without a separator"))?;
    Ok((object(head)?, u64::from_be_bytes(*number)))
}

fn numbered_seq(rest: &[u8]) -> Result<(ObjectId, LeaseSeq), CodecFault> {
    let (object, number) = numbered(rest)?;
    Ok((object, LeaseSeq::new(number).ok_or(CodecFault("a key with number 0"))?))
}

fn encode_scope(bytes: &mut Vec<u8>, Scope { object, holder, key }: &Scope) {
    bytes.extend_from_slice(object.as_str().as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(holder.as_str().as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(key.as_str().as_bytes());
}

fn scope(rest: &[u8]) -> Result<Scope, CodecFault> {
    let fault = CodecFault("a key of no keyed write");
    let mut parts = text(rest)?.splitn(3, '\0');
    let (Some(object), Some(holder), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(fault);
    };
    let (object, holder) = (ObjectId::new(object), HolderId::new(holder));
    match (object, holder, IdempotencyKey::new(key)) {
        (Ok(object), Ok(holder), Some(key)) => Ok(Scope { object, holder, key }),
        _ => Err(fault),
    }
}

fn text(bytes: &[u8]) -> Result<&str, CodecFault> {
    std::str::from_utf8(bytes).map_err(|_| CodecFault("text that is not UTF-8"))
}

fn object(bytes: &[u8]) -> Result<ObjectId, CodecFault> {
    ObjectId::new(text(bytes)?).map_err(|_| CodecFault("a bad object id"))
}

/// The mark's value.
#[must_use]
pub fn encode_mark(mark: Hlc) -> Vec<u8> {
    Writer::row().hlc(mark).done()
}

/// Reads the mark.
///
/// # Errors
/// When the bytes are not a mark.
pub fn decode_mark(value: &[u8]) -> Result<Hlc, CodecFault> {
    let mut reader = Reader::row(value)?;
    let mark = reader.hlc()?;
    reader.end()?;
    Ok(mark)
}

/// The value of a lease id's row: the object and number of the lease.
#[must_use]
pub fn encode_index(object: &ObjectId, seq: LeaseSeq) -> Vec<u8> {
    Writer::row().text(object.as_str()).u64(seq.get()).done()
}

/// Reads the object and number of a lease id's row.
///
/// # Errors
/// When the bytes are not an index row.
pub fn decode_index(value: &[u8]) -> Result<(ObjectId, LeaseSeq), CodecFault> {
    let mut reader = Reader::row(value)?;
    let found = (reader.object()?, reader.seq()?);
    reader.end()?;
    Ok(found)
}

/// A record's value. `run` is the run of the gate in which the lease's deadline counts.
#[must_use]
pub fn encode_record(record: &Record, run: u64) -> Vec<u8> {
    rows::write_record(record, run)
}

/// Reads an object's row as this run of the gate sees it.
///
/// # Errors
/// When the bytes are not a record.
pub fn decode_record(object: ObjectId, value: &[u8], context: &Context) -> Result<Record, CodecFault> {
    rows::read_record(object, value, context)
}

/// A lease row's value.
#[must_use]
pub fn encode_lease(row: &LeaseRow) -> Vec<u8> {
    rows::write_lease_row(row)
}

/// Reads a lease's row.
///
/// # Errors
/// When the bytes are not a lease row.
pub fn decode_lease(object: ObjectId, seq: LeaseSeq, value: &[u8]) -> Result<LeaseRow, CodecFault> {
    rows::read_lease_row(object, seq, value)
}

#[cfg(test)]
mod tests;
