//! The promises, checked from outside: by what was durable, published, answered, forwarded and applied. None of
//! these checks uses the gate's rules. The goals are here too: without them the promises would mean nothing.

use stateright::Property;

use crate::{
    model::{GateModel, Scope},
    state::{Gate, Held, Holder, InStore, LedgerReply, Phase, Row, Seq, Standing, Story, Tick, World, Write},
};

/// A promise. A step that breaks it is noted in the story.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    Monotonic,
    Unique,
    Stale,
    Expiry,
    DurableBeforeVisible,
    Drain,
    /// For an operator who got the answer that no older write lands any more.
    DrainForOperators,
    OneAttempt,
    NoRevival,
}

impl Promise {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Monotonic => "MONOTONIC",
            Self::Unique => "UNIQUE",
            Self::Stale => "STALE",
            Self::Expiry => "EXPIRY",
            Self::DurableBeforeVisible => "DURABLE BEFORE VISIBLE",
            Self::Drain => "DRAIN",
            Self::DrainForOperators => "DRAIN for operators",
            Self::OneAttempt => "ONE ATTEMPT",
            Self::NoRevival => "NO REVIVAL",
        }
    }

    const fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// A property that holds while a promise is kept.
macro_rules! kept {
    ($promise:ident) => {
        Property::always(Promise::$promise.name(), |_, world: &World| world.keeps(Promise::$promise))
    };
}

pub fn all(scope: Scope) -> Vec<Property<GateModel>> {
    let mut all = vec![
        kept!(Monotonic),
        kept!(Unique),
        kept!(Stale),
        kept!(Expiry),
        kept!(DurableBeforeVisible),
        kept!(Drain),
        kept!(DrainForOperators),
        kept!(OneAttempt),
        kept!(NoRevival),
    ];
    all.extend(reached());
    if scope.streams {
        all.push(Property::sometimes("an advance waits for a write of which part was sent", |_, world| {
            is_up(world, |gate| !gate.advances.is_empty()) && has_write(world, |write| write.is_in_store(InStore::Part))
        }));
    }
    if scope.renewals {
        all.push(Property::sometimes("a new number waits for its holder's older write", |_, world| {
            hands_over_under_a_write(world, |holder, writer| holder == writer)
        }));
    }
    all
}

fn reached() -> Vec<Property<GateModel>> {
    vec![
        Property::sometimes("a handover waits for the other holder's write", |_, world| {
            hands_over_under_a_write(world, |holder, writer| holder != writer)
        }),
        Property::sometimes("a write is applied after its answer was lost", |_, world| {
            has_write(world, |write| write.phase == Phase::Landed)
        }),
        Property::sometimes("a crash leaves a draining record", |_, world: &World| {
            world.gate.is_none() && !world.clean && matches!(world.disk.standing, Standing::Draining(_))
        }),
        Property::sometimes("an advance is overtaken while it waits", |_, world| {
            is_up(world, |gate| gate.advances.iter().any(|advance| advance.seq < gate.row.fence))
        }),
        Property::sometimes("both holders have written", |_, world: &World| world.story.wrote == [true, true]),
        Property::sometimes("a lease ends while its write is in flight", |_, world| {
            is_up(world, |gate| matches!(gate.row.standing, Standing::Ended(_))) && world.in_flight()
        }),
        Property::sometimes("a gate starts while a write of the last one may land", |_, world| {
            is_up(world, |gate| gate.unknown && gate.round.is_none())
                && world.restarts > 0
                && has_write(world, |write| write.phase == Phase::Lost)
        }),
        Property::sometimes("a gate stops in good order after a grant", |_, world: &World| {
            world.gate.is_none() && world.clean && world.disk.fence > 0
        }),
        Property::sometimes("one round grants, and an operator overtakes the grant", |_, world| {
            let is_passed =
                |answer: &LedgerReply, fence| matches!(answer, LedgerReply::Granted(_, seq) if *seq < fence);
            is_up(world, |gate| {
                let mut rounds = gate.round.iter();
                rounds.any(|round| round.answers.iter().any(|answer| is_passed(answer, round.newest.fence)))
            })
        }),
    ]
}

fn is_up(world: &World, is: impl Fn(&Gate) -> bool) -> bool {
    world.gate.as_ref().is_some_and(is)
}

fn has_write(world: &World, is: impl Fn(&Write) -> bool) -> bool {
    world.each_write().any(is)
}

