//! A kube-apiserver in this process, on plain HTTP, for Leases, ServiceAccounts and their tokens.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Method, Request, Response,
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    runtime::Handle,
    sync::{oneshot, watch},
    task::{JoinHandle, JoinSet},
};

use super::{
    Backend, NAMESPACES, OUT_OF_SIGHT, Port, Who,
    accounts::{Accounts, Resource},
    client::wait_for,
    state::{Event, Failure, Selection, State},
};

type Body = UnsyncBoxBody<Bytes, io::Error>;
type Counts = BTreeMap<(Who, &'static str), usize>;

pub struct Fake {
    runtime: Handle,
    port: Port,
    shared: Arc<Shared>,
    serving: Mutex<Option<Serving>>,
}

struct Serving {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

struct Shared {
    state: Mutex<State>,
    accounts: Mutex<Accounts>,
    /// Changes with every revision.
    revision: watch::Sender<u64>,
    /// Watches of an earlier round are cut off.
    round: watch::Sender<u64>,
    hangs: watch::Sender<bool>,
    hold: watch::Sender<Hold>,
    forbidden: Mutex<BTreeSet<Who>>,
    counts: Mutex<Counts>,
}

/// An answer to one of the gate's reads that is held back.
#[derive(Clone, Copy, PartialEq)]
enum Hold {
    None,
    /// The answer to the next read will be held back.
    Next,
    Held,
}

impl Fake {
    pub fn start(runtime: Handle) -> Self {
        let shared = Shared {
            state: Mutex::new(State::new(&[NAMESPACES[0], NAMESPACES[1], OUT_OF_SIGHT])),
            accounts: Mutex::default(),
            revision: watch::Sender::new(1),
            round: watch::Sender::new(0),
            hangs: watch::Sender::new(false),
            hold: watch::Sender::new(Hold::None),
            forbidden: Mutex::default(),
            counts: Mutex::default(),
        };
        let fake = Self { runtime, port: Port::hold(), shared: Arc::new(shared), serving: Mutex::new(None) };
        fake.start_again();
        fake
    }
}

impl Backend for Fake {
    fn address(&self) -> SocketAddr {
        self.port.address
    }

    fn ca_file(&self) -> Option<PathBuf> {
        None
    }

    fn start_again(&self) {
        let (shared, address) = (Arc::clone(&self.shared), self.port.address);
        let (stop, stopped) = oneshot::channel();
        let listener = wait_for("the API server's port", &self.runtime, TcpListener::bind(address)).unwrap();
        let task = self.runtime.spawn(serve(listener, shared, stopped));
        let before = self.serving.lock().unwrap().replace(Serving { stop, task });
        assert!(before.is_none(), "it runs already");
    }

    fn stop(&self) {
        let Serving { stop, task } = self.serving.lock().unwrap().take().expect("it runs");
        stop.send(()).unwrap();
        wait_for("the end of the API server's port", &self.runtime, task).unwrap();
    }

    fn hang(&self, hangs: bool) {
        self.shared.hangs.send_replace(hangs);
    }

    fn hold_next_read(&self, holds: bool) {
        self.shared.hold.send_replace(if holds { Hold::Next } else { Hold::None });
    }

    fn holds_a_read(&self) -> bool {
        *self.shared.hold.borrow() == Hold::Held
    }

    fn drop_watches(&self) {
        self.shared.round.send_modify(|round| *round += 1);
    }

    fn compact(&self) {
        self.shared.change(State::compact);
        self.drop_watches();
    }

    fn forbid(&self, who: Who, forbidden: bool) {
        let mut all = self.shared.forbidden.lock().unwrap();
        if forbidden {
            all.insert(who)
        } else {
            all.remove(&who)
        };
    }

    fn requests(&self, who: Who, verb: &str) -> usize {
        let counts = self.shared.counts.lock().unwrap();
        counts.iter().filter(|((each, own), _)| *each == who && *own == verb).map(|(_, count)| count).sum()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let outcome = change(&mut state);
        self.revision.send_replace(state.revision);
        outcome
    }

    /// Waits while the server answers no requests.
    async fn awake(&self) {
        let _ = self.hangs.subscribe().wait_for(|hangs| !hangs).await;
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>, mut stopped: oneshot::Receiver<()>) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut stopped => break,
        };
        let Ok((stream, _)) = accepted else { continue };
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let service = service_fn(move |request| answer(Arc::clone(&shared), request));
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
    drop(listener);
    connections.shutdown().await;
}

/// What a request is about.
struct Call {
    who: Who,
    resource: Resource,
    verb: &'static str,
    namespace: Option<String>,
    name: Option<String>,
    query: BTreeMap<String, String>,
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let call = read_call(&request);
    if let Ok(call) = &call {
        let counted = if call.resource == Resource::Reviews { "tokenreviews" } else { call.verb };
        *shared.counts.lock().unwrap().entry((call.who, counted)).or_default() += 1;
    }
    let sent = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    shared.awake().await;
    let is_read = call.as_ref().is_ok_and(|call| call.who == Who::Gate && call.verb == "get");
    let outcome = call.and_then(|call| {
        allowed(&shared, &call)?;
        if call.verb == "watch" { watch_answer(&shared, &call) } else { act(&shared, &call, &sent) }
    });
    // The content is from the time of the request, however late the answer is sent.
    let holds = |hold: &mut Hold| std::mem::replace(hold, Hold::Held) == Hold::Next;
    if is_read && *shared.hold.borrow() == Hold::Next && shared.hold.send_if_modified(holds) {
        let _ = shared.hold.subscribe().wait_for(|hold| *hold == Hold::None).await;
    }
    Ok(outcome.unwrap_or_else(|failure| json_answer(failure.code, &failure.status())))
}

fn read_call(request: &Request<Incoming>) -> Result<Call, Failure> {
    let token = request.headers().get("authorization").and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let who = Who::ALL.into_iter().find(|who| token == Some(who.token()));
    let who = who.ok_or_else(|| Failure::new(401, "Unauthorized", "Unauthorized"))?;
    let nothing = || Failure::new(404, "NotFound", "the server could not find the requested resource");
    let (resource, namespace, name) = Resource::of(request.uri().path()).ok_or_else(nothing)?;
    let query: BTreeMap<_, _> =
        form_urlencoded::parse(request.uri().query().unwrap_or_default().as_bytes()).into_owned().collect();
    let watches = query.get("watch").is_some_and(|value| ["1", "true"].contains(&value.as_str()));
    // A token is created below the name of its ServiceAccount.
    let verb = match (request.method(), name.filter(|_| resource != Resource::Tokens)) {
        (&Method::GET, None) if watches => "watch",
        (&Method::GET, None) => "list",
        (&Method::GET, Some(_)) => "get",
        (&Method::POST, None) => "create",
        (&Method::PUT, Some(_)) => "update",
        (&Method::PATCH, Some(_)) => "patch",
        (&Method::DELETE, Some(_)) => "delete",
        (&Method::DELETE, None) => "deletecollection",
        _ => return Err(Failure::new(405, "MethodNotAllowed", "the server does not allow this method")),
    };
    Ok(Call { who, resource, verb, namespace: namespace.map(str::to_owned), name: name.map(str::to_owned), query })
}

/// The verbs that the caller's role allows.
fn allowed(shared: &Shared, call: &Call) -> Result<(), Failure> {
    let namespace = call.namespace.as_deref().unwrap_or_default();
    let may = match call.resource {
        Resource::Leases if call.who != Who::Admin && !NAMESPACES.contains(&namespace) => false,
        Resource::Leases => call.who.verbs().is_none_or(|verbs| verbs.contains(&call.verb)),
        Resource::Reviews => call.who.may_review(),
        Resource::Accounts | Resource::Tokens | Resource::Pods => call.who == Who::Admin,
    };
    if may && !shared.forbidden.lock().unwrap().contains(&call.who) {
        return Ok(());
    }
    let (user, verb) = (call.who.user(), call.verb);
    let place = if namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace \"{namespace}\"")
    };
    let object = call.name.as_ref().map(|name| format!(" {name:?}")).unwrap_or_default();
    let (resource, group) = call.resource.name();
    let message = format!(
        "{resource}.{group}{object} is forbidden: User \"{user}\" cannot {verb} resource \"{resource}\" in API group \
         \"{group}\" {place}"
    );
    Err(Failure::new(403, "Forbidden", message))
}

