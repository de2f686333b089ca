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

use super::{caller::Caller, extract::Query};
use crate::{
    access::rules::View,
    clock::Stopwatch,
    fence::{Code, Hlc},
    gate::Shared,
    problem::Problem,
    table::news::{After, Item},
    wire::{EventBody, WatchBody, WatchQuery, schema},
};

const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How often it is checked that a watcher's proof of who it is still holds.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Lease events: `granted`, `renewed`, `released`, `fenced`, `expired`, each under its hybrid
/// logical time as `id`. Reconnect with `Last-Event-ID` to resume; the event `reset` says that some
/// were missed: list the leases anew.
///
/// # Errors
/// `REQUEST_INVALID` where the id to resume from is none.
#[utoipa::path(get, operation_id = "watchLeases", path = "/v1/watch", tag = "leases", params(WatchQuery, ("Last-Event-ID" = Option<schema::Stamp>, Header, description = "resume behind this event")), responses(
    (status = 200, body = WatchBody, content_type = "text/event-stream"),
    (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub async fn watch(
    State(gate): State<Shared>,
    caller: Caller,
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
        ready: VecDeque::from([(after, hello)]),
        sent: after,
        unsent: None,
        changes: caller.changes(),
        looked: Stopwatch::start(),
        visible: caller.view(),
        caller,
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
    /// Events to send, each with its time.
    ready: VecDeque<(Hlc, Event)>,
    /// The time of the last one that was sent.
    sent: Hlc,
    /// The time up to which there was no event for a caller that may not see all. It is sent once in a while only: when
    /// something happens elsewhere is not the caller's business.
    unsent: Option<Hlc>,
    caller: Caller,
    /// What the caller may see, and changes of that.
    visible: View,
    changes: watch::Receiver<()>,
    /// Since it was checked that the caller still is who it was.
    looked: Stopwatch,
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
            if !watching.may_go_on().await {
                return None;
            }
            if let Some((at, event)) = watching.ready.pop_front() {
                watching.sent = at;
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

/// No event up to here matches the watcher's filter. The id is sent alone, so that a watcher of a quiet prefix can resume
/// after other events have filled the ring.
fn id_alone(at: Hlc) -> (Hlc, Event) {
    (at, Event::default().id(at.to_string()).comment(""))
}

impl Watching {
    fn fetch(&mut self) {
        match self.gate.news.after(self.after) {
            After::Reset(newest) => {
                self.after = newest;
                self.ready.push_back((newest, Event::default().event("reset").id(newest.to_string()).data("{}")));
            }
            After::Items(items) => {
                let wanted = |item: &&Item| {
                    let object = item.1.row.object.as_str();
                    object.starts_with(&self.prefix) && self.visible.covers(object)
                };
                self.ready.extend(items.iter().filter(wanted).map(|item| (item.0, event(item))));
                let Some(last) = items.last() else { return };
                self.after = last.0;
                if !self.ready.is_empty() {
                    self.unsent = None;
                } else if self.visible.is_all() {
                    self.ready.push_back(id_alone(last.0));
                } else {
                    self.unsent = Some(last.0);
                }
            }
        }
    }

    /// Whether the caller may go on. Asked before each look for events, so that a stream that never pauses ends too.
    async fn may_go_on(&mut self) -> bool {
        // The sender lives as long as the gate.
        let has_changed = self.changes.has_changed().unwrap_or(false);
        if has_changed {
            self.changes.mark_unchanged();
            self.visible = self.caller.view();
            // What the caller may not see any more is not sent; the rest is fetched again.
            if self.ready.iter().any(|(at, _)| *at > self.sent) {
                self.ready.clear();
                self.after = self.sent;
            }
        }
        if !has_changed && self.looked.seconds() < LOOK_AGAIN.as_secs_f64() {
            return true;
        }
        self.looked = Stopwatch::start();
        self.caller.is_still_welcome().await
    }

    /// Waits for something to look at. Returns `false` when the stream must end.
    async fn wait(&mut self) -> bool {
        tokio::select! {
            changed = self.newer.changed() => changed.is_ok(),
            _ = self.stopping.wait_for(|stopping| *stopping) => false,
            _ = self.changes.changed() => {
                self.changes.mark_changed();
                true
            }
            () = tokio::time::sleep(LOOK_AGAIN) => {
                self.ready.extend(self.unsent.take().map(id_alone));
                true
            }
        }
    }
}

fn event(item: &Item) -> Event {
    let (stamp, line) = &**item;
    let data = serde_json::to_string(&EventBody::new(line)).unwrap_or_default();
    Event::default().event(line.kind.as_str()).id(stamp.to_string()).data(data)
}
