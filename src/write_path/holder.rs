//! Routes that compare a write's client with the holder of its lease (`bind_holder`). There a token is of no use to
//! another client than the one that it was granted to.
//!
//! Who the client is, is found out before anything else is said of the write: by the certificate of its connection, or by
//! a bearer token in Fence-Identity. Nothing is known of it by its address. A client that may neither read the object nor
//! hold its leases learns nothing about it.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use http::request::Parts;
use tokio::task::JoinHandle;

use super::{Worker, connection::Client, guard::WriteGuard, reply::Rejection};
use crate::{
    access::{
        identity::{Shown, Unidentified, bearer},
        principal::Principal,
    },
    fence::{Code, ObjectId, Record},
    route::classify::FENCE_IDENTITY,
};

/// A write's client on a route that asks who it is.
pub(super) type Known = Arc<Principal>;

/// Finds out who has sent a write. What has to be asked elsewhere is asked by the runtime that serves the api.
///
/// # Errors
/// `IDENTITY_REQUIRED`, `IDENTITY_UNAVAILABLE`.
pub(super) async fn identify(worker: &Worker, client: &Client, head: &Parts) -> Result<Known, Rejection> {
    let bearer = bearer(&head.headers, &FENCE_IDENTITY, "Fence-Identity").map_err(|why| required(&why))?;
    let bearer = bearer.map(str::to_owned);
    let (certificate, peer) = (client.certificate.get().cloned(), client.peer_address);
    let (access, now) = (worker.plane.gate.access.load_full(), worker.plane.gate.clock.wall());
    let asked = async move {
        let peer = Some(peer.to_canonical());
        let shown = Shown { bearer: bearer.as_deref(), certificate: certificate.as_deref(), peer };
        access.identify_writer(shown, now).await
    };
    match ask(worker, Box::pin(asked)).await {
        Some(Ok(who)) => Ok(Arc::new(who)),
        Some(Err(Unidentified::Unavailable(why))) => Err(Rejection::new(Code::IdentityUnavailable, why)),
        Some(Err(why)) => Err(required(&why.to_string())),
        None => Err(Rejection::new(Code::IdentityUnavailable, "the gate could not find out who the client is")),
    }
}

type Asked = Pin<Box<dyn Future<Output = Result<Principal, Unidentified>> + Send>>;

/// The answer of the identity sources. Most know it at once. What has to be asked of another server is asked by the
/// runtime of the api, by so many at a time, and no longer than the client waits.
async fn ask(worker: &Worker, mut asked: Asked) -> Option<Result<Principal, Unidentified>> {
    let runtime = &worker.plane.runtime;
    {
        let _inside = runtime.enter();
        if let Poll::Ready(found) = asked.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Some(found);
        }
    }
    let _place = worker.plane.identifying.acquire().await.ok()?;
    let mut task = Ended(runtime.spawn(asked));
    (&mut task.0).await.ok()
}

/// A task that ends with its client.
struct Ended(JoinHandle<Result<Principal, Unidentified>>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn required(why: &str) -> Rejection {
    let what = format!(
        "{why}. This route compares a write's client with the holder of its lease: send Fence-Identity: Bearer TOKEN, or show a client certificate"
    );
    Rejection::new(Code::IdentityRequired, what)
}

/// Reads an object's record, so that [`is_of_another`] sees it. A table that cannot be read shows when the write is judged.
pub(super) async fn load(worker: &Worker, object: &ObjectId) {
    let wanted = object.clone();
    if worker.plane.gate.records.stripes.view(object, |found| found.is_none()) {
        let _ = worker.plane.gate.read(move |records| records.read(&wanted).map(drop)).await;
    }
}

/// Whether the present lease of an object is another client's. Such a write is not judged: it would count as a use of
/// the lease.
pub(super) fn is_of_another(worker: &Worker, who: &Principal, object: &ObjectId) -> bool {
    let access = worker.plane.gate.access.load();
    let is_other =
        |record: &Record| record.open_lease().is_some_and(|lease| !access.is_own(who, object, &lease.holder));
    worker.plane.gate.records.stripes.view(object, |found| found.is_some_and(|(record, _)| is_other(record)))
}

/// Whether a client is the holder of every lease that its write has a permit of.
pub(super) fn is_own(worker: &Worker, who: &Principal, guard: &WriteGuard) -> bool {
    let access = worker.plane.gate.access.load();
    let mut is_own = guard.permit().is_some();
    guard.each_permit(|permit| is_own &= access.is_own(who, permit.object(), permit.holder()));
    is_own
}

/// Whether a refusal may show a client what the gate knows of the object.
pub(super) fn shows(worker: &Worker, who: &Principal, object: &ObjectId) -> bool {
    worker.plane.gate.access.load().shows(who, object)
}

/// The refusal of a client that is not the holder, or that may not know more.
pub(super) fn denied(who: &Principal) -> Rejection {
    Rejection::new(Code::AccessDenied, format!("{who} is not the holder of a lease that lets it write this object"))
}
