//! Rows of signed statements, migrations and journals.

use super::{
    CodecFault,
    bytes::{Reader, Writer},
};
use crate::fence::{Hlc, HolderId, LeaseId, LeaseSeq, ObjectId, WallMs, authority::MigrationState};

/// A row of certificates: of each the signed bytes, followed by the signature.
#[must_use]
pub fn encode_signed(all: &[Vec<u8>]) -> Vec<u8> {
    let count = u32::try_from(all.len()).expect("they are bounded");
    all.iter().fold(Writer::row().u32(count), |row, each| row.blob(each)).done()
}

/// Reads a row of certificates.
///
/// # Errors
/// When the bytes are not such a row.
pub fn decode_signed(value: &[u8]) -> Result<Vec<Vec<u8>>, CodecFault> {
    let mut reader = Reader::row(value)?;
    let count = reader.u32()?;
    let all = (0..count).map(|_| reader.blob().map(<[u8]>::to_vec)).collect::<Result<_, _>>()?;
    reader.end()?;
    Ok(all)
}

impl MigrationState {
    fn byte(self) -> u8 {
        match self {
            Self::Fencing => 0,
            Self::Acknowledged => 1,
            Self::Granted => 2,
            Self::Active => 3,
            Self::DrainTimedOut => 4,
            Self::ActivationTimedOut => 5,
            Self::HashMismatch => 6,
            Self::Overtaken => 7,
        }
    }
}

/// A migration: who asked for what, how far it is, and what was signed so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationRow {
    pub domain: ObjectId,
    pub next_holder: HolderId,
    pub requester: HolderId,
    pub reason: String,
    pub ttl_ms: u64,
    /// The requester's time of the request: the same request with the same time is the same migration.
    pub asked: Hlc,
    pub state: MigrationState,
    /// The lease that is fenced, if there was one.
    pub fenced: Option<(LeaseId, LeaseSeq)>,
    /// The certificate, signed. Empty where there was no lease to fence.
    pub certificate: Vec<u8>,
    /// The state that the old holder left: the hash over the settled writes, and their number.
    pub left: Option<([u8; 32], u64)>,
    /// FENCE_ACKNOWLEDGED, signed. Empty before that, and where there was no lease to fence.
    pub acknowledged: Vec<u8>,
    /// LEASE_GRANT, signed. Empty before that.
    pub grant: Vec<u8>,
    /// When each state was reached, in their order.
    pub reached: Vec<(MigrationState, WallMs)>,
}

impl MigrationRow {
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let row = Writer::row()
            .text(self.domain.as_str())
            .text(self.next_holder.as_str())
            .text(self.requester.as_str())
            .text(&self.reason)
            .u64(self.ttl_ms)
            .hlc(self.asked)
            .u8(self.state.byte());
        let row = match &self.fenced {
            None => row.u8(0),
            Some((lease, seq)) => row.u8(1).text(lease.as_str()).u64(seq.get()),
        };
        let row = match &self.left {
            None => row.u8(0),
            Some((hash, writes)) => row.u8(1).bytes(hash).u64(*writes),
        };
        let row = row.blob(&self.certificate).blob(&self.acknowledged).blob(&self.grant);
        let count = u32::try_from(self.reached.len()).expect("a migration has few states");
        self.reached.iter().fold(row.u32(count), |row, (state, at)| row.u8(state.byte()).u64(at.0)).done()
    }

    /// Reads a migration's row.
    ///
    /// # Errors
    /// When the bytes are not such a row.
    pub fn decode(value: &[u8]) -> Result<Self, CodecFault> {
        let mut reader = Reader::row(value)?;
        let (domain, next_holder, requester) = (reader.object()?, reader.holder()?, reader.holder()?);
        let (reason, ttl_ms, asked) = (reader.text()?.to_owned(), reader.u64()?, reader.hlc()?);
        let state = read_state(&mut reader)?;
        let fenced = if reader.flag()? { Some((reader.lease_id()?, reader.seq()?)) } else { None };
        let left = if reader.flag()? { Some((reader.array()?, reader.u64()?)) } else { None };
        let [certificate, acknowledged, grant] = [reader.blob()?, reader.blob()?, reader.blob()?].map(<[u8]>::to_vec);
        let count = reader.u32()?;
        let reached = (0..count).map(|_| Ok((read_state(&mut reader)?, WallMs(reader.u64()?))));
        let reached = reached.collect::<Result<_, CodecFault>>()?;
        reader.end()?;
        Ok(Self {
            domain,
            next_holder,
            requester,
            reason,
            ttl_ms,
            asked,
            state,
            fenced,
            certificate,
            left,
            acknowledged,
            grant,
            reached,
        })
    }
}

