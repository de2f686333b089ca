//! The leases of an agent. Each object in use has a keeper of its own, which asks for the lease, keeps it, and asks
//! again when it is lost; it gives the lease back when nobody has written for long, or when the agent stops. An object
//! that a Kubernetes Lease leads follows that one's election instead, and leaves it in the same cases.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde::Serialize;
use tokio::{sync::watch, task::JoinSet};

use super::{
    elections::{Elections, Seat},
    held::{Held, Not},
};
use crate::{
    api::wire::LeaseState,
    client::{Lease, LeaseApi, Lost, NotHad, Progress, Token, Wanted},
    clock::Clock,
    config::AgentLease,
    fence::{Code, HolderId, ObjectId, code::Plane},
    kubernetes::api::LeaseName,
    metrics::AgentMetrics,
    problem::Problem,
};

/// After a refusal that asking again will hardly change.
const REFUSED_PAUSE: Duration = Duration::from_secs(5);
/// An object that this agent does not lead is forgotten after so long without a write, where leases are kept for ever.
const FORGET_MS: u64 = 600_000;
/// How long a look at who leads may take.
const LOOK: Duration = Duration::from_secs(5);

/// Where an agent stands with an object. Who grants its lease is the gate, or a Kubernetes API server.
#[derive(Clone, Debug)]
pub(super) enum Standing {
    /// It was asked, and has not answered yet.
    Asking,
    Leading(Held),
    /// Somebody else does, if it is known who.
    Following(Option<HolderId>),
    /// It cannot be reached, or cannot grant now.
    Cut(String),
    /// It will not grant it.
    Refused(String),
}

/// An object, and the Kubernetes Lease that leads it, where one does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Led {
    pub object: ObjectId,
    pub by: Option<LeaseName>,
}

/// How far a stop is.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Phase {
    Running,
    /// No new writes, and no new leases; those that are held are kept.
    Draining,
    Releasing,
}

/// An object in use.
struct Slot {
    object: ObjectId,
    by: Option<LeaseName>,
    up_front: bool,
    standing: watch::Sender<Standing>,
    /// When it was last written to, on the boot clock.
    used_at: AtomicU64,
    writes: AtomicUsize,
}

/// All of them.
pub struct Holdings {
    api: LeaseApi,
    holder: HolderId,
    /// Where some route has a Kubernetes Lease.
    elections: Option<Elections>,
    settings: AgentLease,
    clock: Clock,
    metrics: Arc<AgentMetrics>,
    slots: Mutex<HashMap<ObjectId, Arc<Slot>>>,
    keepers: Mutex<JoinSet<()>>,
    phase: watch::Sender<Phase>,
}

/// A write's use of a lease that is held: what it takes to send it.
pub struct Use {
    writing: Writing,
    held: Held,
}

/// A write is on its way to an object: its lease is not given back for want of use.
struct Writing(Arc<Slot>);

impl Writing {
    fn on(slot: Arc<Slot>) -> Self {
        slot.writes.fetch_add(1, Ordering::AcqRel);
        Self(slot)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.writes.fetch_sub(1, Ordering::AcqRel);
    }
}

/// One object, as `GET /leader` shows it.
#[derive(Debug, Serialize)]
pub struct Shown {
    /// Whether this agent holds it.
    pub leader: bool,
    /// Who does, as far as is known.
    pub holder_id: Option<String>,
    pub lease_seq: Option<u64>,
    pub expires_in_ms: Option<u64>,
    /// The Kubernetes Lease that leads it, where one does, and how often that one had changed hands when this agent
    /// took it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes_lease: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_transitions: Option<u32>,
    /// Why this agent does not, where it is not that somebody else does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Holdings {
    #[must_use]
    pub fn new(
        api: LeaseApi,
        holder: HolderId,
        elections: Option<Elections>,
        settings: AgentLease,
        clock: Clock,
        metrics: Arc<AgentMetrics>,
    ) -> Arc<Self> {
        let phase = watch::Sender::new(Phase::Running);
        let (slots, keepers) = (Mutex::default(), Mutex::default());
        Arc::new(Self { api, holder, elections, settings, clock, metrics, slots, keepers, phase })
    }

    /// Takes a lease and never gives it back for want of use.
    pub fn take_up_front(self: &Arc<Self>, led: &Led) {
        // A second route to the same object finds it there.
        let _ = self.writing(led, true);
    }

