//! Signed messages as JSON: the protocol's own fields, and this gate's fields beside them (`lease_seq`, `cluster_id`,
//! `key_epoch`, `lease_id`, the fenced lease's start). They are read into signed statements here, and written from
//! them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use super::fields::{JsonFault, hash, hash_text};
use super::{
    bls::{Signature, proof_from_str, proof_to_string},
    fields::{Read, id, kind, origin, seq, time, words},
    statement::{FenceAcknowledged, FenceCertificate, FenceRequest, Kind, LeaseActive, LeaseGrant, Signed, Statement},
};
use crate::{
    fence::{
        Fence, WallMs,
        authority::{FenceProof, Predecessor},
    },
    wire::schema,
};

/// A message that can be read into a statement.
pub trait Message {
    type Statement: Statement;

    /// # Errors
    /// The field that is wrong.
    fn statement(&self) -> Read<Self::Statement>;

    fn signature_text(&self) -> Option<&str>;

    /// The message of a signed statement.
    #[must_use]
    fn of(signed: &Signed<Self::Statement>) -> Self;

    /// # Errors
    /// The field that is wrong.
    fn signed(&self) -> Read<Signed<Self::Statement>> {
        let text = self.signature_text().ok_or_else(|| JsonFault::new("signature", "is missing"))?;
        // The statement is read first: its faults are cheaper to find than those of the signature.
        let statement = self.statement()?;
        let signature = text.parse::<Signature>().map_err(|fault| JsonFault::point("signature", fault))?;
        Ok(Signed { statement, signature })
    }
}

macro_rules! id {
    ($kind:ident, $field:literal, $text:expr) => {
        id($field, crate::fence::$kind::new($text))?
    };
}

/// FENCE_REQUEST: a requester asks for a lease to be fenced, or for the object to be handed over.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FenceRequestMessage {
    #[serde(rename = "type")]
    #[schema(value_type = schema::FenceRequestKind)]
    pub kind: String,
    #[schema(value_type = schema::ObjectId)]
    pub domain: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::LeaseId>)]
    pub current_lease_id: Option<String>,
    #[schema(value_type = schema::Words)]
    pub reason: String,
    #[schema(value_type = schema::HolderId)]
    pub requester: String,
    /// Who is to have it then; the requester, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::HolderId>)]
    pub next_holder: Option<String>,
    /// How long the new lease lasts; the gate has a default and bounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TtlMs>)]
    pub ttl_ms: Option<u64>,
    /// A hybrid logical time, `<ms>:<counter>`.
    #[schema(value_type = schema::Stamp)]
    pub timestamp: String,
    #[schema(value_type = schema::Words)]
    pub cluster_id: String,
    #[schema(value_type = schema::KeyEpoch)]
    pub key_epoch: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schema::Signature, required = true)]
    pub signature: Option<String>,
}

impl Message for FenceRequestMessage {
    type Statement = FenceRequest;

    fn statement(&self) -> Read<FenceRequest> {
        kind(&self.kind, Kind::FenceRequest)?;
        Ok(FenceRequest {
            origin: origin(&self.cluster_id, self.key_epoch)?,
            domain: id!(ObjectId, "domain", &self.domain),
            current_lease_id: match &self.current_lease_id {
                Some(text) => Some(id!(LeaseId, "current_lease_id", text)),
                None => None,
            },
            reason: words("reason", &self.reason)?,
            requester: id!(HolderId, "requester", &self.requester),
            next_holder: match &self.next_holder {
                Some(text) => Some(id!(HolderId, "next_holder", text)),
                None => None,
            },
            ttl_ms: self.ttl_ms,
            timestamp: time("timestamp", &self.timestamp)?,
        })
    }

    fn signature_text(&self) -> Option<&str> {
        self.signature.as_deref()
    }

    fn of(signed: &Signed<FenceRequest>) -> Self {
        let given = &signed.statement;
        Self {
            kind: Kind::FenceRequest.name().to_owned(),
            domain: given.domain.to_string(),
            current_lease_id: given.current_lease_id.as_ref().map(ToString::to_string),
            reason: given.reason.clone(),
            requester: given.requester.to_string(),
            next_holder: given.next_holder.as_ref().map(ToString::to_string),
            ttl_ms: given.ttl_ms,
            timestamp: given.timestamp.to_string(),
            cluster_id: given.origin.cluster_id.clone(),
            key_epoch: given.origin.key_epoch,
            signature: Some(signed.signature.to_string()),
        }
    }
}

