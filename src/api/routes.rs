//! The routes that writes use, for callers that must name the same objects.

use axum::{Json, extract::State};

use super::caller::Caller;
use crate::{
    fence::ObjectId,
    gate::{Gate, Shared},
    route::Route,
    wire::{RouteBody, RouteList},
};

/// How many templates a warning names.
const NAMED_MAX: usize = 5;

impl RouteBody {
    fn new(route: &Route) -> Self {
        Self {
            name: route.name.to_string(),
            path: route.path_text.to_string(),
            object: route.object_text.to_string(),
            mode: route.mode,
            lease_source: route.source.setting(),
        }
    }
}

/// The routes that writes use now.
#[utoipa::path(get, operation_id = "listRoutes", path = "/v1/routes", tag = "routes", responses(
    (status = 200, body = RouteList)))]
pub async fn list(State(gate): State<Shared>, _: Caller) -> Json<RouteList> {
    Json(RouteList { routes: gate.routes.load().all().iter().map(RouteBody::new).collect() })
}

/// The warning for a lease on this object: no route makes the object's id, so no write can use the lease.
#[must_use]
pub fn warning(gate: &Gate, object: &ObjectId) -> Option<String> {
    let routes = gate.routes.load();
    if routes.may_make(object) {
        return None;
    }
    let mut made: Vec<&str> = routes.all().iter().map(|route| &*route.object_text).collect();
    made.dedup();
    let more = if made.len() > NAMED_MAX { ", ..." } else { "" };
    made.truncate(NAMED_MAX);
    Some(format!(
        "no route of this gate makes the object {object}, so the gate refuses every write with this token; its routes make {}{more} (GET /v1/routes)",
        made.join(", ")
    ))
}
