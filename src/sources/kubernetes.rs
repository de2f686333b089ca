//! A write whose token is ahead of what is known of its Kubernetes Lease, or whose Lease has not been seen renewed. The
//! API server is asked, the ledger gets the result, and the write is judged again.

use std::time::Duration;

use super::{Check, fence, not_moved};
use crate::{
    fence::{
        Code, Denial, Ended, Hlc, HolderId, How, LeaseSeq, ObjectId, Refusal,
        elected::Claimant,
        election::TermStatus,
        outside::Claim,
        verdict::{self, Presented, Successor, View},
    },
    gate::{Gate, Shared},
    kubernetes::{
        api::Away,
        lease_observer::{TermReply, Unknown},
    },
    problem::Problem,
    table::ledger::Moved,
};

/// Asks the API server, and notes on the write what is now known of its term.
pub(super) async fn ask(
    gate: &Gate,
    object: &ObjectId,
    claimant: &mut Claimant,
    (patient, plan): (bool, u64),
) -> Result<(), Refusal> {
    let asked = gate.lease_observer.ask(object, claimant, plan);
    let reply = if patient {
        asked.await
    } else {
        tokio::time::timeout(IMPATIENCE, asked).await.unwrap_or_else(|_| Err(late()))
    };
    reply
        .map_err(|unknown| refusal(gate, object, claimant, unknown))
        .and_then(|reply| attach_present_term(gate, object, claimant, reply))
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
    reply: TermReply,
) -> Result<Moved, Refusal> {
    let TermReply { election, term, moved } = reply;
    let own = claimant.election;
    match own.status(election) {
        TermStatus::Present => {
            let moved = moved.map_err(|refused| refusal(gate, object, claimant, Unknown::Ledger(refused)))?;
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
fn refusal(gate: &Gate, object: &ObjectId, claimant: &Claimant, unknown: Unknown) -> Refusal {
    match unknown {
        Unknown::Away(_) => Refusal::SourceUnavailable { fence: fence(gate, object) },
        Unknown::Ledger(refused) => not_moved(gate, object, refused, Some(&Claim::Term(claimant.clone()))),
    }
}

/// The denial of a write after the API server was asked and the answer did not decide it.
pub(super) fn still_unknown(gate: &Gate, object: &ObjectId, why: &Denial) -> Refusal {
    let fence = fence(gate, object);
    match (why, LeaseSeq::new(fence.get())) {
        // The write is of the present term, and the Lease has no holder.
        (Denial::Unseen(_), Some(seq)) => {
            let ended = Ended { how: How::Released, at: gate.now().wall, stamp: Hlc::default() };
            Refusal::Ended { seq, holder: HolderId::new(NO_HOLDER).expect("a valid id"), ended }
        }
        // The Lease has a holder by the API server's answer. But no renewal was seen in time, nor was it watched for
        // long enough to say that the term is over.
        _ => Refusal::SourceUnavailable { fence },
    }
}

/// The holder in the answer where a Lease has none.
const NO_HOLDER: &str = "nobody";

/// Moves an object to a term of leadership that a candidate has won.
pub(super) async fn advance(
    gate: &Gate,
    object: &ObjectId,
    mut claimant: Claimant,
    generation: u64,
) -> Result<Moved, Refusal> {
    let reply = gate.lease_observer.ask(object, &claimant, generation).await;
    let reply = reply.map_err(|unknown| refusal(gate, object, &claimant, unknown))?;
    let moved = attach_present_term(gate, object, &mut claimant, reply)?;
    let view = View::Known { record: &moved.record, sealed: false };
    match verdict::judge(view, &Presented::Outside(Claim::Term(claimant)), gate.now()) {
        Ok(_) => Ok(moved),
        Err(Denial::Refused(why)) => Err(why),
        Err(why) => Err(still_unknown(gate, object, &why)),
    }
}

/// Judges a term as a write of it would be judged. The API server is asked if necessary.
pub(super) async fn check(gate: &Shared, object: &ObjectId, mut claimant: Claimant) -> Result<Check, Problem> {
    let answer = |code: Option<Code>| Ok(Check { code, seq: None, expires_in_ms: None });
    let mut has_asked = false;
    loop {
        let (target, now) = (object.clone(), gate.now());
        let shown = Presented::Outside(Claim::Term(claimant.clone()));
        match gate.read(move |records| Ok(records.judge(&target, &shown, now))).await? {
            Ok(permit) => {
                let (seq, left) = (Some(permit.seq().get()), Some(permit.remaining_ms()));
                return Ok(Check { code: None, seq, expires_in_ms: left });
            }
            Err(Denial::Refused(refusal)) => return answer(Some(refusal.code())),
            // A write would begin this term.
            Err(Denial::Unseen(_)) if has_asked && claimant.is_live(now) => return answer(None),
            Err(_) if has_asked => return answer(Some(Code::LeaseSourceUnavailable)),
            Err(_) => has_asked = true,
        }
        let own = claimant.election;
        match gate.lease_observer.read_term(&claimant).await {
            Ok((Some(election), term)) if election == own => claimant.term = Some(term),
            Ok((Some(election), _)) if election.is_before(own) => return answer(Some(Code::WriteFenceAhead)),
            Ok(_) => return answer(Some(Code::WriteStaleFence)),
            Err(_) => return answer(Some(Code::LeaseSourceUnavailable)),
        }
    }
}
