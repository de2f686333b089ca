//! The gate's runs: the ledger's rounds on a disk, crashes, stops in good order, and starts on the table that they
//! leave.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::{
    client::Client,
    crowd::{self, Crowd},
    disk::Disk,
    led::Led,
    world::{Run, World},
};
use fencegate::{
    fence::{Hlc, ObjectId, TableKey},
    metrics::LedgerMetrics,
    route::RouteFingerprint,
    table::{
        Table,
        codec::Meta,
        ledger::{Command, Core, Setup},
        memory::{DiskFault, MemoryTable},
        news::News,
        open::{OpenedTable, begin_on, write_meta},
        records::Records,
        rocks::Recovered,
    },
};

/// Room in memory for more records than exist.
const ROOMY: usize = 65_536;

/// One seed's simulation.
pub(super) struct Simulation {
    world: Arc<Mutex<World>>,
    metrics: LedgerMetrics,
    gate: Option<Gate>,
    /// The table that the last run has left.
    left: Option<MemoryTable>,
}

struct Gate {
    core: Core,
    disk: Arc<Disk>,
    records: Arc<Records>,
    /// A stop in good order is under way, until this step.
    stops_at: Option<u64>,
}

#[derive(Clone, Copy)]
enum Happens {
    Turn,
    Round,
    Crash,
    Stop,
    Fault,
    Eviction,
}

fn key() -> TableKey {
    TableKey::from_bytes([7; 32])
}

fn new_table() -> MemoryTable {
    let table = MemoryTable::default();
    let meta = Meta::new(&key(), true);
    write_meta(&table, &meta, Hlc::default()).expect("a new table takes its first row");
    table
}

