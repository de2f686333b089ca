//! What was seen, in numbers: a simulation in which nothing went wrong on its way has shown nothing.

use std::fmt;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What was seen.
        #[derive(Clone, Copy, Debug, Default)]
        pub(super) struct Counts {
            $($(#[$doc])* pub(super) $name: u64,)*
        }

        impl Counts {
            /// Adds another seed's.
            pub(super) fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }

        impl fmt::Display for Counts {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let all = [$(format!("{} {}", stringify!($name), self.$name)),*];
                f.write_str(&all.join(" "))
            }
        }
    };
}

counts! {
    steps,
    grants,
    /// Of these, by force.
    tainted,
    /// Writes that were judged and let go on, once per judgement.
    admitted,
    /// Writes, and parts of writes, that the store has applied.
    applied,
    partial,
    /// Writes that were let go before an acquire was asked for, and applied after.
    overtakes,
    /// Writes that landed behind the end of their connection, when the bound had passed since they were let go, but
    /// not since that end.
    late,
    /// Writes that were told to stop while they streamed.
    cancelled,
    unknown,
    /// Steps that others took while the ledger waited for its disk.
    during_syncs,
    /// Acquires that waited for a drain and were told that another advance has overtaken them.
    overtaken_advances,
    crashes,
    clean_stops,
    /// Records that were pushed out of memory.
    evictions,
    wall_steps,
    disk_faults,
    /// Terms of leadership, by Leases; the gate's reads of those; routes that came to name another.
    terms,
    lease_reads,
    reroutes,
}
