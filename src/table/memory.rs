//! A fence table in memory, for tests and the simulation. It can be made to fail as a disk does: a write that is
//! refused, a sync that fails, a sync that takes long, and a crash that forgets everything that was not synced.

use std::{collections::BTreeMap, path::Path, sync::PoisonError};

use super::{Batch, Row, Table, TableFault};
use crate::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

/// The step of the next commit that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// The write is refused: none of it exists.
    Write,
    /// The write can be read, but its sync fails: a crash may forget it.
    Sync,
}

#[derive(Debug, Default)]
struct Disk {
    /// What reads see.
    visible: BTreeMap<Vec<u8>, Vec<u8>>,
    /// What a crash leaves.
    synced: BTreeMap<Vec<u8>, Vec<u8>>,
    fail_next: Option<DiskFault>,
    fail_reads: bool,
    hold_syncs: bool,
    held: usize,
    hold_reads: bool,
    held_reads: usize,
}

/// The table. Share it with an `Arc`; [`crash`](Self::crash) acts like a power loss.
#[derive(Debug, Default)]
pub struct MemoryTable {
    disk: Mutex<Disk>,
    changed: Condvar,
    reads: AtomicU64,
}

impl MemoryTable {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the next commit fail.
    pub fn fail_next(&self, fault: DiskFault) {
        self.disk().fail_next = Some(fault);
    }

    /// Makes every read fail from now on, or none.
    pub fn fail_reads(&self, fail: bool) {
        self.disk().fail_reads = fail;
    }

    /// Makes syncs hang until [`release_syncs`](Self::release_syncs).
    pub fn hold_syncs(&self) {
        self.disk().hold_syncs = true;
    }

    pub fn release_syncs(&self) {
        self.disk().hold_syncs = false;
        self.changed.notify_all();
    }

    /// Waits until a commit hangs in its sync.
    pub fn wait_for_held_sync(&self) {
        let mut disk = self.disk();
        while disk.held == 0 {
            disk = self.changed.wait(disk).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Makes reads of single rows hang until [`release_reads`](Self::release_reads).
    pub fn hold_reads(&self) {
        self.disk().hold_reads = true;
    }

    pub fn release_reads(&self) {
        self.disk().hold_reads = false;
        self.changed.notify_all();
    }

    /// How many reads hang.
    #[must_use]
    pub fn held_reads(&self) -> usize {
        self.disk().held_reads
    }

    /// What a crash now would leave, as a separate table: threads that still use this one cannot change it.
    #[must_use]
    pub fn after_a_crash(&self) -> Self {
        let synced = self.disk().synced.clone();
        let disk = Disk { visible: synced.clone(), synced, ..Disk::default() };
        Self { disk: Mutex::new(disk), ..Self::default() }
    }

    /// Removes everything that was not synced.
    pub fn crash(&self) {
        let mut disk = self.disk();
        disk.visible = disk.synced.clone();
        disk.fail_next = None;
    }
}

fn apply(map: &mut BTreeMap<Vec<u8>, Vec<u8>>, batch: &Batch) {
    for (key, value) in batch.changes() {
        match value {
            Some(value) => map.insert(key.to_vec(), value.to_vec()),
            None => map.remove(key),
        };
    }
}

impl Table for MemoryTable {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, TableFault> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let mut disk = self.disk();
        disk.held_reads += 1;
        while disk.hold_reads {
            disk = self.changed.wait(disk).unwrap_or_else(PoisonError::into_inner);
        }
        disk.held_reads -= 1;
        if disk.fail_reads {
            return Err(TableFault::Read("the test's disk does not read".to_owned()));
        }
        Ok(disk.visible.get(key).cloned())
    }

    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> Result<Vec<Row>, TableFault> {
        let disk = self.disk();
        let rows = disk.visible.range(from.to_vec()..until.to_vec()).take(limit);
        let rows: Vec<Row> = rows.map(|(key, value)| (key.clone(), value.clone())).collect();
        self.reads.fetch_add(rows.len() as u64, Ordering::Relaxed);
        Ok(rows)
    }

    fn commit(&self, batch: Batch) -> Result<(), TableFault> {
        let mut disk = self.disk();
        let fault = disk.fail_next.take();
        if fault == Some(DiskFault::Write) {
            return Err(TableFault::Write("the test's disk is full".to_owned()));
        }
        apply(&mut disk.visible, &batch);
        if fault == Some(DiskFault::Sync) {
            return Err(TableFault::Write("the test's disk did not sync".to_owned()));
        }
        disk.held += 1;
        self.changed.notify_all();
        while disk.hold_syncs {
            disk = self.changed.wait(disk).unwrap_or_else(PoisonError::into_inner);
        }
        disk.held -= 1;
        apply(&mut disk.synced, &batch);
        Ok(())
    }

    fn checkpoint(&self, _folder: &Path) -> Result<(), TableFault> {
        Err(TableFault::Write("a table in memory has no folder to copy".to_owned()))
    }

    fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}
