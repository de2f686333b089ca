//! Reads requests: JSON bodies, queries and ids. An error names the wrong field.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{FromRequest, FromRequestParts, Path, Request, rejection::PathRejection},
    http::{HeaderMap, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http_body::Body as _;
use http_body_util::BodyExt;
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;

use super::seats::{Doing, Turn};
use crate::{
    config::LeaseSettings,
    fence::{Code, FenceToken, HolderId, LeaseId, ObjectId, RequestId, Ttl, ids::IdFault},
    problem::Problem,
};

/// A JSON body with known fields only.
pub struct Body<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        is_json(request.headers())?;
        // The body has arrived in full: see `whole_body`.
        let bytes = collect(request.into_body()).await?;
        if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
            return Err(Problem::invalid("body", "must be a JSON object"));
        }
        let mut reader = serde_json::Deserializer::from_slice(&bytes);
        let value = serde_path_to_error::deserialize(&mut reader)
            .map_err(|error| Problem::invalid(field_of(error.path(), error.inner()), error.inner()))?;
        reader.end().map_err(|error| Problem::invalid("body", error))?;
        Ok(Self(value))
    }
}

/// Browsers ask for permission before they send JSON to another site, so a web page cannot call this api without it.
fn is_json(headers: &HeaderMap) -> Result<(), Problem> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let essence = given.split(';').next().unwrap_or("").trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(Problem::invalid("Content-Type", "must be application/json"))
}

/// The largest body that a call takes, and how much of a larger body is read and dropped. A client that is still
/// sending may lose its answer if the connection is closed.
const BODY_BYTES_MAX: usize = 65_536;
pub(super) const DISCARD_BYTES_MAX: usize = 16 << 20;

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Waits for a request's whole body before the call takes a place, so that slow senders hold no places.
pub async fn whole_body(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let turn = request.extensions().get::<Arc<Turn>>().cloned();
    let begins = |doing| turn.as_ref().map(|turn| turn.begins(doing));
    let (parts, body) = request.into_parts();
    begins(Doing::Receiving);
    let arrived = tokio::time::timeout(BODY_TIMEOUT, collect(body)).await;
    begins(Doing::Working);
    match arrived.unwrap_or_else(|_| Err(Problem::invalid("body", "did not arrive in time"))) {
        Ok(bytes) => next.run(Request::from_parts(parts, bytes.into())).await,
        Err(problem) => problem.into_response(),
    }
}

async fn collect(mut body: axum::body::Body) -> Result<Vec<u8>, Problem> {
    let (mut bytes, mut size) = (vec![], 0);
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) if is_too_large(&error) => return Err(body_too_large()),
            Err(_) => return Err(Problem::invalid("body", "could not be read to its end")),
        };
        let Some(data) = frame.data_ref() else { continue };
        size += data.len();
        if size <= BODY_BYTES_MAX {
            bytes.extend_from_slice(data);
        }
    }
    if size <= BODY_BYTES_MAX {
        return Ok(bytes);
    }
    Err(body_too_large())
}

/// Whether a body was cut off because it is longer than [`DISCARD_BYTES_MAX`].
fn is_too_large(error: &axum::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if error.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// The refusal of a body that is larger than a call takes.
pub(super) fn body_too_large() -> Problem {
    Problem::new(Code::BodyTooLarge, "the body is larger than this call takes")
}

/// The field that an error concerns. Serde names a missing field only in its message.
pub(super) fn field_of(path: &serde_path_to_error::Path, error: &serde_json::Error) -> String {
    let message = error.to_string();
    if let Some(name) = message.strip_prefix("missing field `").and_then(|rest| rest.split('`').next()) {
        return name.to_owned();
    }
    match path.to_string().as_str() {
        "." | "" => "body".to_owned(),
        path => path.to_owned(),
    }
}

/// A query string with known keys only.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let query = parts.uri.query().unwrap_or("");
        if percent_decode_str(query).decode_utf8().is_err() {
            return Err(Problem::invalid("query", "is not UTF-8"));
        }
        let reader = serde_urlencoded::Deserializer::new(form_urlencoded::parse(query.as_bytes()));
        serde_path_to_error::deserialize(reader).map(Self).map_err(|error| {
            let field = match error.path().to_string().as_str() {
                "." | "" => "query".to_owned(),
                path => path.to_owned(),
            };
            Problem::invalid(field, error.inner())
        })
    }
}

