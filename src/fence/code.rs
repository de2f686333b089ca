//! Every answer code, and what it means: its status, whether to try again, what may have happened, what to do.
//!
//! One code, one row of `codes!`: name, status and the rest come from there, and so does docs/reference/codes.md. A
//! row that lacks anything does not compile. This file holds no other table of codes, and no other file one by variant.

/// Who asked: the same code may carry another status for a writer than for a caller of the api.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    Data,
    Api,
}

/// What is known of one code.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub code: Code,
    /// Its name on the wire.
    pub name: &'static str,
    /// Which ports answer with it: `gate`, `api`, `ops`, `agent`.
    pub from: &'static str,
    /// The HTTP status on the gate's port.
    pub data_status: u16,
    /// The HTTP status elsewhere.
    pub api_status: u16,
    /// Whether the very same request may succeed later.
    pub retryable: bool,
    /// What may have been done all the same: `none`, `maybe` or `done`.
    pub side_effect: &'static str,
    /// When it is the answer. Markdown, with links as docs/reference needs them.
    pub when: &'static str,
    /// What its receiver should do. Markdown, too.
    pub remedy: &'static str,
}

/// Codes that are about the same.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    pub title: &'static str,
    pub rows: &'static [Row],
}

/// The words of a row as values.
macro_rules! word {
    (yes) => {
        true
    };
    (no) => {
        false
    };
    (none) => {
        "none"
    };
    (maybe) => {
        "maybe"
    };
    (done) => {
        "done"
    };
    // The status on the api, where it has one of its own.
    ($data:literal) => {
        $data
    };
    ($data:literal $api:literal) => {
        $api
    };
}

/// Makes [`Code`] and all that is known of each from its rows.
macro_rules! codes {
    ($($title:literal { $(
        $code:ident = $name:literal, from $from:literal, status $data:literal $(/ $api:literal)?,
            retryable $retryable:tt, side_effect $effect:tt, when $when:literal, then $remedy:literal;
    )+ })+) => {
        /// What a refusal is called on the wire.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code {
            $($(#[doc = $when] $code,)+)+
        }

        const ROWS: &[Row] = &[$($(Row {
            code: Code::$code,
            name: $name,
            from: $from,
            data_status: $data,
            api_status: word!($data $($api)?),
            retryable: word!($retryable),
            side_effect: word!($effect),
            when: $when,
            remedy: $remedy,
        },)+)+];

        impl Code {
            /// All of them, in the order of their rows.
            pub const ALL: [Self; ROWS.len()] = [$($(Self::$code,)+)+];
        }

        impl Group {
            /// All of them, in the order of their rows.
            pub const ALL: &[Self] = &[$(Self { title: $title, rows: rows_from(&[$(Code::$code),+]) },)+];
        }
    };
}

/// The rows of neighbours in the table.
const fn rows_from(codes: &[Code]) -> &'static [Row] {
    ROWS.split_at(codes[0] as usize).1.split_at(codes.len()).0
}

