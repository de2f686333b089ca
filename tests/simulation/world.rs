//! Everything except the ledger: clients, writes on their way through the gate, the store, time. One step at a
//! time, each drawn; also while the ledger waits for its disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{
    client::Client,
    counts::Counts,
    crowd::Crowd,
    led::Led,
    oracle::{Oracle, Violation},
    rng::Rng,
    store::Message,
    write::Write,
};
use fencegate::{
    clock::{Clock, Driver},
    fence::{
        BootMs, Hlc, Now, ObjectId, WallMs,
        step::{Announcement, Kind},
    },
    table::{
        ledger::Command,
        memory::MemoryTable,
        news::{After, News},
        records::Records,
    },
};

/// The start of the clocks.
pub(super) const START: Now = Now { wall: WallMs(1_800_000_000_000), boot: BootMs(5_000_000) };

/// What a seed decides before the first step.
pub(super) struct Lot {
    pub(super) objects: Vec<ObjectId>,
    pub(super) steps: u64,
    pub(super) ttl_ms: u64,
    /// How long a write may still land once its connection is gone.
    pub(super) bound_ms: u64,
    /// How long the gate waits for an answer.
    pub(super) patience_ms: u64,
    /// The store discards bodies that break off.
    pub(super) discards: bool,
    /// How often a fault happens, in a thousand steps.
    pub(super) crashes: u64,
    pub(super) stops: u64,
    pub(super) wall_steps: u64,
    pub(super) disk_faults: u64,
    pub(super) evictions: u64,
}

impl Lot {
    fn draw(rng: &mut Rng) -> Self {
        let objects = (0..rng.range(1, 3)).map(|n| ObjectId::new(&format!("o{n}")).expect("an object's id"));
        Self {
            objects: objects.collect(),
            steps: rng.range(400, 1_000),
            ttl_ms: rng.range(100, 3_000),
            bound_ms: rng.range(50, 1_500),
            patience_ms: rng.range(50, 1_000),
            discards: rng.percent(30),
            crashes: if rng.percent(50) { rng.range(1, 8) } else { 0 },
            stops: if rng.percent(50) { rng.range(1, 8) } else { 0 },
            wall_steps: if rng.percent(30) { 10 } else { 0 },
            disk_faults: if rng.percent(10) { 4 } else { 0 },
            evictions: if rng.percent(30) { 40 } else { 0 },
        }
    }
}

/// The present run of a gate.
pub(super) struct Run {
    pub(super) records: Arc<Records>,
    pub(super) news: Arc<News>,
    /// How far the watchers have read.
    pub(super) seen: Hlc,
    /// No more writes are let in.
    pub(super) closing: bool,
    /// Other objects whose records evict ours from memory.
    pub(super) crowd: Crowd,
}

pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) lot: Lot,
    pub(super) clock: Clock,
    pub(super) driver: Driver,
    pub(super) step: u64,
    pub(super) run: Option<Run>,
    /// Calls on their way to the ledger.
    pub(super) calls: Vec<Command>,
    pub(super) clients: Vec<Client>,
    pub(super) writes: Vec<Write>,
    pub(super) last_write: u64,
    pub(super) messages: Vec<Message>,
    pub(super) oracle: Oracle,
    /// Set where Kubernetes Leases say who may write.
    pub(super) led: Option<Led>,
    /// When the ledger's last round began: its decisions have this time.
    pub(super) round_at: BootMs,
    /// When each object was last asked for, in steps.
    pub(super) asked: BTreeMap<ObjectId, u64>,
    /// The table that a crash has left, where the gate crashed in the middle of the ledger's work.
    pub(super) crashed: Option<MemoryTable>,
    /// The only promise that is checked, if there is one.
    promise: Option<String>,
    pub(super) violation: Option<Violation>,
    pub(super) counts: Counts,
    pub(super) log: Vec<String>,
}

#[derive(Clone, Copy)]
enum Turn {
    Client,
    Write,
    Store,
    Time,
    Wall,
    Cluster,
}

