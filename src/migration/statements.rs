//! What this gate signs as an issuer: that a lease is over, that its writes are, and the next holder's grant.

use super::{
    Last,
    drive::{final_head, is_drained},
    last_lease,
};
use crate::{
    authority::{
        Authority, Own,
        json::{AcknowledgedMessage, Message},
        statement::{FenceAcknowledged, FenceCertificate, LeaseGrant, Signed, Statement},
    },
    fence::{
        Certified, Code, Hlc, HolderId, IssuerId, LeaseId, LeaseSeq, MigrationId, Now, ObjectId, Record, RequestId,
        State, Ttl, WallMs,
        authority::{Predecessor, SignedGrant},
    },
    gate::Shared,
    problem::Problem,
    table::{
        codec::{JournalHead, Key, MigrationRow},
        ledger::{Certificate, authority as rows, rare_id},
    },
};

/// Signs that a lease is over.
pub(super) fn sign_fence(
    authority: &Authority,
    own: &Own,
    domain: &ObjectId,
    (lease_id, lease_seq, start): (LeaseId, LeaseSeq, WallMs),
    next: HolderId,
    now: Now,
) -> Signed<FenceCertificate> {
    let certificate = FenceCertificate {
        origin: authority.own_origin(),
        domain: domain.clone(),
        fenced_lease_id: lease_id,
        lease_seq,
        lease_start: start,
        // The certificate must not be dated before the start of a lease that began just now.
        fence_time: Hlc { ms: now.wall.0.max(start.0), logical: u32::from(now.wall <= start) },
        issuer: own.issuer.clone(),
        next_holder: Some(next),
    };
    authority.sign(own, certificate)
}

/// The stored certificate that the record names.
pub(super) async fn kept(gate: &Shared, domain: &ObjectId, by: &Certified) -> Result<Option<Vec<u8>>, Problem> {
    let (domain, seq, proof) = (domain.clone(), by.seq, by.proof);
    gate.read(move |records| {
        let all = rows::row(&*records.table, &Key::Certificate(domain, seq).encode())?;
        Ok(all.into_iter().find(|signed| signed.ends_with(&proof.0)))
    })
    .await
}

/// The gate as an issuer of this domain.
///
/// # Errors
/// `NOT_AN_ISSUER`.
pub fn issuer<'a>(authority: &'a Authority, domain: &ObjectId) -> Result<&'a Own, Problem> {
    authority.own_for(domain).ok_or_else(|| {
        let what = "this gate holds no issuer's key for this domain; see [authority] and [[issuer]]";
        Problem::new(Code::NotAnIssuer, what).with_object(domain)
    })
}

pub(super) fn grant_for(
    authority: &Authority,
    own: &Own,
    row: &MigrationRow,
    record: &Record,
    now: Now,
) -> Option<LeaseGrant> {
    // The number to which the certificate has moved the fence has no lease yet.
    let lease_seq = if record.fenced_by().is_some() { LeaseSeq::new(record.fence.get()) } else { record.fence.next() }?;
    let proof = rows::read(row.certificate.clone(), &row.domain).ok().map(|certificate| certificate.by.proof);
    let predecessor = row.fenced.as_ref().map(|(lease_id, _)| Predecessor { lease_id: lease_id.clone(), proof });
    Some(LeaseGrant {
        origin: authority.own_origin(),
        domain: row.domain.clone(),
        lease_id: LeaseId::new(&rare_id(now.wall)).ok()?,
        lease_seq,
        holder: row.next_holder.clone(),
        start: now.wall,
        expiry: now.wall.after(Ttl(row.ttl_ms)),
        predecessor,
        issuer: own.issuer.clone(),
    })
}

/// A grant that is part of a migration: only the caller that confirms the migration gets its token, and a caller
/// that shows the grant does not.
pub(super) fn of_migration(authority: &Authority, id: &MigrationId, given: &LeaseGrant) -> SignedGrant {
    let mut signed = authority.grant_of(given);
    signed.grant.request = RequestId::new(&format!("migration:{id}")).ok();
    // The grant is this gate's own.
    signed.max_jump = u64::MAX;
    signed
}

