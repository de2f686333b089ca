//! One suite for every table. With any fault and a crash at any time: no acknowledged change is lost, no number is
//! granted twice, and fences never go down.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use fencegate::{
    clock::{Clock, Driver},
    fence::{FenceToken, Hlc, HolderId, How, LeaseId, ObjectId, Ttl, WallMs},
    metrics::Metrics,
    route::RouteFingerprint,
    table::{
        Table,
        codec::Meta,
        ledger::{Core, Ledger, LedgerError, Setup, Wanted},
        memory::{DiskFault, MemoryTable},
        news::News,
        open::{self, OpenedTable, begin_on, write_meta},
        records::Records,
        rocks::Recovered,
    },
};
use proptest::{prelude::*, test_runner::Config};
use tokio::runtime::Runtime;

use super::support::gate::{START, key};

/// A table on which a new run can begin again and again.
trait Disk {
    fn begin(&self, clock: &Clock) -> OpenedTable;
    /// A power cut: the synced data is left, and maybe more.
    fn crash(&self);
    /// Makes the next commit fail like this. Returns `false` if this disk cannot do it.
    fn inject(&self, fault: DiskFault) -> bool;
}

impl Disk for Arc<MemoryTable> {
    fn begin(&self, clock: &Clock) -> OpenedTable {
        begin_on(
            Arc::clone(self) as Arc<dyn Table>,
            key(),
            Recovered::Whole,
            (clock, RouteFingerprint::default()),
            "memory",
        )
        .unwrap()
    }

    fn crash(&self) {
        MemoryTable::crash(self);
    }

    fn inject(&self, fault: DiskFault) -> bool {
        self.fail_next(fault);
        true
    }
}

impl Disk for tempfile::TempDir {
    fn begin(&self, clock: &Clock) -> OpenedTable {
        open::begin(self.path(), false, clock, RouteFingerprint::default()).unwrap()
    }

    fn crash(&self) {}

    fn inject(&self, _fault: DiskFault) -> bool {
        false
    }
}

fn memory() -> Arc<MemoryTable> {
    let table = Arc::new(MemoryTable::default());
    let meta = Meta::new(&key(), true);
    write_meta(&*table, &meta, Hlc::default()).unwrap();
    table
}

fn rocks() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    open::init(folder.path()).unwrap();
    folder
}

/// A ledger on a disk, with all changes that it has acknowledged.
struct Bench<D> {
    disk: D,
    runtime: Runtime,
    clock: Driver,
    open: Option<(Ledger, Arc<Records>)>,
    machine: Clock,
    /// Every acknowledged grant.
    granted: HashMap<(ObjectId, u64), LeaseId>,
    fences: HashMap<ObjectId, u64>,
    held: HashMap<ObjectId, (LeaseId, FenceToken)>,
    /// Acknowledged releases and renewals: the expected state of each lease.
    released: HashSet<LeaseId>,
    renewed: HashMap<LeaseId, WallMs>,
}

impl<D: Disk> Bench<D> {
    fn new(disk: D) -> Self {
        let (machine, clock) = Clock::driven(START);
        let runtime = Runtime::new().unwrap();
        let (granted, fences, held, released, renewed) = Default::default();
        let mut bench = Self { disk, runtime, clock, machine, open: None, granted, fences, held, released, renewed };
        bench.start();
        bench
    }

    fn start(&mut self) {
        let OpenedTable { table, context, meta, mark, .. } = self.disk.begin(&self.machine);
        let records = Arc::new(Records::new(table, context, 64));
        let core = Core::new(Setup {
            records: Arc::clone(&records),
            news: Arc::new(News::new(16, mark)),
            clock: self.machine.clone(),
            metrics: Metrics::new().ledger,
            meta,
            mark,
            journal_keep: 1_000,
            keys_keep_ms: 86_400_000,
            takeover_after_ms: 0,
            waiters_max: 10,
            unclean: false,
            fingerprint: RouteFingerprint::default(),
        });
        self.open = Some((Ledger::start(core, &self.machine), records));
    }

    fn crash(&mut self) {
        let (ledger, records) = self.open.take().unwrap();
        ledger.abandon();
        drop(records);
        self.disk.crash();
        self.start();
    }

    fn ledger(&self) -> Ledger {
        self.open.as_ref().unwrap().0.clone()
    }

