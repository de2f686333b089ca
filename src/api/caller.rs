//! The caller of one call: who it is, and what it may do. Handlers get objects and holders through it, so that none can
//! be used that the caller may not use.

use std::{future::Future, net::IpAddr, sync::Arc};

use axum::{
    Json,
    extract::{FromRequestParts, State},
    http::request::Parts,
};
use tokio::sync::watch;

use super::extract;
use crate::{
    access::{
        Access,
        identity::{Shown, Unidentified},
        principal::{Kind, Principal},
        rules::{Denied, View},
    },
    audit::Facts,
    config::Operation,
    fence::{Code, HolderId, ObjectId},
    gate::{Gate, Shared},
    problem::Problem,
    tls::Certificate,
    wire::WhoBody,
};

/// The most holders' names that a refusal or `GET /v1/whoami` lists.
const HOLDERS_MAX: usize = 8;

/// Who calls.
#[derive(Clone)]
pub struct Caller {
    gate: Shared,
    who: Arc<Principal>,
    proof: Proof,
    /// What the call does.
    operation: Operation,
    facts: Facts,
}

/// What a caller has shown of who it is. It has no `Debug`: a bearer token must not get into a log.
#[derive(Clone)]
pub struct Proof {
    pub(super) bearer: Option<Arc<str>>,
    pub(super) certificate: Option<Arc<Certificate>>,
    pub(super) peer: Option<IpAddr>,
}

impl Proof {
    fn is_near(&self) -> bool {
        self.peer.is_some_and(|peer| peer.is_loopback())
    }

    fn shown(&self) -> Shown<'_> {
        Shown { bearer: self.bearer.as_deref(), certificate: self.certificate.as_deref(), peer: self.peer }
    }

    /// Who has shown it.
    ///
    /// # Errors
    /// When that is not known.
    pub(super) async fn identify(&self, gate: &Gate) -> Result<Principal, Unidentified> {
        gate.access.load_full().identify(self.is_near(), self.shown(), gate.now().wall).await
    }
}

/// Who calls, for calls that everyone who is known may make.
#[derive(Clone)]
pub struct Known(pub Arc<Principal>);

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        // The layers let no call through without this.
        parts.extensions.get::<Self>().cloned().ok_or_else(|| unknown("the call has no caller"))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Known {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| unknown("the call has no caller"))
    }
}

/// The refusal of a caller that is not known.
pub(super) fn unknown(why: impl std::fmt::Display) -> Problem {
    let what = format!("{why}. Send Authorization: Bearer TOKEN, or show a client certificate");
    Problem::new(Code::IdentityRequired, what)
}

impl Caller {
    pub(super) fn new(gate: Shared, who: Arc<Principal>, proof: Proof, operation: Operation, facts: Facts) -> Self {
        Self { gate, who, proof, operation, facts }
    }

    /// What the call's line in the audit log will say.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Who it is.
    #[must_use]
    pub fn who(&self) -> &Principal {
        &self.who
    }

    /// The object of this name, if the caller may do this to it.
    ///
    /// # Errors
    /// `REQUEST_INVALID` with the field, `ACCESS_DENIED`.
    pub fn object(&self, field: &str, text: &str) -> Result<ObjectId, Problem> {
        let object = extract::object(field, text)?;
        self.may(&object)?;
        Ok(object)
    }

    /// # Errors
    /// `ACCESS_DENIED` where the caller may not do this to the object.
    pub fn may(&self, object: &ObjectId) -> Result<(), Problem> {
        self.facts.object(object);
        let access = self.gate.access.load();
        self.decide(&access, object, None)
    }

    /// # Errors
    /// `ACCESS_DENIED` where the caller may not have leases of these objects in this holder's name.
    pub fn may_hold(&self, objects: &[ObjectId], holder: &HolderId) -> Result<(), Problem> {
        self.facts.held(objects, holder);
        let access = self.gate.access.load();
        objects.iter().try_for_each(|object| self.decide(&access, object, Some(holder)))
    }

    /// Whether the caller may know of an object.
    #[must_use]
    pub fn sees(&self, object: &ObjectId) -> bool {
        self.gate.access.load().shows(&self.who, object)
    }

