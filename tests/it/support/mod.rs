//! Helpers of all integration tests.

pub mod agent;
pub mod authority;
pub mod bench;
pub mod gate;
pub mod h2;
pub mod http;
pub mod kube;
pub mod locks;
pub mod power;
pub mod process;
pub mod run;
pub mod signers;
pub mod store;
pub mod wire;

/// Waits until a condition holds, for a limited time.
#[track_caller]
#[allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a bound on waiting, not a measurement")]
pub fn until(what: &str, mut shows: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !shows() {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "waited in vain: {what}");
        std::thread::yield_now();
    }
}
