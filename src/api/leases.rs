//! Leases: acquire, renew, release, list, get.

use axum::{
    Extension, Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};

use super::{
    caller::Caller,
    connection::Peer,
    extract::{self, Body, InPath, Query},
    routes,
    seats::Places,
};
use crate::{
    access::rules::View,
    fence::{Code, HolderId, LeaseId, LeaseRow, ObjectId, domain::Domain},
    gate::{Gate, Shared},
    problem::Problem,
    table::{
        codec::{Family, Key},
        ledger::{Granted, Leases, Offer, Wanted},
        records::{LeaseStatus, LeaseView, Page},
    },
    wire::{
        AcquireRequest, BatchBody, BatchRequest, GrantBody, LeaseBody, LeaseList, LeaseState, ListQuery, ObjectBody,
        RenewRequest, schema,
    },
};

const LIMIT_DEFAULT: usize = 100;
const LIMIT_MAX: usize = 1_000;

/// Acquire a lease.
///
/// # Errors
/// `LEASE_HELD`, `REQUEST_ID_USED`, `REQUEST_INVALID` and any error that says the gate is unavailable.
#[utoipa::path(post, operation_id = "acquireLease", path = "/v1/leases", tag = "leases", request_body = AcquireRequest, responses(
    (status = 201, body = GrantBody), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub async fn acquire(
    State(gate): State<Shared>,
    caller: Caller,
    Extension(peer): Extension<Peer>,
    Body(request): Body<AcquireRequest>,
) -> Result<(StatusCode, Json<GrantBody>), Problem> {
    let wanted = Wanted {
        objects: vec![caller.object("object_id", &request.object_id)?],
        holder: extract::holder(&request.holder_id)?,
        ttl: extract::ttl(request.ttl_ms, &gate.limits)?,
        wait_ms: extract::wait_ms(request.wait_ms, &gate.limits)?,
        request: extract::request_id(request.request_id.as_deref())?,
        takeover: request.takeover.unwrap_or(false),
    };
    wanted.objects.iter().try_for_each(|object| gate.is_grantable(object))?;
    let granted = grant(&gate, &caller, &peer, wanted).await?;
    let body = granted.first().map(|granted| grant_body(&gate, granted));
    body.map(|body| (StatusCode::CREATED, Json(body))).ok_or_else(Problem::table_unavailable)
}

/// Acquire several leases, all or none.
///
/// # Errors
/// As for `POST /v1/leases`.
#[utoipa::path(post, operation_id = "acquireBatch", path = "/v1/lease-batches", tag = "leases", request_body = BatchRequest, responses(
    (status = 201, body = BatchBody), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub async fn acquire_batch(
    State(gate): State<Shared>,
    caller: Caller,
    Extension(peer): Extension<Peer>,
    Body(request): Body<BatchRequest>,
) -> Result<(StatusCode, Json<BatchBody>), Problem> {
    let wanted = Wanted {
        objects: batch_objects(&caller, &request.object_ids, gate.limits.batch_max)?,
        holder: extract::holder(&request.holder_id)?,
        ttl: extract::ttl(request.ttl_ms, &gate.limits)?,
        wait_ms: extract::wait_ms(request.wait_ms, &gate.limits)?,
        request: extract::request_id(request.request_id.as_deref())?,
        takeover: request.takeover.unwrap_or(false),
    };
    wanted.objects.iter().try_for_each(|object| gate.is_grantable(object))?;
    let granted = grant(&gate, &caller, &peer, wanted).await?;
    let leases = granted.iter().map(|granted| grant_body(&gate, granted)).collect();
    Ok((StatusCode::CREATED, Json(BatchBody { leases })))
}

fn grant_body(gate: &Gate, granted: &Granted) -> GrantBody {
    GrantBody::new(granted, gate.now()).warned(routes::warning(gate, &granted.object))
}

