//! An API server for Leases and ServiceAccounts: a fake in this process, or a real kube-apiserver 1.20 on etcd, behind one interface.
//!
//! [`ApiServer::start`] uses the real one if FENCEGATE_TEST_KUBE_APISERVER names the folder of its programs, as `make
//! test-kubernetes` does, else the fake. Every call blocks. None needs a runtime around it, and each may be made inside
//! one. Each wait ends after a minute.
//!
//! There are three users, each with a token and its rights ([`Who`]), and three namespaces: two that gate and
//! candidates may work in ([`NAMESPACES`]), and one that they may not ([`OUT_OF_SIGHT`]).
//!
//! ```ignore
//! let server = ApiServer::start();
//! settings.kubernetes.url = server.url();                    // and ca_file(), token_file(Who::Gate)
//! let lease = server.take("left", "users", "a", 15);         // as client-go would, by hand
//! let token = fence_token(&lease);                           // k8s.<uid>.<leaseTransitions>
//! until("the gate watches", || server.requests(Who::Gate, "watch") > 0);
//! server.edit("left", "users", |spec| spec["holderIdentity"] = json!("b"));
//! server.compact();                                          // watchers must list again
//! server.stop();                                             // kill -9; start_again() on the same port
//! ```
//!
//! A [`Candidate`] is client-go itself with `make test-kubernetes`, for either server, and a script with its rules
//! elsewhere.
//!
//! Where the two differ:
//! - `compact`: the real one keeps recent changes in its own memory, whatever etcd forgets. So etcd is compacted and
//!   the server is killed and started: then both have forgotten. On both, running watches break. A client that resumes a
//!   watch gets 410 Expired as an ERROR event, even if no Lease has changed.
//! - `drop_watches` cuts all connections of the real one, and of the fake only those of watches.
//! - `hang` stops the real one with SIGSTOP.
//! - The fake sends a bookmark only when a watch's `timeoutSeconds` are over; the real one also once a minute.

mod accounts;
mod candidate;
mod client;
mod fake;
mod real;
mod state;

use std::{fs, net::SocketAddr, path::PathBuf};

use serde_json::{Value, json};
use tokio::runtime::{Handle, Runtime};

pub use self::{
    accounts::{API_AUDIENCES, token_of_a_person},
    candidate::Candidate,
    client::{Client, Watch},
};
use self::{fake::Fake, real::Real};

/// Namespaces that gate and candidates may work in.
pub const NAMESPACES: [&str; 2] = ["left", "right"];
/// A namespace where only the admin may do anything.
pub const OUT_OF_SIGHT: &str = "elsewhere";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// Get, list and watch, and TokenReviews: all that a gate needs.
    Gate,
    /// Get, create and update: all that an election needs.
    Candidate,
    /// Everything.
    Admin,
}

impl Who {
    pub const ALL: [Self; 3] = [Self::Gate, Self::Candidate, Self::Admin];

    pub fn user(self) -> &'static str {
        match self {
            Self::Gate => "gate",
            Self::Candidate => "candidate",
            Self::Admin => "admin",
        }
    }

    pub fn token(self) -> &'static str {
        match self {
            Self::Gate => "token-of-the-gate",
            Self::Candidate => "token-of-candidates",
            Self::Admin => "token-of-the-admin",
        }
    }

    /// The verbs that it may use on Leases; None: all.
    fn verbs(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Gate => Some(&["get", "list", "watch"]),
            Self::Candidate => Some(&["get", "create", "update"]),
            Self::Admin => None,
        }
    }

    /// Whether it may create TokenReviews.
    fn may_review(self) -> bool {
        match self {
            Self::Gate | Self::Admin => true,
            Self::Candidate => false,
        }
    }
}

/// A port that stays reserved while no server listens on it: this socket is bound to it and never listens.
struct Port {
    address: SocketAddr,
    _kept: socket2::Socket,
}

impl Port {
    fn hold() -> Self {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        // The server sets this too, so both sockets can be bound to the port.
        socket.set_reuse_address(true).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        Self { address: socket.local_addr().unwrap().as_socket().unwrap(), _kept: socket }
    }
}

/// The actions of a server, fake or real. [`ApiServer`] describes each.
trait Backend: Send + Sync {
    fn address(&self) -> SocketAddr;
    fn ca_file(&self) -> Option<PathBuf>;
    fn stop(&self);
    fn start_again(&self);
    fn hang(&self, hangs: bool);
    fn hold_next_read(&self, holds: bool);
    fn holds_a_read(&self) -> bool;
    fn drop_watches(&self);
    fn compact(&self);
    fn forbid(&self, who: Who, forbidden: bool);
    fn requests(&self, who: Who, verb: &str) -> usize;
}

