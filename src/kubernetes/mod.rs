//! Leases of a Kubernetes cluster. The only place that knows `kube`.
//!
//! - [`api`]: the way to the API server, and one Lease as it is read there.
//! - [`elections`]: who was elected, for the gate: asks, and tells the ledger.
//! - `entries`: the Leases in use, and which objects are told of which. `pace`: how fast they are read.
//! - [`known`]: what is known of one Lease, and until when it counts as held. Touches nothing.
//! - [`watch`]: the watch of a namespace: renewals, and hints that there is something to ask about.

pub mod api;
pub mod elections;
mod entries;
pub mod known;
mod pace;
pub mod watch;
