//! The leases of an agent. Each object in use has its own keeper. The keeper asks for the lease, keeps it, and asks
//! again when it is lost. It gives the lease back when there was no write for long, or when the agent stops. An
//! object that a Kubernetes Lease leads follows the election on that Lease instead, and gives up its seat in the same
//! cases.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::watch, task::JoinSet};

use super::{
    campaigns::Campaigns,
    held::{Held, Not},
    keeper,
    lease_history::LeaseHistories,
    own_name::OwnName,
    slot::{Shown, Slot, Standing, Writing},
};
use crate::{
    client::{LeaseApi, Token},
    clock::Clock,
    config::AgentLease,
    fence::{BootMs, Code, HolderId, ObjectId, code::Plane},
    kubernetes::api::LeaseName,
    metrics::{AgentMetrics, Standings},
    problem::Problem,
};

/// Where leases are kept for ever, an object that this agent does not lead is forgotten after this long without a
/// write.
const FORGET_MS: u64 = 600_000;
/// An object, and the Kubernetes Lease that leads it, where one does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Led {
    pub object: ObjectId,
    pub by: Option<LeaseName>,
}

/// How far a stop has come.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(super) enum Phase {
    Running,
    /// No new writes and no new leases; held leases are kept.
    Draining,
    Releasing,
}

/// All leases of this agent.
pub struct Holdings {
    pub(super) api: LeaseApi,
    pub(super) name: OwnName,
    /// Present where a route has a Kubernetes Lease.
    campaigns: Option<Campaigns>,
    pub(super) settings: AgentLease,
    clock: Clock,
    pub(super) histories: LeaseHistories,
    pub(super) metrics: Arc<AgentMetrics>,
    slots: Mutex<HashMap<ObjectId, Arc<Slot>>>,
    keepers: Mutex<JoinSet<()>>,
    phase: watch::Sender<Phase>,
}

