//! A gate without sockets: the real ledger on its thread, on a table in memory, and the steps that `write_path`
//! takes with a write, each on the thread that calls it.

use std::{
    rc::Rc,
    sync::{Arc, LazyLock, atomic::AtomicBool},
    time::Duration,
};

use fencegate::{
    barrier::{
        generation::Generation,
        in_flight::{Admission, InFlight, NoKey, Permitted},
        stripes::{Place, Stripes},
    },
    clock::{Clock, Driver},
    config::{LeaseSettings, Settings},
    fence::{
        BootMs, FenceToken, Hlc, HolderId, Incarnation, LeaseId, Now, ObjectId, Record, State, TableKey, Ttl, WallMs,
        step::{Announcement, Kind, Source},
        verdict::{self, Presented, View},
        write::{Effect, Event, Stage, Write, WriteOptions as Life},
    },
    gate::{Gate, receipts::Receipts},
    kubernetes::lease_observer::LeaseObserver,
    metrics::Metrics,
    route::RouteFingerprint,
    table::{
        Table,
        codec::Meta,
        ledger::{Core, Granted, Ledger, LedgerError, Setup, Wanted},
        memory::MemoryTable,
        news::{After, News},
        open::{OpenedTable, begin_on, write_meta},
        records::Records,
        rocks::Recovered,
    },
};
use shuttle::{
    future::block_on,
    thread::{JoinHandle, spawn},
};
use tokio::sync::{Semaphore, watch};

use crate::oracle::Oracle;

const START: Now = Now { wall: WallMs(1_800_000_000_000), boot: BootMs(5_000_000) };
const HOUR: Ttl = Ttl(3_600_000);

/// How long a write may still land once its connection is gone.
pub const BOUND: Ttl = Ttl(100);

/// Counting has no switch point for shuttle, so one set of metrics is enough for all runs.
static METRICS: LazyLock<Arc<Metrics>> = LazyLock::new(|| Arc::new(Metrics::new()));

/// An admitted write, as in the data plane.
pub type Guard = InFlight<Rc<Arc<Gate>>, NoKey>;

/// Whether an effect sends something.
pub fn is_sent(effect: &Effect) -> bool {
    matches!(effect, Effect::Send(_))
}

pub struct World {
    pub gate: Arc<Gate>,
    /// The version of the route that admits all writes.
    route: Arc<Generation>,
    pub oracle: Oracle,
    driver: Driver,
    begun: Hlc,
}

/// A lease, as its holder knows it.
#[derive(Clone)]
pub struct Held {
    token: FenceToken,
    lease_id: LeaseId,
    pub tainted: bool,
}

impl Held {
    pub fn object(&self) -> &ObjectId {
        &self.token.object
    }
}

fn key() -> TableKey {
    TableKey::from_bytes([7; 32])
}

pub fn object(name: &str) -> ObjectId {
    ObjectId::new(name).unwrap()
}

/// An object in the same stripe as this one: the record of one evicts the other's.
pub fn neighbour(of: &ObjectId) -> ObjectId {
    let unknown = |object: &ObjectId| Record::unknown(object.clone(), Incarnation::default());
    let shares_stripe = |other: &ObjectId| {
        let stripes = Stripes::new(1);
        stripes.publish(unknown(of));
        stripes.publish(unknown(other));
        stripes.len() == 1
    };
    (0..).map(|n| object(&format!("neighbour-{n}"))).find(shares_stripe).unwrap()
}

impl World {
    /// A gate with room for about this many records in memory.
    pub fn new(capacity: usize) -> Arc<Self> {
        let table = Arc::new(MemoryTable::default());
        let meta = Meta::new(&key(), true);
        write_meta(&*table, &meta, Hlc::default()).unwrap();
        let (clock, driver) = Clock::driven(START);
        let fingerprint = RouteFingerprint { bound_ms: BOUND.0, ..RouteFingerprint::default() };
        let begun =
            begin_on(table as Arc<dyn Table>, key(), Recovered::Whole, (&clock, fingerprint), "memory").unwrap();
        let OpenedTable { table, context, meta, mark, was_clean, .. } = begun;
        let records = Arc::new(Records::new(table, context, capacity));
        let news = Arc::new(News::new(64, mark));
        let core = Core::new(Setup {
            records: Arc::clone(&records),
            news: Arc::clone(&news),
            clock: clock.clone(),
            metrics: METRICS.ledger.clone(),
            meta,
            mark,
            journal_keep: 1_000,
            keys_keep_ms: 86_400_000,
            takeover_after_ms: 0,
            waiters_max: 10,
            unclean: !was_clean,
            fingerprint,
        });
        // A clock calls back under a lock that shuttle does not know. So the ledger's own clock never moves, and
        // only `pass` wakes the ledger.
        let ledger = Ledger::start(core, &Clock::driven(START).0);
        let about = METRICS.kubernetes.clone();
        let gate = Gate {
            lease_observer: LeaseObserver::new(1, ledger.clone(), clock.clone(), about),
            records,
            ledger,
            news,
            clock,
            authority: arc_swap::ArcSwap::default(),
            access: arc_swap::ArcSwap::from_pointee(
                fencegate::access::Access::new(&Settings::default(), None)
                    .unwrap_or_else(|_| panic!("the defaults are sound")),
            ),
            access_changes: watch::Sender::new(()),
            turns: fencegate::access::turns::Turns::default(),
            audit: fencegate::audit::Audit::off(),
            routes: arc_swap::ArcSwap::from_pointee(fencegate::route::Routes::new(&Settings::default()).unwrap()),
            limits: LeaseSettings::default(),
            deadline: Duration::ZERO,
            metrics: Arc::clone(&METRICS),
            receipts: Receipts::new(0, 0),
            reads: fencegate::gate::reads::Reads::default(),
            watchers: Arc::new(Semaphore::new(0)),
            draining: AtomicBool::new(false),
            stopping: watch::Sender::new(false),
        };
        Arc::new(Self { gate: Arc::new(gate), route: Arc::default(), oracle: Oracle::default(), driver, begun: mark })
    }