fn act(shared: &Shared, call: &Call, sent: &[u8]) -> Result<Response<Body>, Failure> {
    let sent = if sent.is_empty() { Ok(Value::Null) } else { serde_json::from_slice(sent) };
    let sent = sent.map_err(|error| Failure::new(400, "BadRequest", error.to_string()))?;
    let namespace = call.namespace.as_deref().unwrap_or_default();
    let name = call.name.as_deref().unwrap_or_default();
    if call.resource != Resource::Leases {
        return act_on_accounts(&mut shared.accounts.lock().unwrap(), call, &sent);
    }
    let (code, object) = match call.verb {
        "get" => (200, shared.state().get(namespace, name)?),
        "list" => (200, shared.list(call)?),
        "create" => (201, shared.change(|state| state.create(namespace, &sent))?),
        "update" => {
            let may_create = call.who.verbs().is_none_or(|verbs| verbs.contains(&"create"));
            let existed = shared.state().get(namespace, name).is_ok();
            let code = if existed { 200 } else { 201 };
            (code, shared.change(|state| state.update(namespace, name, &sent, may_create))?)
        }
        "delete" => (200, shared.change(|state| state.delete(namespace, name, &sent))?),
        verb => return Err(Failure::new(405, "MethodNotAllowed", format!("this server does not {verb}"))),
    };
    Ok(json_answer(code, &object))
}

