//! The layers that let callers in: who is it, may it do this at all, does it call too often. They run before the body
//! is read. What a caller may do to one object is asked later, by its [`Caller`].

use std::{net::SocketAddr, sync::Arc};

use axum::{
    extract::{ConnectInfo, MatchedPath, Request, State},
    http::{HeaderValue, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{
    audited,
    caller::{Caller, Known, Proof, unknown},
    calls::{Need, Needs},
    connection::Kept,
    origin,
    seats::{Doing, Turn},
};
use crate::{
    access::{
        identity::{Unidentified, bearer},
        principal::{Kind, Principal},
    },
    fence::Code,
    gate::Shared,
    problem::{ASKS_FOR_BEARER, Problem},
    tls::Certificate,
};

/// What the layers know.
#[derive(Clone)]
pub struct Guard {
    pub gate: Shared,
    pub needs: Arc<Needs>,
}

/// Finds out who calls.
pub async fn identify(State(guard): State<Guard>, mut request: Request, next: Next) -> Response {
    // Until it is known who it is, a full port may close the connection.
    let turn = request.extensions().get::<Arc<Turn>>().cloned();
    let begins = |doing| turn.iter().for_each(|turn| turn.begins(doing));
    begins(Doing::Receiving);
    let found = match shown(&guard.gate, &request) {
        Ok(proof) => proof.identify(&guard.gate).await.map_err(refusal).map(|who| (who, proof)),
        Err(problem) => Err(problem),
    };
    begins(Doing::Working);
    match found.and_then(|(who, proof)| Ok((allowed_near(who, &request)?, proof))) {
        Ok((who, proof)) => {
            audited::facts(&request).caller(who.name(), who.source());
            request.extensions_mut().insert(Known(Arc::new(who)));
            request.extensions_mut().insert(proof);
            next.run(request).await
        }
        Err(problem) => {
            let mut response = problem.into_response();
            if response.status() == axum::http::StatusCode::UNAUTHORIZED {
                let ask = HeaderValue::from_static(ASKS_FOR_BEARER);
                response.headers_mut().insert(header::WWW_AUTHENTICATE, ask);
            }
            response
        }
    }
}

/// What a request shows of its caller.
fn shown(gate: &Shared, request: &Request) -> Result<Proof, Problem> {
    let extensions = request.extensions();
    let peer = extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| peer.ip().to_canonical());
    let certificate = extensions.get::<Arc<Certificate>>().cloned();
    let asks = gate.access.load().asks(peer.is_some_and(|peer| peer.is_loopback()));
    let bearer = if asks {
        bearer(request.headers(), &header::AUTHORIZATION, "Authorization").map_err(unknown)?.map(Arc::from)
    } else {
        None
    };
    Ok(Proof { bearer, certificate, peer })
}

/// A web page has the same address as a program on this machine.
fn allowed_near(who: Principal, request: &Request) -> Result<Principal, Problem> {
    if who.kind() == Kind::Loopback {
        origin::names_this_machine_only(request)?;
    }
    Ok(who)
}

fn refusal(unidentified: Unidentified) -> Problem {
    match unidentified {
        Unidentified::Unavailable(why) => Problem::new(Code::IdentityUnavailable, why),
        why => unknown(why),
    }
}

/// Refuses callers that may not do this to any object. Gives the call its [`Caller`].
pub async fn authorise(State(guard): State<Guard>, mut request: Request, next: Next) -> Response {
    let extensions = request.extensions();
    let (Some(Known(who)), Some(proof)) = (extensions.get::<Known>().cloned(), extensions.get::<Proof>().cloned())
    else {
        return unknown("the call has no caller").into_response();
    };
    let Some(operation) = need(&guard.needs, &request).and_then(|need| need.operation) else {
        return next.run(request).await;
    };
    if !guard.gate.access.load().allows_some(&who, operation) {
        let what = format!("no [[grant]] lets {who} {operation}");
        return Problem::new(Code::AccessDenied, what).into_response();
    }
    let caller = Caller::new(Arc::clone(&guard.gate), who, proof, operation, audited::facts(&request));
    request.extensions_mut().insert(caller);
    next.run(request).await
}

/// What the call needs. `None`: there is no such call, and the router says so.
pub(super) fn need(needs: &Needs, request: &Request) -> Option<Need> {
    let path = request.extensions().get::<MatchedPath>()?;
    needs.of(request.method(), path.as_str())
}

/// Refuses callers that call too often, or have too many calls in progress. A call is in progress until its answer was
/// handed over.
pub async fn in_turn(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let who = request.extensions().get::<Known>().map(|Known(who)| Arc::clone(who));
    let (Some(who), Some(need)) = (who, need(&guard.needs, &request)) else { return next.run(request).await };
    if who.kind() == Kind::Loopback {
        return next.run(request).await;
    }
    let access = guard.gate.access.load_full();
    match guard.gate.turns.take(&who, need.class, &access.settings, guard.gate.now().boot) {
        Ok(turn) => next.run(request).await.map(|body| axum::body::Body::new(Kept::new(body, turn))),
        Err(too_many) => {
            let what = format!("{who} {}", too_many.what);
            Problem::new(Code::RateLimited, what).retry_after_ms(too_many.retry_ms).into_response()
        }
    }
}