pub struct ApiServer {
    server: Box<dyn Backend>,
    folder: tempfile::TempDir,
    /// None only while the value is dropped.
    runtime: Option<Runtime>,
}

/// The path of a namespace's Leases.
pub fn leases(namespace: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
}

/// The path of a namespace's ServiceAccounts.
pub fn service_accounts(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/serviceaccounts")
}

/// A Lease as a client sends it to create it.
pub fn lease(name: &str, spec: &Value) -> Value {
    json!({ "kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": { "name": name }, "spec": spec })
}

/// The fence token of a Lease's holder.
#[track_caller]
pub fn fence_token(lease: &Value) -> String {
    let transitions = lease["spec"]["leaseTransitions"].as_u64().unwrap_or(0);
    format!("k8s.{}.{transitions}", lease["metadata"]["uid"].as_str().expect("a uid"))
}

/// The present time in the format of a Lease.
#[allow(clippy::disallowed_methods, reason = "candidates have a clock of their own")]
pub fn micro_time() -> Value {
    json!(format!("{:.6}", jiff::Timestamp::now()))
}

impl ApiServer {
    pub fn start() -> Self {
        match candidate::programs() {
            Some(programs) => Self::with(|runtime| Box::new(Real::start(programs, runtime))),
            None => Self::fake(),
        }
    }

    pub fn fake() -> Self {
        Self::with(|runtime| Box::new(Fake::start(runtime)))
    }

    fn with(start: impl FnOnce(Handle) -> Box<dyn Backend>) -> Self {
        let (runtime, folder) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
        for who in Who::ALL {
            fs::write(folder.path().join(who.user()), who.token()).unwrap();
        }
        Self { server: start(runtime.handle().clone()), folder, runtime: Some(runtime) }
    }

    pub fn is_real(&self) -> bool {
        self.ca_file().is_some()
    }

    pub fn url(&self) -> String {
        let scheme = if self.is_real() { "https" } else { "http" };
        format!("{scheme}://{}", self.server.address())
    }

    /// The authority that signed the server's certificate, if it has one.
    pub fn ca_file(&self) -> Option<PathBuf> {
        self.server.ca_file()
    }

    /// A file with that user's token. If a test writes another token into it, requests get 401.
    pub fn token_file(&self, who: Who) -> PathBuf {
        self.folder.path().join(who.user())
    }

    /// Kills the server: its port and all connections are closed.
    pub fn stop(&self) {
        self.server.stop();
    }

    /// Starts the server on the same port, with the same data.
    pub fn start_again(&self) {
        self.server.start_again();
    }

    /// From now on the server takes connections and answers nothing.
    pub fn hang(&self) {
        self.server.hang(true);
    }

    /// Answers the requests that have waited.
    pub fn resume(&self) {
        self.server.hang(false);
    }

    /// Holds back the answer to the gate's next read of a Lease; its content is from the time of the read. Only the
    /// fake can do it.
    pub fn hold_next_read(&self) {
        self.server.hold_next_read(true);
    }

    pub fn holds_a_read(&self) -> bool {
        self.server.holds_a_read()
    }

    pub fn release_read(&self) {
        self.server.hold_next_read(false);
    }

    /// Breaks the connections of all watches.
    pub fn drop_watches(&self) {
        self.server.drop_watches();
    }

    /// Forgets every earlier resource version: watches break, and a client that resumes gets 410.
    pub fn compact(&self) {
        self.server.compact();
    }

    /// From now on this user (not the admin) gets 403 for every request.
    pub fn forbid(&self, who: Who) {
        self.server.forbid(who, true);
    }

    /// Gives a user its rights back.
    pub fn allow(&self, who: Who) {
        self.server.forbid(who, false);
    }

    /// The number of requests for Leases of this kind from a user: get, list, watch, create, update, patch, delete or
    /// deletecollection. "tokenreviews": of TokenReviews. They count when they arrive, answered or not; on a real server
    /// that hangs, when it reads them.
    pub fn requests(&self, who: Who, verb: &str) -> usize {
        self.server.requests(who, verb)
    }

    pub fn client(&self, who: Who) -> Client {
        let tls = self.ca_file().map(|ca| client::trusting(&ca));
        let runtime = self.runtime.as_ref().unwrap().handle().clone();
        Client { runtime, address: self.server.address(), tls, token: who.token().to_owned() }
    }

