//! Clients: they acquire, write, renew, release, stall, wake up and write with old tokens. Some are adversaries:
//! they take every lease that they can get.

use std::collections::BTreeMap;

use tokio::sync::oneshot::{self, error::TryRecvError};

use super::{oracle::Violation, world::World};
use fencegate::{
    fence::{
        FenceToken, HolderId, LeaseId, ObjectId, Record, RequestId, State, Ttl, outside::Source, step::LeaseRefusal,
    },
    table::ledger::{Command, Granted, LedgerError, Moved, Wanted},
};

/// How many writes may be on their way through the gate at once.
const WRITES_MAX: usize = 10;

/// A client.
pub(super) struct Client {
    id: u64,
    holder: HolderId,
    /// Every lease that the client ever had.
    leases: Vec<(LeaseId, FenceToken)>,
    /// The lease that the client takes for its own.
    current: Option<(LeaseId, FenceToken)>,
    call: Option<Call>,
    /// The answer on its way back.
    delivery: Option<Delivery>,
    /// The request that it may repeat.
    last_request: Option<Wanted>,
    pub(super) asleep_until: u64,
}

/// A call to the ledger that was not answered yet.
enum Call {
    Acquire(oneshot::Receiver<Result<Vec<Granted>, LedgerError>>),
    Renew(FenceToken, oneshot::Receiver<Result<Granted, LedgerError>>),
    Release(FenceToken, oneshot::Receiver<Result<Record, LedgerError>>),
    Revoke(oneshot::Receiver<Result<Moved, LedgerError>>),
}

/// An answer of the ledger.
enum Said {
    Renewed(FenceToken),
    Granted(Vec<Granted>),
    Released(FenceToken),
    Revoked(Record),
    /// The token is the one that the call was about, if it was about one.
    Refused(Option<FenceToken>, LedgerError),
}

impl Said {
    /// In which order the answers of one round are read.
    fn rank(&self) -> (u8, u64) {
        match self {
            Self::Renewed(_) => (0, 0),
            Self::Granted(granted) => (1, granted.first().map_or(0, |granted| granted.lease.seq.get())),
            Self::Released(_) | Self::Revoked(_) | Self::Refused(..) => (2, 0),
        }
    }
}

impl Call {
    /// Returns the answer, or the call while there is none. A ledger that is gone does not answer.
    fn poll(self) -> Result<Option<Said>, Self> {
        match self {
            Self::Acquire(mut answer) => match answer.try_recv() {
                Err(TryRecvError::Empty) => Err(Self::Acquire(answer)),
                Err(TryRecvError::Closed) => Ok(None),
                Ok(Ok(granted)) => Ok(Some(Said::Granted(granted))),
                Ok(Err(why)) => Ok(Some(Said::Refused(None, why))),
            },
            Self::Renew(token, mut answer) => match answer.try_recv() {
                Err(TryRecvError::Empty) => Err(Self::Renew(token, answer)),
                Err(TryRecvError::Closed) => Ok(None),
                Ok(Ok(renewed)) if renewed.lease.seq == token.seq => Ok(Some(Said::Renewed(token))),
                Ok(Ok(rotated)) => Ok(Some(Said::Granted(vec![rotated]))),
                Ok(Err(why)) => Ok(Some(Said::Refused(Some(token), why))),
            },
            Self::Release(token, mut answer) => match answer.try_recv() {
                Err(TryRecvError::Empty) => Err(Self::Release(token, answer)),
                Err(TryRecvError::Closed) => Ok(None),
                Ok(Ok(_)) => Ok(Some(Said::Released(token))),
                Ok(Err(why)) => Ok(Some(Said::Refused(Some(token), why))),
            },
            Self::Revoke(mut answer) => match answer.try_recv() {
                Err(TryRecvError::Empty) => Err(Self::Revoke(answer)),
                Err(TryRecvError::Closed) => Ok(None),
                Ok(Ok(revoked)) => Ok(Some(Said::Revoked(revoked.record))),
                Ok(Err(why)) => Ok(Some(Said::Refused(None, why))),
            },
        }
    }
}

/// What the client learns from the answer.
enum Delivery {
    Leases { leases: Vec<(LeaseId, FenceToken)>, can_ask_again: bool },
    Other,
}