    /// The lease of an object, for a write.
    ///
    /// # Errors
    /// With what the writer is told: `NOT_LEADER`, `GATE_UNREACHABLE`, `GATE_OVERLOADED`, `GATE_STOPPING`.
    pub async fn hold(self: &Arc<Self>, led: &Led) -> Result<Use, Problem> {
        let (object, writing) = (&led.object, self.writing(led, false)?);
        let settled = writing.0.settled(Duration::from_millis(self.settings.wait_ms)).await;
        if matches!(settled, Standing::Asking) {
            // Whoever comes next is told at once.
            writing.0.give_up_asking();
        }
        match settled {
            Standing::Leading(held) => Ok(Use { writing, held }),
            Standing::Following(leader) => Err(not_leader(object, leader, "another holder has the lease")),
            Standing::Asking => Err(writing.0.unreachable(&writing.0.is_silent())),
            Standing::Cut(why) => Err(writing.0.unreachable(&why)),
            Standing::Refused(why) => Err(not_leader(object, None, &why).for_good()),
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
            slot.used_at.store(self.clock.now().boot.0, Ordering::Release);
            return Ok(Writing::on(Arc::clone(slot)));
        }
        if slots.len() >= self.settings.objects_max {
            let what = "this agent holds, or waits for, as many objects as lease.objects_max allows";
            return Err(Problem::on(Plane::Data, Code::GateOverloaded, what).with_object(object));
        }
        let slot = Arc::new(Slot {
            object: object.clone(),
            by: led.by.clone(),
            up_front,
            standing: watch::Sender::new(Standing::Asking),
            used_at: AtomicU64::new(self.clock.now().boot.0),
            writes: AtomicUsize::new(0),
        });
        slots.insert(object.clone(), Arc::clone(&slot));
        let writing = Writing::on(Arc::clone(&slot));
        drop(slots);
        let mut keepers = lock(&self.keepers);
        // Those that have ended are forgotten.
        while keepers.try_join_next().is_some() {}
        let Some(at) = &led.by else {
            keepers.spawn(keep(Arc::clone(self), slot));
            return Ok(writing);
        };
        let (seat, race) = self.elections().join(at);
        if let Some(race) = race {
            let holdings = Arc::clone(self);
            keepers.spawn(async move {
                holdings.elections().run(&race, || holdings.reached(Phase::Draining)).await;
            });
        }
        keepers.spawn(follow(Arc::clone(self), slot, seat));
        Ok(writing)
    }

    fn elections(&self) -> &Elections {
        self.elections.as_ref().expect("an agent that has a route with a Lease has elections")
    }

    /// Whether writes are taken no more.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        *self.phase.borrow() != Phase::Running
    }

    /// Takes no more writes, and asks for no more leases.
    pub fn drain(&self) {
        self.phase.send_replace(Phase::Draining);
    }

    /// Releases every lease, and returns when that is done.
    pub async fn release(&self) {
        self.phase.send_replace(Phase::Releasing);
        let mut keepers = std::mem::take(&mut *lock(&self.keepers));
        while keepers.join_next().await.is_some() {}
    }

    /// How many objects this agent leads, and how many it waits for. Those that it waits for in vain are neither: the
    /// metrics are told of them.
    #[must_use]
    pub fn count(&self) -> (usize, usize) {
        let slots = lock(&self.slots);
        let (mut leading, mut refused) = (0, 0);
        for slot in slots.values() {
            match &*slot.standing.borrow() {
                Standing::Leading(_) => leading += 1,
                Standing::Refused(_) => refused += 1,
                Standing::Asking | Standing::Following(_) | Standing::Cut(_) => {}
            }
        }
        self.metrics.refused_objects(refused);
        (leading, slots.len() - leading - refused)
    }

    /// Every object in use, or one.
    #[must_use]
    pub fn show(&self, only: Option<&str>) -> Vec<(String, Shown)> {
        let slots = lock(&self.slots);
        let wanted = slots.iter().filter(|(object, _)| only.is_none_or(|only| only == object.as_str()));
        let mut shown: Vec<_> = wanted
            .map(|(object, slot)| {
                // Whoever asks for one by name wants to write to it in its turn.
                if only.is_some() {
                    slot.used_at.store(self.clock.now().boot.0, Ordering::Release);
                }
                (object.to_string(), slot.shown())
            })
            .collect();
        shown.sort_by(|one, other| one.0.cmp(&other.0));
        shown
    }

    /// Returns when the phase is this far.
    async fn reached(&self, phase: Phase) {
        // A sender that is gone means the same.
        let _ = self.phase.subscribe().wait_for(|now| *now >= phase).await;
    }

    /// Returns when an object has not been written to for long enough to be given back.
    async fn idle(&self, slot: &Slot, leads: bool) {
        let after = match self.settings.idle_release_ms {
            0 if !leads => FORGET_MS,
            after => after,
        };
        if after == 0 || slot.up_front {
            return std::future::pending().await;
        }
        loop {
            let idle = self.clock.now().boot.0.saturating_sub(slot.used_at.load(Ordering::Acquire));
            if idle >= after && slot.writes.load(Ordering::Acquire) == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(after.saturating_sub(idle).max(after / 4).max(1))).await;
        }
    }

    /// Leads an object no more, unless somebody has come to write to it meanwhile.
    fn retire(&self, slot: &Slot) -> bool {
        // Whoever comes to write holds this lock.
        let _slots = lock(&self.slots);
        let is_idle = slot.writes.load(Ordering::Acquire) == 0;
        if is_idle {
            slot.standing.send_replace(Standing::Asking);
        }
        is_idle
    }

    /// Forgets an object, unless somebody has come to write to it meanwhile.
    fn forget(&self, slot: &Slot) -> bool {
        let mut slots = lock(&self.slots);
        let is_wanted = slot.writes.load(Ordering::Acquire) > 0 && *self.phase.borrow() == Phase::Running;
        if !is_wanted {
            slots.remove(&slot.object);
        }
        !is_wanted
    }
}

