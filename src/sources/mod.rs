//! What a running gate does for the sources of leases outside of it: asks them, has fences follow them, and says what
//! a write gets where that fails. The seam for lease sources above the ledger; `fence/outside.rs` and `route/source/`
//! are those below.
//!
//! A source is one module here: [`external`], [`kubernetes`]. This file names every source once in each place where the
//! gate's work differs by it. No rules are here.

pub mod external;
pub mod kubernetes;

use crate::{
    fence::{
        Code, Denial, Fence, ObjectId, Refusal,
        outside::{Claim, Update},
        step::LeaseRefusal,
        verdict::{Presented, Unusable},
    },
    gate::{Gate, Shared},
    problem::Problem,
    table::ledger::{LedgerError, Moved},
};

/// Adds to a claim what is known of it without asking its source.
#[inline]
pub fn attach(gate: &Gate, object: &str, claim: &mut Claim) {
    match claim {
        Claim::Number(_) => {}
        Claim::Term(claimant) => gate.lease_observer.attach_term(object, claimant),
    }
}

/// Asks a claim's source about it, and notes on the claim what is known now. `patient`: the write is not forwarded
/// without an answer. `plan`: the generation of the routes that the write uses.
///
/// # Errors
/// With the refusal that the write gets, where one is known.
pub async fn ask(
    gate: &Gate,
    object: &ObjectId,
    claim: &mut Claim,
    (patient, plan): (bool, u64),
) -> Result<(), Refusal> {
    match claim {
        // Its number says all of it.
        Claim::Number(_) => Ok(()),
        Claim::Term(claimant) => kubernetes::ask(gate, object, claimant, (patient, plan)).await,
    }
}

/// Asks again about an object whose claim was known when its write was admitted. Returns whether the ledger has the
/// answer.
pub async fn ask_again(gate: &Gate, object: &ObjectId) -> bool {
    gate.lease_observer.ask_again(object).await.is_ok()
}

/// Has the fence of an object follow an update, and waits a while for the last writes below it. The write is judged
/// again afterwards, whatever became of these. `claim`: the write's. `has_room`: the write may wait.
///
/// # Errors
/// With the refusal that the write gets.
pub async fn follow(
    gate: &Gate,
    object: &ObjectId,
    update: Update,
    claim: Option<&Claim>,
    has_room: bool,
) -> Result<(), Refusal> {
    let moved = if has_room { gate.ledger.follow(object.clone(), update).await } else { Err(LedgerError::Overloaded) };
    moved.map(drop).map_err(|refused| not_moved(gate, object, refused, claim))
}

/// What a write gets for which the ledger has not moved the fence.
fn not_moved(gate: &Gate, object: &ObjectId, refused: LedgerError, claim: Option<&Claim>) -> Refusal {
    match refused {
        LedgerError::Lease { why: LeaseRefusal::Locked { fence }, .. } => Refusal::Locked { fence },
        LedgerError::Lease { why: LeaseRefusal::ClockUntrusted, .. } => Refusal::Unusable(Unusable::Clock),
        LedgerError::Lease { why, .. } => {
            let of_source = claim.and_then(|claim| claim.refusal(&why, || fence(gate, object)));
            of_source.unwrap_or(Refusal::Busy { stops: false })
        }
        LedgerError::Overloaded => Refusal::Busy { stops: false },
        LedgerError::Stopping => Refusal::Busy { stops: true },
        _ => Refusal::Unusable(Unusable::Table),
    }
}

/// The refusal of a write that its source did not decide.
pub fn still_unknown(gate: &Gate, object: &ObjectId, why: Denial) -> Refusal {
    match why {
        Denial::Refused(why) => why,
        // Only the first judgement of a write finds a fence below an outside number.
        Denial::Behind(update) => {
            Refusal::Draining { fence: update.seq().map_or_else(|| fence(gate, object), Fence::from) }
        }
        Denial::Unseen(_) | Denial::Lapsed(_) | Denial::Overdue(_) => kubernetes::still_unknown(gate, object, &why),
    }
}

fn fence(gate: &Gate, object: &ObjectId) -> Fence {
    gate.records.stripes.view(object, |found| found.map(|(record, _)| record.fence)).unwrap_or_default()
}

/// Why a caller of the api gets no new fence.
pub enum NotMoved {
    /// A write with this claim would be refused for the same reason.
    Refused(Refusal),
    Problem(Box<Problem>),
}

/// Moves an object's fence to a claim, and waits a while for older writes. `generation`: of the routes by which the
/// source governs the object; read before them.
///
/// # Errors
/// With the reason why a write of this claim would be refused.
pub async fn advance(gate: &Gate, object: &ObjectId, claim: Claim, generation: u64) -> Result<Moved, NotMoved> {
    match claim {
        Claim::Number(number) => {
            external::advance(gate, object, number).await.map_err(|problem| NotMoved::Problem(Box::new(problem)))
        }
        Claim::Term(claimant) => {
            kubernetes::advance(gate, object, claimant, generation).await.map_err(NotMoved::Refused)
        }
    }
}

/// Opens a locked object to the tokens of its source from this one on, as an operator says.
///
/// # Errors
/// With the reason of the refusal.
pub async fn confirm(gate: &Gate, object: ObjectId, lowest: Claim) -> Result<Moved, LedgerError> {
    tracing::info!(%object, %lowest, "audit: an operator confirms the lowest token that may write");
    gate.ledger.confirm(object, lowest).await
}

/// How a write with a claim would be judged.
pub struct Check {
    /// The code of its refusal.
    pub code: Option<Code>,
    pub seq: Option<u64>,
    pub expires_in_ms: Option<u64>,
}

/// Judges a claim as a write with it would be judged. The source is asked if necessary, and no fence moves.
///
/// # Errors
/// When the table is not usable.
pub async fn check(gate: &Shared, object: &ObjectId, claim: Claim) -> Result<Check, Problem> {
    match claim {
        Claim::Number(number) => {
            let seq = Some(number.seq.get());
            let checked = judge(gate, object, Presented::Outside(Claim::Number(number))).await?;
            Ok(Check { seq, ..checked })
        }
        Claim::Term(claimant) => kubernetes::check(gate, object, claimant).await,
    }
}

/// Judges a token that needs no source to be asked. The number in the result is not set.
///
/// # Errors
/// When the table is not usable.
pub async fn judge(gate: &Shared, object: &ObjectId, presented: Presented) -> Result<Check, Problem> {
    loop {
        let (target, shown, now) = (object.clone(), presented.clone(), gate.now());
        let verdict = gate.read(move |records| Ok(records.judge(&target, &shown, now))).await?;
        let (code, expires_in_ms) = match verdict {
            Ok(permit) => (None, Some(permit.remaining_ms())),
            Err(Denial::Refused(refusal)) => (Some(refusal.code()), None),
            // A write would move the fence first.
            Err(Denial::Behind(_)) => (None, None),
            Err(Denial::Unseen(_) | Denial::Lapsed(_)) => unreachable!("this token is of no Lease"),
            Err(Denial::Overdue(lease)) => {
                gate.end(vec![(object.clone(), lease)]).await?;
                continue;
            }
        };
        return Ok(Check { code, seq: None, expires_in_ms });
    }
}
