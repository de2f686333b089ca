//! Renewing, releasing and revoking a lease.

use super::{
    DrainReport, Granted, LedgerError, Moved, Reply,
    advance_callers::all_granted,
    advances::AdvanceCaller,
    core::{Changed, Core, answer, granted, not_committed, unexpected, unreadable},
    pending::answer_leases,
    round::Round,
};
use crate::{
    fence::{
        Event, HolderId, LeaseId, LeaseRow, ObjectId, Outcome, Record, Ttl,
        step::{LeaseProof, LeaseRefusal},
        token::FenceToken,
    },
    metrics::RenewalRejection,
};

/// The metric's label for a refused renewal.
fn rejection(refused: &LedgerError) -> RenewalRejection {
    match refused {
        LedgerError::NotFound => RenewalRejection::NotFound,
        LedgerError::Lease { why, .. } => match why {
            LeaseRefusal::NotHolder => RenewalRejection::NotHolder,
            LeaseRefusal::TokenMismatch => RenewalRejection::TokenMismatch,
            LeaseRefusal::Fenced { .. } => RenewalRejection::Fenced,
            LeaseRefusal::Expired { .. } => RenewalRejection::Expired,
            LeaseRefusal::Held { .. }
            | LeaseRefusal::SeqExhausted
            | LeaseRefusal::ClockUntrusted
            | LeaseRefusal::Jump { .. }
            | LeaseRefusal::Predecessor { .. }
            | LeaseRefusal::FenceProof
            | LeaseRefusal::Ahead { .. }
            | LeaseRefusal::Locked { .. }
            | LeaseRefusal::GrantUsed => RenewalRejection::Other,
        },
        LedgerError::Unavailable | LedgerError::Unsure | LedgerError::Stalled => RenewalRejection::Unavailable,
        LedgerError::RequestIdUsed
        | LedgerError::Overloaded
        | LedgerError::Stopping
        | LedgerError::Draining { .. }
        | LedgerError::Migrating { .. }
        | LedgerError::MigrationMoved => RenewalRejection::Other,
    }
}

impl Core {
    /// `is_new`: the lease was rotated, so it is given back where its caller is gone.
    pub(super) fn answer_renewal(
        &self,
        round: &mut Round,
        reply: Reply<Granted>,
        renewed: Result<Granted, LedgerError>,
        is_new: bool,
    ) {
        let metrics = self.setup.metrics.clone();
        round.answers.push(Box::new(move |committed| {
            let renewed = if committed { renewed } else { Err(not_committed(&renewed)) };
            if let Err(refused) = &renewed {
                metrics.renewal_rejected(rejection(refused));
            }
            answer_leases(reply, renewed, is_new)
        }));
    }

    pub(super) fn renew(
        &mut self,
        round: &mut Round,
        lease_id: &LeaseId,
        (holder, token): (HolderId, FenceToken),
        ttl: Ttl,
        rotate: Option<LeaseId>,
        reply: Reply<Granted>,
    ) {
        let is_new = rotate.is_some();
        let renewed = self.known_lease(round, lease_id).and_then(|row| {
            let object = row.object.clone();
            let proof = LeaseProof { row, holder: Some(holder), token };
            self.change(round, &object, Event::Renew { proof, ttl, rotate }).map(|changed| (object, changed))
        });
        let renewed = match renewed {
            Ok((object, Changed::To(Outcome::Renewed(lease)))) => Ok(granted(object, lease)),
            Ok((object, Changed::To(other))) => Err(unexpected(object, other)),
            Ok((_, Changed::Opened(opened))) => {
                all_granted(opened).and_then(|mut granted| granted.pop().ok_or(LedgerError::NotFound))
            }
            Ok((_, Changed::Draining(drains))) => return self.keep_advance(drains, AdvanceCaller::Rotate(reply)),
            Err(refused) => Err(refused),
        };
        self.answer_renewal(round, reply, renewed, is_new);
    }

    pub(super) fn release(
        &mut self,
        round: &mut Round,
        lease_id: &LeaseId,
        holder: Option<HolderId>,
        token: FenceToken,
    ) -> Result<Record, LedgerError> {
        let row = self.known_lease(round, lease_id)?;
        let object = row.object.clone();
        match self.change(round, &object, Event::Release { proof: LeaseProof { row, holder, token } })? {
            Changed::To(Outcome::Freed) => self.newest(round, &object),
            Changed::To(other) => Err(unexpected(object, other)),
            Changed::Opened(_) | Changed::Draining(_) => unreachable!("a release moves no fence"),
        }
    }

    pub(super) fn revoke(
        &mut self,
        round: &mut Round,
        object: &ObjectId,
        revocation: Event,
        force: bool,
        reply: Reply<Moved>,
    ) {
        let revoked = match self.change_by_force(round, object, revocation, force) {
            Ok(Changed::Opened(opened)) => self.newest(round, object).map(|record| {
                let drain = opened.into_iter().next().map_or_else(DrainReport::default, |(_, _, report)| report);
                Moved { record, drain, is_superseded: false }
            }),
            Ok(Changed::Draining(drains)) => {
                self.keep_advance(drains, AdvanceCaller::Move(vec![reply]));
                return self.try_finish_advances_of(round, object);
            }
            Ok(Changed::To(other)) => Err(unexpected(object.clone(), other)),
            Err(refused) => Err(refused),
        };
        answer(round, reply, revoked);
        // Callers that wait for an older drain of this object have been overtaken.
        self.try_finish_advances_of(round, object);
    }

    fn known_lease(&self, round: &Round, lease_id: &LeaseId) -> Result<LeaseRow, LedgerError> {
        let row = round.lease_row(&self.setup.records, lease_id).map_err(|fault| unreadable(&fault))?;
        row.ok_or(LedgerError::NotFound)
    }
}
