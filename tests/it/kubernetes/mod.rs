//! Objects whose lock is a Lease of Kubernetes.
//!
//! - `server`: the API server itself, fake or real.
//! - `terms`: Leases that change hands. `away`: an API server that does not say, and gates that start again.
//! - `candidates`: processes that elect a leader as client-go does, or by client-go.
//! - `world`: what the first two play in.

mod away;
mod candidates;
mod server;
mod terms;
mod world;