fn act_on_accounts(accounts: &mut Accounts, call: &Call, sent: &Value) -> Result<Response<Body>, Failure> {
    let namespace = call.namespace.as_deref().unwrap_or_default();
    let name = call.name.as_deref().unwrap_or_default();
    let (code, object) = match (call.resource, call.verb) {
        (Resource::Reviews, "create") => (201, accounts.review(sent)?),
        (Resource::Accounts, "create") => (201, accounts.create_account(namespace, sent)?),
        (Resource::Accounts, "delete") => (200, accounts.delete_account(namespace, name)?),
        (Resource::Tokens, "create") => (201, accounts.token(namespace, name, sent)?),
        (Resource::Pods, "create") => (201, accounts.create_pod(namespace, sent)?),
        (_, verb) => return Err(Failure::new(405, "MethodNotAllowed", format!("this server does not {verb}"))),
    };
    Ok(json_answer(code, &object))
}

impl Shared {
    fn list(&self, call: &Call) -> Result<Value, Failure> {
        let (state, selection) = (self.state(), selection(call)?);
        if version(call)?.is_some_and(|version| version > state.revision) {
            return Err(Failure::new(504, "Timeout", "Timeout: Too large resource version"));
        }
        Ok(state.list(&selection))
    }
}

fn version(call: &Call) -> Result<Option<u64>, Failure> {
    let text = call.query.get("resourceVersion").filter(|text| !text.is_empty());
    let bad = |text: &String| Failure::new(400, "BadRequest", format!("invalid resource version {text:?}"));
    text.map(|text| text.parse().map_err(|_| bad(text))).transpose()
}

fn selection(call: &Call) -> Result<Selection, Failure> {
    let mut selection = Selection { namespace: call.namespace.clone(), name: None };
    if call.query.get("labelSelector").is_some_and(|text| !text.is_empty()) {
        return Err(Failure::new(400, "BadRequest", "this server knows no label selectors"));
    }
    let fields = call.query.get("fieldSelector").map(String::as_str).unwrap_or_default();
    for field in fields.split(',').filter(|field| !field.is_empty()) {
        match field.split_once('=').map(|(name, value)| (name, value.trim_start_matches('='))) {
            Some(("metadata.name", name)) => selection.name = Some(name.to_owned()),
            Some(("metadata.namespace", name)) if call.namespace.is_none() => {
                selection.namespace = Some(name.to_owned());
            }
            _ => return Err(Failure::new(400, "BadRequest", format!("field label not supported: {field}"))),
        }
    }
    Ok(selection)
}

