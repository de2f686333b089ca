//! Lease events as server-sent events, resumable by their id.

use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::HeaderMap,
    response::{
        IntoResponse, Sse,
        sse::{Event, KeepAlive},
    },
};
use futures_util::{Stream, stream};
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::extract::Query;
use crate::{
    fence::{Code, Hlc},
    gate::Shared,
    problem::Problem,
    table::news::{After, Item},
    wire::{EventBody, WatchQuery, schema},
};

const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Lease events: `granted`, `renewed`, `released`, `fenced`, `expired`, each under its hybrid
/// logical time as `id`. Reconnect with `Last-Event-ID` to resume; the event `reset` says that some
/// were missed: list the leases anew.
///
/// # Errors
/// `REQUEST_INVALID` where the id to resume from is none.
#[utoipa::path(get, operation_id = "watchLeases", path = "/v1/watch", tag = "leases", params(WatchQuery, ("Last-Event-ID" = Option<schema::Stamp>, Header, description = "resume behind this event")), responses(
    (status = 200, body = EventBody, content_type = "text/event-stream"),
    (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub async fn watch(
    State(gate): State<Shared>,
    Query(query): Query<WatchQuery>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Problem> {
    let header = headers.get("last-event-id").map(|value| value.to_str().unwrap_or("?").to_owned());
    let newer = gate.news.subscribe();
    let resume = |field: &str, id: &str| id.parse::<Hlc>().map_err(|fault| Problem::invalid(field, fault));
    let after = match (header, query.after) {
        (Some(id), _) => resume("Last-Event-ID", &id)?,
        (None, Some(id)) => resume("after", &id)?,
        (None, None) => *newer.borrow(),
    };
    let place = Arc::clone(&gate.watchers).try_acquire_owned().map_err(|_| {
        Problem::new(
            Code::GateOverloaded,
            "too many watch already; the limit follows from how many files the gate may open",
        )
    })?;
    // The first line has an id and no event, so that a watcher that saw no event can resume too.
    let hello = Event::default().id(after.to_string()).comment("watching");
    gate.metrics.api.watcher(1.0);
    let watching = Watching {
        stopping: gate.stopping.subscribe(),
        prefix: query.prefix.unwrap_or_default(),
        ready: VecDeque::from([hello]),
        gate,
        newer,
        after,
        _place: place,
    };
    Ok(Sse::new(events(watching)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

struct Watching {
    gate: Shared,
    prefix: String,
    newer: watch::Receiver<Hlc>,
    stopping: watch::Receiver<bool>,
    after: Hlc,
    ready: VecDeque<Event>,
    _place: OwnedSemaphorePermit,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.gate.metrics.api.watcher(-1.0);
    }
}

fn events(watching: Watching) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold(watching, |mut watching| async move {
        loop {
            if let Some(event) = watching.ready.pop_front() {
                return Some((Ok(event), watching));
            }
            watching.newer.mark_unchanged();
            watching.fetch();
            if watching.ready.is_empty() && !watching.wait().await {
                return None;
            }
        }
    })
}

impl Watching {
    fn fetch(&mut self) {
        match self.gate.news.after(self.after) {
            After::Reset(newest) => {
                self.after = newest;
                self.ready.push_back(Event::default().event("reset").id(newest.to_string()).data("{}"));
            }
            After::Items(items) => {
                let wanted = |item: &&Item| item.1.row.object.as_str().starts_with(&self.prefix);
                self.ready.extend(items.iter().filter(wanted).map(event));
                let Some(last) = items.last() else { return };
                self.after = last.0;
                if self.ready.is_empty() {
                    // No event in this part matches the watcher's filter. The id is sent alone, so that a watcher of
                    // a quiet prefix can resume after other events have filled the ring.
                    self.ready.push_back(Event::default().id(last.0.to_string()).comment(""));
                }
            }
        }
    }

    /// Waits for events. Returns `false` when the stream must end.
    async fn wait(&mut self) -> bool {
        tokio::select! {
            changed = self.newer.changed() => changed.is_ok(),
            _ = self.stopping.wait_for(|stopping| *stopping) => false,
        }
    }
}

fn event(item: &Item) -> Event {
    let (stamp, line) = &**item;
    let data = serde_json::to_string(&EventBody::new(line)).unwrap_or_default();
    Event::default().event(line.kind.as_str()).id(stamp.to_string()).data(data)
}
