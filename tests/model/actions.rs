//! Which steps are possible, and when. The steps themselves say whether they change anything (`ledger`, `writes`).

use std::fmt;

use fencegate::fence::{order::RoundStep, write::Stage};

use crate::{
    model::GateModel,
    mutants::Mutant,
    state::{FENCE_MAX, Gate, HOLDERS, Holder, InStore, NAMES, Phase, Seq, World, Write},
};

/// A write: its holder, and its index among that holder's writes.
pub type Which = (Holder, usize);

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    // A call reaches the ledger, and is decided in the present round.
    Acquire(Holder),
    AskAgain,
    Renew,
    Rotate,
    Release,
    Revoke,
    End,
    // The rest of a round, one by one.
    Seal,
    /// The second step of an advance that has drained, or was overtaken.
    Finish(usize),
    Persist,
    Publish,
    Answer,
    // A write on its way.
    Admit(Which, Seq),
    Begin(Which),
    SendPart(Which),
    ApplyPart(Which),
    /// The whole write is here: it is judged again, to be sent.
    Commit(Which),
    /// The end of a streaming body is here: the write is judged again.
    Complete(Which),
    BackOut(Which),
    Send(Which),
    Apply(Which),
    Settle(Which),
    Lose(Which),
    // Time, and the gate itself.
    BoundPasses,
    Tick,
    Crash,
    Stop,
    Start,
}

impl GateModel {
    /// Lists the steps that may be tried.
    pub fn possible(&self, world: &World, actions: &mut Vec<Action>) {
        if world.now < self.scope.last_tick {
            actions.push(Action::Tick);
        }
        for holder in 0..HOLDERS {
            for (place, write) in world.writes[usize::from(holder)][..self.scope.writes].iter().enumerate() {
                self.of_write(world, (holder, place), *write, actions);
            }
        }
        match &world.gate {
            None => actions.push(Action::Start),
            Some(gate) => {
                self.of_gate(world, gate, actions);
                self.of_ledger(world, gate, actions);
            }
        }
    }

    fn of_write(&self, world: &World, which: Which, write: Write, actions: &mut Vec<Action>) {
        match write.phase {
            Phase::Idle => {
                let (holder, place) = which;
                // A holder's writes begin in order, since they are alike.
                let is_next = place == 0 || world.writes[usize::from(holder)][place - 1].phase != Phase::Idle;
                if world.gate.is_some() && is_next {
                    let tokens = (1..=FENCE_MAX).filter(|seq| world.granted[usize::from(*seq)] == Some(holder));
                    actions.extend(tokens.map(|seq| Action::Admit(which, seq)));
                }
            }
            Phase::Live(life, in_store) => self.of_live(which, life.stage(), in_store, actions),
            Phase::Lost => actions.push(Action::Apply(which)),
            Phase::Landed | Phase::Over => {}
        }
    }

    fn of_live(&self, which: Which, stage: Stage, in_store: InStore, actions: &mut Vec<Action>) {
        match (stage, in_store) {
            (Stage::Waiting, _) => {
                actions.push(Action::Commit(which));
                actions.extend(self.scope.streams.then_some(Action::Begin(which)));
            }
            (Stage::Streaming, InStore::Nothing) => actions.extend([Action::SendPart(which), Action::BackOut(which)]),
            (Stage::Streaming, _) => {
                actions.extend([Action::ApplyPart(which), Action::Complete(which), Action::Lose(which)]);
            }
            (Stage::Committed, InStore::Nothing) => actions.extend([Action::Send(which), Action::BackOut(which)]),
            (Stage::Committed, InStore::Part) => {
                actions.extend([Action::ApplyPart(which), Action::Send(which), Action::Lose(which)]);
            }
            (Stage::Committed, InStore::All) => actions.extend([Action::Apply(which), Action::Lose(which)]),
            (Stage::Committed, InStore::Applied) => actions.extend([Action::Settle(which), Action::Lose(which)]),
            (Stage::Arrived | Stage::Recording(_) | Stage::Over(_), _) => {}
        }
    }