#[derive(Clone, Copy)]
enum ClientAction {
    Acquire,
    Repeat,
    Write,
    OldWrite,
    Renew,
    Release,
    Revoke,
    Sleep,
}

impl Client {
    pub(super) fn new(id: u64) -> Self {
        // The first two clients are one holder, so that one can take over from the other.
        let holder = HolderId::new(&format!("h{}", id.max(1))).expect("a holder's id");
        let (leases, current, call, delivery, last_request) = (vec![], None, None, None, None);
        Self { id, holder, leases, current, call, delivery, last_request, asleep_until: 0 }
    }

    /// Forgets its present lease, after an answer that this lease is over.
    pub(super) fn give_up(&mut self, token: &FenceToken) {
        self.current = self.current.take().filter(|(_, current)| current != token);
    }

    /// Forgets the present call: the gate is gone.
    pub(super) fn lose_call(&mut self) {
        self.call = None;
    }
}

impl World {
    pub(super) fn client_step(&mut self, place: usize) {
        let client = &mut self.clients[place];
        if client.asleep_until > self.step {
            return;
        }
        if let Some(delivery) = client.delivery.take() {
            return self.deliver(place, delivery);
        }
        if client.call.is_some() {
            if self.rng.percent(2) {
                self.say(format!("client {} hangs up", self.clients[place].id));
                self.clients[place].call = None;
            }
            return;
        }
        if self.led.is_some() { self.candidate_step(place) } else { self.act(place) }
    }

    /// Delivers an answer or loses it. The gate takes back lost grants whose request cannot be repeated.
    fn deliver(&mut self, place: usize, delivery: Delivery) {
        let Delivery::Leases { leases, can_ask_again } = delivery else { return };
        if !self.rng.percent(5) {
            let client = &mut self.clients[place];
            client.current = leases.last().cloned();
            return client.leases.extend(leases);
        }
        self.say(format!("client {place} gets no answer about its lease"));
        if !can_ask_again && self.run.is_some() {
            let leases = leases.into_iter().map(|(lease, token)| (token.object, lease)).collect();
            let (reply, _) = oneshot::channel();
            self.calls.push(Command::Withdraw { leases, reply });
        }
    }

    fn act(&mut self, place: usize) {
        let is_adversary = place + 1 == self.clients.len();
        let had = u64::from(!self.clients[place].leases.is_empty());
        let has = u64::from(self.clients[place].current.is_some());
        let has_room = u64::from(self.writes.len() < WRITES_MAX && self.run.as_ref().is_some_and(|run| !run.closing));
        let action = self.rng.pick(&[
            (if is_adversary { 40 } else { 15 }, ClientAction::Acquire),
            (u64::from(self.clients[place].last_request.is_some()) * 3, ClientAction::Repeat),
            (has * has_room * 60, ClientAction::Write),
            (had * has_room * 5, ClientAction::OldWrite),
            (has * 8, ClientAction::Renew),
            (has * 8, ClientAction::Release),
            (if is_adversary { 5 } else { 1 }, ClientAction::Revoke),
            (4, ClientAction::Sleep),
        ]);
        match action {
            ClientAction::Acquire => self.acquire(place),
            ClientAction::Repeat => self.repeat(place),
            ClientAction::Write => self.write_with(place, false),
            ClientAction::OldWrite => self.write_with(place, true),
            ClientAction::Renew => self.renew(place),
            ClientAction::Release => self.release_lease(place),
            ClientAction::Revoke => self.revoke(place),
            ClientAction::Sleep => self.clients[place].asleep_until = self.step + self.rng.range(20, 200),
        }
    }

    pub(super) fn any_object(&mut self) -> ObjectId {
        let place = self.rng.place(self.lot.objects.len());
        self.lot.objects[place].clone()
    }

    fn acquire(&mut self, place: usize) {
        let mut objects = vec![self.any_object()];
        if self.rng.percent(10) {
            objects.clone_from(&self.lot.objects);
        }
        let wait_ms = if self.rng.percent(40) { self.rng.range(1, 2_000) } else { 0 };
        let request = self.rng.percent(30).then(|| RequestId::new(&format!("r{}", self.step)).expect("a request's id"));
        let wanted = Wanted {
            objects,
            holder: self.clients[place].holder.clone(),
            ttl: Ttl(self.rng.range(self.lot.ttl_ms / 4, self.lot.ttl_ms)),
            wait_ms,
            request,
            takeover: self.rng.percent(40),
        };
        if wanted.request.is_some() {
            self.clients[place].last_request = Some(wanted.clone());
        }
        self.ask(place, wanted);
    }