pub(super) fn acknowledged(
    authority: &Authority,
    issuer: &IssuerId,
    (domain, lease_id, seq): (&ObjectId, &LeaseId, LeaseSeq),
    record: &Record,
    head: JournalHead,
    now: Now,
) -> FenceAcknowledged {
    FenceAcknowledged {
        origin: authority.own_origin(),
        domain: domain.clone(),
        fenced_lease_id: lease_id.clone(),
        lease_seq: seq,
        fence: record.fence,
        state_hash: head.hash,
        writes: head.count,
        issuer: issuer.clone(),
        timestamp: now.mark(),
    }
}

/// FENCE_ACKNOWLEDGED for a certificate that has moved the fence to its present number. It is made once no write of
/// the fenced lease can land any more, and only while the object has had no other holder: later the hash would
/// include that holder's writes. Signed, where this gate holds a key for the domain.
///
/// # Errors
/// When the table is not usable.
pub async fn acknowledgement(
    gate: &Shared,
    signed: &Signed<FenceCertificate>,
    record: &Record,
) -> Result<Option<AcknowledgedMessage>, Problem> {
    let given = &signed.statement;
    let is_at_fence = record.fenced_by().is_some_and(|by| by.seq == given.lease_seq);
    if record.state != (State::Free { last: None }) || !is_at_fence || !is_drained(gate, &given.domain) {
        return Ok(None);
    }
    let head = final_head(gate, &given.domain).await?;
    let domain = given.domain.clone();
    let after = gate.read(move |records| records.read(&domain)).await?;
    if (after.fence, &after.state) != (record.fence, &record.state) {
        // The object was granted meanwhile, so the new holder's writes may be in the hash.
        return Ok(None);
    }
    let authority = gate.authority.load_full();
    let about = (&given.domain, &given.fenced_lease_id, given.lease_seq);
    let said = |issuer: &IssuerId| acknowledged(&authority, issuer, about, record, head, gate.now());
    Ok(Some(match authority.own_for(&given.domain) {
        Some(own) => AcknowledgedMessage::of(&authority.sign(own, said(&own.issuer))),
        None => AcknowledgedMessage::unsigned(&said(&given.issuer)),
    }))
}

/// The certificate for a lease that is over, signed now where the lease was not fenced before. It answers a request
/// that need not wait.
///
/// # Errors
/// With the reason why there is none.
pub async fn fence_ended(
    gate: &Shared,
    record: &Record,
    next: HolderId,
) -> Result<Option<Signed<FenceCertificate>>, Problem> {
    let authority = gate.authority.load_full();
    let own = issuer(&authority, &record.object)?;
    let (lease_id, seq, start) = match last_lease(record) {
        None => return Ok(None),
        Some(Last::Lease(lease_id, seq, start)) => (lease_id, seq, start),
        Some(Last::Certified(by)) => return Ok(kept(gate, &record.object, &by).await?.and_then(|each| stored(&each))),
    };
    let now = gate.now();
    let signed = sign_fence(&authority, own, &record.object, (lease_id, seq, start), next, now);
    let by = authority.certificate(&signed, now).map_err(|untrusted| Problem::new(untrusted.code, untrusted.what))?;
    let certificate = Certificate { domain: record.object.clone(), by, signed: signed.to_bytes() };
    let moved = gate.ledger.certify(certificate, authority.settings.max_jump, None).await;
    moved.map_err(|refused| Problem::refused(&refused, gate.now()))?;
    Ok(Some(signed))
}

/// Reads a stored statement; `None` where there is none.
pub(crate) fn stored<T: Statement>(bytes: &[u8]) -> Option<Signed<T>> {
    if bytes.is_empty() { None } else { Signed::from_bytes(bytes).ok() }
}
