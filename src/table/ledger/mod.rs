//! The ledger: the single writer of the fence table.
//!
//! Lease changes from all callers queue up here. A round takes all calls that wait or come meanwhile, decides each
//! against the newest state (this round's own changes included), makes them durable with one synced write,
//! publishes the records in the order they changed, and only then answers. So a refusal, too, never cites a fence
//! that a crash could forget.
//!
//! - `command`: the ledger's calls and their answers. `handle`: sends the calls, from other threads. `pending`:
//!   calls for leases that a caller waits for, and giving back leases that are not taken. `queue`: where calls
//!   wait, and how callers wait for room there.
//! - `core`: the decisions of a round. `closing`: how they are persisted, published and answered. Neither has threads or
//!   waits, and the simulation drives both.
//! - `acquire`: acquiring, waiting for a turn, repeated requests.
//! - `advance`: fences that have moved while older writes are on their way: seal, drain, open. `advances`: those that
//!   wait. `advance_callers`: who asked for them, and what they get.
//! - `calls`: renewing, releasing, revoking.
//! - `outside`: fences that follow sources of leases outside the gate.
//! - `authority`: signed certificates and grants, and the migrations that they are part of.
//! - `keyed`: writes with an idempotency key, and their answers.
//! - `journal`: a hash chain over the writes of an object that have settled.
//! - `fingerprint`: which routes' writes may land if this run ends badly.
//! - `round`: the changes of one round; `lease_ids`: ids for new leases.
//! - `pulse`: whether the ledger goes on. `faults`: test faults of lease changes.
//! - `waiters`, `timers`, `sweep`: callers that wait, work that is due later, forgetting what ended long ago. `due`: the
//!   part of a round that no call asks for.
//!
//! After a failed write or sync the table is latched: every call gets [`LedgerError::Unavailable`] until the process is
//! started again.

mod acquire;
mod advance;
mod advance_callers;
mod advances;
pub mod authority;
mod calls;
mod closing;
mod command;
mod core;
mod due;
mod faults;
mod fingerprint;
mod handle;
pub mod journal;
pub mod keyed;
mod lease_ids;
mod outside;
mod pending;
mod pulse;
mod queue;
mod round;
mod sweep;
mod timers;
mod waiters;

use std::{sync::Arc, time::Duration};

pub use self::{
    command::{
        Certificate, Command, GrantAction, Granted, JournalLines, LedgerError, Moved, Progress, ReplyRx, Wanted,
    },
    core::{Core, Setup},
    handle::Ledger,
    keyed::{KeyAttempt, KeyClaimResult},
    lease_ids::rare_id,
    pending::{Leases, Offer},
    pulse::{PATIENCE, Pulse},
    queue::Room,
};
use self::{
    command::{GrantReply, Reply},
    queue::Calls,
};
use super::{TableFault, records::Records};
pub use crate::barrier::flight::DrainReport;
use crate::{
    clock::Clock,
    sync::{mpsc::RecvTimeoutError, thread},
};

/// How many calls one round takes.
const ROUND_MAX: usize = 1_024;

/// Shuts the table if the ledger's thread dies: whether its last change was made is unknown.
struct Lifeline(Arc<Records>);

impl Drop for Lifeline {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.latch(TableFault::Write("the ledger has died".to_owned()));
        }
    }
}

fn work(mut core: Core, calls: &Calls, clock: &Clock, pulse: &Pulse) {
    let _lifeline = Lifeline(core.records());
    while !core.is_stopped() {
        let nap =
            if core.has_backlog() { Some(Duration::ZERO) } else { core.next_at().and_then(|at| clock.sleep_until(at)) };
        let first = match calls.next(nap) {
            Ok(command) => Some(command),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        pulse.begins();
        core.run(calls.batch(first).take(ROUND_MAX));
        pulse.rests();
    }
}
