//! Signed authority: who may fence and grant leases on which domains, and what they must show for it.
//!
//! - [`bls`]: keys and signatures; the only import of blst.
//! - [`statement`]: the bytes that are signed, one layout per kind of message.
//! - [`json`]: the same messages as people and programs send them; `fields` reads their fields. [`unique`]: no key
//!   occurs twice in an object.
//! - [`parties`]: issuers and requesters, their keys and their domains.
//! - [`key_file`]: an issuer's secret key on disk.
//!
//! `fence::authority` decides what a statement with a valid signature does to a record; the ledger makes it durable.
//! Any caller may send a certificate, any number of times, in any order.

pub mod bls;
mod fields;
pub mod json;
pub mod key_file;
pub mod parties;
pub mod statement;
pub mod unique;

use std::sync::Arc;

use self::{
    bls::{PublicKey, SecretKey, Signature},
    parties::Parties,
    statement::{FenceCertificate, FenceRequest, Kind, LeaseActive, LeaseGrant, Origin, Signed, Statement},
};
use crate::{
    config::{AuthoritySettings, Fault, Settings},
    fence::{
        Certified, Code, Hlc, IssuerId, Now, ObjectId,
        authority::{FenceProof, SignedGrant},
        step::{Grant, Source, Window},
    },
};

/// How far ahead of the gate's own clock a signed time may be.
pub const AHEAD_MAX_MS: u64 = 60_000;

/// Why a signed statement is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untrusted {
    pub code: Code,
    pub what: String,
}

impl Untrusted {
    fn new(code: Code, what: impl Into<String>) -> Self {
        Self { code, what: what.into() }
    }
}

/// The parties whose statements this gate accepts, and its own signing key, if it has one.
#[derive(Debug, Default)]
pub struct Authority {
    pub settings: AuthoritySettings,
    issuers: Parties,
    requesters: Parties,
    own: Option<Own>,
}

/// The gate as an issuer.
#[derive(Debug)]
pub struct Own {
    pub issuer: IssuerId,
    key_epoch: u32,
    key: SecretKey,
}

impl Authority {
    /// Reads issuers, requesters and the gate's own key.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub fn new(settings: &Settings) -> Result<Self, Vec<Fault>> {
        let mut faults = vec![];
        let issuers = Parties::new("issuer", &settings.issuer, &mut faults);
        let mut requesters = Parties::new("requester", &settings.requester, &mut faults);
        let given = &settings.authority;
        let is_used = !settings.issuer.is_empty() || !settings.requester.is_empty();
        if is_used && given.cluster_id.is_empty() {
            faults.push(Fault::new(
                "authority.cluster_id",
                "must be set where there are issuers: it keeps statements of other clusters out",
            ));
        }
        if given.cluster_id.len() > 128 || given.cluster_id.chars().any(char::is_control) {
            faults.push(Fault::new("authority.cluster_id", "must be at most 128 bytes without control characters"));
        }
        let own = match Own::new(given, &issuers) {
            Ok(own) => own,
            Err(fault) => {
                faults.push(fault);
                None
            }
        };
        if let Some(own) = &own {
            // The operator of the gate may ask it for what it signs.
            requesters.add_all(issuers.of(own.issuer.as_str()));
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        Ok(Self { settings: given.clone(), issuers, requesters, own })
    }

    /// The gate as an issuer, if it is one for this domain.
    #[must_use]
    pub fn own_for(&self, domain: &ObjectId) -> Option<&Own> {
        let own = self.own.as_ref()?;
        let party = self.issuers.find(own.issuer.as_str(), own.key_epoch)?;
        party.covers(domain).then_some(own)
    }

    /// The origin of the gate's own statements.
    #[must_use]
    pub fn own_origin(&self) -> Origin {
        let key_epoch = self.own.as_ref().map_or(0, |own| own.key_epoch);
        Origin { cluster_id: self.settings.cluster_id.clone(), key_epoch }
    }

    /// Signs one of the gate's own statements.
    #[must_use]
    pub fn sign<T: Statement>(&self, own: &Own, statement: T) -> Signed<T> {
        let signature = own.key.sign(T::KIND, &statement.bytes());
        Signed { statement, signature }
    }

