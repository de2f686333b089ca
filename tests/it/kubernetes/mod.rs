//! Objects whose lock is a Lease of Kubernetes.
//!
//! - `server`: the API server itself, fake or real. `candidate`: controllers that elect with client-go.
//! - `terms`: Leases that change hands. `away`: an API server that does not say, and gates that start again.
//! - `strangers`: tokens that anyone can send, late answers, routes that change.
//! - `handover`: candidates in processes of their own, whose leader writes through the gate.
//! - `world`: what those play in.

mod away;
mod candidate;
mod handover;
mod server;
mod strangers;
mod terms;
mod world;
