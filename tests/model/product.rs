//! Calls the product's rules: records are made of rows, `Record::step` and `judge` decide, and rows are made of the
//! results. This file contains no rule of the gate.

use std::array;

use fencegate::fence::{
    BootMs, Denial, Effect, Ended, Event, Fence, FenceToken, Hlc, HolderId, How, Incarnation, Lease, LeaseId, LeaseRow,
    LeaseSeq, Now, ObjectId, Outcome, Permit, Proof, Record, State, TableKey, Ttl, WallMs,
    record::AdvanceId,
    step::{At, Grant, LeaseProof, Source},
    time::Frame,
    verdict::{self, Presented, View},
};

use crate::state::{Advance, FENCE_MAX, HOLDERS, Held, Holder, NAMES, Row, Seq, Standing, Tick};

const TICK_MS: u64 = 1_000;
const WALL_START: u64 = 1_800_000_000_000;

/// What is needed to make every record and token.
pub struct Product {
    object: ObjectId,
    key: TableKey,
    ttl: Ttl,
    holders: [HolderId; HOLDERS as usize],
    /// The leases by holder and number.
    leases: [[(LeaseId, Proof); FENCE_MAX as usize + 1]; HOLDERS as usize],
}

/// The result of a step.
pub struct Step {
    pub outcome: Outcome,
    pub row: Option<Row>,
    pub advance: Option<Advance>,
}

impl Product {
    /// Leases live for this many ticks.
    pub fn new(ttl: Tick) -> Self {
        let object = ObjectId::new("o").unwrap();
        let key = TableKey::from_bytes([7; TableKey::BYTES]);
        let holders = NAMES.map(|name| HolderId::new(name).unwrap());
        // One id for each holder and number. The gate never repeats an id; repeating them here only makes more
        // tokens valid.
        let leases = array::from_fn(|holder| {
            array::from_fn(|seq| {
                let id = LeaseId::new(&format!("{holder}-{seq}")).unwrap();
                let proof = key.proof(&object, number(seq.max(1)), &id);
                (id, proof)
            })
        });
        Self { object, key, ttl: Ttl(u64::from(ttl) * TICK_MS), holders, leases }
    }

    /// Lets the product decide one event against a row. `stamp` names the advance that it may begin.
    pub fn step(&self, row: Row, event: Event, now: Tick, stamp: u8) -> Step {
        let at = At { now: instant(now), stamp: hlc(stamp), key: &self.key };
        let (outcome, effects) = self.record(row).step(event, &at);
        let mut step = Step { outcome, row: None, advance: None };
        for effect in effects {
            match effect {
                Effect::Store(record) => step.row = Some(self.row(&record)),
                Effect::Drain { seq, advance, then } => {
                    let then = then.map(|grant| self.holder(&grant.holder));
                    step.advance =
                        Some(Advance { seq: small(seq.get()), id: small(advance.0.ms), then, opened: false });
                }
                Effect::Remember(_) | Effect::Announce(_) => {}
            }
        }
        step
    }

    /// The product's verdict on a write of this holder with this number.
    pub fn judge(&self, row: Row, sealed: bool, (holder, seq): (Holder, Seq), now: Tick) -> Result<Permit, Denial> {
        let record = self.record(row);
        let presented = Presented::of(&self.token(holder, seq), &self.object);
        verdict::judge(View::Known { record: &record, sealed }, &presented, instant(now))
    }

    /// The number that a repeated request of this holder gets again, if it gets one.
    pub fn replay(&self, row: Row, now: Tick) -> Option<Held> {
        let Standing::Open(held) = row.standing else { return None };
        let (lease_id, _) = self.lease_id(held.holder, held.seq);
        self.record(row).replay(lease_id, instant(now)).map(|lease| self.held(lease))
    }

    /// A row of an earlier run, as a new run reads it.
    pub fn read_back(&self, row: Row, now: Tick) -> Row {
        let frame = Frame { run: 2, start: instant(now), behind_mark: false };
        let again = |held: Held| Held { until: tick(frame.deadline(instant(held.until).wall, self.ttl)), ..held };
        let standing = match row.standing {
            Standing::Open(held) => Standing::Open(again(held)),
            Standing::Ended(held) => Standing::Ended(again(held)),
            Standing::Free | Standing::Draining(_) => row.standing,
        };
        Row { standing, ..row }
    }

    pub fn acquire(&self, row: Row, holder: Holder) -> Event {
        Event::Acquire { grant: self.grant(holder, row.fence + 1), takeover_after_ms: None }
    }