codes! {
    "The token of a write" {
        WriteUnfenced = "WRITE_UNFENCED", from "gate", status 428, retryable no, side_effect none,
            when "a write has no token",
            then "acquire a lease, and send its token in `Fence-Token`";
        WriteStaleFence = "WRITE_STALE_FENCE", from "gate, api", status 412, retryable no, side_effect none,
            when "the token's number, or term, is over",
            then "the lease has changed hands: acquire again, or be elected again";
        WriteFenceAhead = "WRITE_FENCE_AHEAD", from "gate, api", status 412, retryable no, side_effect none,
            when "the number is above the fence; an outside number jumps too far; the Lease has not come to this term",
            then "the token is not this gate's, or not this object's: look where it comes from";
        LeaseObjectMismatch = "LEASE_OBJECT_MISMATCH", from "gate", status 409, retryable no, side_effect none,
            when "the token is for another object; the Destination belongs to another route or to none; two objects on an external or kubernetes route",
            then "use the token of the object that is written; compare the routes";
        FenceTokenInvalid = "FENCE_TOKEN_INVALID", from "gate", status 403, retryable no, side_effect none,
            when "the secret is wrong; `Fence-Holder` names another holder than the Lease does",
            then "the token was not made by this table: acquire again";
        FenceTokenMalformed = "FENCE_TOKEN_MALFORMED", from "gate, api", status 400, retryable no, side_effect none,
            when "a token cannot be read, is there twice, is named in `Connection` or `Trailer`, is a trailer, or is among the `SignedHeaders` of `Authorization`",
            then "send the token as it was given, once, as a header, and do not sign it";
    }
    "The form of a request" {
        MethodOverrideRefused = "METHOD_OVERRIDE_REFUSED", from "gate", status 400, retryable no, side_effect none,
            when "a header or a query key names another method",
            then "send the method itself";
        TunnelRefused = "TUNNEL_REFUSED", from "gate", status 403, retryable no, side_effect none,
            when "CONNECT, TRACE, an `Upgrade` other than `h2c`",
            then "do not tunnel through a gate";
        PathAmbiguous = "PATH_AMBIGUOUS", from "gate", status 422, retryable no, side_effect none,
            when "two servers could read the path, the host or the Destination of a write in two ways",
            then "send a path that every server reads in one way ([strict.md](../strict.md))";
        ObjectUnmapped = "OBJECT_UNMAPPED", from "gate, api", status 422, retryable no, side_effect none,
            when "no route maps the path of a write to an object, or the write would reach objects of another route",
            then "add a route, or correct the path";
        BodyUnreadable = "BODY_UNREADABLE", from "gate", status 422, retryable no, side_effect none,
            when "the body broke off, came too slowly, or is not framed as it says; nothing was sent",
            then "send the body whole, and fast enough";
        HeadersTooLarge = "REQUEST_LIMIT", from "gate, api", status 431, retryable no, side_effect none,
            when "the headers are larger than `gate.header_bytes_max`",
            then "send less, or raise the limit in `[gate]`";
        TargetTooLarge = "REQUEST_LIMIT", from "gate, api", status 414, retryable no, side_effect none,
            when "path and query are longer than `gate.uri_bytes_max`",
            then "send less, or raise the limit in `[gate]`";
        BodyTooLarge = "REQUEST_LIMIT", from "gate, api", status 413, retryable no, side_effect none,
            when "the body is larger than `gate.body_bytes_max`, or than a call of the api takes",
            then "send less, or raise the limit in `[gate]`";
    }
    "Calls of the lease api" {
        RequestInvalid = "REQUEST_INVALID", from "gate, api", status 400, retryable no, side_effect none,
            when "the request does not say what it must; `field` names the part",
            then "correct what `field` names";
        LeaseHeld = "LEASE_HELD", from "api", status 409, retryable yes, side_effect none,
            when "another lease is in force, or the object is draining or being migrated",
            then "wait (`Retry-After`), or queue with `wait_ms`";
        LeaseNotFound = "LEASE_NOT_FOUND", from "api", status 404, retryable no, side_effect none,
            when "there is no such lease, or it ended more than a day ago",
            then "acquire again";
        LeaseNotHolder = "LEASE_NOT_HOLDER", from "api", status 403, retryable no, side_effect none,
            when "the lease is held by another `holder_id`",
            then "use the `holder_id` that acquired";
        LeaseTokenMismatch = "LEASE_TOKEN_MISMATCH", from "api", status 409, retryable no, side_effect none,
            when "the token is not this lease's",
            then "use this lease's own token";
        LeaseFenced = "LEASE_FENCED", from "api", status 409, retryable no, side_effect none,
            when "the fence has moved past this lease",
            then "acquire again";
        LeaseExpired = "LEASE_EXPIRED", from "gate, api", status 412 / 409, retryable no, side_effect none,
            when "the lease has expired or was released",
            then "acquire again";
        RequestIdUsed = "REQUEST_ID_USED", from "api", status 409, retryable no, side_effect none,
            when "the lease of this `request_id` was used, has ended, or was for other objects",
            then "use a new `request_id`";
        SeqExhausted = "SEQ_EXHAUSTED", from "gate, api", status 409, retryable no, side_effect none,
            when "the object has used its numbers up to 2^53-1",
            then "use another `object_id`";
        NotFound = "NOT_FOUND", from "api", status 404, retryable no, side_effect none,
            when "there is no such call, or no such parked certificate",
            then "`GET /v1/openapi.json` lists the calls";
        MethodNotAllowed = "METHOD_NOT_ALLOWED", from "api", status 405, retryable no, side_effect none,
            when "the call does not take this method",
            then "use the method that the call has";
        NotLoopback = "NOT_LOOPBACK", from "api, ops, agent", status 403, retryable no, side_effect none,
            when "a Host or Origin of elsewhere on the api, a drain from elsewhere, a Host that an agent does not take",
            then "call by `localhost` or an IP address, and not from a web page of another origin";
    }
    "Signed statements" {
        InvalidFenceSignature = "InvalidFenceSignature", from "api", status 403, retryable no, side_effect none,
            when "the signature of a statement does not hold",
            then "sign with the key that the statement names";
        UnauthorizedFence = "UnauthorizedFence", from "api", status 403, retryable no, side_effect none,
            when "the signer has no authority over the domain",
            then "add the domain to the signer, or ask its issuer";
        FenceBeforeLease = "FenceBeforeLease", from "api", status 409, retryable no, side_effect none,
            when "a certificate's time is not after the start of the lease that it fences",
            then "sign with a time after the lease's start";
        UnknownIssuer = "UNKNOWN_ISSUER", from "api", status 403, retryable no, side_effect none,
            when "the signer, or its key epoch, is not known",
            then "add the signer, or its key epoch, to the settings";
        KeyEpochRetired = "KEY_EPOCH_RETIRED", from "api", status 403, retryable no, side_effect none,
            when "the signer's key is retired",
            then "sign with a newer key";
        ForeignCluster = "FOREIGN_CLUSTER", from "api", status 403, retryable no, side_effect none,
            when "the statement is for another `cluster_id`",
            then "send it to a gate of that cluster";
        FenceTimeAhead = "FENCE_TIME_AHEAD", from "api", status 409, retryable no, side_effect none,
            when "a signed time is more than 60 s ahead",
            then "set the clocks";
        RequestStale = "REQUEST_STALE", from "api", status 409, retryable no, side_effect none,
            when "a signed request is more than 60 s old",
            then "sign it anew";
        FenceJump = "FENCE_JUMP", from "api", status 409, retryable no, side_effect none,
            when "a certificate or grant moves the fence further than `authority.max_jump`",
            then "an operator confirms it with `POST /v1/fences/confirm`";
        PredecessorMismatch = "PREDECESSOR_MISMATCH", from "api", status 409, retryable no, side_effect none,
            when "a grant names another predecessor than the object had",
            then "name the lease that the detail names";
        FenceProofMismatch = "FENCE_PROOF_MISMATCH", from "api", status 409, retryable no, side_effect none,
            when "a grant's proof is not that of its predecessor's certificate",
            then "post the certificate first, and use its signature";
        GrantUsed = "GRANT_USED", from "api", status 409, retryable no, side_effect none,
            when "a grant's token was used, or its lease is another one's",
            then "use a new `lease_id`";
        GrantRequired = "GRANT_REQUIRED", from "api", status 403, retryable no, side_effect none,
            when "leases of this object come from signed grants only",
            then "ask the issuer for a signed grant";
        LeaseNotYetValid = "LEASE_NOT_YET_VALID", from "gate", status 503, retryable yes, side_effect none,
            when "a signed grant begins later",
            then "try again after `Retry-After`";
    }
    "Who calls" {
        IdentityRequired = "IDENTITY_REQUIRED", from "api", status 401, retryable no, side_effect none,
            when "the caller shows nothing that says who it is, or something that no identity source takes; `WWW-Authenticate` is there too",
            then "send a bearer token in `Authorization`, or a client certificate ([access.md](../access.md))";
        AccessDenied = "ACCESS_DENIED", from "api", status 403, retryable no, side_effect none,
            when "no grant allows this principal to do this to this object, or in this holder's name",
            then "ask for a `[[grant]]`; `fencegate access check` says which grant decides";
        RateLimited = "RATE_LIMITED", from "api", status 429, retryable yes, side_effect none,
            when "the principal calls too often, or has too many calls in progress",
            then "try again after `Retry-After`; look at the limits in `[access]`";
        IdentityUnavailable = "IDENTITY_UNAVAILABLE", from "api", status 503, retryable yes, side_effect none,
            when "the server that says who this caller is does not answer, and it was not asked about this caller lately",
            then "try again; look at the API server or the issuer's key set";
        AuditUnavailable = "AUDIT_UNAVAILABLE", from "api", status 503, retryable yes, side_effect none,
            when "the audit log cannot be written, so a call that needs a line in it was not carried out",
            then "make room on the disk of `audit.file`; the gate's log says what is wrong";
    }
    "Leases that are kept elsewhere" {
        ObjectLocked = "OBJECT_LOCKED", from "gate, api", status 503, retryable yes, side_effect none,
            when "part of the table's past was lost, and an operator has not confirmed the lowest token",
            then "an operator confirms the lowest token ([external.md](../external.md))";
        ExternalLease = "EXTERNAL_LEASE", from "api", status 409, retryable no, side_effect none,
            when "the lease api is asked for an object of an external or kubernetes route, or `advance` and `confirm` for any other",
            then "take the lock where it is kept, and send its token with each write";
        LeaseSourceUnavailable = "LEASE_SOURCE_UNAVAILABLE", from "gate, api", status 503, retryable yes, side_effect none,
            when "the Kubernetes API server cannot be asked about this term now",
            then "try again; look at the API server ([kubernetes.md](../kubernetes.md))";
    }
    "Idempotency keys" {
        IdempotencyKeyReused = "IDEMPOTENCY_KEY_REUSED", from "gate", status 422, retryable no, side_effect none,
            when "the key was used for another write",
            then "use a new key";
        IdempotencyInProgress = "IDEMPOTENCY_IN_PROGRESS", from "gate", status 409, retryable yes, side_effect maybe,
            when "the key's write is on its way under another lease of the same holder",
            then "ask again in a moment";
        IdempotencyUnknown = "IDEMPOTENCY_UNKNOWN", from "gate", status 409, retryable no, side_effect maybe,
            when "the outcome of the key's write is not known",
            then "look at the store, then write with a new key";
        IdempotencyOtherLease = "IDEMPOTENCY_OTHER_LEASE", from "gate", status 409, retryable no, side_effect none,
            when "the key's write was made with another lease",
            then "show that lease's token, or your current one";
        IdempotencyResponseDropped = "IDEMPOTENCY_RESPONSE_DROPPED", from "gate", status 409, retryable no, side_effect done,
            when "the key's write was done, and its answer was too large to keep",
            then "nothing: it was done; the detail has the store's status";
    }
    "Migrations and journals" {
        NotAnIssuer = "NOT_AN_ISSUER", from "api", status 409, retryable no, side_effect none,
            when "this gate has no issuer's key for the domain",
            then "ask a gate that holds an issuer's key for the domain";
        MigrationNotFound = "MIGRATION_NOT_FOUND", from "api", status 404, retryable no, side_effect none,
            when "there is no such migration, or it ended more than a day ago",
            then "ask for a migration again";
        MigrationInProgress = "MIGRATION_IN_PROGRESS", from "api", status 409, retryable no, side_effect none,
            when "the object is being migrated; `migration_id` names it",
            then "look at the migration that `migration_id` names";
        MigrationOver = "MIGRATION_OVER", from "api", status 409, retryable no, side_effect none,
            when "the migration has ended, or has gone on meanwhile",
            then "look how it ended, and ask again if it is still wanted";
        StateHashMismatch = "STATE_HASH_MISMATCH", from "api", status 409, retryable no, side_effect none,
            when "the next holder confirmed another state",
            then "bring the next holder's state up to date, and ask again";
        JournalOff = "JOURNAL_OFF", from "api", status 404, retryable no, side_effect none,
            when "no route of this object keeps a journal",
            then "set `journal = true` on the route";
    }
    "The gate itself" {
        FenceDraining = "FENCE_DRAINING", from "gate, api", status 503, retryable yes, side_effect none,
            when "older writes are still on their way",
            then "try again after `Retry-After`, with the same `request_id` if there was one";
        TableUnavailable = "TABLE_UNAVAILABLE", from "gate, api", status 503, retryable yes, side_effect none,
            when "the fence table cannot be used now. `side_effect` is `maybe` on the gate's port for a repeat of a keyed write that is on its way, and on the api where the change may be made later",
            then "try again; look at the gate's log and disk";
        ClockUntrusted = "CLOCK_UNTRUSTED", from "gate, api", status 503, retryable yes, side_effect none,
            when "the wall clock was never set",
            then "set the gate's clock";
        GateStopping = "GATE_STOPPING", from "gate, api", status 503, retryable yes, side_effect none,
            when "the gate is stopping, or was asked to drain",
            then "try again once the gate is back";
        GateOverloaded = "GATE_OVERLOADED", from "gate, api", status 503, retryable yes, side_effect none,
            when "a limit on calls, waiters, bodies or connections is reached",
            then "try again later; look at the limits";
    }
    "The store" {
        StoreUnreachable = "STORE_UNREACHABLE", from "gate", status 502, retryable yes, side_effect none,
            when "no byte was sent to the store, or the route discards partial bodies",
            then "try again; look at the store";
        OutcomeUnknown = "OUTCOME_UNKNOWN", from "gate, api", status 504, retryable no, side_effect maybe,
            when "the write was sent, or part of it, and no answer settles it; `Fence-Outcome: unknown` is there too. In the api: a call has failed half-way",
            then "look at the store before you write again";
    }
    "An agent" {
        NotLeader = "NOT_LEADER", from "agent", status 503, retryable yes, side_effect none,
            when "another one leads; the header `Fence-Leader` names it; `retryable` is false where the gate or the API server will not give this agent the lease at all",
            then "write through the leader, or try again";
        GateUnreachable = "GATE_UNREACHABLE", from "agent", status 503, retryable yes, side_effect none,
            when "the gate, or the API server, does not answer",
            then "try again; look at the gate";
    }
}

impl Code {
    /// Its row.
    #[must_use]
    pub const fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The code's name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.row().name
    }

    /// The HTTP status that carries it.
    #[must_use]
    pub const fn status(self, plane: Plane) -> u16 {
        match plane {
            Plane::Data => self.row().data_status,
            Plane::Api => self.row().api_status,
        }
    }

    /// Whether something may have happened all the same.
    #[must_use]
    pub const fn side_effect(self) -> &'static str {
        self.row().side_effect
    }

    /// Whether the very same request may succeed later.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        self.row().retryable
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
                let is_other = matches!(code, Code::LeaseHeld | Code::IdempotencyInProgress | Code::RateLimited);
                assert_eq!(by_status, code.is_retryable() && !is_other, "{code:?}");
            }
        }
    }

    #[test]
    fn each_code_has_its_own_row_in_one_group() {
        assert!(Code::ALL.iter().all(|code| code.row().code == *code));
        let grouped: Vec<_> = Group::ALL.iter().flat_map(|group| group.rows).map(|row| row.code).collect();
        assert_eq!(grouped, Code::ALL);
    }
}
