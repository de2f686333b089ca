//! Gates with one thing wrong. The model must catch each of them breaking a promise.

/// The mutants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// An advance does not wait for older writes.
    NoDrain,
    /// An advance does not close its object to writes of the old lease.
    NoSeal,
    /// The first step names the new holder already, on the disk too; only the answer waits for the drain.
    NoDrainingState,
    /// An advance opens its object even where another one has overtaken it.
    NoStep4Check,
    /// The clean flag is set even where writes may still land.
    EarlyCleanFlag,
    /// A write is not judged again before it is sent.
    NoCommitCheck,
    /// A write whose answer was lost counts as settled.
    NoUnknownWait,
    /// A write of which part was sent counts as not begun.
    PartialIsNone,
    /// A round is published and answered though none of it was synced.
    Unsynced,
    /// The end of a lease is answered though it was not synced.
    UnsyncedEnd,
    /// The ledger decides against the published row, not against its own newest one.
    DecidesOnPublished,
    /// A write whose answer was lost is sent again.
    Retry,
    /// Writes are judged by a clock that never moves.
    StoppedClock,
}