/// The position of a watch.
struct Cursor {
    shared: Arc<Shared>,
    selection: Selection,
    /// The existing objects, if the caller did not say where to begin.
    first: Vec<Value>,
    after: u64,
    bookmarks: bool,
    revision: watch::Receiver<u64>,
    round: watch::Receiver<u64>,
    ends: std::pin::Pin<Box<tokio::time::Sleep>>,
    over: bool,
}

fn watch_answer(shared: &Arc<Shared>, call: &Call) -> Result<Response<Body>, Failure> {
    let (selection, version) = (selection(call)?, version(call)?.filter(|version| *version > 0));
    let seconds = call.query.get("timeoutSeconds").and_then(|text| text.parse().ok()).filter(|seconds| *seconds > 0);
    let mut cursor = Cursor {
        shared: Arc::clone(shared),
        first: vec![],
        after: 0,
        bookmarks: call.query.get("allowWatchBookmarks").is_some_and(|value| value == "true" || value == "1"),
        revision: shared.revision.subscribe(),
        round: shared.round.subscribe(),
        ends: Box::pin(tokio::time::sleep(Duration::from_secs(seconds.unwrap_or(1800)))),
        over: false,
        selection,
    };
    cursor.round.mark_unchanged();
    let state = shared.state();
    cursor.after = version.unwrap_or(state.revision);
    if version.is_none() {
        cursor.first = state.selected(&cursor.selection);
        cursor.first.reverse();
    }
    drop(state);
    let lines = stream::unfold(cursor, |mut cursor| async move {
        let line = cursor.next().await?;
        Some((line.map(|line| Frame::data(Bytes::from(format!("{line}\n")))), cursor))
    });
    let answer = Response::builder().header("content-type", "application/json");
    Ok(answer.body(StreamBody::new(lines).boxed_unsync()).unwrap())
}

impl Cursor {
    /// The next line, or a cut connection. `None` if the watch has ended normally.
    async fn next(&mut self) -> Option<io::Result<Value>> {
        if self.over {
            return None;
        }
        if let Some(object) = self.first.pop() {
            return Some(Ok(json!({ "type": "ADDED", "object": object })));
        }
        loop {
            let shared = Arc::clone(&self.shared);
            tokio::select! {
                biased;
                _ = self.round.changed() => return Some(Err(io::ErrorKind::ConnectionReset.into())),
                () = shared.awake() => {}
            }
            let newest = *self.revision.borrow_and_update();
            match self.ready() {
                Some(Ok(event)) => {
                    self.after = event.revision;
                    return Some(Ok(json!({ "type": event.kind, "object": event.object })));
                }
                Some(Err(failure)) => {
                    self.over = true;
                    return Some(Ok(json!({ "type": "ERROR", "object": failure.status() })));
                }
                None => {}
            }
            tokio::select! {
                biased;
                _ = self.round.changed() => return Some(Err(io::ErrorKind::ConnectionReset.into())),
                _ = self.revision.changed() => {}
                () = &mut self.ends => {
                    self.over = true;
                    return self.bookmarks.then(|| Ok(bookmark(newest)));
                }
            }
        }
    }

    fn ready(&self) -> Option<Result<Event, Failure>> {
        let state = self.shared.state();
        if self.after < state.oldest {
            let message = format!("too old resource version: {} ({})", self.after, state.oldest);
            return Some(Err(Failure::new(410, "Expired", message)));
        }
        state.next(self.after, &self.selection).map(Ok)
    }
}

fn bookmark(revision: u64) -> Value {
    let metadata = json!({ "resourceVersion": revision.to_string(), "creationTimestamp": null });
    let object = json!({ "kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": metadata, "spec": {} });
    json!({ "type": "BOOKMARK", "object": object })
}

fn json_answer(code: u16, object: &Value) -> Response<Body> {
    let body = Full::from(object.to_string()).map_err(|never: Infallible| match never {}).boxed_unsync();
    Response::builder().status(code).header("content-type", "application/json").body(body).unwrap()
}
