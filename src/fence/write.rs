//! The life of a write, from its arrival to its end: events in, effects out.
//!
//! ```text
//! Arrived -> Waiting -> Streaming -> Committed -> Settled
//!               |           |            |
//!               +-----------+------------+-----> Cancelled | Unknown
//! ```
//!
//! [`Write::on`] takes what has happened and returns the one thing to do next. The caller does it and reports the
//! result with the next event. The data plane, the simulation, the model and the tests under shuttle all drive this
//! code, so the order of a write's steps exists only here:
//!
//! - A write is judged when it arrives, and again before anything that completes it is sent. The second judgement is
//!   the commit point: [`Event::Permitted`] with [`Stage::Committed`]. Nothing else leads to that stage.
//! - Only [`Effect::Send`] carries a [`Release`], and a connection to the store needs one for everything that it
//!   sends.
//! - A write of which a byte may have left ends by a complete answer; else it is unknown from the close of its
//!   connection on. The journal gets an unknown outcome before the object may be handed over.
//! - The claim on an idempotency key comes before the first byte. The answer is kept after the end.

use super::Denial;

/// A write, from its arrival to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Write {
    stage: Stage,
    /// Part of the write may be on its way to the store.
    sent: bool,
    /// The next judgement is about the whole write, not about its beginning.
    whole: bool,
    /// The lease's source was asked about the lease since the last judgement that permitted the write.
    asked: bool,
    /// The write's idempotency key is claimed.
    claimed: bool,
    options: WriteOptions,
}

/// What a route says about its writes, and a request about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct WriteOptions {
    /// The route only checks (`audit`), or does not check at all (`off`): the write is sent whatever a judge would
    /// say.
    pub unfenced: bool,
    /// The store discards a body that is not complete.
    pub discards: bool,
    /// The route keeps a journal.
    pub journaled: bool,
    /// The request carries an idempotency key.
    pub keyed: bool,
}

/// How far a write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Not admitted.
    Arrived,
    /// Admitted. Nothing was sent, and the write must be judged again before anything is.
    Waiting,
    /// Part of the write may be sent, but not its end.
    Streaming,
    /// The whole write may be sent, so it may land.
    Committed,
    /// The outcome is known, and must be in the journal before the write ends.
    Recording(Outcome),
    Over(Outcome),
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The store has answered the write.
    Settled,
    /// No part of the write can land.
    Cancelled,
    /// The write may have landed, or may still land until its bound has passed.
    Unknown,
}

/// Why a write is not permitted, as far as the next step depends on the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Obstacle {
    /// The client gets the refusal, whether it is final or not.
    Refused,
    /// The record has to be read first.
    NotInMemory,
    /// The lease is past its deadline, and its end has to be durable first.
    Overdue,
    /// The token is a number above the fence: the fence has to move first.
    Behind,
    /// The lease's source has to be asked first.
    Unconfirmed,
}