    /// The table must include everything that it ever acknowledged.
    fn check(&mut self) {
        let records = Arc::clone(&self.open.as_ref().unwrap().1);
        for (object, fence) in &mut self.fences {
            let now = records.read(object).unwrap().fence.get();
            assert!(now >= *fence, "{object}: the fence went down from {fence} to {now}");
            *fence = now;
        }
        for ((object, seq), lease_id) in &self.granted {
            let row = records.lease_row(lease_id).unwrap().unwrap_or_else(|| panic!("{object} {seq} was forgotten"));
            assert_eq!((&row.object, row.seq.get()), (object, *seq));
            let how = row.ended.as_ref().map(|ended| &ended.how);
            assert_eq!(how == Some(&How::Released), self.released.contains(lease_id), "{object} {seq}: {how:?}");
            let record = records.read(object).unwrap();
            if let Some((until, lease)) =
                self.renewed.get(lease_id).zip(record.open_lease().filter(|lease| lease.lease_id == *lease_id))
            {
                assert!(lease.expires_at >= *until, "{object} {seq}: a renewal was forgotten");
            }
        }
    }

    fn acquire(&mut self, object: &str, holder: &str) -> Result<u64, LedgerError> {
        let object = ObjectId::new(object).unwrap();
        let wanted = Wanted {
            objects: vec![object.clone()],
            holder: HolderId::new(holder).unwrap(),
            ttl: Ttl(1_000),
            wait_ms: 0,
            request: None,
            takeover: true,
        };
        let granted = self.runtime.block_on(self.ledger().acquire(wanted))?.take().remove(0);
        let seq = granted.lease.seq.get();
        let floor = self.fences.insert(object.clone(), seq).unwrap_or(0);
        assert!(seq > floor, "{object}: {seq} was granted though the fence was {floor}");
        let twice = self.granted.insert((object.clone(), seq), granted.lease.lease_id.clone());
        assert_eq!(twice, None, "{object} {seq} was granted twice");
        self.held.insert(object.clone(), (granted.lease.lease_id.clone(), granted.lease.token(&object)));
        Ok(seq)
    }

    fn release(&mut self, object: &str) -> Result<(), LedgerError> {
        let Some((lease_id, token)) = self.held.get(&ObjectId::new(object).unwrap()).cloned() else { return Ok(()) };
        let done = self.runtime.block_on(self.ledger().release(lease_id.clone(), None, token));
        match done {
            Ok(_) => drop(self.released.insert(lease_id)),
            // The outcome is unknown; the test's disk forgets unsynced data.
            Err(refused) => return Err(refused),
        }
        Ok(())
    }

    fn renew(&mut self, object: &str, holder: &str) -> Result<(), LedgerError> {
        let Some((lease_id, token)) = self.held.get(&ObjectId::new(object).unwrap()).cloned() else { return Ok(()) };
        let holder = HolderId::new(holder).unwrap();
        let renewed =
            self.runtime.block_on(self.ledger().renew(lease_id.clone(), holder, token, Ttl(1_000), false))?.take();
        self.renewed.insert(lease_id, renewed.lease.expires_at);
        Ok(())
    }
}

#[derive(Clone, Debug)]
enum Move {
    Acquire(u8, u8),
    Release(u8),
    Renew(u8, u8),
    Wait(u16),
    Crash,
    Fail(bool),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        6 => (0..4_u8, 0..3_u8).prop_map(|(object, holder)| Move::Acquire(object, holder)),
        2 => (0..4_u8).prop_map(Move::Release),
        2 => (0..4_u8, 0..3_u8).prop_map(|(object, holder)| Move::Renew(object, holder)),
        2 => (0..1_500_u16).prop_map(Move::Wait),
        2 => Just(Move::Crash),
        1 => any::<bool>().prop_map(Move::Fail),
    ];
    proptest::collection::vec(one, 1..60)
}

