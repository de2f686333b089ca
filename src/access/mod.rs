//! Who calls the api, and what each caller may do.
//!
//! - [`principal`]: who a caller is. [`identity`]: how callers prove it.
//! - [`template`]: texts of rules that hold parts of a principal's identity. [`rules`]: which principals may do what to
//!   which objects, and in whose name.
//! - [`turns`]: how often one principal may call.
//!
//! Without a grant everything is denied. A caller on the gate's own machine needs no proof unless the settings ask for
//! one, and may do everything then.

pub mod identity;
pub mod principal;
pub mod rules;
pub mod template;
pub mod turns;

use self::{
    identity::{Identities, Shown, Unidentified},
    principal::{Kind, Principal},
    rules::{Denied, Rules, View},
};
use crate::{
    config::{AccessSettings, Fault, Loopback, Operation, Settings},
    fence::{HolderId, ObjectId, WallMs},
};

/// Who may call by the present settings.
pub struct Access {
    identities: Identities,
    rules: Rules,
    pub settings: AccessSettings,
}

impl Access {
    /// By these settings. `before`: the access that a reload replaces, whose sources keep what they know.
    ///
    /// # Errors
    /// With every fault.
    pub fn new(settings: &Settings, before: Option<&Self>) -> Result<Self, Vec<Fault>> {
        let mut faults = beyond_loopback(settings);
        let identities = Identities::new(settings, before.map(|before| &before.identities));
        let identities = identities.map_err(|found| faults.extend(found));
        let sources: Vec<&str> = settings.identity.iter().map(|source| source.name.as_str()).collect();
        let rules = Rules::new(&settings.grant, &sources).map_err(|found| faults.extend(found));
        let by = &settings.access;
        let mut check = |ok: bool, key: &str, what: &str| {
            if !ok {
                faults.push(Fault::new(key, what));
            }
        };
        check(by.calls_per_second >= 1, "access.calls_per_second", "must be at least 1");
        check(by.calls_burst >= 1, "access.calls_burst", "must be at least 1");
        check(by.calls_at_once >= 1, "access.calls_at_once", "must be at least 1");
        check(
            by.loopback == Loopback::Trusted || !settings.identity.is_empty(),
            "access.loopback",
            "\"authenticate\" needs an [[identity]]: without one, no caller can prove who it is",
        );
        check(
            settings.grant.is_empty() || !settings.identity.is_empty(),
            "grant",
            "needs an [[identity]]: without one, no caller has a name that a grant could be for",
        );
        match (identities, rules) {
            (Ok(identities), Ok(rules)) if faults.is_empty() => Ok(Self { identities, rules, settings: by.clone() }),
            _ => Err(faults),
        }
    }

    /// Whether callers are asked who they are. `is_near`: those on the gate's own machine.
    #[must_use]
    pub fn asks(&self, is_near: bool) -> bool {
        !(is_near && self.settings.loopback == Loopback::Trusted && self.identities.are_none())
    }

    /// Who a caller is. `is_near`: it calls from the gate's own machine.
    ///
    /// # Errors
    /// When that is not known.
    pub async fn identify(&self, is_near: bool, shown: Shown<'_>, now: WallMs) -> Result<Principal, Unidentified> {
        if !self.asks(is_near) {
            return Ok(Principal::loopback());
        }
        let is_trusted = is_near && self.settings.loopback == Loopback::Trusted;
        match self.identities.identify(shown, now).await {
            Err(Unidentified::NothingShown) if is_trusted => Ok(Principal::loopback()),
            found => found,
        }
    }

    /// Whether a caller that was identified before still is who it was. A server that does not answer leaves it so until
    /// its proof ends.
    pub async fn still_know(&self, who: &Principal, is_near: bool, shown: Shown<'_>, now: WallMs) -> bool {
        match self.identify(is_near, shown, now).await {
            Ok(again) => again == *who,
            Err(Unidentified::Unavailable(_)) => !who.is_over(now),
            Err(Unidentified::NothingShown | Unidentified::Refused(_)) => false,
        }
    }

    /// Whether a principal may do this to any object at all.
    #[must_use]
    pub fn allows_some(&self, who: &Principal, operation: Operation) -> bool {
        who.kind() == Kind::Loopback || self.rules.allow_some(who, operation)
    }

    /// The objects to which a principal may do this.
    #[must_use]
    pub fn view(&self, who: &Principal, operation: Operation) -> View {
        if who.kind() == Kind::Loopback { View::all() } else { self.rules.view(who, operation) }
    }

    /// Whether a principal may do this to an object, and for `acquire` in this holder's name. Returns the name of the
    /// grant that allows it.
    ///
    /// # Errors
    /// When no grant allows it.
    pub fn decide(
        &self,
        who: &Principal,
        operation: Operation,
        object: &ObjectId,
        holder: Option<&HolderId>,
    ) -> Result<&str, Denied> {
        if who.kind() == Kind::Loopback {
            return Ok("access.loopback");
        }
        self.rules.decide(who, operation, object, holder)
    }

    /// Whether a principal may be this holder of the object.
    #[must_use]
    pub fn is_own(&self, who: &Principal, object: &ObjectId, holder: &HolderId) -> bool {
        self.decide(who, Operation::Acquire, object, Some(holder)).is_ok()
    }

    /// Whether a refusal may show a principal what the gate knows of an object: it may read it, or hold leases of it.
    #[must_use]
    pub fn shows(&self, who: &Principal, object: &ObjectId) -> bool {
        [Operation::Read, Operation::Acquire].into_iter().any(|each| self.decide(who, each, object, None).is_ok())
    }

    /// Who a client of the gate's port is. No client is trusted for its address there.
    ///
    /// # Errors
    /// When that is not known.
    pub async fn identify_writer(&self, shown: Shown<'_>, now: WallMs) -> Result<Principal, Unidentified> {
        self.identities.identify(shown, now).await
    }

    /// The holders' names that a principal may use, each with what may stand between it and a part of the principal's own
    /// choice. None: any name.
    #[must_use]
    pub fn holders(&self, who: &Principal) -> Vec<(String, &'static str)> {
        if who.kind() == Kind::Loopback { vec![] } else { self.rules.holders(who) }
    }
}

/// What the api needs where callers on other machines can reach it.
fn beyond_loopback(settings: &Settings) -> Vec<Fault> {
    let mut faults = vec![];
    let (api, access) = (&settings.api, &settings.access);
    if let Err((key, what)) = api.tls() {
        faults.push(Fault::new(format!("api.{key}"), what));
    }
    if api.listen.ip().is_loopback() {
        return faults;
    }
    let has_tls = !api.tls_cert_file.as_os_str().is_empty();
    if !has_tls && !api.insecure_plaintext {
        faults.push(Fault::new(
            "api.listen",
            "is not a loopback address, so the api needs TLS: set api.tls_cert_file and api.tls_key_file (api.insecure_plaintext = true only where a mesh encrypts)",
        ));
    }
    if settings.identity.is_empty() {
        faults.push(Fault::new(
            "api.listen",
            "is not a loopback address, so callers must prove who they are: add an [[identity]], and a [[grant]] for each that may do something",
        ));
    }
    if access.loopback == Loopback::Trusted && !settings.identity.is_empty() {
        faults.push(Fault::new(
            "access.loopback",
            "must be \"authenticate\" where api.listen is not a loopback address: a proxy or a port-forward on this machine passes the calls of other machines on from loopback",
        ));
    }
    faults
}