    /// Makes a certificate's four checks except the last, which the record makes.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn certificate(&self, signed: &Signed<FenceCertificate>, now: Now) -> Result<Arc<Certified>, Untrusted> {
        let FenceCertificate { origin, domain, fenced_lease_id, lease_seq, lease_start, fence_time, issuer, .. } =
            &signed.statement;
        self.is_by(&self.issuers, issuer.as_str(), (origin, domain), signed)?;
        if *fence_time <= (Hlc { ms: lease_start.0, logical: 0 }) {
            let what = format!(
                "fence_time {fence_time} is not after the start of the lease that it fences, {}",
                lease_start.0
            );
            return Err(Untrusted::new(Code::FenceBeforeLease, what));
        }
        is_not_ahead("fence_time", *fence_time, now)?;
        Ok(Arc::new(Certified {
            lease_id: fenced_lease_id.clone(),
            seq: *lease_seq,
            issuer: issuer.clone(),
            time: *fence_time,
            proof: FenceProof(signed.signature.to_bytes()),
        }))
    }

    /// A grant, if its signature holds and its issuer may make it.
    ///
    /// # Errors
    /// What is wrong.
    pub fn grant(&self, signed: &Signed<LeaseGrant>) -> Result<SignedGrant, Untrusted> {
        let given = &signed.statement;
        self.is_by(&self.issuers, given.issuer.as_str(), (&given.origin, &given.domain), signed)?;
        Ok(self.grant_of(given))
    }

    /// The grant as the record needs it.
    #[must_use]
    pub fn grant_of(&self, given: &LeaseGrant) -> SignedGrant {
        let window = Window { start: given.start, until: given.expiry };
        let grant = Grant {
            lease_id: given.lease_id.clone(),
            holder: given.holder.clone(),
            // The window gives the lease's time.
            ttl: crate::fence::Ttl(0),
            request: None,
            tainted: false,
            window: Some(window),
            source: Source::Gate,
        };
        let (seq, predecessor) = (given.lease_seq, given.predecessor.clone());
        SignedGrant { seq, grant, predecessor, proofs: vec![], max_jump: self.settings.max_jump }
    }

    /// Checks that a request's signature holds and its requester may make it.
    ///
    /// # Errors
    /// What is wrong.
    pub fn request(&self, signed: &Signed<FenceRequest>, now: Now) -> Result<(), Untrusted> {
        let FenceRequest { origin, domain, requester, timestamp, .. } = &signed.statement;
        self.is_by(&self.requesters, requester.as_str(), (origin, domain), signed)?;
        is_recent("timestamp", *timestamp, now)
    }

    /// Whether this holder's key is known here, so that it can confirm a handover.
    #[must_use]
    pub fn knows_holder(&self, holder: &str, domain: &ObjectId) -> bool {
        self.requesters.of(holder).iter().any(|party| !party.retired && party.covers(domain))
    }

    /// Checks that a confirmation is signed by the next holder.
    ///
    /// # Errors
    /// What is wrong.
    pub fn active(&self, signed: &Signed<LeaseActive>, now: Now) -> Result<(), Untrusted> {
        let LeaseActive { origin, domain, holder, timestamp, .. } = &signed.statement;
        self.is_by(&self.requesters, holder.as_str(), (origin, domain), signed)?;
        is_recent("timestamp", *timestamp, now)
    }

    /// Checks the signature, then the authority. Without a key of the signer, no signature can be checked.
    fn is_by<T: Statement>(
        &self,
        parties: &Parties,
        name: &str,
        (origin, domain): (&Origin, &ObjectId),
        signed: &Signed<T>,
    ) -> Result<(), Untrusted> {
        if origin.cluster_id != self.settings.cluster_id {
            let what =
                format!("this statement is for cluster {:?}, and this gate belongs to another", origin.cluster_id);
            return Err(Untrusted::new(Code::ForeignCluster, what));
        }
        if parties.of(name).is_empty() {
            return Err(Untrusted::new(
                Code::UnknownIssuer,
                format!("{name} is not known here; see [[issuer]] and [[requester]]"),
            ));
        }
        let Some(party) = parties.find(name, origin.key_epoch) else {
            let what = format!("no key of {name} with epoch {} is known here", origin.key_epoch);
            return Err(Untrusted::new(Code::UnknownIssuer, what));
        };
        if party.retired {
            let what = format!(
                "the key of {name} with epoch {} is retired; what it has fenced stays fenced",
                origin.key_epoch
            );
            return Err(Untrusted::new(Code::KeyEpochRetired, what));
        }
        if !signed.signature.is_by(&party.key, T::KIND, &signed.statement.bytes()) {
            let what =
                format!("{name} has not signed this {} with its key of epoch {}", T::KIND.name(), origin.key_epoch);
            return Err(Untrusted::new(Code::InvalidFenceSignature, what));
        }
        if party.covers(domain) {
            return Ok(());
        }
        Err(Untrusted::new(Code::UnauthorizedFence, format!("{name} has no authority over {domain}")))
    }

    /// The key that a message of this kind must be signed with.
    ///
    /// # Errors
    /// Why there is no such key.
    pub fn signer(&self, kind: Kind, name: &str, key_epoch: u32, domain: &ObjectId) -> Result<&PublicKey, String> {
        let parties = match kind {
            Kind::FenceCertificate | Kind::FenceAcknowledged | Kind::LeaseGrant => &self.issuers,
            Kind::FenceRequest | Kind::LeaseActive => &self.requesters,
        };
        match parties.find(name, key_epoch) {
            None => Err("its signer or key epoch is not known".to_owned()),
            Some(party) if party.retired => Err("its key is retired".to_owned()),
            Some(party) if !party.covers(domain) => Err("its signer has no authority over the domain".to_owned()),
            Some(party) => Ok(&party.key),
        }
    }
}