impl From<&Denial> for Obstacle {
    fn from(denial: &Denial) -> Self {
        match denial {
            Denial::Refused(_) => Self::Refused,
            Denial::Overdue(_) => Self::Overdue,
            Denial::Behind(_) => Self::Behind,
            Denial::Unseen(_) | Denial::Lapsed(_) => Self::Unconfirmed,
        }
    }
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The head is read. `whole`: the body is here too, and a connection is idle, so that one judgement is enough.
    Arrived { whole: bool },
    /// The judge permits the write. It has been counted at this stage since the same moment.
    Permitted(Stage),
    /// The judge does not permit the write.
    Denied(Obstacle),
    /// Whether what [`Effect::Clear`] asked for succeeded.
    Cleared(bool),
    /// The body is collected, or begins to stream.
    Prepared,
    /// Whether the idempotency key is this write's. `false`: it is another write's, whose answer is for this one
    /// too.
    Claimed(bool),
    /// There is a connection to send the write on. `whole`: the complete body is here.
    Connected { whole: bool },
    /// The end of a body that streams is here.
    Complete,
    /// The write must stop: the client has broken off, an advance cancels it, or a reload has changed its route.
    Interrupted,
    /// The write's connection is closed, or was given up. `left`: a byte of the write may have left on it.
    Closed { left: bool },
    /// The complete answer came, after the complete request was sent. `settles`: the answer says what became of the
    /// write.
    Answered { settles: bool },
    /// Whether the journal has the outcome.
    Recorded(bool),
    /// [`Effect::End`] was done.
    Ended,
    /// The write's task is gone, and so is the work that it was doing.
    Dropped,
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an effect that is not done leaves the write where it is"]
pub enum Effect {
    /// Judge the write under the locks of its objects, and count it at this stage in the same critical section.
    /// Report [`Event::Permitted`] or [`Event::Denied`].
    Judge(Stage),
    /// Remove the obstacle, and report [`Event::Cleared`].
    Clear(Obstacle),
    /// Send the client the refusal. The write was never admitted.
    Refuse,
    /// Claim the idempotency key durably, and report [`Event::Claimed`].
    ClaimKey,
    /// Find a connection, and report [`Event::Connected`] or [`Event::Interrupted`].
    Connect,
    /// Send what was judged.
    Send(Release),
    /// Count the write at [`Stage::Waiting`] again. It may be tried on another connection.
    BackOut,
    /// Close the write's connection, so that nothing more leaves, and report [`Event::Closed`].
    Close,
    /// Write the outcome into the journal, and report [`Event::Recorded`]. A settled one must be durable by then.
    /// An unknown one must be queued, so that it is in the journal before anything that the write's end allows.
    Record(Outcome),
    /// End the count of the write, under the locks of its objects. An unknown write's bound counts from now. Report
    /// [`Event::Ended`].
    End(Outcome),
    /// Keep the answer under the write's idempotency key.
    KeepAnswer,
    /// There is nothing to do.
    Nothing,
}

/// The right to send part of a write now. Only [`Write::on`] makes one.
#[derive(Debug, PartialEq, Eq)]
pub struct Release(());

/// The right to send a request that changes nothing. Only a request that was classified as a read has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOnly(());

impl ReadOnly {
    /// A request that was classified as a read.
    #[must_use]
    pub fn classified() -> Self {
        Self(())
    }
}

impl Write {
    /// A write that was not judged yet.
    #[must_use]
    pub fn new(options: WriteOptions) -> Self {
        Self { stage: Stage::Arrived, sent: false, whole: false, asked: false, claimed: false, options }
    }

    /// Makes the write go on whatever a judge says from here on: its route only checks.
    pub fn unfence(&mut self) {
        self.options.unfenced = true;
    }

    #[must_use]
    pub fn stage(&self) -> Stage {
        self.stage
    }

    #[must_use]
    pub fn options(&self) -> WriteOptions {
        self.options
    }

    /// Whether part of the write may be on its way to the store.
    #[must_use]
    pub fn is_at_risk(&self) -> bool {
        self.sent && !matches!(self.stage, Stage::Over(_))
    }

    /// Takes an event, and returns what to do next.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "each caller has one event, and most of the rest falls away")]
    pub fn on(&mut self, event: Event) -> Effect {
        match event {
            Event::Arrived { whole } => self.arrived(whole),
            Event::Permitted(stage) => self.permitted(stage),
            Event::Denied(obstacle) => self.denied(obstacle),
            Event::Cleared(true) if matches!(self.stage, Stage::Arrived | Stage::Waiting) => self.judge(),
            Event::Cleared(false) | Event::Claimed(false) => self.give_up(),
            Event::Prepared if self.lacks_key() => Effect::ClaimKey,
            Event::Prepared => Effect::Connect,
            Event::Claimed(true) => {
                self.claimed = true;
                Effect::Connect
            }
            Event::Connected { whole } => self.connected(whole),
            Event::Complete => self.complete(),
            Event::Interrupted => self.interrupted(),
            Event::Closed { left: false } => self.nothing_left(),
            Event::Closed { left: true } => self.lost(),
            Event::Answered { settles } => self.answered(settles),
            Event::Recorded(written) => self.recorded(written),
            Event::Ended if self.claimed && self.stage == Stage::Over(Outcome::Settled) => Effect::KeepAnswer,
            Event::Cleared(true) | Event::Ended => Effect::Nothing,
            Event::Dropped => self.dropped(),
        }
    }

    fn arrived(&mut self, whole: bool) -> Effect {
        if self.stage != Stage::Arrived {
            return Effect::Nothing;
        }
        // A keyed write claims its key before it is committed.
        self.whole = whole && !self.options.keyed;
        if self.options.unfenced {
            return self.permitted(Stage::Waiting);
        }
        self.judge()
    }

    /// The next judgement, with its stage.
    fn judge(&self) -> Effect {
        if self.stage == Stage::Waiting && self.lacks_key() {
            return Effect::ClaimKey;
        }
        Effect::Judge(match (self.stage, self.whole) {
            (Stage::Arrived, false) => Stage::Waiting,
            (Stage::Waiting, false) => Stage::Streaming,
            (_, true | false) => Stage::Committed,
        })
    }

