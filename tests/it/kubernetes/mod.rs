//! Objects whose lock is a Lease of Kubernetes.

mod server;
