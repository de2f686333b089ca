//! What a run has seen, in numbers: a simulation in which nothing went wrong has shown nothing.

use std::fmt;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The counts.
        #[derive(Clone, Copy, Debug, Default)]
        pub(super) struct Counts {
            $($(#[$doc])* pub(super) $name: u64,)*
        }

        impl Counts {
            /// Adds the counts of another seed.
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
    /// Of these, those by force.
    tainted,
    /// Writes that were judged and released, once per judgement.
    admitted,
    /// Writes, and parts of writes, that the store has applied.
    applied,
    partial,
    /// Writes that were released before an acquire was asked for, and applied after.
    overtakes,
    /// Writes that landed after the end of their connection, when the bound had passed since their release, but not
    /// since that end.
    late,
    /// Writes that an advance stopped while they streamed.
    cancelled,
    unknown,
    /// Steps of others while the ledger waited for its disk.
    during_syncs,
    /// Acquires that waited for a drain and got the answer that another advance has overtaken them.
    overtaken_advances,
    crashes,
    clean_stops,
    /// Records that were evicted from memory.
    evictions,
    wall_steps,
    disk_faults,
    /// Terms of leadership, by Leases; the gate's reads of those; changes that it passed on to the objects that follow;
    /// routes that changed to another Lease.
    terms,
    lease_reads,
    passed_on,
    reroutes,
}