    fn lacks_key(&self) -> bool {
        self.options.keyed && !self.claimed
    }

    fn permitted(&mut self, stage: Stage) -> Effect {
        let before = std::mem::replace(&mut self.stage, stage);
        self.asked = false;
        if before == Stage::Arrived { Effect::Nothing } else { self.send() }
    }

    fn send(&mut self) -> Effect {
        self.sent = true;
        Effect::Send(Release(()))
    }

    fn denied(&mut self, obstacle: Obstacle) -> Effect {
        match (self.stage, obstacle) {
            // Part of the write was sent, so the gate cannot wait for anything.
            (Stage::Streaming, _) => Effect::Close,
            (Stage::Arrived, Obstacle::NotInMemory | Obstacle::Behind)
            | (Stage::Arrived | Stage::Waiting, Obstacle::Overdue) => Effect::Clear(obstacle),
            (Stage::Arrived | Stage::Waiting, Obstacle::Unconfirmed) if !self.asked => {
                self.asked = true;
                Effect::Clear(obstacle)
            }
            _ => self.give_up(),
        }
    }

    /// Ends a write of which nothing was sent.
    fn give_up(&mut self) -> Effect {
        match self.stage {
            Stage::Arrived => Effect::Refuse,
            Stage::Waiting | Stage::Committed if !self.sent => self.end(Outcome::Cancelled),
            _ => Effect::Nothing,
        }
    }

    fn connected(&mut self, whole: bool) -> Effect {
        match self.stage {
            Stage::Waiting if self.lacks_key() => Effect::ClaimKey,
            Stage::Waiting if self.options.unfenced => {
                self.stage = if whole { Stage::Committed } else { Stage::Streaming };
                self.send()
            }
            Stage::Waiting => {
                self.whole = whole;
                self.judge()
            }
            // The write was committed when it was admitted.
            Stage::Committed if !self.sent => self.send(),
            _ => Effect::Nothing,
        }
    }

    /// The commit point of a streaming body.
    fn complete(&mut self) -> Effect {
        match self.stage {
            Stage::Streaming if self.options.unfenced => {
                self.stage = Stage::Committed;
                self.send()
            }
            Stage::Streaming => Effect::Judge(Stage::Committed),
            _ => Effect::Nothing,
        }
    }

    fn interrupted(&mut self) -> Effect {
        match self.stage {
            Stage::Streaming => Effect::Close,
            // The whole write may have been sent, so it cannot be stopped.
            Stage::Committed if self.sent => Effect::Nothing,
            _ => self.give_up(),
        }
    }

    fn nothing_left(&mut self) -> Effect {
        match self.stage {
            Stage::Streaming | Stage::Committed => {
                (self.stage, self.sent) = (Stage::Waiting, false);
                Effect::BackOut
            }
            _ => Effect::Nothing,
        }
    }

    fn lost(&mut self) -> Effect {
        match self.stage {
            Stage::Streaming if self.options.discards => self.end(Outcome::Cancelled),
            Stage::Streaming | Stage::Committed => self.record(Outcome::Unknown),
            _ => Effect::Nothing,
        }
    }

    fn answered(&mut self, settles: bool) -> Effect {
        match self.stage {
            Stage::Committed if settles => self.record(Outcome::Settled),
            Stage::Streaming | Stage::Committed => Effect::Close,
            _ => Effect::Nothing,
        }
    }

    fn record(&mut self, outcome: Outcome) -> Effect {
        if !self.options.journaled {
            return self.end(outcome);
        }
        self.stage = Stage::Recording(outcome);
        Effect::Record(outcome)
    }

    fn recorded(&mut self, written: bool) -> Effect {
        match self.stage {
            Stage::Recording(Outcome::Settled) if !written => {
                // The journal must not leave out what was applied, so the outcome is recorded as unknown.
                self.stage = Stage::Committed;
                Effect::Close
            }
            Stage::Recording(outcome) => self.end(outcome),
            _ => Effect::Nothing,
        }
    }

    fn end(&mut self, outcome: Outcome) -> Effect {
        self.stage = Stage::Over(outcome);
        Effect::End(outcome)
    }

    fn dropped(&mut self) -> Effect {
        match self.stage {
            Stage::Over(_) | Stage::Arrived => Effect::Nothing,
            _ if self.sent => self.end(Outcome::Unknown),
            _ => self.end(Outcome::Cancelled),
        }
    }
}

#[cfg(test)]
#[path = "write_tests.rs"]
mod tests;
