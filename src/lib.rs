//! fencegate: a storage-side write gate. `ARCHITECTURE.md` has the long form.
//!
//! # Layout
//! - [`fence`]: pure. Ids, numbers, leases, `judge` and `step`: all rules.
//! - [`barrier`]: records in memory and the writes in flight, counted under the same locks.
//! - [`table`]: the fence table, durable: schema, RocksDB, the single-writer ledger.
//! - [`write_path`]: the path of a write: accept, classify (by [`route`]), decide, forward, reply.
//! - [`route`]: what a request is, and which object it is about. [`upstream`]: the way to the store. [`tls`].
//! - [`access`]: who calls the api, and what each caller may do.
//! - [`audit`]: who did what by the api, and who was denied, as a chain of lines.
//! - [`api`]: the lease api and the ops port, over HTTP. [`wire`]: the types that the api and its clients exchange.
//! - [`gate`]: what the parts of a running gate share. [`sources`]: what it does for leases from elsewhere.
//! - [`migration`]: one gate's own migrations, step by step. [`authority`]: signed statements.
//! - [`app`]: puts the parts together, starts and stops them.
//! - [`demo`]: a gate before a store in memory, to try and to watch.
//! - [`client`]: for writers: takes a lease and keeps it. [`agent`]: does the same beside a writer that cannot.
//! - [`kubernetes`]: leases that a Kubernetes API server keeps.
//! - [`cli`]: one file per subcommand.
//! - [`config`] reads the environment, [`clock`] reads clocks, [`metrics`] names every metric;
//!   nothing else does. [`files`]: what makes a file durable.
//!
//! Modules import downwards only; `tests/it/layers.rs` has the order.

// What counts and fuzzes drive (bench/in_memory.rs) serves unit tests, too, and knows this crate by its name.
#[cfg(test)]
extern crate self as fencegate;

pub mod access;
pub mod agent;
pub mod api;
pub mod app;
pub mod audit;
pub mod authority;
pub mod barrier;
pub mod cli;
pub mod client;
pub mod clock;
pub mod config;
pub mod demo;
pub mod failpoints;
pub mod fence;
pub mod files;
pub mod gate;
pub mod kubernetes;
pub mod metrics;
pub mod migration;
pub mod problem;
pub mod route;
pub mod sources;
mod sync;
pub mod table;
pub mod tls;
pub mod upstream;
pub mod wire;
pub mod write_path;