    /// Runs a function on a new thread.
    pub fn spawn<T: Send + 'static>(self: &Arc<Self>, does: impl FnOnce(&Self) -> T + Send + 'static) -> JoinHandle<T> {
        let world = Arc::clone(self);
        spawn(move || does(&world))
    }

    pub fn now(&self) -> BootMs {
        self.gate.now().boot
    }

    /// Lets time pass, and wakes the ledger for what is due.
    pub fn pass(&self, ms: u64) {
        self.driver.advance(ms);
        block_on(self.gate.ledger.end(vec![])).unwrap();
    }

    /// Takes a lease over from its holder. `None`: another caller is about to.
    pub fn acquire(&self, object: &ObjectId) -> Option<Held> {
        self.acquire_all(std::slice::from_ref(object), true)?.pop()
    }

    /// Waits for a lease until it is free.
    pub fn wait_for(&self, object: &ObjectId) -> Held {
        self.acquire_all(std::slice::from_ref(object), false).unwrap().pop().unwrap()
    }

    /// Takes leases on all of these objects.
    pub fn acquire_all(&self, objects: &[ObjectId], takeover: bool) -> Option<Vec<Held>> {
        let before: Vec<u64> = objects.iter().map(|object| self.oracle.fence(object)).collect();
        let wanted = Wanted {
            objects: objects.to_vec(),
            holder: HolderId::new(if takeover { "same" } else { "other" }).unwrap(),
            ttl: HOUR,
            wait_ms: if takeover { 0 } else { HOUR.0 },
            request: None,
            takeover,
        };
        let granted = match block_on(self.gate.ledger.acquire(wanted)) {
            Ok(granted) => granted.take(),
            Err(LedgerError::Lease { .. }) => return None,
            Err(other) => panic!("an acquire was refused: {other:?}"),
        };
        let held = granted.into_iter().zip(before).map(|(Granted { object, lease, .. }, before)| {
            self.oracle.granted(&object, lease.seq.get(), before, lease.tainted);
            Held { token: lease.token(&object), lease_id: lease.lease_id, tainted: lease.tainted }
        });
        Some(held.collect())
    }

    /// Releases a lease, for its holder.
    pub fn release(&self, held: &Held) {
        block_on(self.gate.ledger.release(held.lease_id.clone(), None, held.token.clone())).unwrap();
    }

    /// Revokes a lease, for an operator. `force`: without waiting for writes on their way.
    pub fn revoke(&self, object: &ObjectId, force: bool) {
        let revoked =
            block_on(self.gate.ledger.revoke(object.clone(), "a test".to_owned(), force, Source::Gate)).unwrap();
        if let State::Free { .. } = revoked.record.state
            && !force
        {
            self.oracle.freed(object, revoked.record.fence.get());
        }
    }

    /// The guard of a write that was judged, and is counted at this stage.
    pub fn guard(&self, permitted: Permitted, stage: Stage) -> Guard {
        let mut life = Write::new(Life::default());
        let _ = life.on(Event::Arrived { whole: stage == Stage::Committed });
        let _ = life.on(Event::Permitted(stage));
        let route = self.route.enter(&self.gate.clock, BOUND);
        InFlight::new(Rc::new(Arc::clone(&self.gate)), life, Admission::Permitted(permitted), route)
    }

    /// Does what `decide` does: reads the record if it is not in memory. `None`: refused.
    pub fn admit(&self, Held { token, .. }: &Held) -> Option<Guard> {
        let (object, text) = (&token.object, token.expose());
        let judge = |record: &_, sealed| verdict::judge_text(record, sealed, &text, self.gate.now());
        loop {
            match self.gate.records.stripes.admit(object.as_str(), judge) {
                Some(judged) => return Some(self.guard(Permitted::waiting(judged.ok()?), Stage::Waiting)),
                None => drop(self.gate.records.read(object).unwrap()),
            }
        }
    }

    /// Does what `decide` does for a complete write: judged once, which commits it. `near`: where its record was.
    pub fn admit_committed(&self, Held { token, .. }: &Held, near: Option<Place>) -> Option<Guard> {
        let (object, text) = (&token.object, token.expose());
        let judge = |record: &_, sealed| verdict::judge_text(record, sealed, &text, self.gate.now());
        loop {
            match self.gate.records.stripes.admit_committed(object.as_str(), near, judge) {
                Some(judged) => return Some(self.guard(Permitted::committed(judged.ok()?), Stage::Committed)),
                None => drop(self.gate.records.read(object).unwrap()),
            }
        }
    }

    /// Sends a write that is held first, whole. Returns whether it was sent.
    pub fn write(&self, held: &Held) -> bool {
        let Some(write) = self.admit(held) else { return false };
        self.send(held, &write)
    }

    /// Sends two writes that are judged and committed in one step; the second is looked for where the record was.
    pub fn write_at_once(&self, held: &Held) -> bool {
        let mut near = None;
        (0..2).all(|_| {
            let Some(write) = self.admit_committed(held, near) else { return false };
            near = write.place();
            self.send(held, &write)
        })
    }

    /// Sends a write to two objects, all or nothing. Returns whether it was sent.
    pub fn write_to_both(&self, pair: &[Held; 2]) -> bool {
        let objects = pair.each_ref().map(Held::object);
        let judge = |n: usize, record: &_, sealed| {
            let presented = Presented::of(&pair[n].token, objects[n]);
            verdict::judge(View::Known { record, sealed }, &presented, self.gate.now())
        };
        let admitted =
            self.gate.records.stripes.admit_all(&objects.map(ObjectId::as_str), judge).expect("there is room for both");
        let Ok(admitted) = admitted else { return false };
        let write = self.guard(Permitted::together(admitted), Stage::Waiting);
        let is_sent = is_sent(&write.on(Event::Connected { whole: true }));
        if is_sent {
            pair.iter().for_each(|held| self.land(held, || true));
            let _ = write.on(Event::Answered { settles: true });
        }
        is_sent
    }

    /// Sends a write whose first connection turns out to be dead.
    pub fn write_twice(&self, held: &Held) -> bool {
        let Some(write) = self.admit(held) else { return false };
        if !is_sent(&write.on(Event::Connected { whole: true })) {
            return false;
        }
        let _ = write.on(Event::Closed { left: false });
        self.send(held, &write)
    }

    /// Sends a write whole, and lets the store answer. Returns whether it was sent.
    pub fn send(&self, held: &Held, write: &Guard) -> bool {
        let is_sent = is_sent(&write.on(Event::Connected { whole: true }));
        if is_sent {
            self.land(held, || true);
            let _ = write.on(Event::Answered { settles: true });
        }
        is_sent
    }

    /// Lets the store apply a write, if it still can.
    pub fn land(&self, held: &Held, can: impl FnOnce() -> bool) {
        self.oracle.apply(&held.token.object, held.token.seq.get(), can);
    }

    /// Checks what memory shows of an object, if the object is in memory.
    pub fn look(&self, object: &ObjectId) {
        self.gate.records.stripes.view(object, |found| {
            if let Some((record, _)) = found {
                self.oracle.seen(object, record.fence.get());
            }
        });
    }

    /// Reads an object, from memory or from the table.
    pub fn read(&self, object: &ObjectId) {
        let before = self.oracle.fence(object);
        let fence = self.gate.records.read(object).unwrap().fence.get();
        self.oracle.read(object, fence, before);
        self.look(object);
    }

    /// Ends the run: no write may be on its way any more, and the ledger ends.
    pub fn end(self: Arc<Self>) {
        let Self { gate, oracle, driver, begun, .. } = Arc::into_inner(self).expect("everyone is done");
        let After::Items(news) = gate.news.after(begun) else { panic!("the ring is too small") };
        for item in news {
            let Announcement { kind, row, fence } = &item.1;
            oracle.announced(&row.object, (*kind == Kind::Granted).then_some(row.seq.get()), fence.get());
        }
        driver.advance(BOUND.0);
        assert!(gate.records.stripes.is_idle(), "a write was left behind");
        assert!(gate.records.stripes.is_all_settled(gate.now().boot), "something may still land");
        let Gate { ledger, lease_observer, .. } = Arc::into_inner(gate).expect("every write is over");
        // It has a handle of the ledger, too.
        drop(lease_observer);
        ledger.abandon();
    }
}

pub fn join<T>(threads: impl IntoIterator<Item = JoinHandle<T>>) {
    for thread in threads {
        thread.join().unwrap();
    }
}
