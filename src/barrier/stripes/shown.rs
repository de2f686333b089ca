//! What the judge is shown of a record. The judge is pure and knows no test faults, so the fault `revive` changes the
//! record that the judge gets.

use crate::{
    failpoints::{self, Fault},
    fence::{BootMs, Lease, Record, State},
};

/// Shows the judge the record. With [`Fault::Revive`]: as if its last lease had neither end nor deadline.
#[inline]
pub(super) fn show<T>(record: &Record, judge: impl FnOnce(&Record) -> T) -> T {
    if failpoints::on(Fault::Revive)
        && let State::Free { last: Some((lease, _)) } = &record.state
    {
        let lease = Lease { deadline: BootMs(u64::MAX), ..lease.clone() };
        return judge(&Record { state: State::Open { lease }, ..record.clone() });
    }
    judge(record)
}
