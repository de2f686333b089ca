//! The status port: who leads, probes, metrics. It shows no secret.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header},
    middleware::from_fn_with_state,
    response::{IntoResponse, Response},
    routing::get,
};
use serde::Deserialize;

use super::{
    holdings::Holdings,
    hosts::{self, Hosts},
    slot::Shown,
};
use crate::{api::extract::Query, fence::Code, metrics::AgentMetrics, problem::Problem};

type Shared = (Arc<Holdings>, Arc<AgentMetrics>);

/// `GET /leader`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LeaderQuery {
    object: Option<String>,
}

/// The status port's calls.
pub fn router(holdings: Arc<Holdings>, metrics: Arc<AgentMetrics>, hosts: Hosts) -> Router {
    Router::new()
        .route("/leader", get(leader).layer(from_fn_with_state(hosts, hosts::only_taken)))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(show_metrics))
        .fallback(|| async {
            Problem::new(Code::NotFound, "the status port has /leader, /livez, /readyz and /metrics")
        })
        .method_not_allowed_fallback(|| async {
            Problem::new(Code::MethodNotAllowed, "this call does not take that method")
        })
        .with_state((holdings, metrics))
}

/// All objects in use with this agent's standing, or the named one.
async fn leader(State((holdings, _)): State<Shared>, Query(query): Query<LeaderQuery>) -> Response {
    let shown = holdings.show(query.object.as_deref());
    match (query.object, shown) {
        (None, all) => Json(all.into_iter().collect::<BTreeMap<String, Shown>>()).into_response(),
        (Some(_), one) => match one.into_iter().next() {
            Some((_, shown)) => Json(shown).into_response(),
            None => Problem::new(Code::NotFound, "this object was not written through this agent").into_response(),
        },
    }
}

/// Ready from the start until the stop, also while this agent does not lead: reads always pass.
async fn ready(State((holdings, _)): State<Shared>) -> impl IntoResponse {
    if holdings.is_stopping() { (StatusCode::SERVICE_UNAVAILABLE, "stopping\n") } else { (StatusCode::OK, "ready\n") }
}

async fn show_metrics(State((holdings, metrics)): State<Shared>) -> impl IntoResponse {
    let text = metrics.render(&holdings.count());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}