fn read_state(reader: &mut Reader<'_>) -> Result<MigrationState, CodecFault> {
    let byte = reader.u8()?;
    let found = MigrationState::ALL.into_iter().find(|state| state.byte() == byte);
    found.ok_or(CodecFault("a migration in no known state"))
}

/// How many writes of an object have settled, and the hash over all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalHead {
    pub count: u64,
    pub hash: [u8; 32],
    /// The run of the gate that wrote last.
    pub run: u64,
}

impl JournalHead {
    /// The head of an object that has no journal entry yet.
    pub const EMPTY: Self = Self { count: 0, hash: [0; 32], run: 0 };

    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        Writer::row().u64(self.count).bytes(&self.hash).u64(self.run).done()
    }

    /// Reads a journal's head.
    ///
    /// # Errors
    /// When the bytes are not such a row.
    pub fn decode(value: &[u8]) -> Result<Self, CodecFault> {
        let mut reader = Reader::row(value)?;
        let head = Self { count: reader.u64()?, hash: reader.array()?, run: reader.u64()? };
        reader.end()?;
        Ok(head)
    }
}

/// What a journal says of one write, or of writes that the gate cannot know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrote {
    /// The store has answered the write.
    Settled { method: String, target: String, digest: [u8; 32], status: u16 },
    /// The write may have landed; its outcome is unknown.
    Unknown { method: String, target: String },
    /// The gate ended badly here, and writes that were on their way may have landed.
    Gap,
}

/// One line of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    /// The lease that the write was made with; `None` for a gap.
    pub seq: Option<LeaseSeq>,
    pub wrote: Wrote,
    pub at: WallMs,
    /// The hash over this entry and all before it.
    pub hash: [u8; 32],
}

impl JournalEntry {
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let row = Writer::row().u64(self.seq.map_or(0, LeaseSeq::get)).u64(self.at.0).bytes(&self.hash);
        match &self.wrote {
            Wrote::Settled { method, target, digest, status } => {
                row.u8(0).text(method).text(target).bytes(digest).u32((*status).into())
            }
            Wrote::Unknown { method, target } => row.u8(1).text(method).text(target),
            Wrote::Gap => row.u8(2),
        }
        .done()
    }

    /// Reads a journal's entry.
    ///
    /// # Errors
    /// When the bytes are not such a row.
    pub fn decode(value: &[u8]) -> Result<Self, CodecFault> {
        let mut reader = Reader::row(value)?;
        let (seq, at, hash) = (LeaseSeq::new(reader.u64()?), WallMs(reader.u64()?), reader.array()?);
        let wrote = match reader.u8()? {
            0 => {
                let (method, target) = (reader.text()?.to_owned(), reader.text()?.to_owned());
                let (digest, status) = (reader.array()?, reader.u32()?);
                let status = u16::try_from(status).map_err(|_| CodecFault("a status that is none"))?;
                Wrote::Settled { method, target, digest, status }
            }
            1 => Wrote::Unknown { method: reader.text()?.to_owned(), target: reader.text()?.to_owned() },
            2 => Wrote::Gap,
            _ => return Err(CodecFault("a journal entry of no known kind")),
        };
        reader.end()?;
        Ok(Self { seq, wrote, at, hash })
    }
}
