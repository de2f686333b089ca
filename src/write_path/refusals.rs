//! The refusals of requests that were not, or not certainly, done: texts and codes for the way to the store.

use super::{hold::NoBody, reply::Rejection, upload::Broken};
use crate::{fence::Code, upstream::pool::NoConnection};

/// Why a connection that was just made or found cannot be used.
pub(super) const UNASKED: &str = "it hung up, or spoke before it was asked";

/// A reload has changed the route of a write of which nothing was sent.
pub(super) fn rerouted() -> Rejection {
    Rejection::new(Code::FenceDraining, "this route has just changed; nothing was sent")
}

/// A write whose outcome is unknown. `what`: what is known about it.
pub(super) fn unknown(what: String) -> Rejection {
    Rejection::new(Code::OutcomeUnknown, what + "; look before you write again")
}

/// A body is not read, since too many bodies are held.
pub(super) fn no_room() -> Rejection {
    Rejection::new(Code::GateOverloaded, "too many bodies are being held; try again in a moment")
}

pub(super) fn no_answer(why: &str) -> Rejection {
    Rejection::new(Code::StoreUnreachable, format!("the store gave no answer ({why}); nothing was written"))
}

pub(super) fn no_connection(why: NoConnection) -> Rejection {
    match why {
        NoConnection::Unreachable(why) => {
            Rejection::new(Code::StoreUnreachable, format!("the store cannot be reached ({why}); nothing was sent"))
        }
        NoConnection::Overloaded => {
            Rejection::new(Code::GateOverloaded, "too many requests wait for the store; nothing was sent")
        }
    }
}

impl From<NoBody> for Broken {
    fn from(why: NoBody) -> Self {
        match why {
            NoBody::Cut => Self::Client,
            NoBody::Slow => Self::Slow,
            NoBody::TooLong => Self::TooLong,
        }
    }
}

/// A body that was broken off before anything of it was sent.
pub(super) fn unsent(broken: &Broken) -> Rejection {
    Rejection::new(code_of(broken), format!("{broken}; nothing was sent"))
}

/// The body of a read that was broken off.
pub(super) fn cut_off(broken: &Broken) -> Rejection {
    Rejection::new(code_of(broken), format!("{broken}; a part of this read was sent to the store"))
}

fn code_of(broken: &Broken) -> Code {
    match broken {
        Broken::Client | Broken::Slow => Code::BodyUnreadable,
        Broken::TooLong => Code::BodyTooLarge,
        Broken::TokenInTrailer => Code::FenceTokenMalformed,
        // After the first piece was sent. Before it, the write is judged once more, to learn why.
        Broken::Denied => Code::FenceDraining,
    }
}
