//! Every answer code, and what it means: its status, whether to try again, what may have happened.
//!
//! One variant, one row. Each table names every variant, so a new code does not compile until it
//! has an answer everywhere.

/// What a refusal is called on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Code {
    // A write's own fault
    WriteUnfenced,
    WriteStaleFence,
    WriteFenceAhead,
    LeaseObjectMismatch,
    FenceTokenInvalid,
    FenceTokenMalformed,
    // A request's, whoever it is for
    MethodOverrideRefused,
    TunnelRefused,
    PathAmbiguous,
    ObjectUnmapped,
    BodyUnreadable,
    RequestLimit(Limit),
    // A lease call's
    RequestInvalid,
    LeaseHeld,
    LeaseNotFound,
    LeaseNotHolder,
    LeaseTokenMismatch,
    LeaseFenced,
    LeaseExpired,
    RequestIdUsed,
    SeqExhausted,
    NotFound,
    MethodNotAllowed,
    NotLoopback,
    // A signed statement's: the first four as the protocol names them
    InvalidFenceSignature,
    UnauthorizedFence,
    FenceBeforeLease,
    UnknownIssuer,
    KeyEpochRetired,
    ForeignCluster,
    FenceTimeAhead,
    RequestStale,
    FenceJump,
    PredecessorMismatch,
    FenceProofMismatch,
    GrantUsed,
    GrantRequired,
    LeaseNotYetValid,
    // An outside lock service's object's
    ObjectLocked,
    ExternalLease,
    LeaseSourceUnavailable,
    // A keyed write's
    IdempotencyKeyReused,
    IdempotencyInProgress,
    IdempotencyUnknown,
    IdempotencyOtherLease,
    IdempotencyResponseDropped,
    // A migration's
    NotAnIssuer,
    MigrationNotFound,
    MigrationInProgress,
    MigrationOver,
    StateHashMismatch,
    JournalOff,
    // The gate's
    FenceDraining,
    TableUnavailable,
    ClockUntrusted,
    GateStopping,
    GateOverloaded,
    // The store's
    StoreUnreachable,
    OutcomeUnknown,
    // An agent's
    NotLeader,
    GateUnreachable,
}

/// What was larger than it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Limit {
    Headers,
    Uri,
    Body,
}

/// Who asked: the same code may carry another status for a writer than for a caller of the api.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    Data,
    Api,
}

