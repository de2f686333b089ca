//! The model: how many of everything there are, which function takes a step, and how a run of the gate begins and
//! ends. Every decision of the gate is the product's (`product`). The model only says when a decision is made and
//! what follows from it, as the ledger, the stripes and the write path do.

use fencegate::fence::{Event, outside::Source, write::Event as Life};
use stateright::{Model, Property};

use crate::{
    actions::Action,
    mutants::Mutant,
    product::Product,
    promises::{self, Promise},
    state::{Advance, Gate, InStore, Phase, Row, Standing, Story, Tick, World, Write},
};

pub const FIRST_TICK: Tick = 1;

/// How many of everything there are.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// Writes of each holder.
    pub writes: usize,
    pub streams: bool,
    pub renewals: bool,
    pub ttl: Tick,
    pub last_tick: Tick,
    pub restarts: u8,
    pub revokes: u8,
}

/// The gate, or a gate with a mutant.
pub struct GateModel {
    pub product: Product,
    pub scope: Scope,
    /// The mutant, and the promise that is checked.
    wrong: Option<(Mutant, Promise)>,
}

impl GateModel {
    pub fn new(scope: Scope, wrong: Option<(Mutant, Promise)>) -> Self {
        Self { product: Product::new(scope.ttl), scope, wrong }
    }

    pub fn is(&self, mutant: Mutant) -> bool {
        self.wrong.is_some_and(|(wrong, _)| wrong == mutant)
    }

    /// Whether an advance has no write to wait for.
    pub fn is_drained(&self, world: &World) -> bool {
        !world.in_flight() && !world.gate.as_ref().is_some_and(|gate| gate.unknown)
    }
}

impl Model for GateModel {
    type State = World;
    type Action = Action;

    /// A new table, and a gate that is not running.
    fn init_states(&self) -> Vec<World> {
        vec![World {
            now: FIRST_TICK,
            disk: Row { fence: 0, standing: Standing::Free },
            clean: true,
            gate: None,
            writes: Default::default(),
            granted: Default::default(),
            story: Story::default(),
            restarts: 0,
            revokes: 0,
        }]
    }

    /// No step follows a broken promise, or the checked one where there is a mutant.
    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        let goes_on = match self.wrong {
            None => world.story.broken == 0,
            Some((_, promise)) => world.keeps(promise),
        };
        if goes_on {
            self.possible(world, actions);
        }
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let mut world = before.clone();
        self.take(&mut world, action)?;
        world.look_at_what_is_shown();
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::all(self.scope)
    }
}

impl GateModel {
    /// Takes a step. `None`: the step changes nothing.
    fn take(&self, world: &mut World, action: Action) -> Option<()> {
        match action {
            Action::Acquire(holder) => self.decide(world, self.product.acquire(self.newest(world)?, holder)),
            Action::Renew => self.decide(world, self.product.renew(self.held(world)?, false)),
            Action::Rotate => self.decide(world, self.product.renew(self.held(world)?, true)),
            Action::Release => self.decide(world, self.product.release(self.held(world)?)),
            Action::Revoke => {
                world.revokes += 1;
                self.decide(world, Event::Revoke { reason: "an operator".to_owned(), source: Source::Gate })
            }
            Action::End => self.end(world),
            Action::AskAgain => self.ask_again(world),
            Action::Seal => self.seal(world),
            Action::Finish(place) => self.finish(world, place),
            Action::Persist => self.persist(world),
            Action::Publish => self.publish(world),
            Action::Answer => self.answer(world),
            Action::Admit(which, seq) => self.admit(world, which, seq),
            Action::Begin(which) => self.on(world, which, Life::Connected { whole: false }),
            Action::Commit(which) => self.on(world, which, Life::Connected { whole: true }),
            Action::Complete(which) => self.on(world, which, Life::Complete),
            Action::BackOut(which) => self.on(world, which, Life::Closed { left: false }),
            Action::SendPart(which) => self.send(world, which, InStore::Part),
            Action::Send(which) => self.send(world, which, InStore::All),
            Action::ApplyPart(which) => self.apply_part(world, which),
            Action::Apply(which) => self.apply(world, which),
            Action::Settle(which) => self.on(world, which, Life::Answered { settles: true }),
            Action::Lose(which) => self.lose(world, which),
            Action::BoundPasses => bound_passes(world),
            Action::Tick => {
                world.now += 1;
                Some(())
            }
            Action::Crash => self.go_down(world, false),
            Action::Stop => self.go_down(world, true),
            Action::Start => self.start(world),
        }
    }

    /// Begins a run: the flag is cleared before any call is answered. An advance that was still draining goes on
    /// without a caller.
    fn start(&self, world: &mut World) -> Option<()> {
        let was_clean = std::mem::take(&mut world.clean);
        let row = self.product.read_back(world.disk, world.now);
        let left = match row.standing {
            Standing::Draining(id) => Some(Advance { seq: row.fence, id, then: None, opened: false }),
            Standing::Free | Standing::Open(_) | Standing::Ended(_) => None,
        };
        world.story.published(row);
        world.gate = Some(Gate {
            row,
            sealed: false,
            unknown: !was_clean || left.is_some(),
            round: None,
            advances: left.into_iter().collect(),
        });
        Some(())
    }

    /// Ends a run: memory and connections are gone; the disk and the store stay. The flag is set last, in an
    /// instant in which no write is on its way.
    fn go_down(&self, world: &mut World, clean: bool) -> Option<()> {
        let gate = world.gate.take()?;
        if clean && self.is(Mutant::Unsynced) {
            world.disk = gate.row;
        }
        world.writes.iter_mut().flatten().for_each(Write::close);
        world.clean = clean;
        world.restarts += 1;
        Some(())
    }
}

/// No lost write can land any more, and the gate knows it.
fn bound_passes(world: &mut World) -> Option<()> {
    for write in world.writes.iter_mut().flatten() {
        if matches!(write.phase, Phase::Lost | Phase::Landed) {
            *write = Write::OVER;
        }
    }
    world.gate.as_mut()?.unknown = false;
    Some(())
}
