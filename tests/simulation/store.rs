//! The store, and the network before it. It applies a write at any time; once the write's connection is gone,
//! within the bound or never, as the promises assume. Its answer, or silence, is drawn per write.

use super::{oracle::Violation, world::World};
use fencegate::fence::{BootMs, ObjectId, Ttl};

/// How the store treats a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// Applies it, then answers.
    Settles,
    /// Answers that it will not apply it.
    Refuses,
    /// Answers with a head, applies, then sends the rest.
    HeadFirst,
    /// Answers with a status that says nothing, and applies the write or not, sooner or later.
    Unsettling,
    /// Never answers.
    Silent,
    /// Sends a head and hangs up.
    BreaksOff,
    /// Answers before the complete body has come.
    Early,
}

/// The part of the answer that is on its way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreResponse {
    Nothing,
    Head,
    /// A head, and then the end of the connection.
    Broken,
    Whole {
        settles: bool,
    },
}

/// A write, or part of one, on its way to the store or in the store.
pub(super) struct Message {
    pub(super) write: u64,
    object: ObjectId,
    seq: u64,
    /// All of the write has been sent.
    whole: bool,
    manner: Manner,
    /// The store is busy with other work until then.
    not_before: BootMs,
    /// When the write's connection was closed.
    closed: Option<BootMs>,
    applied: bool,
    applied_part: bool,
    pub(super) answer: StoreResponse,
    /// When the gate released the write, in steps, and by the clock.
    committed: u64,
    let_go: BootMs,
}

impl World {
    /// Part of a write leaves the gate.
    pub(super) fn send(&mut self, write: u64, object: &ObjectId, seq: u64, whole: bool) {
        let manner = self.rng.pick(&[
            (50, Manner::Settles),
            (6, Manner::Refuses),
            (12, Manner::HeadFirst),
            (10, Manner::Unsettling),
            (10, Manner::Silent),
            (8, Manner::BreaksOff),
            (if whole { 0 } else { 15 }, Manner::Early),
        ]);
        let kept = self.oracle.sent(write);
        self.judge(kept);
        let now = self.now().boot;
        let delay = if self.rng.percent(40) { self.rng.range(1, self.lot.patience_ms + self.lot.bound_ms) } else { 0 };
        self.messages.push(Message {
            write,
            object: object.clone(),
            seq,
            whole,
            manner,
            not_before: now.after(Ttl(delay)),
            closed: None,
            applied: false,
            applied_part: false,
            answer: StoreResponse::Nothing,
            committed: self.step,
            let_go: now,
        });
    }

    /// The end of a streamed write leaves the gate.
    pub(super) fn send_rest(&mut self, write: u64) {
        let (step, now) = (self.step, self.now().boot);
        if let Some(message) = self.messages.iter_mut().find(|message| message.write == write) {
            (message.whole, message.committed, message.let_go) = (true, step, now);
        }
    }

    /// What the gate has received of a write's answer.
    pub(super) fn answer_to(&self, write: u64) -> StoreResponse {
        self.messages
            .iter()
            .find(|message| message.write == write)
            .map_or(StoreResponse::Nothing, |message| message.answer)
    }

    /// The writes of an object that the store has, in whole or in part.
    pub(super) fn in_store(&self, object: &ObjectId) -> impl Iterator<Item = u64> {
        self.messages.iter().filter(|message| message.object == *object).map(|message| message.write)
    }

    /// Removes a write: the store has answered it, and the gate has the complete answer.
    pub(super) fn forget(&mut self, write: u64) {
        self.messages.retain(|message| message.write != write);
    }

    /// Closes a write's connection.
    pub(super) fn close_connection(&mut self, write: u64) {
        self.close_where(|message| message.write == write);
    }

    /// Closes all connections: the gate is gone.
    pub(super) fn close_connections(&mut self) {
        self.close_where(|_| true);
    }

