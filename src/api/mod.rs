//! The lease api (`/v1`, JSON) and the ops port.
//!
//! Handlers read the request, ask the ledger or the table, and write the answer. They decide
//! nothing: rules are in `fence/`. What goes over the wire has its own types in [`wire`].
//!
//! - [`leases`], [`objects`], [`tokens`], [`receipts`], [`mod@routes`], [`backups`]: the calls.
//! - [`fences`], [`grants`], [`migrations`], [`journal`]: signed authority.
//! - [`watch`]: lease events as a stream.
//! - [`ops`]: probes, metrics, drain.
//! - [`listen`]: serving a port that no caller can stall: [`seats`] for its connections, `socket` under them.
//! - [`reads`]: reads of the table, only so many at a time.
//! - [`schema`]: what requests may say. [`origin`]: who may call. [`extract`]: bodies, queries and ids, checked. Refusals are [`Problem`]s.

pub mod backups;
pub mod extract;
pub mod fences;
pub mod grants;
pub mod journal;
pub mod leases;
pub mod listen;
pub mod migrations;
pub mod objects;
pub mod ops;
pub mod origin;
pub mod reads;
pub mod receipts;
pub mod routes;
pub mod schema;
pub mod seats;
mod socket;
pub mod tokens;
pub mod watch;
pub mod wire;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use axum::{
    Router,
    body::Bytes,
    extract::{MatchedPath, State},
    http::header,
    routing::get,
};
use tokio::sync::{Semaphore, watch as signal};
use utoipa::{OpenApi, openapi};
use utoipa_axum::{router::OpenApiRouter, routes};

use self::{
    reads::{Place, Reads},
    seats::{Places, in_place},
};
use crate::{
    authority::Authority,
    clock::Clock,
    config::LeaseSettings,
    fence::{Code, LeaseId, Now, ObjectId, Record},
    kubernetes::elections::Elections,
    metrics::Metrics,
    problem::Problem,
    route::Routes,
    table::{
        TableFault,
        ledger::{Ledger, Refused},
        news::News,
        records::Records,
    },
    write_path::receipts::Receipts,
};

/// How often it is looked whether writes are still on their way.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What every handler can reach.
pub struct Gate {
    pub records: Arc<Records>,
    pub ledger: Ledger,
    pub news: Arc<News>,
    pub clock: Clock,
    pub limits: LeaseSettings,
    /// Whose signed word is taken; a reload exchanges it.
    pub authority: ArcSwap<Authority>,
    /// The routes that writes go by; a reload exchanges them.
    pub routes: ArcSwap<Routes>,
    /// Who was elected, where Kubernetes Leases say who may write.
    pub elections: Arc<Elections>,
    /// How long a stop, or a drain, may wait.
    pub deadline: Duration,
    pub metrics: Arc<Metrics>,
    pub receipts: Receipts,
    pub reads: Reads,
    /// How many more may watch.
    pub watchers: Arc<Semaphore>,
    /// No new leases are handed out, and no new writes let in: the gate is about to stop.
    pub draining: AtomicBool,
    /// Turns true when streams have to end.
    pub stopping: signal::Sender<bool>,
}

/// Shared by all handlers.
pub type Shared = Arc<Gate>;

impl Gate {
    #[must_use]
    pub fn now(&self) -> Now {
        self.clock.now()
    }

    /// Hands out no more leases, and returns when every change that was begun is done, or the deadline of a stop has
    /// passed: whether it is so.
    pub async fn drain(&self) -> bool {
        self.draining.store(true, Ordering::Release);
        let closed = tokio::time::timeout(self.deadline, self.ledger.close()).await;
        // A ledger that is gone has nothing left to do. One that has no room for the call goes on granting.
        matches!(closed, Ok(Ok(()) | Err(Refused::Stopping)))
    }