    fn repeat(&mut self, place: usize) {
        if let Some(wanted) = self.clients[place].last_request.clone() {
            self.ask(place, wanted);
        }
    }

    fn ask(&mut self, place: usize, wanted: Wanted) {
        let names: Vec<&str> = wanted.objects.iter().map(ObjectId::as_str).collect();
        let request = wanted.request.as_ref().map_or("", RequestId::as_str);
        let takeover = if wanted.takeover { " takeover" } else { "" };
        let line = format!(
            "client {} acquires {} for {} ms, waits {}{takeover} {request}",
            self.clients[place].id,
            names.join(" "),
            wanted.ttl.0,
            wanted.wait_ms
        );
        self.say(line.trim_end());
        for object in &wanted.objects {
            self.asked.insert(object.clone(), self.step);
        }
        let (reply, answer) = oneshot::channel();
        self.calls.push(Command::Acquire { wanted, reply });
        self.clients[place].call = Some(Call::Acquire(answer));
    }

    fn lease_of(&mut self, place: usize, old: bool) -> (LeaseId, FenceToken) {
        let client = &self.clients[place];
        match &client.current {
            Some(current) if !old => current.clone(),
            Some(_) | None => {
                let which = self.rng.place(client.leases.len());
                client.leases[which].clone()
            }
        }
    }

    fn write_with(&mut self, place: usize, old: bool) {
        let (_, token) = self.lease_of(place, old);
        self.begin_write(place, token);
    }

    fn renew(&mut self, place: usize) {
        let old = self.rng.percent(20);
        let (lease_id, token) = self.lease_of(place, old);
        let rotate = self.rng.percent(25);
        let ttl = Ttl(self.rng.range(self.lot.ttl_ms / 4, self.lot.ttl_ms));
        let word = if rotate { "rotates" } else { "renews" };
        self.say(format!("client {place} {word} {} of {}", token.seq, token.object));
        if rotate {
            self.asked.insert(token.object.clone(), self.step);
        }
        let (reply, answer) = oneshot::channel();
        let holder = self.clients[place].holder.clone();
        self.clients[place].call = Some(Call::Renew(token.clone(), answer));
        self.calls.push(Command::Renew { lease_id, holder, token, ttl, rotate, reply });
    }

    fn release_lease(&mut self, place: usize) {
        let (lease_id, token) = self.lease_of(place, false);
        self.say(format!("client {place} releases {} of {}", token.seq, token.object));
        let (reply, answer) = oneshot::channel();
        self.clients[place].call = Some(Call::Release(token.clone(), answer));
        self.calls.push(Command::Release { lease_id, holder: None, token, reply });
    }

    pub(super) fn revoke(&mut self, place: usize) {
        let object = self.any_object();
        let force = self.rng.percent(15);
        let word = if force { "revokes by force" } else { "revokes" };
        self.say(format!("client {place}, an operator now, {word} {object}"));
        self.asked.insert(object.clone(), self.step);
        let (reply, answer) = oneshot::channel();
        self.clients[place].call = Some(Call::Revoke(answer));
        self.calls.push(Command::Revoke { object, reason: "simulated".to_owned(), force, source: Source::Gate, reply });
    }

    /// Reads the ledger's answers. The oracle gets each at once, the client later.
    pub(super) fn read_answers(&mut self) {
        let fence_of = |object: &ObjectId| (object.clone(), self.oracle.fence(object));
        let before: BTreeMap<ObjectId, u64> = self.lot.objects.iter().map(fence_of).collect();
        let mut said: Vec<(usize, Said)> = vec![];
        for (place, client) in self.clients.iter_mut().enumerate() {
            let Some(call) = client.call.take() else { continue };
            match call.poll() {
                Ok(answer) => said.extend(answer.map(|answer| (place, answer))),
                Err(waiting) => client.call = Some(waiting),
            }
        }
        // All of these answers are of one round: the end of a lease came after what the lease still allowed.
        said.sort_by_key(|(_, said)| said.rank());
        for (place, said) in said {
            self.clients[place].delivery = Some(self.read_answer(place, said, &before));
        }
    }

