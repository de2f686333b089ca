//! What the api shows: records, leases and receipts as the bodies of [`crate::wire`].

use crate::{
    fence::{Fence, How, LeaseRow, LeaseSeq, Now, Record, State, step::Announcement},
    gate::receipts::Receipt,
    table::{
        ledger::{DrainReport, Granted},
        records::{LeaseStatus, LeaseView},
    },
    wire::{DrainBody, EventBody, GrantBody, LeaseBody, LeaseState, ObjectBody, ObjectState, ReceiptBody, time},
};

impl ReceiptBody {
    #[must_use]
    pub fn new(receipt_id: String, receipt: &Receipt) -> Self {
        Self {
            receipt_id,
            object_id: receipt.object.as_ref().map(ToString::to_string),
            error: receipt.error.as_str().to_owned(),
            write_seq: receipt.write_seq.map(LeaseSeq::get),
            current_fence_seq: receipt.current_fence.map(Fence::get),
            holder_id: receipt.holder.as_ref().map(ToString::to_string),
            route: receipt.route.as_deref().map(str::to_owned),
            timestamp: time(receipt.at),
        }
    }
}

impl From<DrainReport> for DrainBody {
    fn from(report: DrainReport) -> Self {
        let DrainReport { settled, cancelled, unknown, waited_ms } = report;
        Self { settled, cancelled, unknown, waited_ms }
    }
}

impl LeaseBody {
    /// A lease and its state. An overdue lease is shown as held: only the ledger may call it expired, once it has
    /// ended the lease.
    #[must_use]
    pub fn new(view: &LeaseView) -> Self {
        let row = &view.row;
        let ended = row.ended.as_ref();
        Self {
            lease_id: row.lease_id.to_string(),
            lease_seq: row.seq.get(),
            object_id: row.object.to_string(),
            holder_id: row.holder.to_string(),
            acquired_at: time(row.acquired_at),
            expires_at: time(row.expires_at),
            ttl_ms: row.ttl.0,
            state: LeaseState::from(view.status),
            expires_in_ms: view.remaining_ms,
            tainted: row.tainted,
            ended_at: ended.map(|ended| time(ended.at)),
            released_at: ended.filter(|ended| ended.how == How::Released).map(|ended| time(ended.at)),
            reason: ended.and_then(|ended| reason(&ended.how)),
        }
    }
}

fn reason(how: &How) -> Option<String> {
    match how {
        How::Fenced { reason } => Some(reason.clone()),
        How::Expired | How::Released => None,
    }
}

impl From<LeaseStatus> for LeaseState {
    fn from(status: LeaseStatus) -> Self {
        match status {
            LeaseStatus::Held | LeaseStatus::Overdue => Self::Held,
            LeaseStatus::Draining => Self::Draining,
            LeaseStatus::Expired => Self::Expired,
            LeaseStatus::Released => Self::Released,
            LeaseStatus::Fenced => Self::Fenced,
        }
    }
}

impl GrantBody {
    #[must_use]
    pub fn new(granted: &Granted, now: Now) -> Self {
        let Granted { object, lease, drain, .. } = granted;
        let view = LeaseView {
            row: LeaseRow::new(object, lease, None),
            status: LeaseStatus::Held,
            remaining_ms: lease.remaining_ms(now),
        };
        Self {
            lease: LeaseBody::new(&view),
            fence_token: lease.token(object).expose(),
            request_id: lease.request.as_ref().map(ToString::to_string),
            drain: (*drain).into(),
            warning: None,
        }
    }
}

impl ObjectBody {
    #[must_use]
    pub fn new(record: &Record, now: Now) -> Self {
        let lease = record.lease().map(|(lease, ended)| {
            let status = match ended.map(|ended| &ended.how) {
                None => LeaseStatus::Held,
                Some(How::Expired) => LeaseStatus::Expired,
                Some(How::Released) => LeaseStatus::Released,
                Some(How::Fenced { .. }) => LeaseStatus::Fenced,
            };
            let remaining_ms = if ended.is_some() { 0 } else { lease.remaining_ms(now) };
            let row = LeaseRow::new(&record.object, lease, ended.cloned());
            LeaseBody::new(&LeaseView { row, status, remaining_ms })
        });
        let elected = record.elected.as_deref().filter(|elected| record.fence == elected.seq.into());
        Self {
            object_id: record.object.to_string(),
            fence: record.fence.get(),
            state: match record.state {
                State::Free { .. } => ObjectState::Free,
                State::Draining { .. } => ObjectState::Draining,
                State::Open { .. } => ObjectState::Open,
            },
            lease_source: record.source().into(),
            locked: record.lost > 0,
            term: elected.map(|elected| elected.election.to_string()),
            lease,
            changed: record.changed.to_string(),
        }
    }
}

impl EventBody {
    #[must_use]
    pub fn new(line: &Announcement) -> Self {
        let row = &line.row;
        Self {
            lease_id: row.lease_id.to_string(),
            lease_seq: row.seq.get(),
            object_id: row.object.to_string(),
            holder_id: row.holder.to_string(),
            fence: line.fence.get(),
            acquired_at: time(row.acquired_at),
            expires_at: time(row.expires_at),
            ended_at: row.ended.as_ref().map(|ended| time(ended.at)),
            reason: row.ended.as_ref().and_then(|ended| reason(&ended.how)),
        }
    }
}