fn is_not_ahead(field: &str, stamp: Hlc, now: Now) -> Result<(), Untrusted> {
    if stamp.ms <= now.wall.0.saturating_add(AHEAD_MAX_MS) {
        return Ok(());
    }
    let what = format!(
        "{field} {stamp} is more than {AHEAD_MAX_MS} ms ahead of this gate's clock, which reads {}",
        now.wall.0
    );
    Err(Untrusted::new(Code::FenceTimeAhead, what))
}

/// Neither in the future nor long ago: an old request must not be usable for ever.
fn is_recent(field: &str, stamp: Hlc, now: Now) -> Result<(), Untrusted> {
    is_not_ahead(field, stamp, now)?;
    if now.wall.0.saturating_sub(stamp.ms) <= AHEAD_MAX_MS {
        return Ok(());
    }
    let what = format!(
        "{field} {stamp} is more than {AHEAD_MAX_MS} ms ago by this gate's clock, which reads {}; sign it anew",
        now.wall.0
    );
    Err(Untrusted::new(Code::RequestStale, what))
}

impl Own {
    fn new(settings: &AuthoritySettings, issuers: &Parties) -> Result<Option<Self>, Fault> {
        let (has_key, has_name) = (!settings.key_file.as_os_str().is_empty(), !settings.issuer.is_empty());
        match (has_key, has_name) {
            (false, false) => return Ok(None),
            (true, true) => {}
            _ => return Err(Fault::new("authority.key_file", "authority.issuer and authority.key_file go together")),
        }
        let key =
            key_file::read(&settings.key_file).map_err(|fault| Fault::new("authority.key_file", fault.to_string()))?;
        let name = &settings.issuer;
        let party = issuers.of(name).iter().find(|party| party.key == key.public());
        let party = party.ok_or_else(|| {
            Fault::new(
                "authority.issuer",
                format!("no [[issuer]] named {name:?} has the public key of authority.key_file"),
            )
        })?;
        if party.retired {
            return Err(Fault::new("authority.key_file", "this key is retired; sign with a newer one"));
        }
        let issuer = IssuerId::new(name).map_err(|fault| Fault::new("authority.issuer", fault.to_string()))?;
        Ok(Some(Self { issuer, key_epoch: party.key_epoch, key }))
    }
}

/// Signs a statement with a given key: for the command line and for tests.
#[must_use]
pub fn sign<T: Statement>(key: &SecretKey, statement: T) -> Signed<T> {
    let signature: Signature = key.sign(T::KIND, &statement.bytes());
    Signed { statement, signature }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
