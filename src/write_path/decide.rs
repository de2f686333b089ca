//! May this write go on? `fence::judge`, under the object's lock; the write counts as in flight from
//! the same moment on. No rules of its own.

use std::sync::Arc;

use crate::{
    api::Gate,
    fence::{
        Denial, ObjectId, Permit, Refusal,
        verdict::{self, Presented, Unusable, View},
    },
    table::{records::Records, stripes::Place},
};

/// A write that was admitted and is not settled yet.
pub struct InFlight {
    records: Arc<Records>,
    place: Place,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.records.stripes.settle(self.place);
    }
}

/// A write that may go on: its permit, its place among those in flight, and what it showed.
pub struct Admitted {
    pub permit: Permit,
    pub in_flight: InFlight,
    presented: Presented,
}

/// Judges a write. Reads the record if it is not in memory, and ends a lease that has run out before
/// anyone is told so.
///
/// # Errors
/// With the refusal that the write gets.
pub async fn decide(gate: &Arc<Gate>, object: &ObjectId, presented: Presented) -> Result<Admitted, Refusal> {
    loop {
        match judge(gate, object, &presented) {
            Some(Ok((permit, place))) => {
                let in_flight = InFlight { records: Arc::clone(&gate.records), place };
                return Ok(Admitted { permit, in_flight, presented });
            }
            Some(Err(Denial::Refused(refusal))) => return Err(refusal),
            Some(Err(Denial::Overdue(lease))) => {
                let ended = gate.ledger.end(vec![(object.clone(), lease)]).await;
                ended.map_err(|_| Refusal::Unusable(Unusable::Table))?;
            }
            None => {
                let wanted = object.clone();
                let loaded = gate.read(move |records| records.read(&wanted).map(drop)).await;
                loaded.map_err(|_| Refusal::Unusable(Unusable::Table))?;
            }
        }
    }
}

type Judged = Result<(Permit, Place), Denial>;

/// One look, under the lock. `None`: the record is not in memory.
fn judge(gate: &Gate, object: &ObjectId, presented: &Presented) -> Option<Judged> {
    let now = gate.now();
    if gate.records.latched().is_some() {
        let latched = verdict::judge(object, View::Unusable(Unusable::Table), presented, now);
        return Some(latched.map(|_| unreachable!("an unusable table admits nothing")));
    }
    // What is wrong with the token itself needs no record.
    if !matches!(presented, Presented::Token(token) if token.object == *object) {
        let unlinked = verdict::judge(object, View::Unusable(Unusable::Table), presented, now);
        return Some(unlinked.map(|_| unreachable!("an unusable table admits nothing")));
    }
    gate.records
        .stripes
        .admit(object, |record, sealed| verdict::judge(object, View::Known { record, sealed }, presented, now))
}

impl Admitted {
    /// Judges the write once more, at the last moment before it is sent.
    ///
    /// # Errors
    /// As for the first time. A lease that ran out meanwhile is [`Denial::Overdue`].
    pub fn judge_again(&self, gate: &Gate) -> Result<(), Denial> {
        let now = gate.now();
        if gate.records.latched().is_some() {
            return Err(Refusal::Unusable(Unusable::Table).into());
        }
        let object = self.permit.object();
        gate.records
            .stripes
            .look_again(self.in_flight.place, |record, sealed| {
                verdict::judge(object, View::Known { record, sealed }, &self.presented, now)
            })
            .map(drop)
    }
}
