//! Issuers and requesters: their keys, by epoch, and the domains that they may speak for.

use super::bls::{PublicKey, Signature};
use crate::{
    config::{Fault, PartySettings},
    fence::{HolderId, IssuerId, ObjectId, domain::Domain},
};

/// One key of an issuer or requester.
#[derive(Clone, Debug)]
pub struct Party {
    pub name: String,
    pub key_epoch: u32,
    pub key: PublicKey,
    /// It signs no more. Its earlier signatures keep their effect.
    pub retired: bool,
    domains: Vec<Domain>,
}

impl Party {
    #[must_use]
    pub fn covers(&self, object: &ObjectId) -> bool {
        self.domains.iter().any(|domain| domain.covers(object.as_str()))
    }
}

/// All parties of one kind. Keys of one name are next to each other.
#[derive(Clone, Debug, Default)]
pub struct Parties(Vec<Party>);

impl Parties {
    pub(super) fn new(section: &str, given: &[PartySettings], faults: &mut Vec<Fault>) -> Self {
        let mut parties: Vec<Party> = vec![];
        for (place, settings) in given.iter().enumerate() {
            match read(settings) {
                Err((key, what)) => faults.push(Fault::new(format!("{section}[{place}].{key}"), what)),
                Ok(party)
                    if parties.iter().any(|each| (&each.name, each.key_epoch) == (&party.name, party.key_epoch)) =>
                {
                    let what = format!("{:?} has a key with epoch {} already", party.name, party.key_epoch);
                    faults.push(Fault::new(format!("{section}[{place}].key_epoch"), what));
                }
                Ok(party) => parties.push(party),
            }
        }
        parties.sort_by(|one, two| one.name.cmp(&two.name));
        Self(parties)
    }

    pub(super) fn add_all(&mut self, more: &[Party]) {
        let new = |party: &&Party| self.find(&party.name, party.key_epoch).is_none();
        let more: Vec<Party> = more.iter().filter(new).cloned().collect();
        self.0.extend(more);
        self.0.sort_by(|one, two| one.name.cmp(&two.name));
    }

    /// All keys of one name.
    #[must_use]
    pub fn of(&self, name: &str) -> &[Party] {
        let begin = self.0.partition_point(|party| party.name.as_str() < name);
        let rest = &self.0[begin..];
        &rest[..rest.partition_point(|party| party.name == name)]
    }

    #[must_use]
    pub fn find(&self, name: &str, key_epoch: u32) -> Option<&Party> {
        self.of(name).iter().find(|party| party.key_epoch == key_epoch)
    }
}

fn read(settings: &PartySettings) -> Result<Party, (&'static str, String)> {
    IssuerId::new(&settings.name).map_err(|fault| ("name", fault.to_string()))?;
    HolderId::new(&settings.name).map_err(|fault| ("name", fault.to_string()))?;
    let key: PublicKey = settings.public_key.parse().map_err(|fault| ("public_key", format!("{fault}")))?;
    let proof: Signature =
        settings.proof_of_possession.parse().map_err(|fault| ("proof_of_possession", format!("{fault}")))?;
    if !key.is_possessed(&proof) {
        return Err(("proof_of_possession", "is not this public key's; `fencegate cert pop` makes it".to_owned()));
    }
    if settings.domains.is_empty() {
        return Err(("domains", "must name at least one, such as \"/data\"".to_owned()));
    }
    let domains = settings.domains.iter().map(|text| Domain::parse(text)).collect::<Result<_, _>>();
    Ok(Party {
        name: settings.name.clone(),
        key_epoch: settings.key_epoch,
        key,
        retired: settings.retired,
        domains: domains.map_err(|what| ("domains", what))?,
    })
}
