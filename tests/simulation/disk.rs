//! The gate's disk: the table in memory. Other steps happen while a commit waits for its sync, and the power can be
//! lost before or after it.

use std::{
    path::Path,
    sync::{Mutex, PoisonError, Weak},
};

use super::world::World;
use fencegate::table::{Batch, Row, Table, TableFault, memory::MemoryTable};

/// The disk of one run.
pub(super) struct Disk {
    pub(super) table: MemoryTable,
    pub(super) world: Weak<Mutex<World>>,
}

impl Disk {
    /// Plays other steps while a commit takes its time.
    fn meanwhile(&self) {
        let Some(world) = self.world.upgrade() else { return };
        let mut world = world.lock().unwrap_or_else(PoisonError::into_inner);
        if world.run.is_none() || world.crashed.is_some() {
            return;
        }
        if world.rng.below(1_000) < world.lot.crashes * 3 {
            world.say("the power goes away while the ledger commits");
            world.crashed = Some(self.table.after_a_crash());
            return;
        }
        if !world.rng.percent(40) {
            return;
        }
        for _ in 0..world.rng.range(1, 8) {
            if world.violation.is_none() {
                world.counts.during_syncs += 1;
                world.take_turn();
            }
        }
    }
}

impl Table for Disk {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, TableFault> {
        self.table.get(key)
    }

    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> Result<Vec<Row>, TableFault> {
        self.table.scan(from, until, limit)
    }

    fn commit(&self, batch: Batch) -> Result<(), TableFault> {
        self.meanwhile();
        let committed = self.table.commit(batch);
        self.meanwhile();
        committed
    }

    fn checkpoint(&self, folder: &Path) -> Result<(), TableFault> {
        self.table.checkpoint(folder)
    }

    fn reads(&self) -> u64 {
        self.table.reads()
    }
}