/// The one id in a call's path, percent-decoded.
pub struct InPath(pub String);

impl<S: Send + Sync> FromRequestParts<S> for InPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path: Result<Path<String>, PathRejection> = Path::from_request_parts(parts, state).await;
        path.map(|Path(id)| Self(id)).map_err(|rejection| Problem::invalid("path", rejection.body_text()))
    }
}

fn id<T>(field: &str, made: Result<T, IdFault>) -> Result<T, Problem> {
    made.map_err(|fault| Problem::invalid(field, fault))
}

/// # Errors
/// `REQUEST_INVALID` with the field, here and below.
pub fn object(field: &str, text: &str) -> Result<ObjectId, Problem> {
    id(field, ObjectId::new(text))
}

/// # Errors
/// `REQUEST_INVALID` with the field.
pub fn holder(text: &str) -> Result<HolderId, Problem> {
    id("holder_id", HolderId::new(text))
}

/// # Errors
/// `REQUEST_INVALID` with the field.
pub fn lease_id(text: &str) -> Result<LeaseId, Problem> {
    id("lease_id", LeaseId::new(text))
}

/// # Errors
/// `REQUEST_INVALID` with the field.
pub fn request_id(text: Option<&str>) -> Result<Option<RequestId>, Problem> {
    text.map(|text| id("request_id", RequestId::new(text))).transpose()
}

/// # Errors
/// `REQUEST_INVALID` with the field and the bounds.
pub fn ttl(given: Option<u64>, limits: &LeaseSettings) -> Result<Ttl, Problem> {
    let ttl = given.unwrap_or(limits.ttl_ms_default);
    let (min, max) = (limits.ttl_ms_min, limits.ttl_ms_max);
    if (min..=max).contains(&ttl) {
        return Ok(Ttl(ttl));
    }
    Err(Problem::invalid("ttl_ms", format!("must be from {min} to {max}, this is {ttl}")))
}

/// # Errors
/// `REQUEST_INVALID` with the field and the bound.
pub fn wait_ms(given: Option<u64>, limits: &LeaseSettings) -> Result<u64, Problem> {
    let (wait, max) = (given.unwrap_or(0), limits.wait_ms_max);
    if wait <= max {
        return Ok(wait);
    }
    Err(Problem::invalid("wait_ms", format!("must be at most {max}, this is {wait}")))
}

/// # Errors
/// `FENCE_TOKEN_MALFORMED` with what is wrong. The detail never holds the text itself.
pub fn token(text: &str) -> Result<FenceToken, Problem> {
    FenceToken::parse(text).map_err(|fault| Problem::new(Code::FenceTokenMalformed, fault.to_string()))
}

/// The token of a call that has no body.
///
/// # Errors
/// `REQUEST_INVALID` where there is no token or more than one, `FENCE_TOKEN_MALFORMED` where it cannot be read.
pub fn token_header(headers: &HeaderMap) -> Result<FenceToken, Problem> {
    let mut given = headers.get_all("fence-token").iter();
    match (given.next(), given.next()) {
        (Some(value), None) => {
            let text = value.to_str().map_err(|_| Problem::invalid("Fence-Token", "is not ASCII"))?;
            token(text)
        }
        (None, _) => Err(Problem::invalid("Fence-Token", "this call needs the lease's token in this header")),
        (Some(_), Some(_)) => Err(Problem::invalid("Fence-Token", "was sent twice")),
    }
}
