//! Gates with one thing wrong, each of which the model has to catch breaking a promise.

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// An advance waits for nothing.
    NoDrain,
    /// An advance does not close its object to writes of the old lease.
    NoSeal,
    /// The first step names the new holder already, on the disk too; only the answer waits for the drain.
    NoDrainingState,
    /// An advance opens its object whoever has overtaken it.
    NoStep4Check,
    /// The clean flag is set whatever may still land.
    EarlyCleanFlag,
    /// A write is not judged again before it is sent.
    NoCommitCheck,
    /// A write whose answer was lost is taken for one that has settled.
    NoUnknownWait,
    /// A write of which part was sent is taken for one that was not begun.
    PartialIsNone,
    /// A round is published and answered though nothing of it was synced.
    Unsynced,
    /// The end of a lease is told though it was not synced.
    UnsyncedEnd,
    /// The ledger decides against what is published, not against its own newest.
    DecidesOnPublished,
    /// A write whose answer was lost is sent again.
    Retry,
    /// Writes are judged by a clock that stands still.
    StoppedClock,
}