async fn grant(gate: &Gate, caller: &Caller, peer: &Peer, wanted: Wanted) -> Result<Vec<Granted>, Problem> {
    let refused = |refused| Problem::refused(&refused, gate.now());
    let (objects, holder) = (wanted.objects.clone(), wanted.holder.clone());
    let allowed = || caller.may_hold(&objects, &holder);
    allowed()?;
    if wanted.takeover {
        caller.facts().detail("takeover", true);
    }
    // A takeover ends the old lease, also where its caller has hung up.
    if wanted.request.is_none() && !wanted.takeover {
        caller.facts().gives_back();
    }
    let granted = take(peer, caller.while_allowed(allowed, gate.ledger.acquire(wanted)).await?.map_err(refused)?)?;
    if granted.iter().any(|each| each.is_again) {
        caller.facts().detail("again", true);
    }
    for each in &granted {
        caller.facts().granted(&each.object, each.lease.seq.get());
    }
    Ok(granted)
}

/// Takes leases for a caller. If the caller has hung up and cannot ask for them again, they are given back.
fn take<T: Leases>(peer: &Peer, offer: Offer<'_, T>) -> Result<T, Problem> {
    if offer.gives_back() && peer.is_gone() {
        let what = "the caller had hung up when its turn came; the lease was given back";
        return Err(Problem::new(Code::LeaseExpired, what));
    }
    Ok(offer.take())
}

/// The objects of a batch, in the one order that every batch uses.
fn batch_objects(caller: &Caller, ids: &[String], max: usize) -> Result<Vec<ObjectId>, Problem> {
    if ids.is_empty() || ids.len() > max {
        return Err(Problem::invalid("object_ids", format!("must name 1 to {max} objects, this names {}", ids.len())));
    }
    let mut objects = ids
        .iter()
        .enumerate()
        .map(|(place, id)| caller.object(&format!("object_ids[{place}]"), id))
        .collect::<Result<Vec<_>, _>>()?;
    objects.sort();
    if objects.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Problem::invalid("object_ids", "must not name an object twice"));
    }
    Ok(objects)
}