    /// A Lease, or `None` if there is none.
    #[track_caller]
    pub fn lease(&self, namespace: &str, name: &str) -> Option<Value> {
        let answer = self.client(Who::Admin).call("GET", &format!("{}/{name}", leases(namespace)), None);
        (answer.status != 404).then(|| answer.expect(200))
    }

    #[track_caller]
    pub fn create(&self, namespace: &str, name: &str, spec: &Value) -> Value {
        self.client(Who::Admin).call("POST", &leases(namespace), Some(&lease(name, spec))).expect(201)
    }

    /// Changes a Lease's spec, also while other clients change it.
    #[track_caller]
    pub fn edit(&self, namespace: &str, name: &str, change: impl Fn(&mut Value)) -> Value {
        loop {
            let mut lease = self.lease(namespace, name).expect("a Lease to change");
            change(&mut lease["spec"]);
            let path = format!("{}/{name}", leases(namespace));
            let answer = self.client(Who::Admin).call("PUT", &path, Some(&lease));
            if answer.status != 409 {
                return answer.expect(200);
            }
        }
    }

    #[track_caller]
    pub fn delete(&self, namespace: &str, name: &str) {
        let path = format!("{}/{name}", leases(namespace));
        self.client(Who::Admin).call("DELETE", &path, None).expect(200);
    }

    #[track_caller]
    pub fn service_account(&self, namespace: &str, name: &str) {
        let account = json!({ "kind": "ServiceAccount", "apiVersion": "v1", "metadata": { "name": name } });
        self.client(Who::Admin).call("POST", &service_accounts(namespace), Some(&account)).expect(201);
    }

    #[track_caller]
    pub fn delete_service_account(&self, namespace: &str, name: &str) {
        let path = format!("{}/{name}", service_accounts(namespace));
        self.client(Who::Admin).call("DELETE", &path, None).expect(200);
    }

    /// A token of a ServiceAccount, as the kubelet puts it into a pod. It lasts 600 seconds at least.
    #[track_caller]
    pub fn projected_token(&self, namespace: &str, name: &str, audience: &str, seconds: u64) -> String {
        self.request_token(namespace, name, json!({ "audiences": [audience], "expirationSeconds": seconds }))
    }

    /// The same, bound to a pod that is made for it. Also returns the pod's uid.
    #[track_caller]
    pub fn pod_token(&self, namespace: &str, name: &str, audience: &str, pod: &str) -> (String, String) {
        let spec = json!({
            "serviceAccountName": name, "automountServiceAccountToken": false,
            "containers": [{ "name": "one", "image": "registry.test/one" }],
        });
        let object = json!({ "kind": "Pod", "apiVersion": "v1", "metadata": { "name": pod }, "spec": spec });
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let made = self.client(Who::Admin).call("POST", &path, Some(&object)).expect(201);
        let uid = made["metadata"]["uid"].as_str().unwrap().to_owned();
        let bound = json!({ "kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid });
        let spec = json!({ "audiences": [audience], "expirationSeconds": 600, "boundObjectRef": bound });
        (self.request_token(namespace, name, spec), uid)
    }

    #[track_caller]
    fn request_token(&self, namespace: &str, name: &str, spec: Value) -> String {
        let mut request = json!({ "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {} });
        request["spec"] = spec;
        let path = format!("{}/{name}/token", service_accounts(namespace));
        let answer = self.client(Who::Admin).call("POST", &path, Some(&request)).expect(201);
        answer["status"]["token"].as_str().expect("a token").to_owned()
    }

    /// Takes or renews a Lease as client-go does; the earlier holder must have lost it. Transitions count the changes
    /// of holder, and stay the same if the same holder comes back.
    #[track_caller]
    pub fn take(&self, namespace: &str, name: &str, holder: &str, seconds: u32) -> Value {
        let now = micro_time();
        if self.lease(namespace, name).is_none() {
            let spec = json!({
                "holderIdentity": holder, "leaseDurationSeconds": seconds, "leaseTransitions": 0,
                "acquireTime": now, "renewTime": now,
            });
            return self.create(namespace, name, &spec);
        }
        self.edit(namespace, name, |spec| {
            if spec["holderIdentity"] != holder {
                spec["leaseTransitions"] = json!(spec["leaseTransitions"].as_u64().unwrap_or(0) + 1);
                spec["acquireTime"] = now.clone();
            }
            spec["holderIdentity"] = json!(holder);
            spec["leaseDurationSeconds"] = json!(seconds);
            spec["renewTime"] = now.clone();
        })
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        // A test may run inside its own runtime, where waiting for another one is not allowed.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