/// FENCE_CERTIFICATE: an issuer states that a lease is over.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CertificateMessage {
    #[serde(rename = "type")]
    #[schema(value_type = schema::CertificateKind)]
    pub kind: String,
    /// An object id, exactly.
    #[schema(value_type = schema::ObjectId)]
    pub domain: String,
    #[schema(value_type = schema::LeaseId)]
    pub fenced_lease_id: String,
    /// The fenced lease's number: the fence moves past it.
    #[schema(value_type = schema::LeaseSeq)]
    pub lease_seq: u64,
    /// When the fenced lease began, in milliseconds since 1970.
    #[schema(value_type = schema::Whole)]
    pub lease_start_ms: u64,
    /// A hybrid logical time, `<ms>:<counter>`.
    #[schema(value_type = schema::Stamp)]
    pub fence_time: String,
    #[schema(value_type = schema::IssuerId)]
    pub issuer: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::HolderId>)]
    pub next_holder: Option<String>,
    #[schema(value_type = schema::Words)]
    pub cluster_id: String,
    #[schema(value_type = schema::KeyEpoch)]
    pub key_epoch: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schema::Signature, required = true)]
    pub signature: Option<String>,
    /// How it is to be passed on. Not signed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Propagation>)]
    pub propagation: Option<String>,
}

impl Message for CertificateMessage {
    type Statement = FenceCertificate;

    fn statement(&self) -> Read<FenceCertificate> {
        kind(&self.kind, Kind::FenceCertificate)?;
        if self.propagation.as_deref().is_some_and(|word| !matches!(word, "flood" | "direct" | "relay")) {
            return Err(JsonFault::new("propagation", "must be flood, direct or relay"));
        }
        Ok(FenceCertificate {
            origin: origin(&self.cluster_id, self.key_epoch)?,
            domain: id!(ObjectId, "domain", &self.domain),
            fenced_lease_id: id!(LeaseId, "fenced_lease_id", &self.fenced_lease_id),
            lease_seq: seq(self.lease_seq)?,
            lease_start: WallMs(self.lease_start_ms),
            fence_time: time("fence_time", &self.fence_time)?,
            issuer: id!(IssuerId, "issuer", &self.issuer),
            next_holder: match &self.next_holder {
                Some(text) => Some(id!(HolderId, "next_holder", text)),
                None => None,
            },
        })
    }

    fn signature_text(&self) -> Option<&str> {
        self.signature.as_deref()
    }

    fn of(signed: &Signed<FenceCertificate>) -> Self {
        let given = &signed.statement;
        Self {
            kind: Kind::FenceCertificate.name().to_owned(),
            domain: given.domain.to_string(),
            fenced_lease_id: given.fenced_lease_id.to_string(),
            lease_seq: given.lease_seq.get(),
            lease_start_ms: given.lease_start.0,
            fence_time: given.fence_time.to_string(),
            issuer: given.issuer.to_string(),
            next_holder: given.next_holder.as_ref().map(ToString::to_string),
            cluster_id: given.origin.cluster_id.clone(),
            key_epoch: given.origin.key_epoch,
            signature: Some(signed.signature.to_string()),
            propagation: Some("flood".to_owned()),
        }
    }
}

/// FENCE_ACKNOWLEDGED: no write of the fenced lease can land any more, and this is the state that it has left.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcknowledgedMessage {
    #[serde(rename = "type")]
    #[schema(value_type = schema::AcknowledgedKind)]
    pub kind: String,
    pub domain: String,
    pub fenced_lease_id: String,
    pub lease_seq: u64,
    /// The object's fence: every lease below it is over for ever.
    pub fence: u64,
    /// The hash chain over the object's settled writes; of no writes where the route keeps no journal.
    pub state_hash: String,
    /// How many entries that chain has.
    pub writes: u64,
    pub issuer: String,
    pub timestamp: String,
    pub cluster_id: String,
    pub key_epoch: u32,
    /// Absent where this gate holds no issuer's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
}

