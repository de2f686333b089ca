//! The ledger's steps: decide, seal, persist, publish, drain, the second step, answer. Any other step may happen
//! between two of them.

use fencegate::fence::{Event, Outcome, order::SecondStep};

use crate::{
    model::GateModel,
    mutants::Mutant,
    product::Step,
    state::{Advance, Held, LedgerReply, Row, Standing, World},
};

impl GateModel {
    /// The row that the ledger decides against.
    pub fn newest(&self, world: &World) -> Option<Row> {
        let gate = world.gate.as_ref()?;
        Some(if self.is(Mutant::DecidesOnPublished) { gate.row } else { gate.newest() })
    }

    /// The open lease, if its holder knows it.
    pub fn held(&self, world: &World) -> Option<Held> {
        match self.newest(world)?.standing {
            Standing::Open(held) => Some(held).filter(|held| world.granted[usize::from(held.seq)] == Some(held.holder)),
            Standing::Free | Standing::Draining(_) | Standing::Ended(_) => None,
        }
    }

    /// Lets the product decide one event, and adds the result to the round.
    pub fn decide(&self, world: &mut World, event: Event) -> Option<()> {
        let (newest, stamp) = (self.newest(world)?, unused_stamp(world)?);
        let step = self.product.step(newest, event, world.now, stamp);
        // Refused, or nothing to do: the state does not change.
        let row = step.row.filter(|row| *row != newest)?;
        let round = world.gate.as_mut()?.round();
        (round.newest, round.to_seal) = (row, step.advance);
        Some(())
    }

    pub fn end(&self, world: &mut World) -> Option<()> {
        match self.newest(world)?.standing {
            Standing::Open(held) => self.decide(world, self.product.end(held)),
            Standing::Free | Standing::Draining(_) | Standing::Ended(_) => None,
        }
    }

    /// A repeated request whose answer was lost with the gate.
    pub fn ask_again(&self, world: &mut World) -> Option<()> {
        let gate = world.gate.as_ref()?;
        let held = self.product.replay(gate.row, world.now)?;
        // A request whose advance is under way waits for that one's answer.
        let waits = gate.advances.iter().any(|advance| advance.seq == held.seq);
        if waits || world.granted[usize::from(held.seq)].is_some() {
            return None;
        }
        world.story.answered(LedgerReply::Granted(held.holder, held.seq), &mut world.granted);
        Some(())
    }

    /// Closes the object to new writes, and reads which writes are on their way in the same instant. Without any,
    /// the second step is taken at once; else the advance waits.
    pub fn seal(&self, world: &mut World) -> Option<()> {
        let is_drained = self.is_drained(world) || self.is(Mutant::NoDrain);
        let gate = world.gate.as_mut()?;
        gate.sealed = !self.is(Mutant::NoSeal);
        let advance = gate.round().to_seal.take()?;
        if SecondStep::of(false, is_drained) == SecondStep::Open {
            return self.open(world, advance);
        }
        if self.is(Mutant::NoDrainingState) && advance.then.is_some() {
            self.open(world, advance)?;
            let gate = world.gate.as_mut()?;
            gate.round().answers.pop();
            gate.advances.push(Advance { opened: true, ..advance });
            return Some(());
        }
        gate.advances.push(advance);
        Some(())
    }

    /// Ends an advance that has drained or was overtaken.
    pub fn finish(&self, world: &mut World, place: usize) -> Option<()> {
        let is_drained = self.is_drained(world) || self.is(Mutant::NoDrain);
        let gate = world.gate.as_mut()?;
        let (advance, newest) = (gate.advances[place], gate.newest());
        let is_overtaken = (newest.fence, newest.standing) != (advance.seq, Standing::Draining(advance.id));
        let is_given_up = is_overtaken && !self.is(Mutant::NoStep4Check) && !advance.opened;
        if SecondStep::of(is_given_up, is_drained) == SecondStep::Wait {
            return None;
        }
        gate.advances.remove(place);
        if advance.opened {
            gate.round().answers.push(LedgerReply::Granted(advance.then?, advance.seq));
            return Some(());
        }
        self.open(world, advance)
    }

    /// The second step of an advance, by the product.
    fn open(&self, world: &mut World, advance: Advance) -> Option<()> {
        let mut newest = world.gate.as_ref()?.newest();
        if self.is(Mutant::NoStep4Check) {
            // `step` itself checks this. The mutant avoids the check: it shows `step` the row as this advance left
            // it, whatever has changed since.
            newest = Row { fence: advance.seq, standing: Standing::Draining(advance.id) };
        }
        let Step { outcome, row, .. } = self.product.step(newest, self.product.drained(&advance), world.now, 0);
        let answer = match (outcome, advance.then) {
            (Outcome::Granted(_), Some(holder)) => LedgerReply::Granted(holder, advance.seq),
            (Outcome::Freed, None) => LedgerReply::Freed(advance.seq),
            // LEASE_FENCED: the advance is forgotten, and the row belongs to another one.
            (Outcome::Refused(_), _) => return Some(()),
            (other, then) => panic!("{other:?} of a drain for {then:?}"),
        };
        let round = world.gate.as_mut()?.round();
        round.newest = row?;
        round.answers.push(answer);
        Some(())
    }

    pub fn persist(&self, world: &mut World) -> Option<()> {
        let round = world.gate.as_mut()?.round.as_mut()?;
        round.next = round.next.next(true)?;
        let is_end = matches!(round.newest.standing, Standing::Ended(_));
        if self.is(Mutant::Unsynced) || (is_end && self.is(Mutant::UnsyncedEnd)) {
            return Some(());
        }
        world.disk = round.newest;
        world.story.persisted(world.disk);
        Some(())
    }

    /// Publishing opens the seal.
    pub fn publish(&self, world: &mut World) -> Option<()> {
        let gate = world.gate.as_mut()?;
        let round = gate.round.as_mut()?;
        round.next = round.next.next(true)?;
        (gate.row, gate.sealed) = (round.newest, false);
        world.story.published(gate.row);
        Some(())
    }

    pub fn answer(&self, world: &mut World) -> Option<()> {
        let round = world.gate.as_mut()?.round.take()?;
        for answer in round.answers {
            world.story.answered(answer, &mut world.granted);
        }
        Some(())
    }
}

/// A stamp for an advance. Advances differ only by their stamps, so any unused one will do.
fn unused_stamp(world: &World) -> Option<u8> {
    let gate = world.gate.as_ref()?;
    let is_borne = |stamp: u8| {
        let rows = [world.disk, gate.row, gate.newest()];
        rows.iter().any(|row| row.standing == Standing::Draining(stamp))
            || gate.advances.iter().any(|advance| advance.id == stamp)
    };
    (1..u8::MAX).find(|stamp| !is_borne(*stamp))
}
