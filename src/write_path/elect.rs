//! A write whose token is ahead of what is known of its Kubernetes Lease, or whose Lease has not been seen renewed. The
//! API server is asked, the ledger gets the result, and the write is judged again.

use std::time::Duration;

use super::{Worker, decide, reply::Rejection};
use crate::{
    fence::{
        Denial, Ended, Fence, Hlc, HolderId, How, LeaseSeq, ObjectId, Refusal,
        elected::Claimant,
        election::{Election, TermStatus},
        step::LeaseRefusal,
        verdict::{self, Presented, Successor, View},
    },
    gate::Gate,
    kubernetes::{
        api::Away,
        lease_observer::{TermReply, Unknown},
    },
    problem::Problem,
    route::classify::{Brought, Target},
    table::ledger::Moved,
};

/// Asks the API server, and notes on the write what is now known of its term. `patient`: the write is not forwarded
/// without an answer. `plan`: the generation of the plan that the write uses.
///
/// # Errors
/// With the refusal that the write gets, where one is known.
pub(super) async fn ask(
    worker: &Worker,
    object: &ObjectId,
    target: &mut Target<'_>,
    (patient, plan): (bool, u64),
) -> Result<(), Refusal> {
    let Brought::Read(Presented::Claimant(claimant)) = &mut target.brought else { return Ok(()) };
    let gate = &worker.plane.gate;
    let asked = gate.lease_observer.ask(object, claimant, plan);
    let told = if patient {
        asked.await
    } else {
        tokio::time::timeout(IMPATIENCE, asked).await.unwrap_or_else(|_| Err(late()))
    };
    told.map_err(|unknown| refusal(gate, object, claimant.election, unknown))
        .and_then(|told| attach_present_term(gate, object, claimant, told))
        .map(drop)
}

/// How long a write that is forwarded anyway waits for the API server's answer.
const IMPATIENCE: Duration = Duration::from_millis(250);

fn late() -> Unknown {
    Unknown::Away(Away::late(IMPATIENCE))
}

/// Notes on the write that it is of the present term, if it is: the object as that has left it.
fn attach_present_term(
    gate: &Gate,
    object: &ObjectId,
    claimant: &mut Claimant,
    told: TermReply,
) -> Result<Moved, Refusal> {
    let TermReply { election, term, moved } = told;
    let own = claimant.election;
    match own.status(election) {
        TermStatus::Present => {
            let moved = moved.map_err(|refused| refusal(gate, object, own, Unknown::Ledger(refused)))?;
            claimant.term = Some(term);
            Ok(moved)
        }
        TermStatus::Ahead => Err(Refusal::NotElected { election: own, fence: fence(gate, object) }),
        TermStatus::Over => {
            let moved = moved.as_ref().ok();
            let heir = moved.and_then(|moved| moved.record.open_lease());
            let successor =
                heir.map(|lease| Successor { holder: lease.holder.clone(), lease_id: lease.lease_id.clone() });
            let fence = moved.map_or_else(|| fence(gate, object), |moved| moved.record.fence);
            Err(Refusal::Deposed { election: own, fence, successor })
        }
    }
}

/// The refusal of a write whose term could not be learned.
fn refusal(gate: &Gate, object: &ObjectId, election: Election, unknown: Unknown) -> Refusal {
    let of_term = |why| match why {
        // The API server has gone back to a term that is over.
        LeaseRefusal::Fenced { fence } => Some(Refusal::Deposed { election, fence, successor: None }),
        LeaseRefusal::SeqExhausted => Some(Refusal::Exhausted { fence: fence(gate, object) }),
        _ => None,
    };
    match unknown {
        Unknown::Away(_) => Refusal::Unheard { fence: fence(gate, object) },
        Unknown::Ledger(refused) => decide::not_moved(refused, of_term),
    }
}

/// The denial of a write after the API server was asked and the answer did not decide it.
pub(super) fn still_unknown(gate: &Gate, object: &ObjectId, why: &Denial) -> Refusal {
    let fence = fence(gate, object);
    match (why, LeaseSeq::new(fence.get())) {
        // The write is of the present term, and the Lease has no holder.
        (Denial::Unseen(_), Some(seq)) => {
            let ended = Ended { how: How::Released, at: gate.now().wall, stamp: Hlc::default() };
            Refusal::Ended { seq, holder: HolderId::new(NOBODY).expect("a valid id"), ended }
        }
        // The Lease has a holder by the API server's answer. But no renewal was seen in time, nor was it watched for
        // long enough to say that the term is over.
        _ => Refusal::Unheard { fence },
    }
}

const NOBODY: &str = "nobody";

fn fence(gate: &Gate, object: &ObjectId) -> Fence {
    gate.records.stripes.view(object, |found| found.map(|(record, _)| record.fence)).unwrap_or_default()
}

/// Moves an object to a term of leadership that a candidate has won, and waits a while for older writes. `generation`:
/// of the routes by which the Lease governs the object.
///
/// # Errors
/// With the reason why a write of this term would be refused.
pub async fn advance(
    gate: &Gate,
    object: &ObjectId,
    mut claimant: Claimant,
    generation: u64,
) -> Result<Moved, Problem> {
    let told = gate.lease_observer.ask(object, &claimant, generation).await;
    let told = told.map_err(|unknown| refusal(gate, object, claimant.election, unknown));
    let moved = told.and_then(|told| attach_present_term(gate, object, &mut claimant, told));
    let moved = moved.and_then(|moved| {
        let view = View::Known { record: &moved.record, sealed: false };
        match verdict::judge(view, &Presented::Claimant(claimant), gate.now()) {
            Ok(_) => Ok(moved),
            Err(Denial::Refused(why)) => Err(why),
            Err(why) => Err(still_unknown(gate, object, &why)),
        }
    });
    moved.map_err(|refusal| *Rejection::from(refusal).of(object).problem)
}