impl Code {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 63] = [
        Self::WriteUnfenced,
        Self::WriteStaleFence,
        Self::WriteFenceAhead,
        Self::LeaseObjectMismatch,
        Self::FenceTokenInvalid,
        Self::FenceTokenMalformed,
        Self::MethodOverrideRefused,
        Self::TunnelRefused,
        Self::PathAmbiguous,
        Self::ObjectUnmapped,
        Self::BodyUnreadable,
        Self::RequestLimit(Limit::Headers),
        Self::RequestLimit(Limit::Uri),
        Self::RequestLimit(Limit::Body),
        Self::RequestInvalid,
        Self::LeaseHeld,
        Self::LeaseNotFound,
        Self::LeaseNotHolder,
        Self::LeaseTokenMismatch,
        Self::LeaseFenced,
        Self::LeaseExpired,
        Self::RequestIdUsed,
        Self::SeqExhausted,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::NotLoopback,
        Self::InvalidFenceSignature,
        Self::UnauthorizedFence,
        Self::FenceBeforeLease,
        Self::UnknownIssuer,
        Self::KeyEpochRetired,
        Self::ForeignCluster,
        Self::FenceTimeAhead,
        Self::RequestStale,
        Self::FenceJump,
        Self::PredecessorMismatch,
        Self::FenceProofMismatch,
        Self::GrantUsed,
        Self::GrantRequired,
        Self::LeaseNotYetValid,
        Self::ObjectLocked,
        Self::ExternalLease,
        Self::LeaseSourceUnavailable,
        Self::IdempotencyKeyReused,
        Self::IdempotencyInProgress,
        Self::IdempotencyUnknown,
        Self::IdempotencyOtherLease,
        Self::IdempotencyResponseDropped,
        Self::NotAnIssuer,
        Self::MigrationNotFound,
        Self::MigrationInProgress,
        Self::MigrationOver,
        Self::StateHashMismatch,
        Self::JournalOff,
        Self::FenceDraining,
        Self::TableUnavailable,
        Self::ClockUntrusted,
        Self::GateStopping,
        Self::GateOverloaded,
        Self::StoreUnreachable,
        Self::OutcomeUnknown,
        Self::NotLeader,
        Self::GateUnreachable,
    ];

    /// The code's name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::WriteUnfenced => "WRITE_UNFENCED",
            Self::WriteStaleFence => "WRITE_STALE_FENCE",
            Self::WriteFenceAhead => "WRITE_FENCE_AHEAD",
            Self::LeaseObjectMismatch => "LEASE_OBJECT_MISMATCH",
            Self::FenceTokenInvalid => "FENCE_TOKEN_INVALID",
            Self::FenceTokenMalformed => "FENCE_TOKEN_MALFORMED",
            Self::RequestInvalid => "REQUEST_INVALID",
            Self::MethodOverrideRefused => "METHOD_OVERRIDE_REFUSED",
            Self::TunnelRefused => "TUNNEL_REFUSED",
            Self::PathAmbiguous => "PATH_AMBIGUOUS",
            Self::ObjectUnmapped => "OBJECT_UNMAPPED",
            Self::BodyUnreadable => "BODY_UNREADABLE",
            Self::RequestLimit(_) => "REQUEST_LIMIT",
            Self::LeaseHeld => "LEASE_HELD",
            Self::LeaseNotFound => "LEASE_NOT_FOUND",
            Self::LeaseNotHolder => "LEASE_NOT_HOLDER",
            Self::LeaseTokenMismatch => "LEASE_TOKEN_MISMATCH",
            Self::LeaseFenced => "LEASE_FENCED",
            Self::LeaseExpired => "LEASE_EXPIRED",
            Self::RequestIdUsed => "REQUEST_ID_USED",
            Self::SeqExhausted => "SEQ_EXHAUSTED",
            Self::NotFound => "NOT_FOUND",
            Self::MethodNotAllowed => "METHOD_NOT_ALLOWED",
            Self::NotLoopback => "NOT_LOOPBACK",
            Self::InvalidFenceSignature => "InvalidFenceSignature",
            Self::UnauthorizedFence => "UnauthorizedFence",
            Self::FenceBeforeLease => "FenceBeforeLease",
            Self::UnknownIssuer => "UNKNOWN_ISSUER",
            Self::KeyEpochRetired => "KEY_EPOCH_RETIRED",
            Self::ForeignCluster => "FOREIGN_CLUSTER",
            Self::FenceTimeAhead => "FENCE_TIME_AHEAD",
            Self::RequestStale => "REQUEST_STALE",
            Self::FenceJump => "FENCE_JUMP",
            Self::PredecessorMismatch => "PREDECESSOR_MISMATCH",
            Self::FenceProofMismatch => "FENCE_PROOF_MISMATCH",
            Self::GrantUsed => "GRANT_USED",
            Self::GrantRequired => "GRANT_REQUIRED",
            Self::LeaseNotYetValid => "LEASE_NOT_YET_VALID",
            Self::ObjectLocked => "OBJECT_LOCKED",
            Self::LeaseSourceUnavailable => "LEASE_SOURCE_UNAVAILABLE",
            Self::ExternalLease => "EXTERNAL_LEASE",
            Self::IdempotencyKeyReused => "IDEMPOTENCY_KEY_REUSED",
            Self::IdempotencyInProgress => "IDEMPOTENCY_IN_PROGRESS",
            Self::IdempotencyUnknown => "IDEMPOTENCY_UNKNOWN",
            Self::IdempotencyOtherLease => "IDEMPOTENCY_OTHER_LEASE",
            Self::IdempotencyResponseDropped => "IDEMPOTENCY_RESPONSE_DROPPED",
            Self::NotAnIssuer => "NOT_AN_ISSUER",
            Self::MigrationNotFound => "MIGRATION_NOT_FOUND",
            Self::MigrationInProgress => "MIGRATION_IN_PROGRESS",
            Self::MigrationOver => "MIGRATION_OVER",
            Self::StateHashMismatch => "STATE_HASH_MISMATCH",
            Self::JournalOff => "JOURNAL_OFF",
            Self::FenceDraining => "FENCE_DRAINING",
            Self::TableUnavailable => "TABLE_UNAVAILABLE",
            Self::ClockUntrusted => "CLOCK_UNTRUSTED",
            Self::GateStopping => "GATE_STOPPING",
            Self::GateOverloaded => "GATE_OVERLOADED",
            Self::StoreUnreachable => "STORE_UNREACHABLE",
            Self::OutcomeUnknown => "OUTCOME_UNKNOWN",
            Self::NotLeader => "NOT_LEADER",
            Self::GateUnreachable => "GATE_UNREACHABLE",
        }
    }

    /// The HTTP status that carries it.
    #[must_use]
    pub const fn status(self, plane: Plane) -> u16 {
        match self {
            Self::WriteUnfenced => 428,
            Self::WriteStaleFence | Self::WriteFenceAhead => 412,
            Self::LeaseExpired => match plane {
                Plane::Data => 412,
                Plane::Api => 409,
            },
            Self::LeaseObjectMismatch
            | Self::LeaseHeld
            | Self::LeaseTokenMismatch
            | Self::LeaseFenced
            | Self::RequestIdUsed
            | Self::FenceBeforeLease
            | Self::FenceTimeAhead
            | Self::RequestStale
            | Self::FenceJump
            | Self::PredecessorMismatch
            | Self::FenceProofMismatch
            | Self::GrantUsed
            | Self::ExternalLease
            | Self::IdempotencyInProgress
            | Self::IdempotencyUnknown
            | Self::IdempotencyOtherLease
            | Self::IdempotencyResponseDropped
            | Self::NotAnIssuer
            | Self::MigrationInProgress
            | Self::MigrationOver
            | Self::StateHashMismatch
            | Self::SeqExhausted => 409,
            Self::FenceTokenInvalid
            | Self::LeaseNotHolder
            | Self::NotLoopback
            | Self::TunnelRefused
            | Self::InvalidFenceSignature
            | Self::UnauthorizedFence
            | Self::UnknownIssuer
            | Self::KeyEpochRetired
            | Self::ForeignCluster
            | Self::GrantRequired => 403,
            Self::FenceTokenMalformed | Self::RequestInvalid | Self::MethodOverrideRefused => 400,
            Self::PathAmbiguous | Self::ObjectUnmapped | Self::BodyUnreadable | Self::IdempotencyKeyReused => 422,
            Self::RequestLimit(Limit::Headers) => 431,
            Self::RequestLimit(Limit::Uri) => 414,
            Self::RequestLimit(Limit::Body) => 413,
            Self::StoreUnreachable => 502,
            Self::OutcomeUnknown => 504,
            Self::LeaseNotFound | Self::NotFound | Self::MigrationNotFound | Self::JournalOff => 404,
            Self::MethodNotAllowed => 405,
            Self::FenceDraining
            | Self::TableUnavailable
            | Self::ClockUntrusted
            | Self::LeaseNotYetValid
            | Self::ObjectLocked
            | Self::LeaseSourceUnavailable
            | Self::GateStopping
            | Self::GateOverloaded
            | Self::NotLeader
            | Self::GateUnreachable => 503,
        }
    }

    /// Whether something may have happened all the same.
    #[must_use]
    pub const fn side_effect(self) -> &'static str {
        match self {
            Self::OutcomeUnknown | Self::IdempotencyInProgress | Self::IdempotencyUnknown => "maybe",
            Self::IdempotencyResponseDropped => "done",
            _ => "none",
        }
    }

    /// Whether the very same request may succeed later.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::LeaseHeld
            | Self::IdempotencyInProgress
            | Self::FenceDraining
            | Self::TableUnavailable
            | Self::ClockUntrusted
            | Self::LeaseNotYetValid
            | Self::ObjectLocked
            | Self::LeaseSourceUnavailable
            | Self::GateStopping
            | Self::GateOverloaded
            | Self::StoreUnreachable
            | Self::NotLeader
            | Self::GateUnreachable => true,
            Self::WriteUnfenced
            | Self::WriteStaleFence
            | Self::WriteFenceAhead
            | Self::LeaseObjectMismatch
            | Self::FenceTokenInvalid
            | Self::FenceTokenMalformed
            | Self::MethodOverrideRefused
            | Self::TunnelRefused
            | Self::PathAmbiguous
            | Self::ObjectUnmapped
            | Self::BodyUnreadable
            | Self::RequestLimit(_)
            | Self::OutcomeUnknown
            | Self::RequestInvalid
            | Self::LeaseNotFound
            | Self::LeaseNotHolder
            | Self::LeaseTokenMismatch
            | Self::LeaseFenced
            | Self::LeaseExpired
            | Self::RequestIdUsed
            | Self::SeqExhausted
            | Self::NotFound
            | Self::MethodNotAllowed
            | Self::NotLoopback
            | Self::InvalidFenceSignature
            | Self::UnauthorizedFence
            | Self::FenceBeforeLease
            | Self::UnknownIssuer
            | Self::KeyEpochRetired
            | Self::ForeignCluster
            | Self::FenceTimeAhead
            | Self::RequestStale
            | Self::FenceJump
            | Self::PredecessorMismatch
            | Self::FenceProofMismatch
            | Self::GrantUsed
            | Self::GrantRequired
            | Self::ExternalLease
            | Self::IdempotencyKeyReused
            | Self::IdempotencyUnknown
            | Self::IdempotencyOtherLease
            | Self::IdempotencyResponseDropped
            | Self::NotAnIssuer
            | Self::MigrationNotFound
            | Self::MigrationInProgress
            | Self::MigrationOver
            | Self::StateHashMismatch
            | Self::JournalOff => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lists_each_code_once_and_every_status_is_an_error() {
        let mut names: Vec<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Code::ALL.len() - 2, "one name for the three limits, else one each");
        for code in Code::ALL {
            for plane in [Plane::Data, Plane::Api] {
                assert!((400..=599).contains(&code.status(plane)), "{code:?}");
                let by_status = matches!(code.status(plane), 502 | 503);
                let is_conflict = matches!(code, Code::LeaseHeld | Code::IdempotencyInProgress);
                assert_eq!(by_status, code.is_retryable() && !is_conflict, "{code:?}");
            }
        }
    }
}
