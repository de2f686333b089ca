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
    // A lease call's
    RequestInvalid,
    RequestTooLarge,
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
    // The gate's
    FenceDraining,
    TableUnavailable,
    ClockUntrusted,
    GateStopping,
    GateOverloaded,
}

/// Who asked: the same code may carry another status for a writer than for a caller of the api.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    Data,
    Api,
}

impl Code {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 24] = [
        Self::WriteUnfenced,
        Self::WriteStaleFence,
        Self::WriteFenceAhead,
        Self::LeaseObjectMismatch,
        Self::FenceTokenInvalid,
        Self::FenceTokenMalformed,
        Self::RequestInvalid,
        Self::RequestTooLarge,
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
        Self::FenceDraining,
        Self::TableUnavailable,
        Self::ClockUntrusted,
        Self::GateStopping,
        Self::GateOverloaded,
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
            Self::RequestTooLarge => "REQUEST_LIMIT",
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
            Self::FenceDraining => "FENCE_DRAINING",
            Self::TableUnavailable => "TABLE_UNAVAILABLE",
            Self::ClockUntrusted => "CLOCK_UNTRUSTED",
            Self::GateStopping => "GATE_STOPPING",
            Self::GateOverloaded => "GATE_OVERLOADED",
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
            | Self::SeqExhausted => 409,
            Self::FenceTokenInvalid | Self::LeaseNotHolder | Self::NotLoopback => 403,
            Self::FenceTokenMalformed | Self::RequestInvalid => 400,
            Self::RequestTooLarge => 413,
            Self::LeaseNotFound | Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::FenceDraining
            | Self::TableUnavailable
            | Self::ClockUntrusted
            | Self::GateStopping
            | Self::GateOverloaded => 503,
        }
    }

    /// Whether the very same request may succeed later.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::LeaseHeld
            | Self::FenceDraining
            | Self::TableUnavailable
            | Self::ClockUntrusted
            | Self::GateStopping
            | Self::GateOverloaded => true,
            Self::WriteUnfenced
            | Self::WriteStaleFence
            | Self::WriteFenceAhead
            | Self::LeaseObjectMismatch
            | Self::FenceTokenInvalid
            | Self::FenceTokenMalformed
            | Self::RequestInvalid
            | Self::RequestTooLarge
            | Self::LeaseNotFound
            | Self::LeaseNotHolder
            | Self::LeaseTokenMismatch
            | Self::LeaseFenced
            | Self::LeaseExpired
            | Self::RequestIdUsed
            | Self::SeqExhausted
            | Self::NotFound
            | Self::MethodNotAllowed
            | Self::NotLoopback => false,
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
        assert_eq!(names.len(), Code::ALL.len());
        for code in Code::ALL {
            for plane in [Plane::Data, Plane::Api] {
                assert!((400..=599).contains(&code.status(plane)), "{code:?}");
                assert_eq!(code.status(plane) == 503, code.is_retryable() && code != Code::LeaseHeld);
            }
        }
    }
}
