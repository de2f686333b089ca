//! A write on its way through the gate, on the product's own stripes and judge, in the order in which
//! `write_path` takes its steps. Between any two of them anything else may happen. What `InFlight` does
//! there with a whole gate behind it is done here without one.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
};

use tokio::sync::oneshot;

use super::{
    led::{Asked, Claim},
    store::Answer,
    world::World,
};
use crate::{
    failpoints::{self, Fault},
    fence::{
        BootMs, Denial, Fence, FenceToken, ObjectId, Record, Refusal, Ttl,
        elected::Term,
        verdict::{self, Permit, Presented, Unusable, View},
    },
    table::{
        codec::{Key, decode_record},
        flight::{Cancel, End, Stage},
        ledger::{Command, Moved, Refused},
        records::Records,
        stripes::{Place, Ticket},
    },
};

/// A write.
pub(super) struct Write {
    id: u64,
    /// Who sent it.
    client: usize,
    object: ObjectId,
    /// Of a term's, once it was admitted.
    seq: u64,
    brings: Brings,
    streams: bool,
    phase: Phase,
    /// Once it was admitted: by what right, and where it is counted.
    permit: Option<Permit>,
    place: Option<Place>,
    stage: Option<Stage>,
    sent_at: BootMs,
    /// Nothing happens to it before this step.
    paused_until: u64,
}

/// By what right it comes.
enum Brings {
    Token(FenceToken),
    Term(Box<Claim>),
}

/// How far it is.
enum Phase {
    /// To be judged for the first time.
    Judge,
    /// Its object's row is about to be read.
    Read(Ticket),
    /// The row was read, and is about to be offered to memory.
    Offer(Ticket, Box<Record>),
    /// Its lease is being ended, since it is past its deadline.
    End(oneshot::Receiver<Result<(), Refused>>),
    /// The API server is asked about its term.
    Ask,
    /// It has answered, and the ledger is told.
    Told(Arc<Term>, oneshot::Receiver<Result<Moved, Refused>>),
    /// Admitted; nothing was sent.
    Held,
    /// Part of it may go.
    Streaming {
        cancel: Cancel,
        sent: bool,
    },
    /// All of it may go.
    Committed {
        sent: bool,
    },
    /// Its answer is waited for.
    Sent,
    /// Its connection is closed.
    Closed {
        lost: bool,
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
    pub(super) fn begin_write_by_term(&mut self, client: usize, object: ObjectId, claim: Claim) {
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
            permit: None,
            place: None,
            stage: None,
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

    fn write_step(&mut self, write: &mut Write, records: &Records) {
        write.phase = match std::mem::replace(&mut write.phase, Phase::Done) {
            Phase::Judge => self.decide(write, records),
            Phase::Read(ticket) => match read_row(&write.object, records) {
                Some(record) => Phase::Offer(ticket, Box::new(record)),
                None => Phase::Done,
            },
            Phase::Offer(ticket, record) => {
                records.stripes.offer(*record, &ticket);
                Phase::Judge
            }
            Phase::End(mut ended) => match ended.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => Phase::End(ended),
                Ok(Ok(())) if write.place.is_none() => Phase::Judge,
                Ok(Ok(())) => Phase::Held,
                Ok(Err(_)) | Err(_) => self.drop_write(write, records),
            },
            Phase::Ask => self.hear_of_term(write),
            Phase::Told(term, mut moved) => match moved.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => Phase::Told(term, moved),
                Ok(Ok(_)) => {
                    if let Brings::Term(claim) = &mut write.brings {
                        claim.claimant.term = Some(term);
                    }
                    Phase::Judge
                }
                Ok(Err(_)) | Err(_) => Phase::Done,
            },
            Phase::Held => self.leave_the_hold(write, records),
            Phase::Streaming { cancel, sent } => self.stream(write, records, cancel, sent),
            Phase::Committed { sent } => self.release(write, records, sent),
            Phase::Sent => self.wait_for_answer(write, records),
            Phase::Closed { lost } => {
                let end = if lost { self.unknown(write) } else { End::Nothing };
                self.end_write(write, records, end);
                Phase::Done
            }
            Phase::Done => Phase::Done,
        }
    }

