//! An outside lock service: its numbers move fences, and nothing is asked.

use crate::{
    fence::{Code, Fence, ObjectId, State, external::Number, outside::Update},
    gate::Gate,
    problem::Problem,
    table::ledger::{LedgerError, Moved},
};

/// Moves an object's fence to a number that a caller of the api names.
pub(super) async fn advance(gate: &Gate, object: &ObjectId, number: Number) -> Result<Moved, Problem> {
    let stale = |fence: Fence| {
        let what = format!("the fence has moved to {fence}, so this token is over for ever; take the lock again");
        let mut problem = Problem::new(Code::WriteStaleFence, what).with_object(object);
        problem.tell_numbers(Some(number.seq), Some(fence));
        problem
    };
    let moved = gate.ledger.follow(object.clone(), Update::Number(number)).await;
    let moved = moved.map_err(|refused| match Problem::refused(&refused, gate.now()) {
        problem if problem.code() == Code::LeaseFenced => stale(problem.fence()),
        problem => problem,
    })?;
    match &moved.record.state {
        _ if moved.record.fence > number.seq.into() => Err(stale(moved.record.fence)),
        State::Draining { .. } => Err(Problem::refused(&LedgerError::Draining { object: object.clone() }, gate.now())),
        State::Open { .. } | State::Free { .. } => Ok(moved),
    }
}