impl Simulation {
    pub(super) fn new(seed: u64, promise: Option<&str>, is_led: bool, metrics: &LedgerMetrics) -> Self {
        let world = Arc::new(Mutex::new(World::new(seed, promise, is_led)));
        Self { world, metrics: metrics.clone(), gate: None, left: Some(new_table()) }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Plays the seed to its end, or to the first broken promise.
    pub(super) fn play(mut self) -> World {
        let steps = self.world().lot.steps;
        while self.world().step < steps && self.world().violation.is_none() {
            self.step();
        }
        self.gate = None;
        let mut world = Arc::into_inner(self.world)
            .expect("no other handle on the world is left")
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        world.counts.steps = world.step;
        world
    }

    fn step(&mut self) {
        let Some(gate) = &self.gate else { return self.step_without_a_gate() };
        let (is_latched, stops_at) = (gate.records.latched().is_some(), gate.stops_at);
        let has_work = gate.core.has_backlog();
        let happens = {
            let mut world = self.world();
            let has_work = has_work || !world.calls.is_empty();
            let lot = &world.lot;
            let chances = [
                (1_000, Happens::Turn),
                (if has_work { 400 } else { 60 }, Happens::Round),
                (if is_latched { 40 } else { lot.crashes }, Happens::Crash),
                (lot.stops, Happens::Stop),
                (lot.disk_faults, Happens::Fault),
                (lot.evictions, Happens::Eviction),
            ];
            world.rng.pick(&chances)
        };
        match happens {
            Happens::Turn => self.world().take_turn(),
            Happens::Round => self.round(vec![]),
            Happens::Crash => self.crash(),
            Happens::Stop if stops_at.is_none() => self.begin_stop(),
            Happens::Stop => {}
            Happens::Fault => self.break_the_disk(),
            Happens::Eviction => self.evict(),
        }
        self.go_on_stopping();
    }

    fn step_without_a_gate(&mut self) {
        let starts = {
            let mut world = self.world();
            world.take_turn();
            world.calls.clear();
            world.clients.iter_mut().for_each(Client::lose_call);
            world.rng.percent(30)
        };
        if starts && let Some(left) = self.left.take() {
            self.start(left);
        }
    }

    fn start(&mut self, table: MemoryTable) {
        let (clock, bound_ms, objects, evicts) = {
            let world = self.world();
            (world.clock.clone(), world.lot.bound_ms, world.lot.objects.clone(), world.lot.evictions > 0)
        };
        let disk = Arc::new(Disk { table, world: Arc::downgrade(&self.world) });
        let fingerprint = RouteFingerprint { bound_ms, ..RouteFingerprint::default() };
        let begun =
            begin_on(Arc::clone(&disk) as Arc<dyn Table>, key(), Recovered::Whole, (&clock, fingerprint), "memory");
        let OpenedTable { table, context, meta, mark, was_clean, .. } =
            begun.expect("a table that was begun on before");
        let capacity = if evicts { 1 } else { ROOMY };
        let memory = || Arc::new(Records::new(Arc::clone(&table), context.clone(), capacity));
        let records = crowd::keep_apart(memory, &objects);
        let crowd = if evicts { crowd::find(&records, &objects) } else { Crowd::new() };
        let news = Arc::new(News::new(1_024, mark));
        let setup = Setup {
            records: Arc::clone(&records),
            news: Arc::clone(&news),
            clock,
            metrics: self.metrics.clone(),
            meta,
            mark,
            journal_keep: 1_000,
            keys_keep_ms: 86_400_000,
            takeover_after_ms: 0,
            waiters_max: 10,
            unclean: !was_clean,
            fingerprint,
        };
        self.gate = Some(Gate { core: Core::new(setup), disk, records: Arc::clone(&records), stops_at: None });
        self.world().begin_run(Run { records, news, seen: mark, closing: false, crowd }, was_clean);
    }

    /// Plays a round of the ledger; other steps happen while its disk is busy.
    fn round(&mut self, more: Vec<Command>) {
        let Some(gate) = &mut self.gate else { return };
        let calls = {
            let mut world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
            let mut calls = world.some_calls();
            calls.extend(more);
            calls
        };
        gate.core.run(calls);
        let crashed = {
            let mut world = self.world();
            world.step += 1;
            match world.crashed.take() {
                Some(left) => Some(left),
                None => {
                    world.read_answers();
                    world.watch();
                    world.look_at_fences();
                    None
                }
            }
        };
        if let Some(left) = crashed {
            self.end_run(left);
        }
    }

    fn crash(&mut self) {
        let Some(gate) = &self.gate else { return };
        let left = gate.disk.table.after_a_crash();
        self.world().say("the gate crashes");
        self.end_run(left);
    }

    /// Ends the run. What was sent may still land.
    fn end_run(&mut self, left: MemoryTable) {
        self.gate = None;
        let mut world = self.world();
        world.counts.crashes += 1;
        world.end_run();
        drop(world);
        self.left = Some(left);
    }

    /// SIGTERM: no more leases are granted, and no more writes are let in.
    fn begin_stop(&mut self) {
        let stops_at = {
            let mut world = self.world();
            world.say("the gate begins to stop");
            let (reply, _) = oneshot::channel();
            world.calls.push(Command::Close { reply });
            if let Some(run) = &mut world.run {
                run.closing = true;
            }
            world.step + world.rng.range(1, 60)
        };
        if let Some(gate) = &mut self.gate {
            gate.stops_at = Some(stops_at);
        }
    }

    /// Stops once no write is on its way any more. When the time is up, the remaining writes are dropped.
    fn go_on_stopping(&mut self) {
        let Some(Gate { stops_at: Some(stops_at), .. }) = &self.gate else { return };
        {
            let mut world = self.world();
            if !world.writes.is_empty() && world.step < *stops_at {
                return;
            }
            world.drop_writes();
        }
        let (reply, mut stopped) = oneshot::channel();
        self.round(vec![Command::Stop { reply }]);
        let Some(gate) = &self.gate else { return };
        let left = gate.disk.table.after_a_crash();
        let is_clean = matches!(stopped.try_recv(), Ok(Ok(())));
        self.gate = None;
        let mut world = self.world();
        world.counts.clean_stops += u64::from(is_clean);
        world.say(if is_clean {
            "the gate has stopped in good order"
        } else {
            "the gate has stopped, not in good order"
        });
        world.end_run();
        drop(world);
        self.left = Some(left);
    }

    fn break_the_disk(&mut self) {
        let Some(gate) = &self.gate else { return };
        let mut world = self.world();
        world.counts.disk_faults += 1;
        let fault = if world.rng.percent(50) { DiskFault::Write } else { DiskFault::Sync };
        world.say(format!("the disk will fail: {fault:?}"));
        drop(world);
        gate.disk.table.fail_next(fault);
    }

    fn evict(&mut self) {
        let mut world = self.world();
        let object = world.any_object();
        let Some(run) = &mut world.run else { return };
        let records = Arc::clone(&run.records);
        let is_gone = crowd::press(&records, &mut run.crowd, &object);
        if is_gone {
            world.counts.evictions += 1;
            world.say(format!("{object} falls out of memory"));
        }
    }
}

fn stored_fence(records: &Records, object: &ObjectId) -> u64 {
    records.row(object).expect("a table in memory reads what was written").fence.get()
}

impl World {
    /// Some of the calls that wait in the queue.
    fn some_calls(&mut self) -> Vec<Command> {
        self.round_at = self.now().boot;
        let take = if self.rng.percent(70) || self.calls.is_empty() {
            self.calls.len()
        } else {
            self.rng.place(self.calls.len() + 1)
        };
        let calls: Vec<Command> = self.calls.drain(..take).collect();
        for call in &calls {
            match call {
                Command::Renew { token, ttl, .. } => {
                    self.oracle.extended(&token.object, token.seq.get(), self.round_at, ttl.0);
                }
                Command::Revoke { object, force: true, .. } => {
                    let writes = self.on_their_way(object);
                    self.oracle.forgive(writes);
                }
                _ => {}
            }
        }
        calls
    }

    /// Begins a run. What it reads of its table must include every fence that a caller got.
    fn begin_run(&mut self, run: Run, was_clean: bool) {
        self.say(if was_clean { "the gate starts, clean" } else { "the gate starts, unclean" });
        if self.counts.wall_steps > 0 {
            self.oracle.restarted(self.clock.now().boot);
        }
        for object in self.lot.objects.clone() {
            let kept = self.oracle.fence_told(&object, stored_fence(&run.records, &object));
            self.judge(kept);
        }
        self.run = Some(run);
    }

    /// Ends the run: its writes, its connections and its calls are gone.
    fn end_run(&mut self) {
        self.run = None;
        self.crashed = None;
        self.led.as_mut().into_iter().for_each(Led::forget);
        self.oracle.run_ended();
        self.writes.clear();
        self.calls.clear();
        self.clients.iter_mut().for_each(Client::lose_call);
        self.close_connections();
    }
}
