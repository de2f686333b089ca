//! A round of the ledger answers after its commit. This holds for refusals too, so that none names a state that a crash
//! could forget.

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use fencegate::{
    clock::{Clock, Driver},
    fence::{Hlc, HolderId, LeaseId, ObjectId, Ttl, step::LeaseRefusal},
    metrics::Metrics,
    route::RouteFingerprint,
    table::{
        Batch, Row, Table, TableFault,
        codec::Meta,
        ledger::{Command, Core, Granted, LedgerError, Setup, Wanted},
        memory::{DiskFault, MemoryTable},
        news::News,
        open::{OpenedTable, begin_on, write_meta},
        records::Records,
        rocks::Recovered,
    },
};
use tokio::sync::oneshot;

use super::support::gate::{START, key};

type Look = Box<dyn FnMut() + Send>;

/// A table that calls a function when a commit begins: at that time nothing of the round is durable.
struct Watched {
    disk: Arc<MemoryTable>,
    at_commit: Arc<Mutex<Option<Look>>>,
}

impl Table for Watched {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, TableFault> {
        self.disk.get(key)
    }

    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> Result<Vec<Row>, TableFault> {
        self.disk.scan(from, until, limit)
    }

    fn commit(&self, batch: Batch) -> Result<(), TableFault> {
        self.at_commit.lock().unwrap().iter_mut().for_each(|look| look());
        self.disk.commit(batch)
    }

    fn checkpoint(&self, folder: &Path) -> Result<(), TableFault> {
        self.disk.checkpoint(folder)
    }

    fn reads(&self) -> u64 {
        self.disk.reads()
    }
}

struct World {
    core: Core,
    clock: Driver,
    disk: Arc<MemoryTable>,
    at_commit: Arc<Mutex<Option<Look>>>,
}

impl World {
    fn new() -> Self {
        let (machine, clock) = Clock::driven(START);
        let (disk, at_commit) = (Arc::new(MemoryTable::default()), Arc::default());
        write_meta(&*disk, &Meta::new(&key(), true), Hlc::default()).unwrap();
        let table = Arc::new(Watched { disk: Arc::clone(&disk), at_commit: Arc::clone(&at_commit) });
        let begun = begin_on(table, key(), Recovered::Whole, (&machine, RouteFingerprint::default()), "memory");
        let OpenedTable { table, context, meta, mark, .. } = begun.unwrap();
        let core = Core::new(Setup {
            records: Arc::new(Records::new(table, context, 64)),
            news: Arc::new(News::new(16, mark)),
            clock: machine,
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
        Self { core, clock, disk, at_commit }
    }

    fn acquire(&mut self, object: &str) -> Granted {
        let (reply, mut answer) = oneshot::channel();
        self.core.run([acquire(object, "a", reply)]);
        answer.try_recv().unwrap().unwrap().remove(0)
    }

    /// Runs one round with a change of another object and a call that is refused. Returns whether the refusal came
    /// before the commit, and the refusal.
    fn refused_beside_a_change<T: Send + 'static>(
        &mut self,
        call: impl FnOnce(oneshot::Sender<Result<T, LedgerError>>) -> Command,
    ) -> (bool, LedgerError) {
        let (granted, _changed) = oneshot::channel();
        let (reply, answer) = oneshot::channel();
        let (answer, said) = (Arc::new(Mutex::new(answer)), Arc::new(Mutex::new(None)));
        let (looks, commits) = ((Arc::clone(&answer), Arc::clone(&said)), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&commits);
        *self.at_commit.lock().unwrap() = Some(Box::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            *looks.1.lock().unwrap() = looks.0.lock().unwrap().try_recv().ok();
        }));
        self.core.run([acquire("beside", "another", granted), call(reply)]);
        *self.at_commit.lock().unwrap() = None;
        assert_eq!(commits.load(Ordering::SeqCst), 1, "one round, one commit");
        let early = said.lock().unwrap().take();
        let is_early = early.is_some();
        let answer = early.unwrap_or_else(|| answer.lock().unwrap().try_recv().expect("an answer behind the round"));
        (is_early, answer.err().expect("a refusal"))
    }
}

fn acquire(object: &str, holder: &str, reply: oneshot::Sender<Result<Vec<Granted>, LedgerError>>) -> Command {
    let wanted = Wanted {
        objects: vec![ObjectId::new(object).unwrap()],
        holder: HolderId::new(holder).unwrap(),
        ttl: Ttl(1_000),
        wait_ms: 0,
        request: None,
        takeover: false,
    };
    Command::Acquire { wanted, reply }
}

fn renew(lease: &Granted, reply: oneshot::Sender<Result<Granted, LedgerError>>) -> Command {
    let (lease_id, token) = (lease.lease.lease_id.clone(), lease.lease.token(&lease.object));
    Command::Renew { lease_id, holder: lease.lease.holder.clone(), token, ttl: Ttl(1_000), rotate: false, reply }
}

/// The answer to each kind of call, on a disk that works and on one that fails.
fn in_each_way(fails: bool) -> Vec<(&'static str, bool, LedgerError)> {
    let world = || {
        let mut world = World::new();
        let lease = world.acquire("users");
        if fails {
            world.disk.fail_next(DiskFault::Sync);
        }
        (world, lease)
    };
    let mut refusals = vec![];
    let (mut overdue, lease) = world();
    overdue.clock.advance(1_000);
    let (early, why) = overdue.refused_beside_a_change(|reply| renew(&lease, reply));
    refusals.push(("renew", early, why));
    let (mut held, _) = world();
    let (early, why) = held.refused_beside_a_change(|reply| acquire("users", "b", reply));
    refusals.push(("acquire", early, why));
    let (mut unknown, lease) = world();
    let (early, why) = unknown.refused_beside_a_change(|reply| {
        let (lease_id, token) = (LeaseId::new("another").unwrap(), lease.lease.token(&lease.object));
        Command::Release { lease_id, holder: None, token, reply }
    });
    refusals.push(("release", early, why));
    refusals
}

#[test]
fn no_refusal_leaves_before_its_round_is_durable() {
    let refusals = in_each_way(false);
    for (call, early, _) in &refusals {
        assert!(!early, "{call} was refused before anything was durable");
    }
    let reasons: Vec<_> = refusals.into_iter().map(|(_, _, why)| why).collect();
    assert!(
        matches!(&reasons[0], LedgerError::Lease { why: LeaseRefusal::Expired { .. }, .. }),
        "an overdue lease is over: {:?}",
        reasons[0]
    );
    assert!(matches!(&reasons[1], LedgerError::Lease { why: LeaseRefusal::Held { .. }, .. }), "{:?}", reasons[1]);
    assert_eq!(reasons[2], LedgerError::NotFound);
}

#[test]
fn a_round_that_fails_cites_nothing_that_it_has_decided() {
    for (call, _, why) in in_each_way(true) {
        assert_eq!(why, LedgerError::Unavailable, "{call}");
    }
}
