//! The API server of a Kubernetes cluster: its Leases, and its reviews of tokens. The only module that uses `kube`.
//!
//! - [`api`]: the API server, and one Lease as it is read there.
//! - [`lease_observer`]: who was elected, for the gate: asks, and passes answers to the ledger.
//! - [`lease_state`]: one Lease: what is read and passed on, and in which order. Without I/O. [`lease_event`]: its events
//!   and effects.
//! - `entries`: the Leases in use, and which objects follow which Lease. `read_limiter`: how often they are read.
//! - [`known`]: what is known of one Lease, and until when it counts as held. Without I/O.
//! - [`token_review`]: whether a token is a ServiceAccount's.
//! - [`watch`]: the watch of a namespace: renewals, and hints that a Lease must be read.

pub mod api;
mod entries;
pub mod known;
pub mod lease_event;
pub mod lease_observer;
pub mod lease_state;
mod read_limiter;
pub mod token_review;
pub mod watch;
