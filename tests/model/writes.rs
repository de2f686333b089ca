//! A write on its way. The product's own state machine says what comes next, and the model does it. The store's
//! part is the model's own.

use fencegate::fence::{
    Denial,
    write::{Effect, Event, Obstacle, Outcome, Stage, Write as Life, WriteOptions},
};

use crate::{
    actions::Which,
    model::{FIRST_TICK, GateModel},
    mutants::Mutant,
    state::{InStore, Phase, Seq, Tick, World, Write},
};

fn write(world: &mut World, (holder, place): Which) -> &mut Write {
    &mut world.writes[usize::from(holder)][place]
}

impl GateModel {
    pub fn admit(&self, world: &mut World, which: Which, seq: Seq) -> Option<()> {
        let mut life = Life::new(WriteOptions::default());
        let Effect::Judge(stage) = life.on(Event::Arrived { whole: false }) else { return None };
        let Event::Permitted(_) = self.judge(world, which, seq, stage) else { return None };
        let _ = life.on(Event::Permitted(stage));
        *write(world, which) = Write { phase: Phase::Live(life, InStore::Nothing), seq, sends: 0 };
        Some(())
    }

    /// Applies an event to a write's life, and carries out the effect. `None`: nothing changes.
    pub fn on(&self, world: &mut World, which: Which, mut event: Event) -> Option<()> {
        let Write { phase: Phase::Live(mut life, in_store), seq, .. } = *write(world, which) else { return None };
        let was_partial = life.stage() == Stage::Streaming;
        loop {
            let effect = life.on(event);
            write(world, which).phase = Phase::Live(life, in_store);
            event = match effect {
                Effect::Judge(stage) => self.judge(world, which, seq, stage),
                // The ledger has to end the lease first, in a step of its own.
                Effect::Clear(_) => return None,
                Effect::Close if self.is(Mutant::Retry) => Event::Closed { left: false },
                Effect::Close => Event::Closed { left: in_store != InStore::Nothing },
                Effect::End(outcome) => {
                    self.end_write(world, which, outcome, was_partial);
                    return Some(());
                }
                _ => return Some(()),
            };
        }
    }

    /// Lets the product judge the write. If it is permitted, it counts as in flight from the same instant on.
    fn judge(&self, world: &mut World, which: Which, seq: Seq, stage: Stage) -> Event {
        let Some(gate) = &world.gate else { return Event::Interrupted };
        let token = (which.0, seq);
        let is_again = stage != Stage::Waiting;
        match self.product.judge(gate.row, gate.sealed, token, self.clock(world)) {
            Ok(_permit) => {}
            Err(_) if is_again && self.is(Mutant::NoCommitCheck) => {}
            Err(denial @ (Denial::Refused(_) | Denial::Overdue(_))) => return Event::Denied(Obstacle::from(&denial)),
            Err(Denial::Behind(_) | Denial::Unseen(_) | Denial::Lapsed(_)) => {
                unreachable!("no write brings an outside number here")
            }
        }
        world.story.let_through(token, gate.row, world.disk, world.now);
        Event::Permitted(stage)
    }

    /// The judge's reading of the clock.
    fn clock(&self, world: &World) -> Tick {
        if self.is(Mutant::StoppedClock) { FIRST_TICK } else { world.now }
    }

    fn end_write(&self, world: &mut World, which: Which, outcome: Outcome, was_partial: bool) {
        let ended = write(world, which);
        if outcome != Outcome::Unknown {
            *ended = Write::OVER;
            return;
        }
        ended.close();
        let is_missed = self.is(Mutant::NoUnknownWait) || (was_partial && self.is(Mutant::PartialIsNone));
        if let Some(gate) = &mut world.gate {
            gate.unknown |= !is_missed;
        }
    }

    /// Sends the whole write, a part of it, or its end.
    pub fn send(&self, world: &mut World, which: Which, so_much: InStore) -> Option<()> {
        let sent = write(world, which);
        let Phase::Live(life, before) = sent.phase else { return None };
        sent.sends += u8::from(before == InStore::Nothing);
        sent.phase = Phase::Live(life, so_much);
        let sends = sent.sends;
        world.story.sent(sends);
        Some(())
    }

    pub fn apply(&self, world: &mut World, which: Which) -> Option<()> {
        let applied = write(world, which);
        applied.phase = match applied.phase {
            Phase::Live(life, _) => Phase::Live(life, InStore::Applied),
            _ => Phase::Landed,
        };
        let seq = applied.seq;
        world.story.applied(which.0, seq);
        Some(())
    }

    /// The store applies the part that it has. It may do so again.
    pub fn apply_part(&self, world: &mut World, which: Which) -> Option<()> {
        let (seq, before) = (write(world, which).seq, world.story.clone());
        world.story.applied(which.0, seq);
        (world.story != before).then_some(())
    }

    /// Closes the write's connection: what was sent of it may land for a while.
    pub fn lose(&self, world: &mut World, which: Which) -> Option<()> {
        if self.is(Mutant::Retry) {
            // This gate sends again what may have been applied.
            if let Phase::Live(life, _) = write(world, which).phase {
                write(world, which).phase = Phase::Live(life, InStore::Nothing);
            }
            return self.on(world, which, Event::Closed { left: false });
        }
        self.on(world, which, Event::Closed { left: true })
    }
}
