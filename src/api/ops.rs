//! The ops port: probes, metrics, and the drain before a stop. It shows no secret.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
};

use axum::{
    Extension, Router,
    extract::{ConnectInfo, State},
    http::{HeaderMap, StatusCode, header},
    response::IntoResponse,
    routing::{get, post},
};
use tower_http::catch_panic::CatchPanicLayer;

use super::{
    layers::{panicked, within_places},
    origin,
    seats::Places,
};
use crate::{fence::Code, gate::Shared, problem::Problem};

/// The turn of one caller to get the metrics.
type Turn = Arc<tokio::sync::Mutex<()>>;

/// The ops port's calls. Probes always get in.
pub fn router(gate: Shared, room: usize) -> Router {
    let probes = Router::new().route("/livez", get(|| async { "ok\n" })).route("/readyz", get(ready));
    let bounded = Router::new()
        .route("/metrics", get(metrics))
        .route("/drain", post(drain).layer(axum::middleware::from_fn(origin::local_only)))
        .layer(Extension(Turn::default()));
    within_places(bounded, &Places::within(room))
        .merge(probes)
        .fallback(|| async {
            Problem::new(Code::NotFound, "the ops port has /livez, /readyz, /metrics and POST /drain")
        })
        .method_not_allowed_fallback(|| async {
            Problem::new(Code::MethodNotAllowed, "this call does not take that method")
        })
        .layer(CatchPanicLayer::custom(panicked))
        .with_state(gate)
}

/// Ready from the start until a drain. A latched table does not change that: reads go on.
async fn ready(State(gate): State<Shared>) -> impl IntoResponse {
    if gate.draining.load(Ordering::Acquire) {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else {
        (StatusCode::OK, "ready\n")
    }
}

/// Serves one caller at a time. The connection ends with the answer, so that a caller that asks again and again
/// without reading gets it once.
async fn metrics(State(gate): State<Shared>, Extension(turn): Extension<Turn>) -> impl IntoResponse {
    let _turn = turn.lock().await;
    let headers = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8"), (header::CONNECTION, "close")];
    (headers, gate.metrics.render())
}

/// Stops handing out leases and starting writes, and answers when all earlier work is done: nothing is in flight to
/// the store then, and nothing will be. Only callers on this machine may use it: in a pod, the preStop hook.
async fn drain(
    State(gate): State<Shared>,
    Extension(ConnectInfo(peer)): Extension<ConnectInfo<SocketAddr>>,
    headers: HeaderMap,
) -> Result<&'static str, Problem> {
    if !peer.ip().to_canonical().is_loopback() {
        return Err(Problem::new(Code::NotLoopback, "only a loopback peer may drain this gate"));
    }
    if headers.contains_key(header::ORIGIN) {
        return Err(Problem::new(Code::NotLoopback, "no web page may drain this gate"));
    }
    tracing::info!("audit: draining, after a call of the ops port");
    if !gate.drain().await {
        return Err(Problem::new(
            Code::TableUnavailable,
            "the fence table does not answer, so its last changes are not durable yet; ask again, or stop all the same",
        ));
    }
    if gate.idle(gate.deadline).await {
        return Ok("drained\n");
    }
    Err(Problem::new(
        Code::FenceDraining,
        "writes are still on their way to the store; ask again, or stop all the same",
    ))
}
