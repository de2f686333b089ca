//! What is signed: a fixed, versioned layout of bytes for each kind of statement, never JSON. Each binds
//! cluster, domain, lease, signer and key epoch.
//!
//! Layout: version (1), kind, then the fields in the order of each `write`. Numbers are big endian. Texts and lists
//! have their length before them (2 bytes). An optional value has a byte before it, 0 or 1. A statement has exactly
//! one encoding; other bytes do not decode. The 96 bytes of the signature follow the statement: in this form it is
//! stored and passed on.

use thiserror::Error;

use super::bls::Signature;
use crate::fence::{
    Fence, Hlc, HolderId, IssuerId, LeaseId, LeaseSeq, ObjectId, WallMs,
    authority::{FenceProof, Predecessor, TEXT_MAX},
};

/// The version of every layout.
const VERSION: u8 = 1;

/// A kind of statement. Its name is part of what is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    FenceRequest,
    FenceCertificate,
    FenceAcknowledged,
    LeaseGrant,
    LeaseActive,
}

impl Kind {
    pub const ALL: [Self; 5] =
        [Self::FenceRequest, Self::FenceCertificate, Self::FenceAcknowledged, Self::LeaseGrant, Self::LeaseActive];

    /// The name that messages have in `type`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FenceRequest => "FENCE_REQUEST",
            Self::FenceCertificate => "FENCE_CERTIFICATE",
            Self::FenceAcknowledged => "FENCE_ACKNOWLEDGED",
            Self::LeaseGrant => "LEASE_GRANT",
            Self::LeaseActive => "LEASE_ACTIVE",
        }
    }

    const fn byte(self) -> u8 {
        match self {
            Self::FenceRequest => 1,
            Self::FenceCertificate => 2,
            Self::FenceAcknowledged => 3,
            Self::LeaseGrant => 4,
            Self::LeaseActive => 5,
        }
    }
}

/// Bytes that are not a statement.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("not a signed statement: {0}")]
pub struct StatementFault(pub &'static str);

/// Which cluster a statement is for, and which of its signer's keys has signed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub cluster_id: String,
    pub key_epoch: u32,
}

/// A request to fence a lease, or to hand an object over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceRequest {
    pub origin: Origin,
    pub domain: ObjectId,
    pub current_lease_id: Option<LeaseId>,
    pub reason: String,
    pub requester: HolderId,
    /// Who gets the object then; the requester if absent.
    pub next_holder: Option<HolderId>,
    pub ttl_ms: Option<u64>,
    pub timestamp: Hlc,
}

/// An issuer's statement that a lease is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceCertificate {
    pub origin: Origin,
    pub domain: ObjectId,
    pub fenced_lease_id: LeaseId,
    pub lease_seq: LeaseSeq,
    /// When the fenced lease began.
    pub lease_start: WallMs,
    pub fence_time: Hlc,
    pub issuer: IssuerId,
    pub next_holder: Option<HolderId>,
}

/// A gate's statement that no write of a fenced lease can land any more, and the state that it has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceAcknowledged {
    pub origin: Origin,
    pub domain: ObjectId,
    pub fenced_lease_id: LeaseId,
    pub lease_seq: LeaseSeq,
    pub fence: Fence,
    /// The hash over the object's settled writes, on journaled routes.
    pub state_hash: [u8; 32],
    /// How many writes the hash covers.
    pub writes: u64,
    pub issuer: IssuerId,
    pub timestamp: Hlc,
}

/// An issuer's grant of an object to a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseGrant {
    pub origin: Origin,
    pub domain: ObjectId,
    pub lease_id: LeaseId,
    pub lease_seq: LeaseSeq,
    pub holder: HolderId,
    pub start: WallMs,
    pub expiry: WallMs,
    pub predecessor: Option<Predecessor>,
    pub issuer: IssuerId,
}

/// The next holder's statement that it has the state which the last one left, and begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseActive {
    pub origin: Origin,
    pub domain: ObjectId,
    pub lease_id: LeaseId,
    pub lease_seq: LeaseSeq,
    pub holder: HolderId,
    pub state_hash: [u8; 32],
    pub timestamp: Hlc,
}

/// A statement that can be signed.
pub trait Statement: Sized {
    const KIND: Kind;

    fn write(&self, out: &mut Writer);

