//! The steps of a write, through the gate and in the store.

use fencegate::fence::Denial;

use crate::{
    actions::Which,
    model::{FIRST_TICK, GateModel},
    mutants::Mutant,
    state::{Phase, Seq, Tick, World, Write},
};

fn write(world: &mut World, (holder, place): Which) -> &mut Write {
    &mut world.writes[usize::from(holder)][place]
}

impl GateModel {
    pub fn admit(&self, world: &mut World, which: Which, seq: Seq) -> Option<()> {
        let gate = world.gate.as_ref()?;
        let token = (which.0, seq);
        let _permit = self.product.judge(gate.row, gate.sealed, token, self.clock(world)).ok()?;
        world.story.let_through(token, gate.row, world.disk, world.now);
        *write(world, which) = Write { phase: Phase::Waiting, seq, sends: 0 };
        Some(())
    }

    /// The commit point: from here on, all of it may land.
    pub fn commit(&self, world: &mut World, which: Which) -> Option<()> {
        let is_streamed = write(world, which).phase == Phase::Streamed;
        self.judge_again(world, which, if is_streamed { Phase::Ending } else { Phase::Committed })
    }

    /// Judged once more. If it may go on, it counts as in flight from the same instant on.
    pub fn judge_again(&self, world: &mut World, which: Which, phase: Phase) -> Option<()> {
        let Write { seq, phase: before, .. } = *write(world, which);
        let gate = world.gate.as_ref()?;
        let token = (which.0, seq);
        match self.product.judge(gate.row, gate.sealed, token, self.clock(world)) {
            Ok(_permit) => {}
            Err(_) if self.is(Mutant::NoCommitCheck) => {}
            // Too late to wait for its lease to be ended: part of it was sent.
            Err(_) if before == Phase::Streamed => return self.lose(world, which),
            Err(Denial::Refused(_)) => return self.settle(world, which),
            // Its lease has to be ended first.
            Err(Denial::Overdue(_)) => return None,
            Err(Denial::Behind(_) | Denial::Unseen(_) | Denial::Lapsed(_)) => {
                unreachable!("nobody brings outside numbers here")
            }
        }
        world.story.let_through(token, gate.row, world.disk, world.now);
        self.go_on(world, which, phase)
    }

    /// What the judge takes for now.
    fn clock(&self, world: &World) -> Tick {
        if self.is(Mutant::StoppedClock) { FIRST_TICK } else { world.now }
    }

    pub fn go_on(&self, world: &mut World, which: Which, phase: Phase) -> Option<()> {
        write(world, which).phase = phase;
        Some(())
    }

    /// All of it leaves, or part of it, or its end.
    pub fn send(&self, world: &mut World, which: Which, phase: Phase) -> Option<()> {
        let sent = write(world, which);
        sent.sends += u8::from(sent.phase != Phase::Ending);
        sent.phase = phase;
        let sends = sent.sends;
        world.story.sent(sends);
        Some(())
    }

    pub fn apply(&self, world: &mut World, which: Which) -> Option<()> {
        let applied = write(world, which);
        applied.phase = if applied.phase == Phase::Lost { Phase::Landed } else { Phase::Applied };
        let seq = applied.seq;
        world.story.applied(which.0, seq);
        Some(())
    }

    /// The store applies what it has got so far. It may do so again.
    pub fn apply_part(&self, world: &mut World, which: Which) -> Option<()> {
        let (seq, before) = (write(world, which).seq, world.story.clone());
        world.story.applied(which.0, seq);
        (world.story != before).then_some(())
    }

    pub fn settle(&self, world: &mut World, which: Which) -> Option<()> {
        *write(world, which) = Write::OVER;
        Some(())
    }

    /// Its connection is closed: what was sent of it may land for a while.
    pub fn lose(&self, world: &mut World, which: Which) -> Option<()> {
        let lost = write(world, which);
        if self.is(Mutant::Retry) {
            return self.go_on(world, which, Phase::Committed);
        }
        let is_part = matches!(lost.phase, Phase::Streamed);
        lost.close();
        let is_missed = self.is(Mutant::NoUnknownWait) || (is_part && self.is(Mutant::PartialIsNone));
        world.gate.as_mut()?.unknown |= !is_missed;
        Some(())
    }
}
