//! Faults that tests switch on to show that a check catches them. They exist only in a build with feature
//! `failpoints`. A default build cannot have them, and refuses to start when one of the variables
//! `FENCEGATE_TEST_FAULT` and `FENCEGATE_TEST_POINT` is set.

mod points;

pub use points::{Point, reach};

/// The faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Leave out the sync behind every commit.
    NoSync,
    /// Forward writes whose lease is over, like a gate that does not check.
    ForwardStale,
    /// An advance does not wait for older writes.
    NoDrain,
    /// An advance does not close its object to writes of the old lease.
    NoSeal,
    /// A write is not judged again before it can land.
    NoCommitCheck,
    /// An advance opens its object at once, while older writes drain.
    NoDrainingState,
    /// An advance opens its object even where another one has overtaken it.
    NoStep4Check,
    /// A slow load puts an old record back.
    StaleLoad,
    /// The clean flag is set even where writes may still land.
    EarlyCleanFlag,
    /// The head of an answer settles a write.
    HeadSettles,
    /// A write of unknown outcome counts as settled.
    NoUnknownWait,
    /// The bound of a write of unknown outcome is counted from its commit, not from the close of its connection. In
    /// the simulation only.
    BoundFromCommit,
    /// A write of which part was sent counts as not begun.
    PartialIsNone,
    /// A changed route does not wait for writes that used the old one.
    ReloadNoWait,
    /// A lease that has ended goes on.
    Revive,
    /// A Lease that led an object before another one is forgotten.
    NoFloors,
    /// A term goes on, whether or not its Lease was seen renewed.
    DeadTerms,
    /// A change of a Lease is not passed on to the objects that follow it.
    NoPassOn,
    /// A known idempotency key counts as a new one.
    ForgetKeys,
    /// Writes are judged once and not counted, to measure what the barrier costs.
    NoBarrier,
    /// The first caller gets every connection to the store, and every place in the queue.
    NoShares,
    /// No connection is closed to make room for another one.
    NoEviction,
    /// CONNECT, TRACE and upgrades are not refused.
    PassTunnels,
    /// A body that was held is sent without its last two bytes, with a length that agrees.
    CutBody,
    /// A body that ends early, or comes too slowly, is taken for a whole one.
    ShortBody,
    /// A client's own `fence_*` fields are passed on: only those that are spelled `fence-*` are taken out.
    PassUnderscores,
    /// All trailers behind a body that was held are passed on.
    PassTrailers,
    /// A path, or a header that names another one, is taken although two servers could read it in two ways.
    AnyPath,
    /// The Host is not looked at.
    AnyHost,
    /// The Destination is not looked at: a write has one object.
    NoDestination,
}

impl Fault {
    pub const ALL: [Self; 30] = [
        Self::NoSync,
        Self::ForwardStale,
        Self::NoDrain,
        Self::NoSeal,
        Self::NoCommitCheck,
        Self::NoDrainingState,
        Self::NoStep4Check,
        Self::StaleLoad,
        Self::EarlyCleanFlag,
        Self::HeadSettles,
        Self::NoUnknownWait,
        Self::BoundFromCommit,
        Self::PartialIsNone,
        Self::ReloadNoWait,
        Self::Revive,
        Self::NoFloors,
        Self::DeadTerms,
        Self::NoPassOn,
        Self::ForgetKeys,
        Self::NoBarrier,
        Self::NoShares,
        Self::NoEviction,
        Self::PassTunnels,
        Self::CutBody,
        Self::ShortBody,
        Self::PassUnderscores,
        Self::PassTrailers,
        Self::AnyPath,
        Self::AnyHost,
        Self::NoDestination,
    ];

    /// The fault's name in `FENCEGATE_TEST_FAULT`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoSync => "no-sync",
            Self::ForwardStale => "forward-stale",
            Self::NoDrain => "no-drain",
            Self::NoSeal => "no-seal",
            Self::NoCommitCheck => "no-commit-check",
            Self::NoDrainingState => "no-draining-state",
            Self::NoStep4Check => "no-step4-check",
            Self::StaleLoad => "stale-load",
            Self::EarlyCleanFlag => "early-clean-flag",
            Self::HeadSettles => "head-settles",
            Self::NoUnknownWait => "no-unknown-wait",
            Self::BoundFromCommit => "bound-from-commit",
            Self::PartialIsNone => "partial-is-none",
            Self::ReloadNoWait => "reload-no-wait",
            Self::Revive => "revive",
            Self::NoFloors => "no-floors",
            Self::DeadTerms => "dead-terms",
            Self::NoPassOn => "no-pass-on",
            Self::ForgetKeys => "forget-keys",
            Self::NoBarrier => "no-barrier",
            Self::NoShares => "no-shares",
            Self::NoEviction => "no-eviction",
            Self::PassTunnels => "pass-tunnels",
            Self::CutBody => "cut-body",
            Self::ShortBody => "short-body",
            Self::PassUnderscores => "pass-underscores",
            Self::PassTrailers => "pass-trailers",
            Self::AnyPath => "any-path",
            Self::AnyHost => "any-host",
            Self::NoDestination => "no-destination",
        }
    }

    #[cfg(feature = "failpoints")]
    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }
}

/// Whether a fault is switched on.
#[cfg(feature = "failpoints")]
#[must_use]
pub fn on(fault: Fault) -> bool {
    use std::sync::OnceLock;
    static ASKED: OnceLock<Option<Fault>> = OnceLock::new();
    *ASKED.get_or_init(|| crate::config::test_fault().as_deref().and_then(Fault::named)) == Some(fault)
}

/// Whether a fault is switched on: never, in this build.
#[cfg(not(feature = "failpoints"))]
#[must_use]
pub const fn on(_: Fault) -> bool {
    false
}

/// Checks that this build has what the environment asks for.
///
/// # Errors
/// With the message for the operator, where it has not.
#[cfg(feature = "failpoints")]
pub fn check(fault: Option<&str>, points: Option<&str>) -> Result<(), String> {
    points.map_or(Ok(()), points::check)?;
    match fault {
        Some(name) if Fault::named(name).is_none() => Err(format!("FENCEGATE_TEST_FAULT: no fault is called {name:?}")),
        Some(_) | None => Ok(()),
    }
}

/// Checks that this build has what the environment asks for.
///
/// # Errors
/// With the message for the operator, where it has not.
#[cfg(not(feature = "failpoints"))]
pub fn check(fault: Option<&str>, points: Option<&str>) -> Result<(), String> {
    match fault.map(|_| "FENCEGATE_TEST_FAULT").or(points.map(|_| "FENCEGATE_TEST_POINT")) {
        Some(name) => Err(format!("{name} is set, but this build has no test faults; unset it")),
        None => Ok(()),
    }
}