    /// Returns when no write is on its way to the store, or a deadline has passed: whether it is so.
    pub async fn idle(&self, deadline: Duration) -> bool {
        let idle = async {
            while !self.records.stripes.is_idle() {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        tokio::time::timeout(deadline, idle).await.is_ok()
    }

    /// Reads the table off the api's own threads.
    ///
    /// # Errors
    /// `TABLE_UNAVAILABLE` where the read fails, or its disk stands still: at once where that is known, and as many
    /// reads as may be wait for it already.
    pub async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Records) -> Result<T, TableFault> + Send + 'static,
    ) -> Result<T, Problem> {
        let reading = async {
            let place = self.reads.place().await.ok_or_else(Problem::table_unavailable)?;
            self.read_in(Some(place), read).await
        };
        let done = tokio::time::timeout(self.ledger.patience(), reading).await;
        done.unwrap_or_else(|_| {
            self.reads.are_overdue();
            Err(Problem::table_unavailable())
        })
    }

    /// The same, however long it takes: for copies.
    ///
    /// # Errors
    /// `TABLE_UNAVAILABLE` where the read fails.
    pub async fn read_at_length<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Records) -> Result<T, TableFault> + Send + 'static,
    ) -> Result<T, Problem> {
        self.read_in(None, read).await
    }

    /// The same, in this place: the read keeps it to its end, whoever waits for that.
    async fn read_in<T: Send + 'static>(
        self: &Arc<Self>,
        place: Option<Place>,
        read: impl FnOnce(&Records) -> Result<T, TableFault> + Send + 'static,
    ) -> Result<T, Problem> {
        let records = Arc::clone(&self.records);
        let reading = move || {
            let done = read(&records);
            drop(place);
            done
        };
        let done = tokio::task::spawn_blocking(reading).await;
        match done {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(fault)) => {
                tracing::error!(%fault, "a row of the fence table cannot be read");
                Err(Problem::table_unavailable())
            }
            Err(_panicked) => Err(Problem::table_unavailable()),
        }
    }

    /// An object's record, with a lease past its deadline ended first: nobody is told before that
    /// is durable.
    ///
    /// # Errors
    /// Where the table is not usable.
    pub async fn settled_record(self: &Arc<Self>, object: &ObjectId) -> Result<Record, Problem> {
        loop {
            let wanted = object.clone();
            let record = self.read(move |records| records.read(&wanted)).await?;
            let now = self.now();
            match record.open_lease().filter(|lease| !lease.is_live(now)) {
                None => return Ok(record),
                Some(lease) => self.end(vec![(object.clone(), lease.lease_id.clone())]).await?,
            }
        }
    }

    /// Refuses a call of the lease api for an object whose leases come from elsewhere.
    ///
    /// # Errors
    /// `GRANT_REQUIRED`, `EXTERNAL_LEASE`.
    pub fn is_grantable(&self, object: &ObjectId) -> Result<(), Problem> {
        let routes = self.routes.load();
        if routes.follows(object).is_some() {
            let what = "the lock of this object is kept elsewhere (lease_source = \"external\"): take it there, and send its token with each write";
            return Err(Problem::new(Code::ExternalLease, what).with_object(object));
        }
        if routes.lease_of(object).is_some() {
            let what = "a Kubernetes Lease says who may write this object (lease_source = \"kubernetes\"): be elected there, and send k8s.<uid>.<leaseTransitions> with each write";
            return Err(Problem::new(Code::ExternalLease, what).with_object(object));
        }
        if !routes.needs_grant(object) {
            return Ok(());
        }
        let what = "leases of this object come from signed grants only (lease_source = \"authority\"); ask its issuer";
        Err(Problem::new(Code::GrantRequired, what).with_object(object))
    }

    /// Makes the end of overdue leases durable.
    ///
    /// # Errors
    /// Where the table is not usable.
    pub async fn end(&self, leases: Vec<(ObjectId, LeaseId)>) -> Result<(), Problem> {
        self.ledger.end(leases).await.map_err(|refused| Problem::refused(&refused, self.now()))
    }
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "fencegate lease api",
        description = "Leases with fence tokens. Times are RFC 3339, UTC, milliseconds. Every refusal is application/problem+json with a `code`; the header Fence-Error carries the code too."
    ),
    components(schemas(
        schema::ObjectId,
        schema::HolderId,
        schema::LeaseId,
        schema::IssuerId,
        schema::MigrationId,
        schema::RequestId,
        schema::Reason,
        schema::Words,
        schema::Folder,
        schema::FenceToken,
        schema::AnyToken,
        schema::TokenText,
        schema::TtlMs,
        schema::WaitMs,
        schema::LeaseSeq,
        schema::Whole,
        schema::KeyEpoch,
        schema::Limit,
        schema::Cursor,
        schema::Stamp,
        schema::Signature,
        schema::StateHash,
        schema::ObjectIds,
        schema::FenceRequestKind,
        schema::CertificateKind,
        schema::AcknowledgedKind,
        schema::GrantKind,
        schema::ActiveKind,
        schema::RelayKind,
        schema::Propagation,
    ))
)]
struct Description;

