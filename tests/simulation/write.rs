//! A write on its way through the gate. The product's own guard runs its life, on the product's own stripes and
//! judge. The connection, the body and the table's reads are simulated here, and between any two steps anything
//! else may happen.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
};

use tokio::sync::oneshot;

use super::{lease_news::AskResult, led::TermClaim, store::StoreResponse, world::World};
use fencegate::{
    barrier::{
        flight::Cancel,
        generation::Generation,
        in_flight::{Admission, Barrier, Denied, InFlight, NoKey, Permitted},
        stripes::{Stripes, Ticket},
    },
    clock::Clock,
    failpoints::{self, Fault},
    fence::{
        BootMs, Denial, Fence, FenceToken, LeaseId, Now, ObjectId, Record, Refusal, Ttl,
        elected::Term,
        outside::Claim,
        verdict::{self, Presented, Unusable, View},
        write::{Effect, Event, Obstacle, Outcome, Stage, Write as Life, WriteOptions},
    },
    table::{
        ledger::{Command, LedgerError, Moved},
        records::Records,
    },
};

/// The parts of the gate that a write in flight needs.
pub(super) struct Gate {
    records: Arc<Records>,
    clock: Clock,
}

impl Barrier for Gate {
    fn stripes(&self) -> &Stripes {
        &self.records.stripes
    }

    fn now(&self) -> Now {
        self.clock.now()
    }

    fn is_latched(&self) -> bool {
        self.records.latched().is_some()
    }

    fn lose_track(&self) {
        self.records.lose_track();
    }
}

/// A write.
pub(super) struct Write {
    id: u64,
    /// The client that sent the write.
    client: usize,
    object: ObjectId,
    /// For a write by a term: once it was admitted.
    seq: u64,
    brings: Brings,
    streams: bool,
    phase: Phase,
    /// The write's life before it is admitted.
    life: Life,
    /// The write's guard, once it was admitted.
    guard: Option<InFlight<Gate, NoKey>>,
    /// Part of the write was sent.
    sent: bool,
    sent_at: BootMs,
    /// The write takes no step before this one.
    paused_until: u64,
}

/// The right that the write presents.
enum Brings {
    Token(FenceToken),
    Term(Box<TermClaim>),
}

/// The next step of the write.
enum Phase {
    /// The write is judged for the first time.
    Judge,
    /// The object's row is about to be read.
    Read(Ticket),
    /// The row was read, and is about to be offered to memory.
    Offer(Ticket, Box<Record>),
    /// The lease is past its deadline and is being ended.
    End(oneshot::Receiver<Result<(), LedgerError>>),
    /// The API server is asked about the write's term.
    Ask,
    /// The API server has answered, and the ledger gets the result.
    Observed(Arc<Term>, oneshot::Receiver<Result<Moved, LedgerError>>),
    /// The write waits for a connection.
    Held,
    /// Part of the write may be sent.
    Streaming,
    /// All of the write may be sent.
    Committed,
    /// The write waits for its answer.
    Sent,
    /// The write's connection is closed.
    Closed {
        left: bool,
    },
    Done,
}

impl World {
    /// A client sends a write.
    pub(super) fn begin_write(&mut self, client: usize, token: FenceToken) {
        let (object, seq) = (token.object.clone(), token.seq.get());
        self.begin(client, object, seq, Brings::Token(token));
    }

    /// The same by a term of leadership.
    pub(super) fn begin_write_by_term(&mut self, client: usize, object: ObjectId, claim: TermClaim) {
        self.begin(client, object, 0, Brings::Term(Box::new(claim)));
    }

    fn begin(&mut self, client: usize, object: ObjectId, seq: u64, brings: Brings) {
        self.last_write += 1;
        let streams = self.rng.percent(40);
        let write = Write {
            id: self.last_write,
            client,
            object,
            seq,
            brings,
            streams,
            phase: Phase::Judge,
            life: Life::new(WriteOptions { discards: self.lot.discards, ..WriteOptions::default() }),
            guard: None,
            sent: false,
            sent_at: BootMs::default(),
            paused_until: 0,
        };
        let how = if streams { "streams" } else { "sends" };
        let by = match &write.brings {
            Brings::Token(_) => write.seq.to_string(),
            Brings::Term(claim) => claim.claimant.election.to_string(),
        };
        self.say(format!("client {client} {how} write {} of {} at {by}", write.id, write.object));
        self.writes.push(write);
    }