    /// # Errors
    /// When the bytes are not such a statement.
    fn read(reader: &mut Reader<'_>) -> Result<Self, StatementFault>;

    /// The bytes that are signed.
    fn bytes(&self) -> Vec<u8> {
        let mut out = Writer(vec![VERSION, Self::KIND.byte()]);
        self.write(&mut out);
        out.0
    }

    /// Reads what was signed.
    ///
    /// # Errors
    /// When the bytes are not such a statement.
    fn parse(bytes: &[u8]) -> Result<Self, StatementFault> {
        let mut reader = Reader(bytes);
        if reader.u8()? != VERSION {
            return Err(StatementFault("another version"));
        }
        if reader.u8()? != Self::KIND.byte() {
            return Err(StatementFault("another kind"));
        }
        let statement = Self::read(&mut reader)?;
        if reader.0.is_empty() { Ok(statement) } else { Err(StatementFault("bytes behind its end")) }
    }
}

/// A statement and a signature. This type does not check that they belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed<T> {
    pub statement: T,
    pub signature: Signature,
}

impl<T: Statement> Signed<T> {
    /// The form in which it is stored and passed on.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.statement.bytes();
        bytes.extend_from_slice(&self.signature.to_bytes());
        bytes
    }

    /// # Errors
    /// When the bytes are not a signed statement of this kind.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, StatementFault> {
        let (statement, signature) = bytes.split_last_chunk().ok_or(StatementFault("too short"))?;
        let signature = Signature::from_bytes(signature).map_err(|_| StatementFault("its signature is none"))?;
        Ok(Self { statement: T::parse(statement)?, signature })
    }
}

/// Bytes of a statement.
pub struct Writer(Vec<u8>);

impl Writer {
    fn u64(&mut self, n: u64) {
        self.0.extend_from_slice(&n.to_be_bytes());
    }

    fn text(&mut self, text: &str) {
        let length = u16::try_from(text.len()).expect("no text in a statement is longer than 64 KiB");
        self.0.extend_from_slice(&length.to_be_bytes());
        self.0.extend_from_slice(text.as_bytes());
    }

    fn hlc(&mut self, stamp: Hlc) {
        self.u64(stamp.ms);
        self.0.extend_from_slice(&stamp.logical.to_be_bytes());
    }

    fn origin(&mut self, origin: &Origin) {
        self.text(&origin.cluster_id);
        self.0.extend_from_slice(&origin.key_epoch.to_be_bytes());
    }

    fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.0.push(value.is_some().into());
        if let Some(value) = value {
            write(self, value);
        }
    }
}

/// Reads bytes of a statement.
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], StatementFault> {
        let (head, tail) = self.0.split_first_chunk().ok_or(StatementFault("too short"))?;
        self.0 = tail;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, StatementFault> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u64(&mut self) -> Result<u64, StatementFault> {
        self.array().map(u64::from_be_bytes)
    }

    fn text(&mut self) -> Result<&'a str, StatementFault> {
        let length = self.array().map(u16::from_be_bytes)?;
        let (head, tail) = self.0.split_at_checked(length.into()).ok_or(StatementFault("too short"))?;
        self.0 = tail;
        std::str::from_utf8(head).map_err(|_| StatementFault("text that is not UTF-8"))
    }

    fn id<T, E>(&mut self, make: impl FnOnce(&str) -> Result<T, E>) -> Result<T, StatementFault> {
        make(self.text()?).map_err(|_| StatementFault("an id that is none"))
    }

    /// A text that is not an id.
    fn words(&mut self) -> Result<String, StatementFault> {
        let text = self.text()?;
        if text.len() > TEXT_MAX { Err(StatementFault("a text that is too long")) } else { Ok(text.to_owned()) }
    }

    fn seq(&mut self) -> Result<LeaseSeq, StatementFault> {
        LeaseSeq::new(self.u64()?).ok_or(StatementFault("lease_seq 0"))
    }

    fn hlc(&mut self) -> Result<Hlc, StatementFault> {
        Ok(Hlc { ms: self.u64()?, logical: self.array().map(u32::from_be_bytes)? })
    }

    fn origin(&mut self) -> Result<Origin, StatementFault> {
        Ok(Origin { cluster_id: self.words()?, key_epoch: self.array().map(u32::from_be_bytes)? })
    }

    fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, StatementFault>,
    ) -> Result<Option<T>, StatementFault> {
        match self.u8()? {
            0 => Ok(None),
            1 => read(self).map(Some),
            _ => Err(StatementFault("a flag that is neither 0 nor 1")),
        }
    }
}

impl Statement for FenceRequest {
    const KIND: Kind = Kind::FenceRequest;

