//! What happens to a Lease that the gate follows, and what is to be done then: the events and effects of
//! [`super::lease_state`].

use std::sync::Arc;

use super::api::{Away, Seen};
use crate::{
    fence::{
        BootMs, Now, ObjectId,
        elected::{LeaseObservation, Term},
        election::Election,
    },
    table::ledger::LedgerError,
};

/// Why there is no answer.
#[derive(Clone, Debug)]
pub enum Unknown {
    Away(Away),
    Ledger(LedgerError),
}

/// What a caller asks.
#[derive(Clone, Debug)]
pub struct Question {
    /// The term that the caller brings; `None`: the Lease is to be read anew, whatever is known of it.
    pub election: Option<Election>,
    /// The object that is to get the answer, and the generation of the routes by which the Lease governs it. `None`: no
    /// fence is to move.
    pub object: Option<(ObjectId, u64)>,
}

/// When an event happens.
#[derive(Clone, Copy, Debug)]
pub struct At {
    pub now: Now,
    /// The generation of the routes.
    pub generation: u64,
}

/// The present term of a Lease, and until when it is held; `None`: there is no such Lease.
pub type Present = (Option<Election>, Arc<Term>);

/// The number of a caller, by which its turn is reported.
pub type CallerId = u64;

/// What has happened. `C`: what a caller is answered by. `P`: what a caller holds while it has its turn.
#[derive(Debug)]
pub enum Event<C, P> {
    Asked(Question, C),
    /// The caller may cause a read.
    Turn(CallerId, P),
    /// The caller's turn has not come in time.
    NoTurn(CallerId, Away),
    /// A watch has shown what only a read can confirm.
    Hinted,
    /// The pause that [`Effect::Pause`] asked for is over.
    PauseOver,
    /// The request is about to be sent.
    ReadBegins,
    ReadEnded(Result<Option<Seen>, Away>),
    /// The ledger has room for one message.
    Room,
    /// The ledger has had no room in time, or is gone.
    NoRoom(LedgerError),
}

/// What is to be done next.
#[derive(Debug)]
pub enum Effect<C, P> {
    /// Wait for the caller's turn. Report [`Event::Turn`] or [`Event::NoTurn`].
    WaitForTurn(CallerId),
    /// Read the Lease, but not before this time. Report [`Event::ReadBegins`], and then [`Event::ReadEnded`]. `permit`:
    /// of the caller that causes the read, to be kept until the read has ended; `None`: the read is for a hint.
    Read {
        not_before: BootMs,
        permit: Option<P>,
    },
    /// The object follows this Lease from now on, and no other.
    Follow(ObjectId),
    /// Give the ledger the observation, and the caller the ledger's reply. All objects that follow the Lease have it
    /// already, this one too if it follows; then the reply may not count the drain. `begins`: the object may be new to
    /// the term.
    Observe {
        caller: C,
        object: ObjectId,
        observation: LeaseObservation,
        begins: bool,
        present: Present,
    },
    /// Give the caller the present term.
    Answer(C, Present),
    Refuse(C, Unknown),
    /// Wait for room for one message to the ledger. Report [`Event::Room`] or [`Event::NoRoom`].
    WaitForRoom,
    /// Use the room: give the ledger the observation for these objects.
    ObserveAll(Vec<ObjectId>, LeaseObservation),
    /// Wait a while, and report [`Event::PauseOver`].
    Pause,
    /// A change could not be read, or not be passed on, often enough to try no more.
    GiveUp,
}
