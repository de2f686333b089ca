//! Objects whose lock is a Lease of Kubernetes.
//!
//! - `server`: the API server itself, fake or real.
//! - `terms`: Leases that change hands. `away`: an API server that does not say, and gates that start again.
//! - `world`: what they play in.

mod away;
mod server;
mod terms;
mod world;