/// An advance waits for a write in the store. `is` gets the new holder and the writer.
fn hands_over_under_a_write(world: &World, is: impl Fn(usize, usize) -> bool) -> bool {
    let has_sent = |holder: Holder| {
        let mut each = world.writes.iter().enumerate();
        each.any(|(writer, writes)| {
            is(holder.into(), writer) && writes.iter().any(|write| write.is_in_store(InStore::All))
        })
    };
    is_up(world, |gate| gate.advances.iter().any(|advance| advance.then.is_some_and(has_sent)))
}

impl World {
    pub fn keeps(&self, promise: Promise) -> bool {
        self.story.broken & promise.bit() == 0
    }

    /// Checks that a crash now could not take back a published row or a grant.
    pub fn look_at_what_is_shown(&mut self) {
        let is_published_durable = !is_up(self, |gate| how_far(gate.row) > how_far(self.disk));
        let is_durable = |(seq, holder): (usize, &Option<Holder>)| match (holder, self.disk.standing) {
            (None, _) => true,
            (Some(_), _) if seq < usize::from(self.disk.fence) => true,
            (Some(holder), Standing::Open(held) | Standing::Ended(held)) => {
                seq == usize::from(held.seq) && *holder == held.holder
            }
            (Some(_), Standing::Free | Standing::Draining(_)) => false,
        };
        let is_kept = is_published_durable && self.granted.iter().enumerate().all(is_durable);
        self.story.expect(Promise::DurableBeforeVisible, is_kept);
    }
}

/// Orders rows as an object goes through them.
fn how_far(row: Row) -> (Seq, u8, Tick) {
    match row.standing {
        Standing::Draining(_) => (row.fence, 0, 0),
        Standing::Open(held) => (row.fence, 1, held.until),
        Standing::Free | Standing::Ended(_) => (row.fence, 2, 0),
    }
}

impl Story {
    fn expect(&mut self, promise: Promise, is_kept: bool) {
        if !is_kept {
            self.broken |= promise.bit();
        }
    }

    /// Notes that a row is on the disk.
    pub fn persisted(&mut self, row: Row) {
        self.expect(Promise::Monotonic, row.fence >= self.durable);
        self.durable = self.durable.max(row.fence);
    }

    /// Notes that a row is visible.
    pub fn published(&mut self, row: Row) {
        self.expect(Promise::Monotonic, row.fence >= self.published);
        self.published = self.published.max(row.fence);
        self.over[..usize::from(row.fence)].fill(true);
        match row.standing {
            Standing::Ended(held) => self.over[usize::from(held.seq)] = true,
            Standing::Open(held) => self.expect(Promise::NoRevival, !self.over[usize::from(held.seq)]),
            Standing::Free | Standing::Draining(_) => {}
        }
    }

    /// Notes that an answer leaves the gate.
    pub fn answered(&mut self, answer: LedgerReply, granted: &mut [Option<Holder>]) {
        match answer {
            LedgerReply::Granted(holder, seq) => {
                let before = granted[usize::from(seq)].replace(holder);
                self.expect(Promise::Unique, before.is_none_or(|other| other == holder));
                self.granted = self.granted.max(seq);
            }
            LedgerReply::Freed(seq) => self.freed = self.freed.max(seq),
        }
    }

    /// Checks a write that is let through, against the published row and the one on the disk.
    pub fn let_through(&mut self, (holder, seq): (Holder, Seq), row: Row, disk: Row, now: Tick) {
        let is_open_for = |row: Row| match row.standing {
            Standing::Open(held) => (held.holder, held.seq, row.fence) == (holder, seq, seq),
            Standing::Free | Standing::Draining(_) | Standing::Ended(_) => false,
        };
        self.expect(Promise::Stale, is_open_for(row) && seq >= disk.fence.max(self.granted).max(self.freed));
        self.expect(Promise::NoRevival, !self.over[usize::from(seq)]);
        if let Standing::Open(Held { until, .. }) = row.standing {
            self.expect(Promise::Expiry, now < until);
        }
    }

    /// Checks a write that leaves for the store; `sends` counts its sends.
    pub fn sent(&mut self, sends: u8) {
        self.expect(Promise::OneAttempt, sends == 1);
    }

    /// Checks a write of which the store has applied all or part.
    pub fn applied(&mut self, holder: Holder, seq: Seq) {
        self.expect(Promise::Drain, seq >= self.granted && seq >= self.applied);
        self.expect(Promise::DrainForOperators, seq >= self.freed);
        self.applied = self.applied.max(seq);
        self.wrote[usize::from(holder)] = true;
    }
}