impl Slot {
    /// Where it stands, once the gate has answered; or that it has not. A lease that was just lost is about to be
    /// asked for again.
    async fn settled(&self, patience: Duration) -> Standing {
        let mut standing = self.standing.subscribe();
        let settled = standing.wait_for(|standing| match standing {
            Standing::Asking => false,
            Standing::Leading(held) => held.token().is_ok(),
            Standing::Following(_) | Standing::Cut(_) | Standing::Refused(_) => true,
        });
        match tokio::time::timeout(patience, settled).await {
            Ok(Ok(standing)) => standing.clone(),
            Ok(Err(_)) | Err(_) => Standing::Asking,
        }
    }

    fn give_up_asking(&self) {
        self.standing.send_if_modified(|standing| {
            let is_asking = matches!(standing, Standing::Asking);
            if is_asking {
                *standing = Standing::Cut(self.is_silent());
            }
            is_asking
        });
    }

    fn heard(&self, progress: &Progress) {
        self.standing.send_replace(match progress {
            Progress::Held { by } => Standing::Following(by.as_deref().and_then(|by| HolderId::new(by).ok())),
            Progress::Unreachable { why } => Standing::Cut(why.clone()),
        });
    }

    /// Who grants its lease.
    fn granter(&self) -> &'static str {
        if self.by.is_some() { "the API server" } else { "the gate" }
    }

    fn is_silent(&self) -> String {
        format!("{} has not answered yet", self.granter())
    }

    fn unreachable(&self, why: &str) -> Problem {
        let what =
            format!("{} does not say whether this agent holds the object, and nothing was sent: {why}", self.granter());
        Problem::on(Plane::Data, Code::GateUnreachable, what).with_object(&self.object)
    }

    fn shown(&self) -> Shown {
        let mut shown = Shown {
            leader: false,
            holder_id: None,
            lease_seq: None,
            expires_in_ms: None,
            kubernetes_lease: self.by.as_ref().map(ToString::to_string),
            lease_transitions: None,
            why: None,
        };
        match &*self.standing.borrow() {
            Standing::Leading(held) => match held.token() {
                Ok(_) => {
                    shown.leader = true;
                    shown.holder_id = Some(held.holder().to_owned());
                    match held {
                        Held::Gate(lease) => shown.lease_seq = Some(lease.seq()),
                        Held::Kubernetes(term) => shown.lease_transitions = Some(term.election().transitions),
                    }
                    shown.expires_in_ms = Some(held.left_ms());
                }
                Err(lost) => shown.why = Some(lost),
            },
            Standing::Following(leader) => shown.holder_id = leader.as_ref().map(ToString::to_string),
            Standing::Asking => shown.why = Some(self.is_silent()),
            Standing::Cut(why) | Standing::Refused(why) => shown.why = Some(why.clone()),
        }
        shown
    }
}

impl Use {
    /// The token, if the lease is held now.
    ///
    /// # Errors
    /// `NOT_LEADER` where it was lost meanwhile.
    pub fn token(&self) -> Result<Token, Problem> {
        self.held.token().map_err(|lost| self.lost(&lost))
    }

    /// Who this agent is, where the gate may want to know.
    #[must_use]
    pub fn shown_holder(&self) -> Option<&str> {
        self.held.shown_holder()
    }

    /// Renews first, and goes on only with the word of whoever grants it.
    ///
    /// # Errors
    /// `NOT_LEADER` where the lease is lost, `GATE_UNREACHABLE` where nobody says.
    pub async fn renew(&self) -> Result<(), Problem> {
        self.held.renew().await.map_err(|not| match not {
            Not::Held(lost) => self.lost(&lost),
            Not::Confirmed(why) => self.writing.0.unreachable(&why),
        })
    }