    fn read_answer(&mut self, place: usize, said: Said, before: &BTreeMap<ObjectId, u64>) -> Delivery {
        match said {
            Said::Renewed(token) => self.renewed(place, &token),
            Said::Granted(granted) => return self.granted(place, &granted, before),
            Said::Released(token) => self.released(place, &token),
            Said::Revoked(record) => self.revoked(place, &record, before),
            Said::Refused(token, why) => self.refused(place, token.as_ref(), &why),
        }
        Delivery::Other
    }

    fn granted(&mut self, place: usize, granted: &[Granted], before: &BTreeMap<ObjectId, u64>) -> Delivery {
        let mut leases = vec![];
        for Granted { object, lease, drain, .. } in granted {
            self.counts.grants += 1;
            let seq = lease.seq.get();
            self.counts.tainted += u64::from(lease.tainted);
            let word = if lease.tainted { " tainted" } else { "" };
            self.say(format!(
                "client {place} is granted{word} {seq} of {object}, drained {}+{}+{} in {} ms",
                drain.settled, drain.cancelled, drain.unknown, drain.waited_ms
            ));
            let kept = self.oracle.granted(
                object,
                seq,
                (&lease.lease_id, lease.tainted),
                before.get(object).copied().unwrap_or(0),
            );
            self.judge(kept);
            self.oracle.extended(object, seq, self.round_at, lease.ttl.0);
            leases.push((lease.lease_id.clone(), lease.token(object)));
        }
        let can_ask_again = granted.iter().any(|granted| granted.lease.request.is_some());
        Delivery::Leases { leases, can_ask_again }
    }

    fn renewed(&mut self, place: usize, token: &FenceToken) {
        self.say(format!("client {place} has renewed {} of {}", token.seq, token.object));
        let kept: Result<(), Violation> = self.oracle.renewed(&token.object, token.seq.get());
        self.judge(kept);
    }

    fn released(&mut self, place: usize, token: &FenceToken) {
        self.say(format!("client {place} has released {} of {}", token.seq, token.object));
        self.oracle.over(&token.object, token.seq.get());
        self.clients[place].give_up(token);
    }

    fn revoked(&mut self, place: usize, record: &Record, before: &BTreeMap<ObjectId, u64>) {
        self.say(format!("client {place} has revoked {} up to {}", record.object, record.fence));
        let before = before.get(&record.object).copied().unwrap_or(0);
        let kept = self.oracle.revoked(&record.object, record.fence.get(), before);
        self.judge(kept);
        // While it drains, the answer says only that, and promises nothing about older writes yet.
        if let State::Free { .. } = record.state {
            self.oracle.freed(&record.object, record.fence.get());
        }
    }

    fn refused(&mut self, place: usize, token: Option<&FenceToken>, why: &LedgerError) {
        if let LedgerError::Lease { why: LeaseRefusal::Expired { .. } | LeaseRefusal::Fenced { .. }, .. } = why
            && let Some(token) = token
        {
            self.oracle.over(&token.object, token.seq.get());
            self.clients[place].give_up(token);
        }
        if let (LedgerError::Lease { why: LeaseRefusal::Fenced { .. }, .. }, None) = (why, token) {
            self.counts.overtaken_advances += 1;
        }
        let word = match why {
            LedgerError::Lease { why: LeaseRefusal::Held { .. }, .. } => "held",
            LedgerError::Lease { why: LeaseRefusal::Fenced { .. }, .. } => "fenced",
            LedgerError::Lease { why: LeaseRefusal::Expired { .. }, .. } => "expired",
            LedgerError::Lease { .. } => "refused",
            LedgerError::NotFound => "not found",
            LedgerError::RequestIdUsed => "request id used",
            LedgerError::Unavailable => "unavailable",
            LedgerError::Unsure => "unsure",
            LedgerError::Stalled => "stalled",
            LedgerError::Overloaded => "overloaded",
            LedgerError::Stopping => "stopping",
            LedgerError::Draining { .. } => "draining",
            LedgerError::Migrating { .. } | LedgerError::MigrationMoved => "migrating",
        };
        self.say(format!("client {place} is refused: {word}"));
    }
}