/// The use of a held lease by one write: what the write needs to be sent.
pub struct Use {
    writing: Writing,
    held: Held,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Holdings {
    #[must_use]
    pub fn new(
        api: LeaseApi,
        name: OwnName,
        campaigns: Option<Campaigns>,
        settings: AgentLease,
        clock: Clock,
        metrics: Arc<AgentMetrics>,
    ) -> Arc<Self> {
        let phase = watch::Sender::new(Phase::Running);
        let (slots, keepers) = (Mutex::default(), Mutex::default());
        let histories = LeaseHistories::new(settings.objects_max);
        Arc::new(Self { api, name, campaigns, settings, clock, histories, metrics, slots, keepers, phase })
    }

    /// Takes a lease that is never given back for lack of use.
    pub fn take_up_front(self: &Arc<Self>, led: &Led) {
        // A second route to the same object finds it already taken.
        let _ = self.writing(led, true);
    }

    /// The lease of an object, for a write.
    ///
    /// # Errors
    /// What the writer gets: `NOT_LEADER`, `GATE_UNREACHABLE`, `GATE_OVERLOADED` or `GATE_STOPPING`.
    pub async fn hold(self: &Arc<Self>, led: &Led) -> Result<Use, Problem> {
        let (object, writing) = (&led.object, self.writing(led, false)?);
        let settled = writing.0.settled(Duration::from_millis(self.settings.wait_ms)).await;
        if matches!(settled, Standing::Asking) {
            // The next writer gets its answer at once.
            writing.0.give_up_asking();
        }
        match settled {
            Standing::Leading(held) => Ok(Use { writing, held }),
            Standing::Following(leader) => Err(not_leader(object, leader, "another holder has the lease")),
            Standing::Asking => Err(writing.0.unreachable(&writing.0.is_silent())),
            Standing::Cut(why) => Err(writing.0.unreachable(&why)),
            Standing::Refused(why) => Err(not_leader(object, None, &why).for_good()),
            Standing::Pausing(why) => Err(not_leader(object, None, &why)),
        }
    }

    fn writing(self: &Arc<Self>, led: &Led, up_front: bool) -> Result<Writing, Problem> {
        let object = &led.object;
        if *self.phase.borrow() != Phase::Running {
            return Err(Problem::on(
                Plane::Data,
                Code::GateStopping,
                "this agent is stopping, and takes no more writes",
            )
            .with_object(object));
        }
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.get(object) {
            if slot.by != led.by {
                let what = "two routes of this agent name this object, and different leases for it";
                return Err(Problem::on(Plane::Data, Code::LeaseObjectMismatch, what).with_object(object));
            }
            slot.touch(self.clock.now().boot);
            return Ok(Writing::on(Arc::clone(slot)));
        }
        if slots.len() >= self.settings.objects_max {
            let what = "this agent holds, or waits for, as many objects as lease.objects_max allows";
            return Err(Problem::on(Plane::Data, Code::GateOverloaded, what).with_object(object));
        }
        let slot = Slot::new(led, up_front, self.clock.now().boot);
        slots.insert(object.clone(), Arc::clone(&slot));
        let writing = Writing::on(Arc::clone(&slot));
        drop(slots);
        let mut keepers = lock(&self.keepers);
        // Forget the keepers that have ended.
        while keepers.try_join_next().is_some() {}
        let Some(at) = &led.by else {
            keepers.spawn(keeper::keep(Arc::clone(self), slot));
            return Ok(writing);
        };
        let (seat, race) = self.campaigns().join(at);
        if let Some(race) = race {
            let holdings = Arc::clone(self);
            keepers.spawn(async move {
                holdings.campaigns().run(&race, || holdings.reached(Phase::Draining)).await;
            });
        }
        keepers.spawn(keeper::follow(Arc::clone(self), slot, seat));
        Ok(writing)
    }

    fn campaigns(&self) -> &Campaigns {
        self.campaigns.as_ref().expect("an agent that has a route with a Lease has elections")
    }

    pub(super) fn now(&self) -> BootMs {
        self.clock.now().boot
    }

    /// The leases of all objects of a write, in the write's order. They are taken in the order of their ids. If
    /// another holder has one of them again and again, the others are given back: otherwise two agents that each hold
    /// one of two objects would refuse each other's writes to both.
    ///
    /// # Errors
    /// As for one.
    pub async fn hold_all(self: &Arc<Self>, all: &[Led]) -> Result<Vec<Use>, Problem> {
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_by(|one, other| all[*one].object.cmp(&all[*other].object));
        let mut uses: Vec<(usize, Use)> = vec![];
        for (turn, place) in order.iter().enumerate() {
            match self.hold(&all[*place]).await {
                Ok(each) => uses.push((*place, each)),
                Err(problem) => {
                    let behind = order[turn + 1..].iter().map(|place| &all[*place].object);
                    self.give_way(&all[*place].object, behind);
                    return Err(problem);
                }
            }
        }
        uses.sort_by_key(|(place, _)| *place);
        Ok(uses.into_iter().map(|(_, each)| each).collect())
    }

    /// Gives back these objects if another holder has `missing` and their history allows it.
    fn give_way<'a>(&self, missing: &ObjectId, objects: impl Iterator<Item = &'a ObjectId>) {
        let (slots, now) = (lock(&self.slots), self.now());
        let follows = |slot: &Arc<Slot>| matches!(&*slot.standing.borrow(), Standing::Following(_));
        if !slots.get(missing).is_some_and(follows) {
            return;
        }
        for slot in objects.filter_map(|object| slots.get(object)).filter(|slot| slot.may_give_way()) {
            if self.histories.gives_way(&slot.object, now) {
                slot.give_way();
            }
        }
    }