    fn write(&self, out: &mut Writer) {
        out.origin(&self.origin);
        out.text(self.domain.as_str());
        out.option(self.current_lease_id.as_ref(), |out, id| out.text(id.as_str()));
        out.text(&self.reason);
        out.text(self.requester.as_str());
        out.option(self.next_holder.as_ref(), |out, id| out.text(id.as_str()));
        out.option(self.ttl_ms, Writer::u64);
        out.hlc(self.timestamp);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, StatementFault> {
        Ok(Self {
            origin: reader.origin()?,
            domain: reader.id(ObjectId::new)?,
            current_lease_id: reader.option(|reader| reader.id(LeaseId::new))?,
            reason: reader.words()?,
            requester: reader.id(HolderId::new)?,
            next_holder: reader.option(|reader| reader.id(HolderId::new))?,
            ttl_ms: reader.option(Reader::u64)?,
            timestamp: reader.hlc()?,
        })
    }
}

impl Statement for FenceCertificate {
    const KIND: Kind = Kind::FenceCertificate;

    fn write(&self, out: &mut Writer) {
        out.origin(&self.origin);
        out.text(self.domain.as_str());
        out.text(self.fenced_lease_id.as_str());
        out.u64(self.lease_seq.get());
        out.u64(self.lease_start.0);
        out.hlc(self.fence_time);
        out.text(self.issuer.as_str());
        out.option(self.next_holder.as_ref(), |out, id| out.text(id.as_str()));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, StatementFault> {
        Ok(Self {
            origin: reader.origin()?,
            domain: reader.id(ObjectId::new)?,
            fenced_lease_id: reader.id(LeaseId::new)?,
            lease_seq: reader.seq()?,
            lease_start: WallMs(reader.u64()?),
            fence_time: reader.hlc()?,
            issuer: reader.id(IssuerId::new)?,
            next_holder: reader.option(|reader| reader.id(HolderId::new))?,
        })
    }
}

impl Statement for FenceAcknowledged {
    const KIND: Kind = Kind::FenceAcknowledged;

    fn write(&self, out: &mut Writer) {
        out.origin(&self.origin);
        out.text(self.domain.as_str());
        out.text(self.fenced_lease_id.as_str());
        out.u64(self.lease_seq.get());
        out.u64(self.fence.get());
        out.0.extend_from_slice(&self.state_hash);
        out.u64(self.writes);
        out.text(self.issuer.as_str());
        out.hlc(self.timestamp);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, StatementFault> {
        Ok(Self {
            origin: reader.origin()?,
            domain: reader.id(ObjectId::new)?,
            fenced_lease_id: reader.id(LeaseId::new)?,
            lease_seq: reader.seq()?,
            fence: Fence::new(reader.u64()?),
            state_hash: reader.array()?,
            writes: reader.u64()?,
            issuer: reader.id(IssuerId::new)?,
            timestamp: reader.hlc()?,
        })
    }
}

impl Statement for LeaseGrant {
    const KIND: Kind = Kind::LeaseGrant;

    fn write(&self, out: &mut Writer) {
        out.origin(&self.origin);
        out.text(self.domain.as_str());
        out.text(self.lease_id.as_str());
        out.u64(self.lease_seq.get());
        out.text(self.holder.as_str());
        out.u64(self.start.0);
        out.u64(self.expiry.0);
        out.option(self.predecessor.as_ref(), |out, predecessor| {
            out.text(predecessor.lease_id.as_str());
            out.option(predecessor.proof, |out, proof| out.0.extend_from_slice(&proof.0));
        });
        out.text(self.issuer.as_str());
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, StatementFault> {
        Ok(Self {
            origin: reader.origin()?,
            domain: reader.id(ObjectId::new)?,
            lease_id: reader.id(LeaseId::new)?,
            lease_seq: reader.seq()?,
            holder: reader.id(HolderId::new)?,
            start: WallMs(reader.u64()?),
            expiry: WallMs(reader.u64()?),
            predecessor: reader.option(|reader| {
                let lease_id = reader.id(LeaseId::new)?;
                Ok(Predecessor { lease_id, proof: reader.option(|reader| Ok(FenceProof(reader.array()?)))? })
            })?,
            issuer: reader.id(IssuerId::new)?,
        })
    }
}

impl Statement for LeaseActive {
    const KIND: Kind = Kind::LeaseActive;

    fn write(&self, out: &mut Writer) {
        out.origin(&self.origin);
        out.text(self.domain.as_str());
        out.text(self.lease_id.as_str());
        out.u64(self.lease_seq.get());
        out.text(self.holder.as_str());
        out.0.extend_from_slice(&self.state_hash);
        out.hlc(self.timestamp);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, StatementFault> {
        Ok(Self {
            origin: reader.origin()?,
            domain: reader.id(ObjectId::new)?,
            lease_id: reader.id(LeaseId::new)?,
            lease_seq: reader.seq()?,
            holder: reader.id(HolderId::new)?,
            state_hash: reader.array()?,
            timestamp: reader.hlc()?,
        })
    }
}

#[cfg(test)]
#[path = "statement_tests.rs"]
mod tests;
