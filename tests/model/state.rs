//! What the model remembers: only what the promises need of a gate, its disk, its store and its writers.
//!
//! A [`Row`] is a `fence::Record` without what no rule reads (stamps, wall times, ids that follow from holder and
//! number); [`crate::product`] makes a record of it for every decision.

use std::fmt;

use fencegate::fence::{
    order::RoundStep,
    write::{Stage, Write as Life},
};

/// How many holders ask for leases and write.
pub const HOLDERS: u8 = 2;
/// How many writes each of them sends, at most.
pub const WRITES: usize = 2;
/// The highest fence; an object begins at 0.
pub const FENCE_MAX: u8 = 3;

pub const NAMES: [&str; HOLDERS as usize] = ["A", "B"];

pub type Holder = u8;
pub type Seq = u8;
/// A reading of the clock. 0 is earlier than all readings: a deadline that has passed.
pub type Tick = u8;

/// An object's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    pub fence: Seq,
    pub standing: Standing,
}

/// The state at a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    Free,
    /// With the advance that drains.
    Draining(u8),
    Open(Held),
    Ended(Held),
}

/// A lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    pub holder: Holder,
    pub seq: Seq,
    pub until: Tick,
}

/// A running gate: all that a crash removes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gate {
    /// The published row.
    pub row: Row,
    pub sealed: bool,
    /// Writes may still land that the gate no longer has.
    pub unknown: bool,
    pub round: Option<Round>,
    /// Advances that wait for their drain.
    pub advances: Vec<Advance>,
}

/// The ledger's round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Round {
    pub newest: Row,
    /// The next step, once all calls are decided.
    pub next: RoundStep,
    /// The fence has moved in `newest`, and the object has yet to be sealed.
    pub to_seal: Option<Advance>,
    pub answers: Vec<LedgerReply>,
}

/// An advance whose first step has been taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Advance {
    pub seq: Seq,
    pub id: u8,
    /// The holder that it is for, if there is one.
    pub then: Option<Holder>,
    /// The second step was taken with the first, and only the answer waits. Only a mutant does this.
    pub opened: bool,
}

/// What a caller gets once the round is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LedgerReply {
    Granted(Holder, Seq),
    /// For an operator: no write below this number lands any more.
    Freed(Seq),
}

/// A write, from its holder to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Write {
    pub phase: Phase,
    pub seq: Seq,
    pub sends: u8,
}

/// What the store has of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InStore {
    Nothing,
    /// The store may apply this part.
    Part,
    All,
    /// The store has applied the write, and the gate does not know it.
    Applied,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Not begun.
    #[default]
    Idle,
    /// Admitted: the product's own state machine, and what the store has.
    Live(Life, InStore),
    /// The write's connection is gone; the store may still apply it.
    Lost,
    /// Applied after the write's connection was gone.
    Landed,
    Over,
}

impl Write {
    pub const OVER: Self = Self { phase: Phase::Over, seq: 0, sends: 0 };

    /// Whether an advance waits for this write.
    pub fn is_in_flight(&self) -> bool {
        match self.phase {
            Phase::Live(life, _) => matches!(life.stage(), Stage::Streaming | Stage::Committed),
            Phase::Idle | Phase::Lost | Phase::Landed | Phase::Over => false,
        }
    }

    /// Whether the store has this much of the write.
    pub fn is_in_store(&self, so_much: InStore) -> bool {
        matches!(self.phase, Phase::Live(_, in_store) if in_store == so_much)
    }

    /// Closes the write's connection. The gate may not know of it.
    pub fn close(&mut self) {
        *self = match self.phase {
            Phase::Idle | Phase::Lost | Phase::Landed => *self,
            Phase::Live(_, InStore::Part | InStore::All) => Self { phase: Phase::Lost, ..*self },
            Phase::Live(_, InStore::Nothing | InStore::Applied) | Phase::Over => Self::OVER,
        }
    }
}

/// The complete state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub now: Tick,
    pub disk: Row,
    /// The flag on the disk.
    pub clean: bool,
    pub gate: Option<Gate>,
    pub writes: [[Write; WRITES]; HOLDERS as usize],
    /// The holder that was granted each number: it keeps the token for ever.
    pub granted: [Option<Holder>; FENCE_MAX as usize + 1],
    pub story: Story,
    pub restarts: u8,
    pub revokes: u8,
}

/// What the promises are checked by: what was seen of the gate so far, from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Story {
    /// The highest fence that was ever durable.
    pub durable: Seq,
    /// The highest fence that was ever published.
    pub published: Seq,
    /// The highest number handed out.
    pub granted: Seq,
    /// The highest number of which an operator got the answer that no older write lands.
    pub freed: Seq,
    /// The highest number that the store has applied.
    pub applied: Seq,
    /// Leases, by number, that were published as over.
    pub over: [bool; FENCE_MAX as usize + 1],
    /// The holders of which a write was applied.
    pub wrote: [bool; HOLDERS as usize],
    /// Promises that were broken, by [`crate::promises::Promise`].
    pub broken: u16,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |held: &Held| format!("{} for {} until {}", held.seq, NAMES[usize::from(held.holder)], held.until);
        match &self.standing {
            Standing::Free => write!(f, "{} free", self.fence),
            Standing::Draining(id) => write!(f, "{} draining by #{id}", self.fence),
            Standing::Open(held) => write!(f, "{} open as {}", self.fence, named(held)),
            Standing::Ended(held) => write!(f, "{} ended as {}", self.fence, named(held)),
        }
    }
}

/// Memory and disk, in a line.
impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.gate {
            None => write!(f, "at {}, down{}", self.now, if self.clean { ", clean" } else { "" })?,
            Some(gate) => {
                let sealed = if gate.sealed { ", sealed" } else { "" };
                let unknown = if gate.unknown { ", unknown" } else { "" };
                write!(f, "at {}, memory {}{sealed}{unknown}", self.now, gate.row)?;
            }
        }
        write!(f, "; disk {}", self.disk)
    }
}

impl World {
    pub fn each_write(&self) -> impl Iterator<Item = &Write> {
        self.writes.iter().flatten()
    }

    pub fn in_flight(&self) -> bool {
        self.each_write().any(Write::is_in_flight)
    }
}

impl Gate {
    /// The row that the ledger decides against: its own newest, published or not.
    pub fn newest(&self) -> Row {
        self.round.as_ref().map_or(self.row, |round| round.newest)
    }

    /// The round, begun if there is none.
    pub fn round(&mut self) -> &mut Round {
        let newest = self.row;
        self.round.get_or_insert(Round { newest, next: RoundStep::FIRST, to_seal: None, answers: vec![] })
    }
}
