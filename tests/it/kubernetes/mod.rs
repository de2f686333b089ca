//! Objects whose lock is a Kubernetes Lease.
//!
//! - `server`: the API server itself, fake or real. `candidate`: controllers that elect with client-go.
//! - `terms`: Leases that change hands. `away`: an API server that does not answer, and gates that start again.
//! - `strangers`: tokens that anyone can send, late answers, routes that change.
//! - `handover`: candidates in their own processes, whose leader writes through the gate.
//! - `world`: the gate, store and API server of these tests.

mod away;
mod candidate;
mod handover;
mod server;
mod strangers;
mod terms;
mod world;