    /// The gate has refused a write for the lease's sake.
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

/// Follows the election that an object's seat is in, until the object is not wanted any more.
async fn follow(holdings: Arc<Holdings>, slot: Arc<Slot>, seat: Seat) {
    let mut standing = seat.standing();
    loop {
        let now = standing.borrow_and_update().clone();
        let leads = matches!(now, Standing::Leading(_));
        slot.standing.send_replace(now);
        tokio::select! {
            // The sender lives as long as the seat.
            _ = standing.changed() => continue,
            () = holdings.reached(if leads { Phase::Releasing } else { Phase::Draining }) => {}
            () = holdings.idle(&slot, leads) => {}
        }
        if holdings.forget(&slot) {
            return;
        }
    }
}

/// Keeps one object's lease, until it is given back.
async fn keep(holdings: Arc<Holdings>, slot: Arc<Slot>) {
    loop {
        let goes_on = match ask(&holdings, &slot).await {
            Ok(lease) => lead(&holdings, &slot, Arc::new(lease)).await,
            Err(NotHad::Refused(why)) => {
                tracing::error!(object = %slot.object, %why, "the gate grants no lease");
                slot.standing.send_replace(Standing::Refused(why.to_string()));
                // Asked again only for those who still want to write.
                tokio::select! {
                    () = tokio::time::sleep(REFUSED_PAUSE) => slot.up_front,
                    () = holdings.reached(Phase::Draining) => false,
                }
            }
            Err(NotHad::GivenUp | NotHad::Held { .. } | NotHad::Unreachable { .. }) => false,
        };
        if !goes_on {
            if holdings.forget(&slot) {
                return;
            }
            slot.standing.send_replace(Standing::Asking);
        }
    }
}

/// Waits for the lease, and finds out meanwhile who has it.
async fn ask(holdings: &Holdings, slot: &Slot) -> Result<Lease, NotHad> {
    let wanted = Wanted::new(slot.object.clone(), holdings.holder.clone()).with_ttl_ms(holdings.settings.ttl_ms);
    let given_up = async {
        tokio::select! {
            () = holdings.reached(Phase::Draining) => {}
            () = holdings.idle(slot, false) => {}
        }
    };
    tokio::select! {
        acquired = holdings.api.acquire_unless(&wanted, |progress| slot.heard(progress), given_up) => acquired,
        never = look(holdings, slot) => match never {},
    }
}

/// The holder may change while this agent waits in the queue.
async fn look(holdings: &Holdings, slot: &Slot) -> std::convert::Infallible {
    loop {
        tokio::time::sleep(Duration::from_millis((holdings.settings.ttl_ms / 3).max(100))).await;
        let Ok(object) = holdings.api.look(slot.object.as_str(), LOOK).await else { continue };
        let held = object.lease.filter(|lease| lease.state == LeaseState::Held);
        let leader = held.and_then(|lease| HolderId::new(&lease.holder_id).ok());
        slot.standing.send_if_modified(|standing| match standing {
            Standing::Following(known) if *known != leader && leader.is_some() => {
                *standing = Standing::Following(leader);
                true
            }
            _ => false,
        });
    }
}

/// Holds the lease; says whether to ask for it again when that is over.
async fn lead(holdings: &Holdings, slot: &Slot, lease: Arc<Lease>) -> bool {
    tracing::info!(object = %slot.object, lease_seq = lease.seq(), "leading");
    slot.standing.send_replace(Standing::Leading(Held::Gate(Arc::clone(&lease))));
    let (lost, goes_on) = loop {
        tokio::select! {
            why = lease.lost() => break (Some(why), true),
            () = holdings.reached(Phase::Releasing) => break (None, false),
            () = holdings.idle(slot, true) => if holdings.retire(slot) { break (None, false) },
        }
    };
    if let Some(why) = &lost {
        tracing::warn!(object = %slot.object, lease_seq = lease.seq(), %why, "the lease was lost");
        holdings.metrics.lost(why.reason());
    }
    slot.standing.send_replace(match &lost {
        // The gate is silent: nobody waits for it.
        Some(why @ Lost::Deadline { last: Some(_) }) => Standing::Cut(why.to_string()),
        _ => Standing::Asking,
    });
    // Where only this side has given it up, the gate may count it as held still. So it may be with a write to two
    // objects, refused for one of them.
    if matches!(lost, None | Some(Lost::Deadline { .. } | Lost::Write { .. }))
        && let Err(failed) = lease.release().await
    {
        tracing::warn!(object = %slot.object, why = %failed, "a lease was not released, and runs out");
    }
    goes_on
}
