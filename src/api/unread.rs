//! The body of a call that is answered before the body was read: callers that are not let in.
//!
//! Some clients read their answer only after they have sent all of their body, and over TLS a connection that is closed
//! under them takes the answer with it. So the rest is read and thrown away, up to a bound.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    extract::Request,
    http::{Version, header},
    middleware::Next,
    response::Response,
};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;

/// How much is thrown away, and for how long it may come.
const BYTES_MAX: usize = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(10);

/// Has the rest of a call's body read and thrown away, if the call is answered without it.
pub(super) async fn discard(request: Request, next: Next) -> Response {
    // A client that waits for a 100 Continue sends no body, and is not asked to.
    let waits = request.version() < Version::HTTP_2 && request.headers().contains_key(header::EXPECT);
    if waits || http_body::Body::is_end_stream(request.body()) {
        return next.run(request).await;
    }
    next.run(request.map(|body| Body::new(Unread(Some(body))))).await
}

/// A body, until all of it was read.
struct Unread(Option<Body>);

impl http_body::Body for Unread {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(body) = &mut self.0 else { return Poll::Ready(None) };
        let polled = Pin::new(body).poll_frame(cx);
        if let Poll::Ready(None | Some(Err(_))) = polled {
            self.0 = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(|| SizeHint::with_exact(0), http_body::Body::size_hint)
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let rest = self.0.take().filter(|body| !http_body::Body::is_end_stream(body));
        if let (Some(body), Ok(runtime)) = (rest, tokio::runtime::Handle::try_current()) {
            runtime.spawn(tokio::time::timeout(TIMEOUT, read_on(body)));
        }
    }
}

async fn read_on(mut body: Body) {
    let mut left = BYTES_MAX;
    while let Some(Ok(frame)) = body.frame().await {
        left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        if left == 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use axum::{Router, http::StatusCode, middleware::from_fn, routing::post};
    use futures_util::stream;
    use tower::ServiceExt;

    use super::*;

    /// A call that does not read its body of `pieces` pieces of 64 KiB. Returns how many were read all the same.
    async fn read_of(pieces: usize, expects: bool) -> usize {
        let read = Arc::new(AtomicUsize::new(0));
        let (done, ended) = tokio::sync::oneshot::channel::<()>();
        let (counted, kept) = (Arc::clone(&read), Some(done));
        let body = stream::unfold((0, kept), move |(at, kept)| {
            let counted = Arc::clone(&counted);
            async move {
                if at == pieces {
                    return None;
                }
                counted.fetch_add(1, Ordering::SeqCst);
                Some((Ok::<_, std::io::Error>(Bytes::from(vec![0; 65_536])), (at + 1, kept)))
            }
        });
        let mut request = axum::http::Request::post("/").body(Body::from_stream(body)).unwrap();
        if expects {
            request.headers_mut().insert(header::EXPECT, "100-continue".parse().unwrap());
        }
        let calls = Router::new().route("/", post(async || StatusCode::UNAUTHORIZED)).layer(from_fn(discard));
        assert_eq!(calls.oneshot(request).await.unwrap().status(), StatusCode::UNAUTHORIZED);
        // The body is dropped when it was read, or when no more of it is wanted.
        let _ = tokio::time::timeout(Duration::from_secs(30), ended).await.expect("the body is let go within 30 s");
        read.load(Ordering::SeqCst)
    }

    #[tokio::test]
    async fn the_rest_of_a_body_is_read_up_to_a_bound() {
        assert_eq!(read_of(3, false).await, 3);
        assert_eq!(read_of(100, false).await, 16, "1 MiB");
        assert_eq!(read_of(3, true).await, 0, "a client that asks first is not asked for it");
    }
}