/// The calls, and their description.
pub fn describe() -> (Router<Shared>, openapi::OpenApi) {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(leases::acquire, leases::list))
        .routes(routes!(leases::acquire_batch))
        .routes(routes!(leases::get, leases::release))
        .routes(routes!(leases::renew))
        .routes(routes!(objects::get))
        .routes(routes!(objects::revoke))
        .routes(routes!(objects::advance))
        .routes(routes!(objects::confirm))
        .routes(routes!(tokens::check))
        .routes(routes!(receipts::list))
        .routes(routes!(self::routes::list))
        .routes(routes!(backups::create))
        .routes(routes!(watch::watch))
        .routes(routes!(fences::apply, fences::list))
        .routes(routes!(fences::confirm))
        .routes(routes!(grants::apply))
        .routes(routes!(migrations::request))
        .routes(routes!(migrations::begin))
        .routes(routes!(migrations::get))
        .routes(routes!(migrations::activate))
        .routes(routes!(journal::list))
        .split_for_parts()
}

/// The lease api. Renewals and releases always get in: what a holder has must not depend on how many others ask.
pub fn router(gate: Shared, room: usize) -> Router {
    let places = Places::within(room, |method, path| {
        matches!((method.as_str(), path), ("POST", "/v1/leases/{lease_id}/renew") | ("DELETE", "/v1/leases/{lease_id}"))
    });
    let (calls, mut description) = describe();
    schema::fit(&mut description, &gate.limits);
    // Written once: it is long, and does not change.
    let description = Bytes::from(serde_json::to_vec(&description).unwrap_or_default());
    let described = move || async move { ([(header::CONTENT_TYPE, "application/json")], description) };
    calls
        .route("/v1/openapi.json", get(described))
        .fallback(|| async { Problem::new(Code::NotFound, "there is no such call; GET /v1/openapi.json lists them") })
        .method_not_allowed_fallback(|| async {
            Problem::new(Code::MethodNotAllowed, "this call does not take that method")
        })
        .layer(axum::middleware::from_fn_with_state(places, in_place))
        .layer(axum::middleware::from_fn(extract::whole_body))
        .layer(axum::middleware::from_fn(origin::local_only))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&gate), count_refusals))
        .with_state(gate)
}

/// Counts and logs refusals where they leave, so no handler has to.
async fn count_refusals(
    State(gate): State<Shared>,
    request: axum::extract::Request,
    next: axum::middleware::Next,
) -> axum::response::Response {
    let method = request.method().clone();
    let call = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    if let Some(code) = response.extensions().get::<Code>() {
        gate.metrics.api.refused(*code);
        // The call's template, not its path: whatever a caller put there by mistake stays out.
        let call = call.as_ref().map_or("?", MatchedPath::as_str);
        tracing::debug!(%method, call, code = code.as_str(), "refused");
    }
    response
}
