//! The layers that write the audit log: [`record`] around a call, whose outcome is final there, and [`admit`] behind the
//! checks of who calls. What the line says is in the call's [`Facts`].

use std::net::{IpAddr, SocketAddr};

use axum::{
    extract::{ConnectInfo, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tower_http::request_id::RequestId;

use super::{
    admission::{self, Guard},
    calls::{Audited, Need},
};
use crate::{
    audit::{
        Audit, Entry, Facts,
        entry::{OK, bounded},
        facts::Known,
    },
    fence::{Code, WallMs},
    problem::Problem,
};

/// Writes the call's line once its outcome is known, if it gets one.
pub(super) async fn record(State(guard): State<Guard>, mut request: Request, next: Next) -> Response {
    if !guard.gate.audit.is_on() {
        return next.run(request).await;
    }
    let facts = Facts::default();
    let call = Call {
        audit: guard.gate.audit.clone(),
        need: admission::need(&guard.needs, &request),
        facts: facts.clone(),
        request_id: id(&request),
        peer: peer(&request),
        is_done: false,
    };
    request.extensions_mut().insert(facts);
    let response = next.run(request).await;
    call.done(response.extensions().get::<Code>().copied());
    response
}

/// Lets a call in that gets a line in any case only if there is a place for the line.
pub(super) async fn admit(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let place = match admission::need(&guard.needs, &request).map(|need| need.audited) {
        Some(Audited::Always) => match guard.gate.audit.place() {
            None => return unavailable().into_response(),
            place => place,
        },
        Some(Audited::WhenDenied | Audited::WhenChanged | Audited::WhenRefused) | None => None,
    };
    facts(&request).admitted(place);
    next.run(request).await
}

/// The facts of a call. Without an audit log they go nowhere.
pub(super) fn facts(request: &Request) -> Facts {
    request.extensions().get::<Facts>().cloned().unwrap_or_default()
}

fn unavailable() -> Problem {
    let what = "the audit log cannot be written, and this call needs a line in it, so nothing was changed; the gate's log says why";
    Problem::new(Code::AuditUnavailable, what)
}

fn peer(request: &Request) -> Option<IpAddr> {
    request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| peer.ip().to_canonical())
}

fn id(request: &Request) -> Option<String> {
    request.extensions().get::<RequestId>().and_then(|id| id.header_value().to_str().ok()).map(bounded)
}

/// A call in progress. If it is dropped, since its caller has hung up, its outcome is unknown.
struct Call {
    audit: Audit,
    /// `None`: there is no such call.
    need: Option<Need>,
    facts: Facts,
    request_id: Option<String>,
    peer: Option<IpAddr>,
    is_done: bool,
}

/// Whether a refusal says that the caller was not let in.
fn is_denial(code: Code) -> bool {
    matches!(
        code,
        Code::IdentityRequired
            | Code::AccessDenied
            | Code::RateLimited
            | Code::IdentityUnavailable
            | Code::AuditUnavailable
            | Code::NotLoopback
    )
}

/// Whether a refused call may have changed something all the same.
fn may_have_changed(code: Code) -> bool {
    matches!(code, Code::OutcomeUnknown | Code::TableUnavailable | Code::FenceDraining)
}

/// Whether an admitted call gets a line.
fn gets_line(audited: Audited, refused: Option<Code>, has_granted: bool) -> bool {
    match audited {
        Audited::WhenDenied => false,
        Audited::WhenChanged => refused.is_none_or(may_have_changed),
        Audited::WhenRefused => refused.is_some() || has_granted,
        Audited::Always => true,
    }
}

impl Call {
    fn done(mut self, refused: Option<Code>) {
        self.is_done = true;
        self.write(refused);
    }

    fn write(&self, refused: Option<Code>) {
        let mut known = self.facts.take();
        let place = known.place.take();
        if refused.is_some_and(is_denial) {
            known.shorten();
            return self.audit.record_denied(self.entry(refused, known));
        }
        let wants = |need: &Need| gets_line(need.audited, refused, !known.granted.is_empty());
        if !known.is_admitted || !self.need.as_ref().is_some_and(wants) {
            return;
        }
        let granted = std::mem::take(&mut known.granted);
        if granted.is_empty() || refused.is_some() {
            return self.audit.record(place, self.entry(refused, known));
        }
        let line = self.entry(refused, known);
        for (object, seq) in granted {
            self.audit.record(None, Entry { objects: vec![object], lease_seq: Some(seq), ..line.clone() });
        }
    }

    fn entry(&self, refused: Option<Code>, known: Known) -> Entry {
        let Known { principal, source, objects, holder, lease_seq, detail, .. } = known;
        Entry {
            // The log sets it.
            time: WallMs(0),
            principal,
            source,
            operation: self.need.as_ref().and_then(|need| need.operation),
            call: self.need.as_ref().map_or_else(|| "-".into(), |need| need.call.clone()),
            objects,
            holder,
            lease_seq,
            outcome: refused.map_or(OK, Code::as_str),
            request_id: self.request_id.clone(),
            peer: self.peer,
            detail,
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.is_done && !self.facts.leaves_nothing() {
            self.write(Some(Code::OutcomeUnknown));
        }
    }
}
