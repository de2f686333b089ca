//! Leases of a Kubernetes cluster. The only place that knows `kube`.
//!
//! - [`api`]: the way to the API server, and one Lease as it is read there.
//! - [`lease_observer`]: who was elected, for the gate: asks, and tells the ledger.
//! - `entries`: the Leases in use, and which objects are told of which. `pace`: how fast they are read.
//! - [`known`]: what is known of one Lease, and until when it counts as held. Touches nothing.
//! - [`watch`]: the watch of a namespace: renewals, and hints that there is something to ask about.

pub mod api;
mod entries;
pub mod known;
pub mod lease_observer;
mod pace;
pub mod watch;