    fn close_where(&mut self, which: impl Fn(&Message) -> bool) {
        let now = self.now().boot;
        for message in self.messages.iter_mut().filter(|message| which(message)) {
            message.close(now);
            // The rest of it comes at any time within the bound.
            if self.rng.percent(50) {
                message.not_before = now.after(Ttl(self.rng.below(self.lot.bound_ms)));
            }
        }
    }

    /// The next instant at which the store may do something.
    pub(super) fn store_wakes_at(&self) -> Option<BootMs> {
        let now = self.now().boot;
        self.messages.iter().map(|message| message.not_before).filter(|at| *at > now).min()
    }

    /// One step of the store with one message.
    pub(super) fn store_step(&mut self, place: usize) {
        let mut message = self.messages.remove(place);
        if self.take_up(&mut message) {
            self.messages.insert(place, message);
        }
    }

    /// `false`: the write can have no more effect.
    fn take_up(&mut self, message: &mut Message) -> bool {
        let (now, bound) = (self.now().boot, self.lot.bound_ms);
        let is_closed = message.closed.is_some();
        if message.closed.is_some_and(|closed| now.0 >= closed.0 + bound) {
            return false;
        }
        if now < message.not_before {
            return true;
        }
        match message.manner {
            Manner::Settles if message.whole && !message.applied => self.land(message),
            Manner::Settles if message.whole => message.answer = StoreResponse::Whole { settles: true },
            Manner::Refuses if message.whole => {
                message.answer = StoreResponse::Whole { settles: true };
                return !is_closed;
            }
            Manner::HeadFirst if message.whole => match message.answer {
                StoreResponse::Nothing => message.answer = StoreResponse::Head,
                _ if !message.applied => self.land(message),
                _ => message.answer = StoreResponse::Whole { settles: true },
            },
            Manner::Unsettling if message.whole && message.answer == StoreResponse::Nothing => {
                message.answer = StoreResponse::Whole { settles: false };
            }
            Manner::BreaksOff if message.whole && message.answer == StoreResponse::Nothing => {
                message.answer = StoreResponse::Broken;
                message.close(now);
            }
            Manner::Early if !message.whole && message.answer == StoreResponse::Nothing => {
                message.answer = StoreResponse::Whole { settles: false };
            }
            Manner::Unsettling | Manner::Silent | Manner::BreaksOff | Manner::Early if message.whole => {
                return self.land_sooner_or_later(message);
            }
            _ => self.land_in_part(message),
        }
        !(is_closed && message.applied)
    }

    fn land_sooner_or_later(&mut self, message: &mut Message) -> bool {
        if !message.applied && self.rng.percent(40) {
            self.land(message);
        }
        // Its connection is gone and it has landed, so it has no more effect.
        !(message.applied && message.closed.is_some())
    }

    fn land(&mut self, message: &mut Message) {
        message.applied = true;
        let was_asked = self.asked.get(&message.object).is_some_and(|asked| *asked > message.committed);
        self.counts.overtakes += u64::from(was_asked);
        let is_late = self.now().boot >= message.let_go.after(Ttl(self.lot.bound_ms));
        self.counts.late += u64::from(is_late && message.closed.is_some());
        self.apply(message, "landed");
    }

    /// Lands part of a write, at a store that keeps partial bodies.
    fn land_in_part(&mut self, message: &mut Message) {
        if self.lot.discards || message.applied_part || !self.rng.percent(30) {
            return;
        }
        message.applied_part = true;
        self.counts.partial += 1;
        self.apply(message, "landed in part");
    }

    fn apply(&mut self, message: &Message, how: &str) {
        self.counts.applied += 1;
        self.say(format!("store: write {} of {} at {} {how}", message.write, message.object, message.seq));
        let kept: Result<(), Violation> = self.oracle.applied(&message.object, message.seq, message.write);
        self.judge(kept);
    }
}

impl Message {
    fn close(&mut self, now: BootMs) {
        self.closed.get_or_insert(now);
    }
}
