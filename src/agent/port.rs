//! The application's side: reads pass, writes get the token of their object, and refused requests get the reason.
//!
//! The gate's own `classify` decides what a request is and which object it names, because the two programs must not
//! differ.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, Request, request::Parts};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinHandle,
};

use super::{
    forward::{Forwarder, Pass},
    holdings::{Holdings, Led},
    hosts::Hosts,
};
use crate::{
    config::{AgentLease, AgentPort, AgentSettings, GateSettings},
    fence::{Code, code::Plane, election::LeaseName},
    metrics::AgentMetrics,
    problem::Problem,
    route::{
        Routes, canonical,
        classify::{self, Class, FENCE_TOKEN},
        source::Kubernetes,
    },
};

/// How long a stop waits for the last answers.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// After a failed accept: file descriptors may have run out.
const PAUSE: Duration = Duration::from_millis(100);

/// The port that the application calls.
pub struct Port {
    routes: Routes,
    limits: GateSettings,
    holdings: Arc<Holdings>,
    forwarder: Forwarder,
    metrics: Arc<AgentMetrics>,
    renews_first: bool,
    hosts: Hosts,
    /// The number of writes in flight.
    writes: Arc<watch::Sender<usize>>,
}

/// One write in flight.
struct OnItsWay(Arc<watch::Sender<usize>>);

impl OnItsWay {
    fn new(writes: &Arc<watch::Sender<usize>>) -> Self {
        writes.send_modify(|count| *count += 1);
        Self(Arc::clone(writes))
    }
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Port {
    #[must_use]
    pub fn new(
        routes: Routes,
        holdings: Arc<Holdings>,
        forwarder: Forwarder,
        metrics: Arc<AgentMetrics>,
        lease: &AgentLease,
        hosts: Hosts,
    ) -> Self {
        let writes = Arc::new(watch::Sender::new(0));
        let (limits, renews_first) = (AgentSettings::limits(), lease.renew_before_write);
        Self { routes, limits, holdings, forwarder, metrics, renews_first, hosts, writes }
    }

    /// Returns when no write is in flight.
    pub async fn idle(&self) {
        // The sender lives in this struct, so this cannot fail.
        let _ = self.writes.subscribe().wait_for(|count| *count == 0).await;
    }

    async fn answer(&self, request: Request<Incoming>) -> Response {
        let (head, body) = request.into_parts();
        let answered = match self.objects(&head) {
            Err(problem) => Err(problem),
            Ok(None) => {
                self.metrics.forwarded(false);
                self.forwarder.send(head, body, Pass::Read, ()).await
            }
            Ok(Some(objects)) => self.write(head, body, objects).await,
        };
        answered.unwrap_or_else(|problem| {
            self.metrics.refused(problem.code());
            let is_unknown = problem.code() == Code::OutcomeUnknown;
            let mut response = problem.into_response();
            if is_unknown {
                response.headers_mut().insert("fence-outcome", HeaderValue::from_static("unknown"));
            }
            response
        })
    }

    /// The objects that a write goes to; `None` for a read.
    fn objects(&self, head: &Parts) -> Result<Option<Vec<Led>>, Problem> {
        // Reads are checked too: the agent may send the gate a client certificate that a web page does not have.
        if !self.hosts.take(&head.uri, &head.headers) {
            return Err(Hosts::refusal());
        }
        if head.headers.contains_key(FENCE_TOKEN) {
            let mut problem = Problem::on(
                Plane::Data,
                Code::RequestInvalid,
                "the agent adds the token itself; send this request to the gate, or without a Fence-Token",
            );
            problem.tell_field("Fence-Token");
            return Err(problem);
        }
        let class = classify::classify(head, &self.routes, &self.limits).map_err(|unfit| {
            let mut problem = Problem::on(Plane::Data, unfit.code, unfit.detail);
            unfit.field.iter().for_each(|field| problem.tell_field(field));
            problem
        })?;
        let Class::Write(write) = class else { return Ok(None) };
        if Hosts::is_of_other_page(&head.uri, &head.headers) {
            let what = "no web page of another origin may write through this agent";
            return Err(Problem::on(Plane::Data, Code::NotLoopback, what));
        }
        let by = write.route.kubernetes().map(|kubernetes| self.lease(head, kubernetes)).transpose()?;
        let objects = std::iter::once(&write.target).chain(&write.others).map(classify::Target::id);
        Ok(Some(objects.map(|object| Led { object, by: by.clone() }).collect()))
    }

    /// The Kubernetes Lease that leads the object of a write.
    fn lease(&self, head: &Parts, kubernetes: &Kubernetes) -> Result<LeaseName, Problem> {
        let segments = canonical::segments(head.uri.path()).ok();
        let found = segments.as_ref().and_then(|segments| self.routes.find(segments));
        let lease = found.and_then(|(_, captures)| kubernetes.lease(&captures));
        lease.ok_or_else(|| Problem::on(Plane::Data, Code::ObjectUnmapped, "no Lease could lead this object"))
    }

    async fn write(&self, head: Parts, body: Incoming, objects: Vec<Led>) -> Result<Response, Problem> {
        let on_its_way = OnItsWay::new(&self.writes);
        let uses = self.holdings.hold_all(&objects).await?;
        if self.renews_first {
            for each in &uses {
                each.renew().await?;
            }
        }
        self.metrics.forwarded(true);
        self.forwarder.send(head, body, Pass::Write(uses), on_its_way).await
    }
}

/// Serves the application until `stopping` turns true, and then until the last answer was sent.
pub fn serve(
    port: &Arc<Port>,
    listener: TcpListener,
    settings: &AgentPort,
    mut stopping: watch::Receiver<bool>,
) -> JoinHandle<()> {
    let (port, room) = (Arc::clone(port), Arc::new(Semaphore::new(settings.connections_max)));
    let head_timeout = Duration::from_millis(settings.head_timeout_ms);
    tokio::spawn(async move {
        let graceful = GracefulShutdown::new();
        loop {
            let accepted = tokio::select! {
                accepted = accept(&listener, &room) => accepted,
                _ = stopping.wait_for(|stopping| *stopping) => break,
            };
            match accepted {
                Ok((stream, permit)) => serve_one(&port, stream, permit, head_timeout, &graceful),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        drop(listener);
        let _ = tokio::time::timeout(LAST_ANSWERS, graceful.shutdown()).await;
    })
}

async fn accept(listener: &TcpListener, room: &Arc<Semaphore>) -> std::io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, permit))
}

fn serve_one(
    port: &Arc<Port>,
    stream: TcpStream,
    permit: OwnedSemaphorePermit,
    head_timeout: Duration,
    graceful: &GracefulShutdown,
) {
    let port = Arc::clone(port);
    let service = service_fn(move |request| {
        let port = Arc::clone(&port);
        async move { Ok::<_, Infallible>(port.answer(request).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(head_timeout);
    let connection = graceful.watch(builder.serve_connection(TokioIo::new(stream), service));
    tokio::spawn(async move {
        // A broken connection concerns the application only.
        let _ = connection.await;
        drop(permit);
    });
}