    /// Whether new writes are refused.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        *self.phase.borrow() != Phase::Running
    }

    /// Stops taking writes and asking for leases.
    pub fn drain(&self) {
        self.phase.send_replace(Phase::Draining);
    }

    /// Releases every lease. Returns when all are released.
    pub async fn release(&self) {
        self.phase.send_replace(Phase::Releasing);
        let mut keepers = std::mem::take(&mut *lock(&self.keepers));
        while keepers.join_next().await.is_some() {}
    }

    /// The number of objects in use, by their standing.
    #[must_use]
    pub fn count(&self) -> Standings {
        let mut count = Standings::default();
        for slot in lock(&self.slots).values() {
            *match &*slot.standing.borrow() {
                Standing::Leading(_) => &mut count.leading,
                Standing::Asking | Standing::Following(_) | Standing::Pausing(_) => &mut count.waiting,
                Standing::Cut(_) => &mut count.cut,
                Standing::Refused(_) => &mut count.refused,
            } += 1;
        }
        count
    }

    /// All objects in use, or the named one.
    #[must_use]
    pub fn show(&self, only: Option<&str>) -> Vec<(String, Shown)> {
        let slots = lock(&self.slots);
        let wanted = slots.iter().filter(|(object, _)| only.is_none_or(|only| only == object.as_str()));
        let mut shown: Vec<_> = wanted
            .map(|(object, slot)| {
                // A caller that names an object wants to write to it later.
                if only.is_some() {
                    slot.touch(self.clock.now().boot);
                }
                (object.to_string(), slot.shown())
            })
            .collect();
        shown.sort_by(|one, other| one.0.cmp(&other.0));
        shown
    }

    /// Returns when the stop has come as far as `phase`.
    pub(super) async fn reached(&self, phase: Phase) {
        // If the sender is gone, the phase was reached.
        let _ = self.phase.subscribe().wait_for(|now| *now >= phase).await;
    }

    /// Returns when the last write to the object is long enough ago to give the object back.
    pub(super) async fn idle(&self, slot: &Slot, leads: bool) {
        let after = match self.settings.idle_release_ms {
            0 if !leads => FORGET_MS,
            after => after,
        };
        if after == 0 || slot.up_front {
            return std::future::pending().await;
        }
        loop {
            let idle = slot.untouched_for(self.clock.now().boot);
            if idle >= after && !slot.is_written() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(after.saturating_sub(idle).max(after / 4).max(1))).await;
        }
    }

    /// Stops leading an object, unless a write has come meanwhile.
    pub(super) fn retire(&self, slot: &Slot) -> bool {
        // New writes take this lock.
        let _slots = lock(&self.slots);
        let is_idle = !slot.is_written();
        if is_idle {
            slot.standing.send_replace(Standing::Asking);
        }
        is_idle
    }

    /// Forgets an object, unless a write has come meanwhile.
    pub(super) fn forget(&self, slot: &Slot) -> bool {
        let mut slots = lock(&self.slots);
        let is_wanted = slot.is_written() && *self.phase.borrow() == Phase::Running;
        if !is_wanted {
            slots.remove(&slot.object);
        }
        !is_wanted
    }
}

impl Use {
    /// Returns the token if the lease is held now.
    ///
    /// # Errors
    /// `NOT_LEADER` where it was lost meanwhile.
    pub fn token(&self) -> Result<Token, Problem> {
        self.held.token().map_err(|lost| self.lost(&lost))
    }

    /// This agent's name as a holder, where the gate may check it.
    #[must_use]
    pub fn shown_holder(&self) -> Option<&str> {
        self.held.shown_holder()
    }

    /// Renews first, and returns once the granter has confirmed.
    ///
    /// # Errors
    /// `NOT_LEADER` when the lease is lost, `GATE_UNREACHABLE` when the granter has not confirmed.
    pub async fn renew(&self) -> Result<(), Problem> {
        self.held.renew().await.map_err(|not| match not {
            Not::Held(lost) => self.lost(&lost),
            Not::Confirmed(why) => self.writing.0.unreachable(&why),
        })
    }

    /// The gate refused a write because of this lease.
    pub fn refused(&self, code: &str) {
        self.held.refused_write(code);
    }

    fn lost(&self, lost: &str) -> Problem {
        not_leader(&self.writing.0.object, None, &format!("the lease was lost: {lost}"))
    }
}

fn not_leader(object: &ObjectId, leader: Option<HolderId>, why: &str) -> Problem {
    let what = format!("this agent does not hold the object, and nothing was sent: {why}. Reads pass");
    let mut problem = Problem::on(Plane::Data, Code::NotLeader, what).with_object(object);
    if let Some(leader) = leader {
        problem.tell_leader(leader);
    }
    problem
}