    /// One step of one write, or one more pause.
    pub(super) fn write_turn(&mut self, place: usize) {
        let Some(records) = self.run.as_ref().map(|run| Arc::clone(&run.records)) else { return };
        let mut write = self.writes.remove(place);
        if write.paused_until <= self.step {
            self.write_step(&mut write, &records);
            if self.rng.percent(8) {
                write.paused_until = self.step + self.rng.range(10, 120);
            }
        }
        if !matches!(write.phase, Phase::Done) {
            self.writes.insert(place, write);
        }
    }

    fn write_step(&mut self, write: &mut Write, records: &Arc<Records>) {
        write.phase = match std::mem::replace(&mut write.phase, Phase::Done) {
            Phase::Judge => {
                let _ = write.life.on(Event::Arrived { whole: false });
                self.decide(write, records)
            }
            Phase::Read(ticket) => match records.row(&write.object) {
                Ok(record) => Phase::Offer(ticket, Box::new(record)),
                Err(_) => Phase::Done,
            },
            Phase::Offer(ticket, record) => {
                records.offer(*record, &ticket);
                self.cleared(write, records)
            }
            Phase::End(mut ended) => match ended.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => Phase::End(ended),
                Ok(Ok(())) => self.cleared(write, records),
                Ok(Err(_)) | Err(_) => self.drop_write(write),
            },
            Phase::Ask => self.hear_of_term(write),
            Phase::Observed(term, mut moved) => match moved.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => Phase::Observed(term, moved),
                Ok(Ok(_)) => {
                    if let Brings::Term(claim) = &mut write.brings {
                        claim.claimant.term = Some(term);
                    }
                    self.cleared(write, records)
                }
                Ok(Err(_)) | Err(_) => Phase::Done,
            },
            Phase::Held if self.rng.percent(2) => self.drop_write(write),
            Phase::Held => self.on(write, Event::Connected { whole: !write.streams }),
            Phase::Streaming => self.stream(write),
            Phase::Committed => self.release(write),
            Phase::Sent => self.wait_for_answer(write),
            Phase::Closed { left } => {
                let next = self.on(write, Event::Closed { left });
                // Nothing was sent, and the write is given up.
                if let Phase::Held = next { self.on(write, Event::Interrupted) } else { next }
            }
            Phase::Done => Phase::Done,
        }
    }

    /// Goes on with a write whose obstacle was removed.
    fn cleared(&mut self, write: &mut Write, records: &Arc<Records>) -> Phase {
        if write.guard.is_some() {
            return self.on(write, Event::Cleared(true));
        }
        let _ = write.life.on(Event::Cleared(true));
        self.decide(write, records)
    }

    /// Does what `decide` does: one judgement, under the lock.
    fn decide(&mut self, write: &mut Write, records: &Arc<Records>) -> Phase {
        if records.latched().is_some() {
            return self.refuse(write, &Refusal::Unusable(Unusable::Table));
        }
        let (now, object) = (self.now(), write.object.clone());
        let judge = |record: &_, sealed| match &write.brings {
            Brings::Token(token) => verdict::judge_text(record, sealed, &token.expose(), now),
            Brings::Term(claim) => verdict::judge(
                View::Known { record, sealed },
                &Presented::Outside(Claim::Term(claim.claimant.clone())),
                now,
            ),
        };
        let (obstacle, denial) = match records.stripes.admit(object.as_str(), judge) {
            Some(Ok(admitted)) => {
                write.seq = admitted.0.seq().get();
                let _ = write.life.on(Event::Permitted(Stage::Waiting));
                let gate = Gate { records: Arc::clone(records), clock: self.clock.clone() };
                let route = Arc::new(Generation::default()).enter(&self.clock, Ttl(self.lot.bound_ms));
                let admission = Admission::Permitted(Permitted::waiting(admitted));
                write.guard = Some(InFlight::new(gate, write.life, admission, route));
                self.admitted(write, "admitted");
                return Phase::Held;
            }
            Some(Err(denial)) => (Obstacle::from(&denial), Some(denial)),
            None => (Obstacle::NotInMemory, None),
        };
        match (write.life.on(Event::Denied(obstacle)), denial) {
            (Effect::Clear(_), None) => Phase::Read(records.stripes.ticket(&object)),
            (Effect::Clear(_), Some(Denial::Overdue(lease))) => self.end_lease(object, lease),
            (Effect::Clear(_), Some(_)) => match &write.brings {
                Brings::Term(claim) => {
                    self.ask_about(write.id, &object, claim);
                    Phase::Ask
                }
                Brings::Token(_) => unreachable!("a token of the gate needs no other source"),
            },
            (_, Some(Denial::Refused(refusal))) => self.refuse(write, &refusal),
            _ => self.refuse(write, &unheard()),
        }
    }

    fn end_lease(&mut self, object: ObjectId, lease: LeaseId) -> Phase {
        let (reply, ended) = oneshot::channel();
        self.calls.push(Command::End { leases: vec![(object, lease)], reply });
        Phase::End(ended)
    }

    fn admitted(&mut self, write: &Write, how: &str) {
        self.counts.admitted += 1;
        self.say(format!("gate: write {} of {} at {} is {how}", write.id, write.object, write.seq));
        let kept = match &write.brings {
            Brings::Token(_) => self.oracle.admitted(&write.object, write.seq, self.now().boot),
            Brings::Term(claim) => {
                let election = claim.claimant.election;
                self.oracle.admitted_by(&write.object, write.seq, election, self.now().boot)
            }
        };
        self.judge(kept);
    }

    /// Takes the API server's answer about the write's term.
    fn hear_of_term(&mut self, write: &Write) -> Phase {
        match self.led.as_mut().and_then(|led| led.answer(write.id)) {
            None => Phase::Ask,
            Some(AskResult::No(refusal)) => self.refuse(write, &refusal),
            Some(AskResult::Moved(term, moved)) => Phase::Observed(term, moved),
        }
    }

    /// Sends the client the refusal.
    fn refuse(&mut self, write: &Write, refusal: &Refusal) -> Phase {
        let code = refusal.code().as_str();
        self.say(format!("gate: write {} of {} at {} is refused: {code}", write.id, write.object, write.seq));
        match &write.brings {
            Brings::Token(token) => {
                if let Refusal::Ended { .. } | Refusal::Stale { .. } = refusal {
                    self.oracle.over(&write.object, write.seq);
                    self.clients[write.client].give_up(token);
                }
            }
            Brings::Term(claim) => {
                let is_of = self.led.as_ref().is_some_and(|led| led.is_of(&claim.claimant));
                if let (Refusal::Ended { .. } | Refusal::Deposed { .. }, true) = (refusal, is_of) {
                    self.oracle.term_over(&write.object, claim.claimant.election);
                }
            }
        }
        if let Refusal::Stale { fence, .. } | Refusal::Ahead { fence, .. } = refusal {
            let kept = self.oracle.fence_told(&write.object, fence.get());
            self.judge(kept);
        }
        Phase::Done
    }

    /// Applies an event to an admitted write's life, and carries out the effect.
    fn on(&mut self, write: &mut Write, event: Event) -> Phase {
        let Some(guard) = &write.guard else { return Phase::Done };
        let was_over = matches!(guard.stage(), Stage::Over(_));
        let (effect, denied) = (guard.on(event), guard.take_denied());
        let stage = guard.stage();
        match (effect, denied) {
            (Effect::Send(_), _) if stage == Stage::Streaming => {
                self.admitted(write, "begun");
                Phase::Streaming
            }
            (Effect::Send(_), _) => {
                self.admitted(write, "committed");
                Phase::Committed
            }
            (Effect::Connect, _) => Phase::Held,
            (Effect::Close, denied) => {
                if denied.is_some() {
                    self.say(format!("gate: write {} is denied its end", write.id));
                }
                self.close_connection(write.id);
                Phase::Closed { left: write.sent }
            }
            (Effect::Clear(Obstacle::Overdue), Some(Denied { object, why: Denial::Overdue(lease) })) => {
                self.end_lease(object, lease)
            }
            // The simulation does not ask again whether the Lease is still held.
            (Effect::Clear(_), _) => {
                self.refuse(write, &unheard());
                self.on(write, Event::Cleared(false))
            }
            (_, denied) => {
                if let Some(Denied { why: Denial::Refused(refusal), .. }) = denied {
                    self.refuse(write, &refusal);
                }
                if !was_over {
                    self.ended(write, stage);
                }
                Phase::Done
            }
        }
    }

    fn ended(&mut self, write: &Write, stage: Stage) {
        let word = match stage {
            Stage::Over(Outcome::Settled) => "settled",
            Stage::Over(Outcome::Cancelled) => "nothing of it",
            Stage::Over(Outcome::Unknown) => {
                self.counts.unknown += 1;
                "unknown"
            }
            _ => return,
        };
        self.say(format!("gate: write {} ends: {word}", write.id));
    }

    /// The next part of the body, its end, or an order to stop.
    fn stream(&mut self, write: &mut Write) -> Phase {
        let cancel = write.guard.as_ref().and_then(InFlight::cancel);
        if cancel.is_some_and(|cancel| is_told(&cancel)) {
            self.counts.cancelled += 1;
            self.say(format!("gate: write {} must stop", write.id));
            return self.on(write, Event::Interrupted);
        }
        if let StoreResponse::Whole { .. } = self.answer_to(write.id) {
            self.say(format!("gate: write {} is answered early", write.id));
            return self.on(write, Event::Answered { settles: false });
        }
        if self.rng.percent(5) {
            self.say(format!("gate: the client of write {} hangs up", write.id));
            return self.on(write, Event::Interrupted);
        }
        if !write.sent {
            write.sent = true;
            self.send(write.id, &write.object, write.seq, false);
            return Phase::Streaming;
        }
        if self.rng.percent(60) {
            return Phase::Streaming;
        }
        self.on(write, Event::Complete)
    }

    /// Sends the write, or its end.
    fn release(&mut self, write: &mut Write) -> Phase {
        write.sent_at = self.now().boot;
        if write.sent {
            self.send_rest(write.id);
        } else if self.rng.percent(5) {
            // The connection died while it was idle: another one is tried.
            return self.on(write, Event::Closed { left: false });
        } else {
            write.sent = true;
            self.send(write.id, &write.object, write.seq, true);
        }
        Phase::Sent
    }

    /// A complete answer settles the write. Otherwise it is unknown from the close of its connection on.
    fn wait_for_answer(&mut self, write: &mut Write) -> Phase {
        let is_late = self.now().boot.since(write.sent_at) >= self.lot.patience_ms;
        match self.answer_to(write.id) {
            StoreResponse::Whole { settles } => {
                let next = self.on(write, Event::Answered { settles });
                if settles {
                    self.forget(write.id);
                    if let Brings::Term(_) = &write.brings {
                        self.oracle.answered(&write.object, write.seq);
                    }
                }
                next
            }
            StoreResponse::Head if failpoints::on(Fault::HeadSettles) => {
                self.on(write, Event::Answered { settles: true });
                Phase::Sent
            }
            StoreResponse::Nothing | StoreResponse::Head if !is_late => Phase::Sent,
            StoreResponse::Nothing | StoreResponse::Head | StoreResponse::Broken => {
                self.close_connection(write.id);
                Phase::Closed { left: true }
            }
        }
    }

    /// Drops a write: its task is gone.
    fn drop_write(&mut self, write: &mut Write) -> Phase {
        self.close_connection(write.id);
        if let Some(guard) = write.guard.take() {
            let mut life = guard.life();
            drop(guard);
            if let Effect::End(_) = life.on(Event::Dropped) {
                self.ended(write, life.stage());
            }
        }
        Phase::Done
    }

    /// The writes of an object that may land, for which an operator may decide not to wait.
    pub(super) fn on_their_way(&self, object: &ObjectId) -> Vec<u64> {
        let may_land = |write: &&Write| {
            let stage = write.guard.as_ref().map(InFlight::stage);
            matches!(stage, Some(Stage::Streaming | Stage::Committed))
        };
        let in_gate = self.writes.iter().filter(may_land).filter(|write| write.object == *object).map(|write| write.id);
        in_gate.chain(self.in_store(object)).collect()
    }

    /// Drops the writes that are still on their way: the gate stops.
    pub(super) fn drop_writes(&mut self) {
        for mut write in std::mem::take(&mut self.writes) {
            self.drop_write(&mut write);
        }
    }
}

/// The source of the lease cannot be asked.
fn unheard() -> Refusal {
    Refusal::SourceUnavailable { fence: Fence::default() }
}

/// Whether an advance has ordered a write to stop.
fn is_told(cancel: &Cancel) -> bool {
    pin!(cancel.notified()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}
