//! Helpers of all integration tests.

pub mod agent;
pub mod authority;
pub mod bench;
pub mod gate;
pub mod h2;
pub mod http;
pub mod kube;
pub mod locks;
pub mod oidc;
pub mod power;
pub mod process;
pub mod run;
pub mod signers;
pub mod store;
pub mod wire;

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// Returns what another thread sends. Panics if nothing comes within a minute.
#[track_caller]
pub fn received<T>(what: &str, receiver: &std::sync::mpsc::Receiver<T>) -> T {
    receiver.recv_timeout(PATIENCE).unwrap_or_else(|why| panic!("waited in vain: {what}: {why}"))
}

/// Waits until a condition holds. Panics if it does not hold within a minute.
#[track_caller]
#[allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a bound on waiting, not a measurement")]
pub fn until(what: &str, mut shows: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !shows() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::yield_now();
    }
}
