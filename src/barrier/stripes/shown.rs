//! The record that the judge gets. The judge is pure and knows no test faults, so the fault `revive` changes the record
//! before the judge gets it.

use crate::{
    failpoints::{self, Fault},
    fence::{BootMs, Lease, Record, State},
};

/// Calls the judge with the record. With [`Fault::Revive`], the record's last lease seems to have neither end nor
/// deadline.
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
