//! A small HTTP object store in memory, for the demo: PUT and POST keep a body under its path, GET and HEAD return
//! it, DELETE removes it. Like most stores it checks no token: the gate does that.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State},
    http::{Method, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use tokio::net::TcpListener;

/// The largest object.
const OBJECT_BYTES_MAX: usize = 16 << 20;
/// The most that all objects may take.
const TOTAL_BYTES_MAX: usize = 256 << 20;

#[derive(Default)]
struct Objects {
    by_path: HashMap<String, Bytes>,
    bytes: usize,
}

type Shared = Arc<Mutex<Objects>>;

/// Starts a store on a free loopback port. It runs as long as its runtime.
///
/// # Errors
/// When there is no free port.
pub async fn start() -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let router =
        Router::new().fallback(serve).layer(DefaultBodyLimit::max(OBJECT_BYTES_MAX)).with_state(Shared::default());
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(address)
}

async fn serve(State(objects): State<Shared>, method: Method, uri: Uri, body: Bytes) -> Response {
    let mut objects = objects.lock().unwrap_or_else(PoisonError::into_inner);
    let path = uri.path();
    match method {
        Method::PUT | Method::POST => objects.keep(path, body),
        Method::GET | Method::HEAD => match objects.by_path.get(path) {
            Some(body) => body.clone().into_response(),
            None => (StatusCode::NOT_FOUND, "there is nothing here\n").into_response(),
        },
        Method::DELETE if objects.forget(path) => StatusCode::NO_CONTENT.into_response(),
        Method::DELETE => (StatusCode::NOT_FOUND, "there is nothing here\n").into_response(),
        _ => (StatusCode::METHOD_NOT_ALLOWED, "this store knows PUT, POST, GET, HEAD and DELETE\n").into_response(),
    }
}

impl Objects {
    fn keep(&mut self, path: &str, body: Bytes) -> Response {
        let is_new = !self.forget(path);
        if self.bytes + body.len() > TOTAL_BYTES_MAX {
            return (StatusCode::INSUFFICIENT_STORAGE, "the demo's store is full\n").into_response();
        }
        self.bytes += body.len();
        self.by_path.insert(path.to_owned(), body);
        if is_new { StatusCode::CREATED.into_response() } else { StatusCode::NO_CONTENT.into_response() }
    }

    fn forget(&mut self, path: &str) -> bool {
        let old = self.by_path.remove(path);
        self.bytes -= old.as_ref().map_or(0, Bytes::len);
        old.is_some()
    }
}