impl AcknowledgedMessage {
    /// The message of a statement that this gate cannot sign, or has not signed yet.
    #[must_use]
    pub fn unsigned(given: &FenceAcknowledged) -> Self {
        Self {
            kind: Kind::FenceAcknowledged.name().to_owned(),
            domain: given.domain.to_string(),
            fenced_lease_id: given.fenced_lease_id.to_string(),
            lease_seq: given.lease_seq.get(),
            fence: given.fence.get(),
            state_hash: hash_text(&given.state_hash),
            writes: given.writes,
            issuer: given.issuer.to_string(),
            timestamp: given.timestamp.to_string(),
            cluster_id: given.origin.cluster_id.clone(),
            key_epoch: given.origin.key_epoch,
            signature: None,
        }
    }
}

impl Message for AcknowledgedMessage {
    type Statement = FenceAcknowledged;

    fn statement(&self) -> Read<FenceAcknowledged> {
        kind(&self.kind, Kind::FenceAcknowledged)?;
        Ok(FenceAcknowledged {
            origin: origin(&self.cluster_id, self.key_epoch)?,
            domain: id!(ObjectId, "domain", &self.domain),
            fenced_lease_id: id!(LeaseId, "fenced_lease_id", &self.fenced_lease_id),
            lease_seq: seq(self.lease_seq)?,
            fence: Fence::new(self.fence),
            state_hash: hash("state_hash", &self.state_hash)?,
            writes: self.writes,
            issuer: id!(IssuerId, "issuer", &self.issuer),
            timestamp: time("timestamp", &self.timestamp)?,
        })
    }

    fn signature_text(&self) -> Option<&str> {
        self.signature.as_deref()
    }

    fn of(signed: &Signed<FenceAcknowledged>) -> Self {
        Self { signature: Some(signed.signature.to_string()), ..Self::unsigned(&signed.statement) }
    }
}

/// The lease that a grant follows on.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PredecessorMessage {
    #[schema(value_type = schema::LeaseId)]
    pub lease_id: String,
    /// The signature of the certificate that fenced it, if it was fenced.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Signature>)]
    pub fence_proof: Option<String>,
}

/// LEASE_GRANT: an issuer gives an object to a holder.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrantMessage {
    #[serde(rename = "type")]
    #[schema(value_type = schema::GrantKind)]
    pub kind: String,
    #[schema(value_type = schema::ObjectId)]
    pub domain: String,
    #[schema(value_type = schema::LeaseId)]
    pub lease_id: String,
    /// Above the object's fence, or the number that a certificate has moved it to.
    #[schema(value_type = schema::LeaseSeq)]
    pub lease_seq: u64,
    #[schema(value_type = schema::HolderId)]
    pub holder: String,
    /// Not before then, in milliseconds since 1970.
    #[schema(value_type = schema::Whole)]
    pub start_ms: u64,
    #[schema(value_type = schema::Whole)]
    pub expiry_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predecessor: Option<PredecessorMessage>,
    #[schema(value_type = schema::IssuerId)]
    pub issuer: String,
    #[schema(value_type = schema::Words)]
    pub cluster_id: String,
    #[schema(value_type = schema::KeyEpoch)]
    pub key_epoch: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schema::Signature, required = true)]
    pub signature: Option<String>,
}

impl Message for GrantMessage {
    type Statement = LeaseGrant;

    fn statement(&self) -> Read<LeaseGrant> {
        kind(&self.kind, Kind::LeaseGrant)?;
        if self.expiry_ms <= self.start_ms {
            return Err(JsonFault::new("expiry_ms", "must be after start_ms"));
        }
        Ok(LeaseGrant {
            origin: origin(&self.cluster_id, self.key_epoch)?,
            domain: id!(ObjectId, "domain", &self.domain),
            lease_id: id!(LeaseId, "lease_id", &self.lease_id),
            lease_seq: seq(self.lease_seq)?,
            holder: id!(HolderId, "holder", &self.holder),
            start: WallMs(self.start_ms),
            expiry: WallMs(self.expiry_ms),
            predecessor: match &self.predecessor {
                None => None,
                Some(PredecessorMessage { lease_id, fence_proof }) => Some(Predecessor {
                    lease_id: id!(LeaseId, "predecessor.lease_id", lease_id),
                    proof: match fence_proof {
                        None => None,
                        Some(text) => Some(FenceProof(
                            proof_from_str(text).map_err(|fault| JsonFault::point("predecessor.fence_proof", fault))?,
                        )),
                    },
                }),
            },
            issuer: id!(IssuerId, "issuer", &self.issuer),
        })
    }