    fn of_ledger(&self, world: &World, gate: &Gate, actions: &mut Vec<Action>) {
        match &gate.round {
            Some(round) if round.to_seal.is_some() => return actions.push(Action::Seal),
            Some(round) => {
                let step = match round.next {
                    RoundStep::Persist => Action::Persist,
                    RoundStep::Publish => Action::Publish,
                    RoundStep::Answer { .. } => Action::Answer,
                };
                actions.push(step);
                // More is decided until the first step is taken.
                if round.next != RoundStep::FIRST {
                    return;
                }
            }
            None => actions.push(Action::AskAgain),
        }
        let fence = gate.newest().fence;
        if fence < FENCE_MAX {
            // The first holder is always called A.
            let askers = if fence == 0 { 1 } else { HOLDERS };
            actions.extend((0..askers).map(Action::Acquire));
            actions.extend(self.scope.renewals.then_some(Action::Rotate));
            actions.extend((world.revokes < self.scope.revokes && fence > 0).then_some(Action::Revoke));
        }
        actions.extend(self.scope.renewals.then_some(Action::Renew));
        actions.extend([Action::Release, Action::End]);
        actions.extend((0..gate.advances.len()).map(Action::Finish));
    }

    fn of_gate(&self, world: &World, gate: &Gate, actions: &mut Vec<Action>) {
        if gate.unknown || world.each_write().any(|write| write.phase == Phase::Lost) {
            actions.push(Action::BoundPasses);
        }
        if world.restarts < self.scope.restarts {
            actions.push(Action::Crash);
            let is_settled = gate.advances.is_empty() && self.is_drained(world);
            if gate.round.is_none() && (is_settled || self.is(Mutant::EarlyCleanFlag)) {
                actions.push(Action::Stop);
            }
        }
    }
}

struct Named(Which);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}'s write {}", NAMES[usize::from(self.0.0)], self.0.1 + 1)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Acquire(holder) => write!(f, "ledger: {} asks for the object", NAMES[usize::from(holder)]),
            Self::AskAgain => write!(f, "ledger: a holder repeats its request and gets its lease"),
            Self::Renew => write!(f, "ledger: the holder renews its lease"),
            Self::Rotate => write!(f, "ledger: the holder renews its lease under a new number"),
            Self::Release => write!(f, "ledger: the holder releases its lease"),
            Self::Revoke => write!(f, "ledger: an operator revokes"),
            Self::End => write!(f, "ledger: the lease is past its deadline and is ended"),
            Self::Seal => write!(f, "ledger: seals, and counts what is on its way"),
            Self::Finish(place) => write!(f, "ledger: takes waiting advance {} to its end", place + 1),
            Self::Persist => write!(f, "ledger: persists"),
            Self::Publish => write!(f, "ledger: publishes"),
            Self::Answer => write!(f, "ledger: answers"),
            Self::Admit(which, seq) => write!(f, "gate: {} with number {seq} is admitted", Named(which)),
            Self::Begin(which) => write!(f, "gate: {} is judged again, and may be begun", Named(which)),
            Self::SendPart(which) => write!(f, "gate: part of {} is sent", Named(which)),
            Self::ApplyPart(which) => write!(f, "store: part of {} is applied", Named(which)),
            Self::Commit(which) => write!(f, "gate: {} is judged again, to be sent", Named(which)),
            Self::Complete(which) => write!(f, "gate: the end of {} is judged, to be sent", Named(which)),
            Self::BackOut(which) => write!(f, "gate: {} finds its connection dead", Named(which)),
            Self::Send(which) => write!(f, "gate: {} is sent", Named(which)),
            Self::Apply(which) => write!(f, "store: {} is applied", Named(which)),
            Self::Settle(which) => write!(f, "gate: {} is answered", Named(which)),
            Self::Lose(which) => write!(f, "gate: {} loses its connection", Named(which)),
            Self::BoundPasses => write!(f, "time: nothing that was lost can land any more"),
            Self::Tick => write!(f, "time: the clock moves on"),
            Self::Crash => write!(f, "gate: crashes"),
            Self::Stop => write!(f, "gate: stops, and sets the clean flag"),
            Self::Start => write!(f, "gate: starts"),
        }
    }
}