    pub fn release(&self, held: Held) -> Event {
        Event::Release { proof: self.proof(held) }
    }

    /// `rotate`: under the next number.
    pub fn renew(&self, held: Held, rotate: bool) -> Event {
        let rotate = rotate.then(|| self.lease_id(held.holder, held.seq + 1).0.clone());
        Event::Renew { proof: self.proof(held), ttl: self.ttl, rotate }
    }

    fn proof(&self, held: Held) -> LeaseProof {
        let row = LeaseRow::new(&self.object, &self.lease(held), None);
        let holder = self.holders[usize::from(held.holder)].clone();
        LeaseProof { row, holder: Some(holder), token: self.token(held.holder, held.seq) }
    }

    pub fn end(&self, held: Held) -> Event {
        Event::End { lease_id: self.lease_id(held.holder, held.seq).0.clone() }
    }

    pub fn drained(&self, advance: &Advance) -> Event {
        Event::Drained {
            seq: number(advance.seq.into()),
            advance: AdvanceId(hlc(advance.id)),
            then: advance.then.map(|holder| self.grant(holder, advance.seq)),
        }
    }

    fn grant(&self, holder: Holder, seq: Seq) -> Grant {
        Grant {
            lease_id: self.lease_id(holder, seq).0.clone(),
            holder: self.holders[usize::from(holder)].clone(),
            ttl: self.ttl,
            request: None,
            tainted: false,
            window: None,
            source: Source::Gate,
        }
    }

    fn lease_id(&self, holder: Holder, seq: Seq) -> &(LeaseId, Proof) {
        &self.leases[usize::from(holder)][usize::from(seq)]
    }

    fn token(&self, holder: Holder, seq: Seq) -> FenceToken {
        FenceToken {
            seq: number(seq.into()),
            object: self.object.clone(),
            secret: self.lease_id(holder, seq).1.secret(),
        }
    }

    fn lease(&self, held: Held) -> Lease {
        let (lease_id, proof) = self.lease_id(held.holder, held.seq).clone();
        let Now { wall, boot } = instant(held.until);
        Lease {
            lease_id,
            seq: number(held.seq.into()),
            holder: self.holders[usize::from(held.holder)].clone(),
            acquired_at: WallMs(WALL_START),
            expires_at: wall,
            deadline: boot,
            ttl: self.ttl,
            request: None,
            used: false,
            tainted: false,
            start: None,
            proof,
        }
    }

    fn record(&self, row: Row) -> Record {
        let state = match row.standing {
            Standing::Free => State::Free { last: None },
            Standing::Draining(id) => State::Draining { advance: AdvanceId(hlc(id)), opens: None },
            Standing::Open(held) => State::Open { lease: self.lease(held) },
            Standing::Ended(held) => {
                let ended = Ended { how: How::Expired, at: WallMs(WALL_START), stamp: Hlc::default() };
                State::Free { last: Some((self.lease(held), ended)) }
            }
        };
        let fence = Fence::new(row.fence.into());
        Record { fence, state, ..Record::unknown(self.object.clone(), Incarnation::default()) }
    }

    fn row(&self, record: &Record) -> Row {
        let standing = match &record.state {
            State::Free { last: None } => Standing::Free,
            State::Free { last: Some((lease, _)) } => Standing::Ended(self.held(lease)),
            State::Draining { advance, .. } => Standing::Draining(small(advance.0.ms)),
            State::Open { lease } => Standing::Open(self.held(lease)),
        };
        Row { fence: small(record.fence.get()), standing }
    }

    fn held(&self, lease: &Lease) -> Held {
        Held { holder: self.holder(&lease.holder), seq: small(lease.seq.get()), until: tick(lease.deadline) }
    }

    fn holder(&self, id: &HolderId) -> Holder {
        small(self.holders.iter().position(|each| each == id).unwrap() as u64)
    }
}

fn instant(tick: Tick) -> Now {
    let ms = u64::from(tick) * TICK_MS;
    Now { wall: WallMs(WALL_START + ms), boot: BootMs(ms) }
}

fn tick(boot: BootMs) -> Tick {
    assert_eq!(boot.0 % TICK_MS, 0, "a deadline between two ticks");
    small(boot.0 / TICK_MS)
}

fn number(seq: usize) -> LeaseSeq {
    LeaseSeq::new(seq as u64).unwrap()
}

fn hlc(stamp: u8) -> Hlc {
    Hlc { ms: stamp.into(), logical: 0 }
}

fn small(n: u64) -> u8 {
    u8::try_from(n).unwrap()
}