    fn signature_text(&self) -> Option<&str> {
        self.signature.as_deref()
    }

    fn of(signed: &Signed<LeaseGrant>) -> Self {
        let given = &signed.statement;
        Self {
            kind: Kind::LeaseGrant.name().to_owned(),
            domain: given.domain.to_string(),
            lease_id: given.lease_id.to_string(),
            lease_seq: given.lease_seq.get(),
            holder: given.holder.to_string(),
            start_ms: given.start.0,
            expiry_ms: given.expiry.0,
            predecessor: given.predecessor.as_ref().map(|predecessor| PredecessorMessage {
                lease_id: predecessor.lease_id.to_string(),
                fence_proof: predecessor.proof.map(|proof| proof_to_string(&proof.0)),
            }),
            issuer: given.issuer.to_string(),
            cluster_id: given.origin.cluster_id.clone(),
            key_epoch: given.origin.key_epoch,
            signature: Some(signed.signature.to_string()),
        }
    }
}

/// LEASE_ACTIVE: the next holder has the state that the last one left, and begins.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ActiveMessage {
    #[serde(rename = "type")]
    #[schema(value_type = schema::ActiveKind)]
    pub kind: String,
    #[schema(value_type = schema::ObjectId)]
    pub domain: String,
    #[schema(value_type = schema::LeaseId)]
    pub lease_id: String,
    #[schema(value_type = schema::LeaseSeq)]
    pub lease_seq: u64,
    #[schema(value_type = schema::HolderId)]
    pub holder: String,
    /// The hash that the holder has computed itself, to be compared with the acknowledged one.
    #[schema(value_type = schema::StateHash)]
    pub state_hash: String,
    #[schema(value_type = schema::Stamp)]
    pub timestamp: String,
    #[schema(value_type = schema::Words)]
    pub cluster_id: String,
    #[schema(value_type = schema::KeyEpoch)]
    pub key_epoch: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schema::Signature, required = true)]
    pub signature: Option<String>,
}

impl Message for ActiveMessage {
    type Statement = LeaseActive;

    fn statement(&self) -> Read<LeaseActive> {
        kind(&self.kind, Kind::LeaseActive)?;
        Ok(LeaseActive {
            origin: origin(&self.cluster_id, self.key_epoch)?,
            domain: id!(ObjectId, "domain", &self.domain),
            lease_id: id!(LeaseId, "lease_id", &self.lease_id),
            lease_seq: seq(self.lease_seq)?,
            holder: id!(HolderId, "holder", &self.holder),
            state_hash: hash("state_hash", &self.state_hash)?,
            timestamp: time("timestamp", &self.timestamp)?,
        })
    }

    fn signature_text(&self) -> Option<&str> {
        self.signature.as_deref()
    }

    fn of(signed: &Signed<LeaseActive>) -> Self {
        let given = &signed.statement;
        Self {
            kind: Kind::LeaseActive.name().to_owned(),
            domain: given.domain.to_string(),
            lease_id: given.lease_id.to_string(),
            lease_seq: given.lease_seq.get(),
            holder: given.holder.to_string(),
            state_hash: hash_text(&given.state_hash),
            timestamp: given.timestamp.to_string(),
            cluster_id: given.origin.cluster_id.clone(),
            key_epoch: given.origin.key_epoch,
            signature: Some(signed.signature.to_string()),
        }
    }
}

/// RELAY_FENCE: a certificate, passed on by a party that could reach this gate.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RelayMessage {
    #[serde(rename = "type")]
    #[schema(value_type = schema::RelayKind)]
    pub kind: String,
    /// The party that it is meant for.
    pub to: String,
    pub certificate: CertificateMessage,
}
