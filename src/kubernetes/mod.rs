//! Leases of a Kubernetes cluster. The only place that knows `kube`.
//!
//! - [`api`]: the way to the API server, and one Lease as it is read there.

pub mod api;