    /// `decide`: one look, under the lock.
    fn decide(&mut self, write: &mut Write, records: &Records) -> Phase {
        if records.latched().is_some() {
            return self.refuse(write, &Refusal::Unusable(Unusable::Table));
        }
        let (now, object) = (self.now(), write.object.clone());
        let judge = |record: &_, sealed| match &write.brings {
            Brings::Token(token) => verdict::judge_text(record, sealed, &token.expose(), now),
            Brings::Term(claim) => {
                verdict::judge(View::Known { record, sealed }, &Presented::Claimant(claim.claimant.clone()), now)
            }
        };
        match records.stripes.admit(object.as_str(), judge) {
            None => Phase::Read(records.stripes.ticket(&object)),
            Some(Ok((permit, place))) => {
                write.seq = permit.seq().get();
                (write.permit, write.place) = (Some(permit), Some(place));
                write.stage = Some(Stage::Waiting);
                self.admitted(write, "admitted");
                Phase::Held
            }
            Some(Err(Denial::Refused(refusal))) => self.refuse(write, &refusal),
            Some(Err(Denial::Behind(_))) => unreachable!("nobody brings outside numbers here"),
            Some(Err(Denial::Unseen(_) | Denial::Lapsed(_))) => match &mut write.brings {
                Brings::Term(claim) if !claim.has_asked => {
                    self.ask_about(write.id, &object, claim);
                    Phase::Ask
                }
                Brings::Term(_) | Brings::Token(_) => self.refuse(write, &unheard()),
            },
            Some(Err(Denial::Overdue(lease))) => {
                let (reply, ended) = oneshot::channel();
                self.calls.push(Command::End { leases: vec![(object, lease)], reply });
                Phase::End(ended)
            }
        }
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

    /// What the API server has said of its term.
    fn hear_of_term(&mut self, write: &Write) -> Phase {
        match self.led.as_mut().and_then(|led| led.answer(write.id)) {
            None => Phase::Ask,
            Some(Asked::No(refusal)) => self.refuse(write, &refusal),
            Some(Asked::Moved(term, moved)) => Phase::Told(term, moved),
        }
    }

    /// Whoever sent it is told why.
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

    /// `InFlight::go_on`: judged once more.
    fn go_on(&mut self, write: &mut Write, records: &Records, mut to: Stage) -> Result<(), Denial> {
        if records.latched().is_some() {
            return Err(Refusal::Unusable(Unusable::Table).into());
        }
        let (Some(permit), Some(place), Some(from)) = (&write.permit, write.place, &write.stage) else {
            return Err(Refusal::Unusable(Unusable::Table).into());
        };
        let now = self.now();
        let judge = |record: &_, sealed| verdict::judge_again(View::Known { record, sealed }, permit, now);
        let judged = records.stripes.go_on(place, (from, &mut to), judge);
        if !failpoints::on(Fault::NoCommitCheck) {
            judged?;
        }
        write.stage = Some(to);
        Ok(())
    }

    /// The last moment before something is sent.
    fn leave_the_hold(&mut self, write: &mut Write, records: &Records) -> Phase {
        if self.rng.percent(2) {
            return self.drop_write(write, records);
        }
        let cancel = Cancel::default();
        let to = if write.streams { Stage::Streaming(Arc::clone(&cancel)) } else { Stage::Committed(0) };
        match self.go_on(write, records, to) {
            Ok(()) if write.streams => {
                self.admitted(write, "begun");
                Phase::Streaming { cancel, sent: false }
            }
            Ok(()) => {
                self.admitted(write, "committed");
                Phase::Committed { sent: false }
            }
            Err(Denial::Refused(refusal)) => {
                let told = self.refuse(write, &refusal);
                self.end_write(write, records, End::Nothing);
                told
            }
            Err(Denial::Behind(_)) => unreachable!("nobody brings outside numbers here"),
            // Whether its Lease is still held is not asked again.
            Err(Denial::Unseen(_) | Denial::Lapsed(_)) => {
                let told = self.refuse(write, &unheard());
                self.end_write(write, records, End::Nothing);
                told
            }
            Err(Denial::Overdue(lease)) => {
                let (reply, ended) = oneshot::channel();
                self.calls.push(Command::End { leases: vec![(write.object.clone(), lease)], reply });
                Phase::End(ended)
            }
        }
    }

    /// Part of the body, or its end, or the news that it has to stop.
    fn stream(&mut self, write: &mut Write, records: &Records, cancel: Cancel, sent: bool) -> Phase {
        if is_told(&cancel) {
            self.counts.cancelled += 1;
            self.say(format!("gate: write {} is told to stop", write.id));
            return self.break_off(write, records, sent);
        }
        if let Answer::Whole { .. } = self.answer_to(write.id) {
            self.say(format!("gate: write {} is answered early", write.id));
            return self.break_off(write, records, sent);
        }
        if self.rng.percent(5) {
            self.say(format!("gate: the client of write {} hangs up", write.id));
            return self.break_off(write, records, sent);
        }
        if !sent {
            self.send(write.id, &write.object, write.seq, false);
            return Phase::Streaming { cancel, sent: true };
        }
        if self.rng.percent(60) {
            return Phase::Streaming { cancel, sent };
        }
        match self.go_on(write, records, Stage::Committed(0)) {
            Ok(()) => {
                self.admitted(write, "committed");
                Phase::Committed { sent: true }
            }
            Err(_) => {
                self.say(format!("gate: write {} is denied its end", write.id));
                self.break_off(write, records, sent)
            }
        }
    }

    /// `Job::failed`: the connection is closed before the end was sent.
    fn break_off(&mut self, write: &mut Write, records: &Records, sent: bool) -> Phase {
        self.close_connection(write.id);
        if !sent {
            if let (Some(place), Some(from)) = (write.place, write.stage.replace(Stage::Waiting)) {
                records.stripes.back_out(place, &from);
            }
            self.end_write(write, records, End::Nothing);
            return Phase::Done;
        }
        Phase::Closed { lost: !self.lot.discards }
    }

    /// The write, or its end, leaves.
    fn release(&mut self, write: &mut Write, records: &Records, sent: bool) -> Phase {
        write.sent_at = self.now().boot;
        if sent {
            self.send_rest(write.id);
        } else if self.rng.percent(5) {
            // The connection died while it was idle: another is tried.
            if let (Some(place), Some(from)) = (write.place, write.stage.replace(Stage::Waiting)) {
                records.stripes.back_out(place, &from);
            }
            return Phase::Held;
        } else {
            self.send(write.id, &write.object, write.seq, true);
        }
        Phase::Sent
    }

    /// `Job::answer`: settled by a whole answer, else unknown from the close of the connection on.
    fn wait_for_answer(&mut self, write: &mut Write, records: &Records) -> Phase {
        let is_late = self.now().boot.since(write.sent_at) >= self.lot.patience_ms;
        match self.answer_to(write.id) {
            Answer::Whole { settles: true } => {
                self.end_write(write, records, End::Settled);
                self.forget(write.id);
                if let Brings::Term(_) = &write.brings {
                    self.oracle.answered(&write.object, write.seq);
                }
                Phase::Done
            }
            Answer::Head if failpoints::on(Fault::HeadSettles) => {
                self.end_write(write, records, End::Settled);
                Phase::Sent
            }
            Answer::Nothing | Answer::Head if !is_late => Phase::Sent,
            Answer::Nothing | Answer::Head | Answer::Broken | Answer::Whole { settles: false } => {
                self.close_connection(write.id);
                Phase::Closed { lost: true }
            }
        }
    }

    /// Its task is gone: `InFlight` is dropped.
    fn drop_write(&mut self, write: &mut Write, records: &Records) -> Phase {
        self.close_connection(write.id);
        let end = match &write.stage {
            None | Some(Stage::Waiting) => End::Nothing,
            Some(Stage::Streaming(_) | Stage::Committed(_)) => self.unknown(write),
        };
        self.end_write(write, records, end);
        Phase::Done
    }

    /// The writes of an object that may land, and of which nobody waits for the end if an operator says so.
    pub(super) fn on_their_way(&self, object: &ObjectId) -> Vec<u64> {
        let may_land = |write: &&Write| matches!(write.stage, Some(Stage::Streaming(_) | Stage::Committed(_)));
        let in_gate = self.writes.iter().filter(may_land).filter(|write| write.object == *object).map(|write| write.id);
        in_gate.chain(self.in_store(object)).collect()
    }

    /// Drops whatever is still on its way: the gate stops.
    pub(super) fn drop_writes(&mut self, records: &Records) {
        for mut write in std::mem::take(&mut self.writes) {
            self.drop_write(&mut write, records);
        }
    }

    /// `InFlight::lose`.
    fn unknown(&mut self, write: &Write) -> End {
        self.counts.unknown += 1;
        let is_partial = matches!(write.stage, Some(Stage::Streaming(_)));
        if failpoints::on(Fault::NoUnknownWait) || (is_partial && failpoints::on(Fault::PartialIsNone)) {
            return End::Nothing;
        }
        let is_early = failpoints::on(Fault::BoundFromCommit) && !is_partial;
        let from = if is_early { write.sent_at } else { self.now().boot };
        End::Unknown { until: from.after(Ttl(self.lot.bound_ms)) }
    }

    fn end_write(&mut self, write: &mut Write, records: &Records, how: End) {
        if let (Some(place), Some(from)) = (write.place, write.stage.take()) {
            let word = match how {
                End::Nothing => "nothing of it",
                End::Settled => "settled",
                End::Unknown { .. } => "unknown",
            };
            self.say(format!("gate: write {} ends: {word}", write.id));
            records.stripes.end(place, &from, how);
        }
    }
}

/// Nobody can say.
fn unheard() -> Refusal {
    Refusal::Unheard { fence: Fence::default() }
}

fn read_row(object: &ObjectId, records: &Records) -> Option<Record> {
    match records.table.get(&Key::Record(object.clone()).encode()).ok()? {
        Some(value) => decode_record(object.clone(), &value, &records.context).ok(),
        None => Some(Record::unknown(object.clone(), records.context.incarnation)),
    }
}

/// Whether an advance has told a write to stop.
fn is_told(cancel: &Cancel) -> bool {
    pin!(cancel.notified()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}