/// Renew a lease, or rotate it.
///
/// # Errors
/// In this order: `LEASE_NOT_FOUND`, `LEASE_NOT_HOLDER`, `LEASE_TOKEN_MISMATCH`, `LEASE_FENCED`,
/// `LEASE_EXPIRED`.
#[utoipa::path(post, operation_id = "renewLease", path = "/v1/leases/{lease_id}/renew", tag = "leases", request_body = RenewRequest,
    params(("lease_id" = schema::LeaseId, Path)), responses(
    (status = 200, body = GrantBody), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub async fn renew(
    State(gate): State<Shared>,
    caller: Caller,
    Extension(peer): Extension<Peer>,
    Extension(places): Extension<Places>,
    InPath(lease_id): InPath,
    Body(request): Body<RenewRequest>,
) -> Result<Json<GrantBody>, Problem> {
    let lease_id = extract::lease_id(&lease_id)?;
    let holder = extract::holder(&request.holder_id)?;
    let token = extract::token(&request.fence_token)?;
    let ttl = extract::ttl(request.ttl_ms, &gate.limits)?;
    let rotate = request.rotate.unwrap_or(false);
    // A new token waits for the writes of the old one; a plain renewal waits for nothing.
    let _place = if rotate { Some(places.take()?) } else { None };
    let (objects, own) = ([token.object.clone()], holder.clone());
    caller.facts().lease_seq(token.seq.get());
    let allowed = || caller.may_hold(&objects, &own);
    allowed()?;
    named_lease(&gate, &caller, &lease_id, &token.object).await?;
    gate.is_grantable(&token.object)?;
    let renewed = caller.while_allowed(allowed, gate.ledger.renew(lease_id, holder, token, ttl, rotate)).await?;
    let renewed = take(&peer, renewed.map_err(|refused| Problem::refused(&refused, gate.now()))?)?;
    if rotate {
        caller.facts().granted(&renewed.object, renewed.lease.seq.get());
    }
    Ok(Json(GrantBody::new(&renewed, gate.now())))
}

/// Release a lease. Answers with the object, which then has no holder.
///
/// # Errors
/// As for a renewal.
#[utoipa::path(delete, operation_id = "releaseLease", path = "/v1/leases/{lease_id}", tag = "leases",
    params(("lease_id" = schema::LeaseId, Path), ("Fence-Token" = schema::FenceToken, Header, description = "the lease's token")), responses(
    (status = 200, body = ObjectBody), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub async fn release(
    State(gate): State<Shared>,
    caller: Caller,
    InPath(lease_id): InPath,
    headers: HeaderMap,
) -> Result<Json<ObjectBody>, Problem> {
    let lease_id = extract::lease_id(&lease_id)?;
    let token = extract::token_header(&headers)?;
    caller.facts().lease_seq(token.seq.get());
    caller.may(&token.object)?;
    // The call does not name the holder: its lease does. If there is none, the ledger says so.
    if let Some(row) = named_lease(&gate, &caller, &lease_id, &token.object).await? {
        caller.may_hold(std::slice::from_ref(&token.object), &row.holder)?;
    }
    let released = gate.ledger.release(lease_id, None, token).await;
    let record = released.map_err(|refused| Problem::refused(&refused, gate.now()))?;
    Ok(Json(ObjectBody::new(&record, gate.now())))
}

/// The lease that a call names, for callers that may use some holders' names only. A lease of an object that the caller
/// may not see is answered like one that never was.
async fn named_lease(
    gate: &Shared,
    caller: &Caller,
    lease_id: &LeaseId,
    of_token: &ObjectId,
) -> Result<Option<LeaseRow>, Problem> {
    if !caller.must_be_holder() {
        return Ok(None);
    }
    let wanted = lease_id.clone();
    match gate.read(move |records| records.lease_row(&wanted)).await? {
        Some(row) if row.object != *of_token && !caller.sees(&row.object) => Err(no_such_lease()),
        found => Ok(found),
    }
}

fn no_such_lease() -> Problem {
    Problem::new(Code::LeaseNotFound, "no such lease: it never was, or it ended more than a day ago")
}

/// A lease by its id, for a day after its end.
///
/// # Errors
/// `LEASE_NOT_FOUND`.
#[utoipa::path(get, operation_id = "getLease", path = "/v1/leases/{lease_id}", tag = "leases", params(("lease_id" = schema::LeaseId, Path)), responses(
    (status = 200, body = LeaseBody), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub async fn get(
    State(gate): State<Shared>,
    caller: Caller,
    InPath(lease_id): InPath,
) -> Result<Json<LeaseBody>, Problem> {
    let (lease_id, visible) = (extract::lease_id(&lease_id)?, caller.view());
    loop {
        let (wanted, now) = (lease_id.clone(), gate.now());
        let found = gate
            .read(move |records| match records.lease_row(&wanted)? {
                Some(row) => records.view(row, now),
                None => Ok(None),
            })
            .await?;
        // A lease that the caller may not see is answered like one that never was.
        let view = found.filter(|view| visible.covers(view.row.object.as_str())).ok_or_else(no_such_lease)?;
        if view.status != LeaseStatus::Overdue {
            return Ok(Json(LeaseBody::new(&view)));
        }
        gate.end(vec![(view.row.object, view.row.lease_id)]).await?;
    }
}

/// Leases, by object id and then lease_seq; ended ones for a day.
///
/// # Errors
/// `REQUEST_INVALID` with the field.
#[utoipa::path(get, operation_id = "listLeases", path = "/v1/leases", tag = "leases", params(ListQuery), responses(
    (status = 200, body = LeaseList), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub async fn list(
    State(gate): State<Shared>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> Result<Json<LeaseList>, Problem> {
    let filter = Filter::new(query, caller.view())?;
    loop {
        let (wanted, now) = (filter.clone(), gate.now());
        let page = gate
            .read(move |records| {
                let wants = |view: &LeaseView| wanted.wants(view);
                records.leases(&wanted.ranges, wanted.after.as_deref(), wanted.limit, now, wants)
            })
            .await?;
        let overdue: Vec<_> = page
            .leases
            .iter()
            .filter(|view| view.status == LeaseStatus::Overdue)
            .map(|view| (view.row.object.clone(), view.row.lease_id.clone()))
            .collect();
        if overdue.is_empty() {
            return Ok(Json(list_body(&page)));
        }
        gate.end(overdue).await?;
    }
}

fn list_body(page: &Page) -> LeaseList {
    LeaseList {
        leases: page.leases.iter().map(LeaseBody::new).collect(),
        next_cursor: page.next.as_ref().map(|key| BASE64_URL_SAFE_NO_PAD.encode(key)),
    }
}

/// The key that a cursor means: that of a lease under the same prefix.
fn cursor_key(cursor: &str, prefix: &str) -> Result<Vec<u8>, Problem> {
    let key = BASE64_URL_SAFE_NO_PAD.decode(cursor).ok();
    let is_ours =
        |key: &[u8]| matches!(Key::decode(key), Ok(Key::Lease(object, _)) if object.as_str().starts_with(prefix));
    key.filter(|key| is_ours(key)).ok_or_else(|| Problem::invalid("cursor", "is not a next_cursor of this call"))
}

/// The keys of leases of the objects that begin with `prefix` and are visible, in order.
fn ranges(prefix: &str, visible: &View) -> Vec<(Vec<u8>, Vec<u8>)> {
    let Some(parts) = visible.parts() else { return vec![Family::Lease.range(prefix)] };
    let mut ranges = vec![];
    for root in parts.iter().map(Domain::root) {
        let below = format!("{root}/");
        ranges.extend(
            ObjectId::new(&root).ok().filter(|_| root.starts_with(prefix)).map(|own| Family::Lease.range_of(&own)),
        );
        if below.starts_with(prefix) {
            ranges.push(Family::Lease.range(&below));
        } else if prefix.starts_with(&below) {
            ranges.push(Family::Lease.range(prefix));
        }
    }
    ranges.sort();
    ranges
}

#[derive(Clone)]
struct Filter {
    holder: Option<HolderId>,
    state: Option<LeaseState>,
    limit: usize,
    after: Option<Vec<u8>>,
    /// The keys that are looked at: none of an object that the caller may not see, since cursors name keys.
    ranges: Vec<(Vec<u8>, Vec<u8>)>,
    /// What the caller may see.
    visible: View,
}

impl Filter {
    fn new(query: ListQuery, visible: View) -> Result<Self, Problem> {
        let limit = query.limit.unwrap_or(LIMIT_DEFAULT);
        if !(1..=LIMIT_MAX).contains(&limit) {
            return Err(Problem::invalid("limit", format!("must be from 1 to {LIMIT_MAX}, this is {limit}")));
        }
        let prefix = query.prefix.unwrap_or_default();
        let after = query.cursor.map(|cursor| cursor_key(&cursor, &prefix)).transpose()?;
        Ok(Self {
            holder: query.holder_id.as_deref().map(extract::holder).transpose()?,
            state: query.state,
            limit,
            after,
            ranges: ranges(&prefix, &visible),
            visible,
        })
    }

    /// Overdue leases are kept for every state: they may turn out to be expired or renewed.
    fn wants(&self, view: &LeaseView) -> bool {
        let state = view.status == LeaseStatus::Overdue || self.state.is_none_or(|state| state == view.status.into());
        let visible = self.visible.covers(view.row.object.as_str());
        visible && state && self.holder.as_ref().is_none_or(|holder| *holder == view.row.holder)
    }
}