/// Plays moves; after each crash every acknowledged change must still be there.
fn play(bench: &mut Bench<impl Disk>, moves: Vec<Move>) {
    let mut may_fail = false;
    for step in moves {
        let done = match step {
            Move::Acquire(object, holder) => bench.acquire(&format!("o{object}"), &format!("h{holder}")).map(|_| ()),
            Move::Release(object) => bench.release(&format!("o{object}")),
            Move::Renew(object, holder) => bench.renew(&format!("o{object}"), &format!("h{holder}")),
            Move::Wait(ms) => {
                bench.clock.advance(ms.into());
                Ok(())
            }
            Move::Crash => {
                bench.crash();
                may_fail = false;
                Ok(())
            }
            Move::Fail(write) => {
                may_fail |= bench.disk.inject(if write { DiskFault::Write } else { DiskFault::Sync });
                Ok(())
            }
        };
        let failed = matches!(done, Err(LedgerError::Unavailable | LedgerError::Unsure));
        assert!(may_fail || !failed, "nothing failed, and yet it was refused");
    }
    bench.crash();
    bench.check();
}

proptest! {
    #![proptest_config(Config::with_cases(150))]
    #[test]
    fn the_table_in_memory_keeps_what_it_acknowledged(moves in moves()) {
        play(&mut Bench::new(memory()), moves);
    }
}

proptest! {
    #![proptest_config(Config::with_cases(12))]
    #[test]
    fn rocksdb_keeps_what_it_acknowledged(moves in moves()) {
        play(&mut Bench::new(rocks()), moves);
    }
}

fn seqs_grow_across_restarts(bench: &mut Bench<impl Disk>) {
    for round in 1..=5 {
        assert_eq!(bench.acquire("users", "a"), Ok(round));
        bench.crash();
        bench.check();
    }
}

#[test]
fn seqs_grow_across_restarts_in_memory() {
    seqs_grow_across_restarts(&mut Bench::new(memory()));
}

#[test]
fn seqs_grow_across_restarts_on_rocksdb() {
    seqs_grow_across_restarts(&mut Bench::new(rocks()));
}

#[test]
fn a_failed_write_or_sync_latches_the_table_until_a_restart() {
    for fault in [DiskFault::Write, DiskFault::Sync] {
        let mut bench = Bench::new(memory());
        bench.acquire("users", "a").unwrap();
        bench.disk.fail_next(fault);
        assert_eq!(bench.acquire("orders", "a"), Err(LedgerError::Unsure), "{fault:?}");
        // The disk works again; the ledger stays shut.
        assert_eq!(bench.acquire("orders", "a"), Err(LedgerError::Unavailable));
        assert_eq!(bench.renew("users", "a"), Err(LedgerError::Unavailable));
        assert_eq!(bench.release("users"), Err(LedgerError::Unavailable));
        let (ledger, records) = bench.open.as_ref().unwrap();
        assert!(records.latched().is_some());
        assert_eq!(bench.runtime.block_on(ledger.stop()), Err(LedgerError::Unavailable), "no clean flag is set");
        bench.crash();
        bench.check();
        assert_eq!(bench.acquire("orders", "a"), Ok(1));
    }
}

#[test]
fn the_suite_notices_a_table_that_forgets() {
    // The negative control: a disk whose commits are not synced at all.
    struct Liar(Arc<MemoryTable>);
    impl Table for Liar {
        fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, fencegate::table::TableFault> {
            self.0.get(key)
        }
        fn scan(
            &self,
            from: &[u8],
            until: &[u8],
            limit: usize,
        ) -> Result<Vec<fencegate::table::Row>, fencegate::table::TableFault> {
            self.0.scan(from, until, limit)
        }
        fn commit(&self, batch: fencegate::table::Batch) -> Result<(), fencegate::table::TableFault> {
            self.0.fail_next(DiskFault::Sync);
            let _ = self.0.commit(batch);
            Ok(())
        }
        fn checkpoint(&self, folder: &std::path::Path) -> Result<(), fencegate::table::TableFault> {
            self.0.checkpoint(folder)
        }
        fn reads(&self) -> u64 {
            self.0.reads()
        }
    }
    struct LyingDisk(Arc<MemoryTable>);
    impl Disk for LyingDisk {
        fn begin(&self, clock: &Clock) -> OpenedTable {
            let liar = Arc::new(Liar(Arc::clone(&self.0)));
            begin_on(liar, key(), Recovered::Whole, (clock, RouteFingerprint::default()), "memory").unwrap()
        }
        fn crash(&self) {
            self.0.crash();
        }
        fn inject(&self, _fault: DiskFault) -> bool {
            false
        }
    }
    let mut bench = Bench::new(LyingDisk(memory()));
    bench.acquire("users", "a").unwrap();
    bench.crash();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bench.check()));
    assert!(caught.is_err(), "a forgotten grant went unnoticed");
}
