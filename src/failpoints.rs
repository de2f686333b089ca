//! Faults that tests switch on to see the product caught. They exist only in a build with feature
//! `failpoints`; a default build has no way to take them, and refuses to start when the variable
//! `FENCEGATE_TEST_FAULT` is set.

/// Leave out the sync behind every commit.
#[cfg(feature = "failpoints")]
#[must_use]
pub fn no_sync() -> bool {
    is("no-sync")
}

/// Leave out the sync behind every commit: never, in this build.
#[cfg(not(feature = "failpoints"))]
#[must_use]
pub const fn no_sync() -> bool {
    false
}

/// Forward writes whose lease is over, as a gate would that does not look.
#[cfg(feature = "failpoints")]
#[must_use]
pub fn forward_stale() -> bool {
    is("forward-stale")
}

/// Forward writes whose lease is over: never, in this build.
#[cfg(not(feature = "failpoints"))]
#[must_use]
pub const fn forward_stale() -> bool {
    false
}

#[cfg(feature = "failpoints")]
fn is(name: &str) -> bool {
    use std::sync::OnceLock;
    static FAULT: OnceLock<Option<String>> = OnceLock::new();
    FAULT.get_or_init(crate::config::test_fault).as_deref() == Some(name)
}

/// Whether a fault that the environment asks for can be had in this build.
///
/// # Errors
/// With what to say, where it cannot.
pub fn check(fault: Option<&str>) -> Result<(), String> {
    match fault {
        None => Ok(()),
        Some("no-sync" | "forward-stale") if cfg!(feature = "failpoints") => Ok(()),
        Some(name) if cfg!(feature = "failpoints") => Err(format!("FENCEGATE_TEST_FAULT: no fault is called {name:?}")),
        Some(_) => Err("FENCEGATE_TEST_FAULT is set, but this build has no test faults; unset it".to_owned()),
    }
}