impl World {
    /// `is_led`: by Kubernetes Leases.
    pub(super) fn new(seed: u64, promise: Option<&str>, is_led: bool) -> Self {
        let mut rng = Rng::new(seed);
        let lot = Lot::draw(&mut rng);
        let (clock, driver) = Clock::driven(START);
        let clients = (0..rng.range(2, 5)).map(Client::new).collect();
        let led = is_led.then(|| Led::new(&lot.objects));
        Self {
            rng,
            lot,
            clock,
            driver,
            step: 0,
            run: None,
            calls: vec![],
            clients,
            writes: vec![],
            last_write: 0,
            messages: vec![],
            oracle: Oracle::default(),
            led,
            round_at: START.boot,
            asked: BTreeMap::new(),
            crashed: None,
            promise: promise.map(str::to_owned),
            violation: None,
            counts: Counts::default(),
            log: vec![],
        }
    }

    pub(super) fn now(&self) -> Now {
        self.clock.now()
    }

    pub(super) fn say(&mut self, what: impl AsRef<str>) {
        let ms = self.now().boot.0 - START.boot.0;
        self.log.push(format!("{:4} {ms:6} ms  {}", self.step, what.as_ref()));
    }

    /// Notes a broken promise. The first one counts.
    pub(super) fn judge(&mut self, kept: Result<(), Violation>) {
        if let Err(violation) = kept
            && self.violation.is_none()
            && self.promise.as_ref().is_none_or(|promise| promise == violation.name)
        {
            self.say(format!("VIOLATION {}: {}", violation.name, violation.what));
            self.violation = Some(violation);
        }
    }

    /// Plays one step.
    pub(super) fn take_turn(&mut self) {
        self.step += 1;
        let busy = |list: usize, weight: u64| if list == 0 { 0 } else { weight };
        let turn = self.rng.pick(&[
            (35, Turn::Client),
            (busy(self.writes.len(), 35), Turn::Write),
            (busy(self.messages.len(), 25), Turn::Store),
            (10, Turn::Time),
            (self.lot.wall_steps / 5, Turn::Wall),
            (if self.run.is_some() && self.led.as_ref().is_some_and(Led::is_busy) { 80 } else { 0 }, Turn::Cluster),
        ]);
        match turn {
            Turn::Client => {
                let place = self.rng.place(self.clients.len());
                self.client_step(place);
            }
            Turn::Write => {
                let place = self.rng.place(self.writes.len());
                self.write_turn(place);
            }
            Turn::Store => {
                let place = self.rng.place(self.messages.len());
                self.store_step(place);
            }
            Turn::Time => self.pass_time(),
            Turn::Wall => self.step_wall(),
            Turn::Cluster => self.cluster_step(),
        }
    }

    fn pass_time(&mut self) {
        let now = self.now().boot;
        let ms = match self.store_wakes_at() {
            Some(at) if self.rng.percent(25) => at.since(now),
            _ => {
                let longest = self.rng.pick(&[(84, 10), (12, 100), (3, 1_000), (1, 6_000)]);
                self.rng.range(1, longest)
            }
        };
        self.driver.advance(ms);
    }

    fn step_wall(&mut self) {
        let ms = i64::try_from(self.rng.range(1, 20_000)).unwrap_or_default();
        let ms = if self.rng.percent(50) { -ms } else { ms };
        self.driver.step_wall(ms);
        self.counts.wall_steps += 1;
        self.say(format!("the wall clock is set by {ms} ms"));
    }

    /// Checks what watchers get: a lease that has ended stays ended.
    pub(super) fn watch(&mut self) {
        let Some(run) = &mut self.run else { return };
        let After::Items(items) = run.news.after(run.seen) else { return };
        for item in items {
            let (stamp, Announcement { kind, row, .. }) = &*item;
            run.seen = *stamp;
            match kind {
                Kind::Granted | Kind::Renewed => {}
                Kind::Released | Kind::Fenced | Kind::Expired => self.oracle.over(&row.object, row.seq.get()),
            }
        }
    }

    /// Checks what the gate's memory shows of each object: a fence never goes down.
    pub(super) fn look_at_fences(&mut self) {
        let Some(records) = self.run.as_ref().map(|run| Arc::clone(&run.records)) else { return };
        for object in self.lot.objects.clone() {
            if let Some(fence) = records.stripes.view(&object, |found| found.map(|(record, _)| record.fence.get())) {
                let kept = self.oracle.fence_told(&object, fence);
                self.judge(kept);
            }
        }
    }
}