    /// The objects to which the caller may do this.
    #[must_use]
    pub fn view(&self) -> View {
        self.gate.access.load().view(&self.who, self.operation)
    }

    /// Whether it may have leases under some names only.
    #[must_use]
    pub fn must_be_holder(&self) -> bool {
        self.who.kind() != Kind::Loopback
    }

    /// # Errors
    /// `ACCESS_DENIED` where there are objects to which the caller may not do this.
    pub fn may_on_all(&self) -> Result<(), Problem> {
        if self.view().is_all() {
            return Ok(());
        }
        let what = format!(
            "{} may {} some objects only, and this call concerns all: it needs a [[grant]] with objects = [\"*\"]",
            self.who, self.operation
        );
        Err(Problem::new(Code::AccessDenied, what))
    }

    fn decide(&self, access: &Access, object: &ObjectId, holder: Option<&HolderId>) -> Result<(), Problem> {
        let decided = access.decide(&self.who, self.operation, object, holder);
        decided.map(drop).map_err(|denied| self.denied(&denied, holder).with_object(object))
    }

    fn denied(&self, denied: &Denied, holder: Option<&HolderId>) -> Problem {
        let (who, operation) = (&self.who, self.operation);
        let what = match denied {
            Denied::Operation => format!("no [[grant]] lets {who} {operation}"),
            Denied::Object => format!("no [[grant]] lets {who} {operation} this object"),
            Denied::Holder(names) => {
                let holder = holder.map(ToString::to_string).unwrap_or_default();
                format!("{who} may not be the holder {holder:?}; it may be {}", in_words(names))
            }
        };
        Problem::new(Code::AccessDenied, what)
    }

    /// Whether the caller is still who it was, and may still do this to some object.
    pub async fn is_still_welcome(&self) -> bool {
        let access = self.gate.access.load_full();
        let now = self.gate.now().wall;
        access.allows_some(&self.who, self.operation)
            && access.still_know(&self.who, self.proof.is_near(), self.proof.shown(), now).await
    }

    /// Waits for a call's work, as long as `allowed` is so by the present settings.
    ///
    /// # Errors
    /// That of `allowed`. The work is dropped then.
    pub async fn while_allowed<T>(
        &self,
        allowed: impl Fn() -> Result<(), Problem>,
        work: impl Future<Output = T>,
    ) -> Result<T, Problem> {
        let mut changes = self.changes();
        let mut work = std::pin::pin!(work);
        let done = loop {
            tokio::select! {
                done = &mut work => break done,
                // The sender lives as long as the gate.
                _ = changes.changed() => allowed()?,
            }
        };
        allowed()?;
        Ok(done)
    }

    /// Notices changes of who may do what.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<()> {
        self.gate.access_changes.subscribe()
    }
}

/// Holders' names that would be allowed.
fn in_words(names: &[(String, &'static str)]) -> String {
    let word =
        |(root, separator): &(String, &str)| format!("{root:?}, or that and {separator:?} and a part of your own");
    let listed: Vec<_> = names.iter().take(HOLDERS_MAX).map(word).collect();
    listed.join("; ")
}

/// Who the caller is, as the gate sees it, and what it may do.
#[utoipa::path(get, operation_id = "whoAmI", path = "/v1/whoami", tag = "access", responses(
    (status = 200, body = WhoBody), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub async fn whoami(State(gate): State<Shared>, Known(who): Known) -> Json<WhoBody> {
    Json(body(&gate, &who))
}

fn body(gate: &Gate, who: &Principal) -> WhoBody {
    let access = gate.access.load();
    let may = |operation: &Operation| access.allows_some(who, *operation);
    WhoBody {
        principal: who.name().to_owned(),
        source: who.source().to_owned(),
        groups: who.groups().to_vec(),
        operations: Operation::ALL.into_iter().filter(may).map(|operation| operation.to_string()).collect(),
        holder_separator: access.holders(who).first().map_or("", |(_, separator)| separator).to_owned(),
        holders: access.holders(who).into_iter().take(HOLDERS_MAX).map(|(root, _)| root).collect(),
    }
}
