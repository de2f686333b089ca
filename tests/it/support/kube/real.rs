//! A real kube-apiserver on an etcd of its own, both in their own processes, with roles for its users. Built by
//! scripts/kube-apiserver.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Mutex,
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::{
    super::{authority::Authority, http::Conn, until},
    Backend, Client, NAMESPACES, OUT_OF_SIGHT, Port, Who,
    accounts::{API_AUDIENCES, PERSON, token_of_a_person},
    client::{trusting, wait_for},
};

/// The audit policy: who sends which request, noted when it arrives.
const AUDIT: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [ResponseStarted, ResponseComplete, Panic]
rules:
- level: Metadata
  resources:
  - group: coordination.k8s.io
    resources: [leases]
- level: Metadata
  resources:
  - group: authentication.k8s.io
    resources: [tokenreviews]
- level: None
";

pub struct Real {
    programs: PathBuf,
    authority: Authority,
    etcd_port: Port,
    port: Port,
    admin: Client,
    etcd: Child,
    server: Mutex<Option<Child>>,
    /// Dropped last, when no program writes into it any more.
    folder: tempfile::TempDir,
}

impl Real {
    /// Starts the programs in this folder.
    pub fn start(programs: PathBuf, runtime: Handle) -> Self {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
        let (etcd_port, port) = (Port::hold(), Port::hold());
        authority.sign("127.0.0.1");
        let token = |who: Who| {
            let group = if who == Who::Admin { ",system:masters" } else { "" };
            format!("{},{user},{user}{group}\n", who.token(), user = who.user())
        };
        let person = format!("{},{PERSON},{PERSON}\n", token_of_a_person());
        fs::write(folder.path().join("tokens"), Who::ALL.map(token).concat() + &person).unwrap();
        fs::write(folder.path().join("audit.yaml"), AUDIT).unwrap();
        let tls = Some(trusting(&authority.ca()));
        let admin = Client { runtime, address: port.address, tls, token: Who::Admin.token().to_owned() };
        let etcd = start_etcd(folder.path(), etcd_port.address);
        let real = Self { programs, authority, etcd_port, port, admin, etcd, server: Mutex::new(None), folder };
        real.start_again();
        for namespace in NAMESPACES.into_iter().chain([OUT_OF_SIGHT]) {
            let object = json!({ "kind": "Namespace", "apiVersion": "v1", "metadata": { "name": namespace } });
            real.admin.call("POST", "/api/v1/namespaces", Some(&object)).expect(201);
        }
        let rules = json!([{
            "apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"],
        }]);
        let role = role_object("ClusterRole", Who::Gate, json!({ "rules": rules }));
        real.admin.call("POST", &format!("{CLUSTER_RBAC}/clusterroles"), Some(&role)).expect(201);
        for who in [Who::Gate, Who::Candidate] {
            for namespace in NAMESPACES {
                let rules = json!([{
                    "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": who.verbs(),
                }]);
                let role = role_object("Role", who, json!({ "rules": rules }));
                real.admin.call("POST", &format!("{}/roles", rbac(namespace)), Some(&role)).expect(201);
            }
            real.forbid(who, false);
        }
        real
    }

    fn log(&self) -> String {
        let text = fs::read_to_string(self.folder.path().join("kube-apiserver.log")).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    fn pid(&self) -> Pid {
        let server = self.server.lock().unwrap();
        Pid::from_child(server.as_ref().expect("it runs"))
    }

    fn command(&self) -> Command {
        let (folder, certificates) = (self.folder.path(), self.authority.folder.path());
        let (cert, key) = (certificates.join("127.0.0.1-cert.pem"), certificates.join("127.0.0.1-key.pem"));
        let mut command = Command::new(self.programs.join("kube-apiserver"));
        let mut flag = |name: &str, value: &str| {
            command.arg(format!("--{name}={value}"));
        };
        let file = |path: PathBuf| path.to_str().unwrap().to_owned();
        flag("etcd-servers", &format!("http://{}", self.etcd_port.address));
        flag("bind-address", "127.0.0.1");
        flag("secure-port", &self.port.address.port().to_string());
        // No test uses this address, but the server refuses a loopback one.
        flag("advertise-address", "192.0.2.1");
        flag("endpoint-reconciler-type", "none");
        flag("service-cluster-ip-range", "10.0.0.0/24");
        flag("tls-cert-file", &file(cert.clone()));
        flag("tls-private-key-file", &file(key.clone()));
        flag("service-account-key-file", &file(cert));
        flag("service-account-signing-key-file", &file(key));
        flag("service-account-issuer", API_AUDIENCES[0]);
        flag("api-audiences", &API_AUDIENCES.join(","));
        flag("cert-dir", &file(folder.join("certificates")));
        flag("authorization-mode", "RBAC");
        flag("token-auth-file", &file(folder.join("tokens")));
        flag("audit-policy-file", &file(folder.join("audit.yaml")));
        flag("audit-log-path", &file(folder.join("audit.log")));
        command
    }

    fn is_ready(&self) -> bool {
        if let Some(status) = self.server.lock().unwrap().as_mut().unwrap().try_wait().unwrap() {
            panic!("kube-apiserver has ended: {status}\n{}", self.log());
        }
        let ready = self.admin.try_call("GET", "/readyz", None).is_ok_and(|answer| answer.status == 200);
        if !ready {
            // It needs the processor more than its callers.
            wait_for("a moment", &self.admin.runtime, async { tokio::time::sleep(Duration::from_millis(50)).await });
        }
        ready
    }

    /// Whether a user may read Leases there, according to the server itself.
    fn may_read(&self, who: Who, namespace: &str) -> bool {
        let group = "coordination.k8s.io";
        self.may(who, &json!({ "namespace": namespace, "verb": "get", "group": group, "resource": "leases" }))
    }

    fn may(&self, who: Who, attributes: &Value) -> bool {
        let review = json!({
            "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
            "spec": { "resourceAttributes": attributes },
        });
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let answer = self.admin.with_token(who.token()).call("POST", path, Some(&review));
        answer.expect(201)["status"]["allowed"] == true
    }

    /// Takes the role of this kind from a user, or gives it back.
    fn bind(&self, who: Who, kind: &str, path: &str, forbidden: bool) {
        if forbidden {
            self.admin.call("DELETE", &format!("{path}/{}", who.user()), None).expect(200);
        } else {
            let rights = json!({
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": who.user() },
                "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": who.user() }],
            });
            self.admin.call("POST", path, Some(&role_object(&format!("{kind}Binding"), who, rights))).expect(201);
        }
    }
}

impl Backend for Real {
    fn address(&self) -> SocketAddr {
        self.port.address
    }

    fn ca_file(&self) -> Option<PathBuf> {
        Some(self.authority.ca())
    }

    fn start_again(&self) {
        let child = spawn(self.command(), self.folder.path(), "kube-apiserver");
        let before = self.server.lock().unwrap().replace(child);
        assert!(before.is_none(), "it runs already");
        until("kube-apiserver is ready", || self.is_ready());
    }

    fn stop(&self) {
        let mut child = self.server.lock().unwrap().take().expect("it runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn hang(&self, hangs: bool) {
        kill_process(self.pid(), if hangs { Signal::STOP } else { Signal::CONT }).unwrap();
    }

    fn hold_next_read(&self, _: bool) {
        unreachable!("one answer of a real API server cannot be held back");
    }

    fn holds_a_read(&self) -> bool {
        false
    }

    /// Duplicates the server's sockets and shuts them down.
    fn drop_watches(&self) {
        let pid = self.pid();
        let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let connections = connections_of(self.port.address.port());
        for entry in fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).unwrap().flatten() {
            // A socket that was closed meanwhile is skipped.
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            if connections.iter().any(|inode| target == Path::new(&format!("socket:[{inode}]"))) {
                let number = entry.file_name().to_str().unwrap().parse().unwrap();
                let Ok(socket) = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) else { continue };
                let _ = socket2::Socket::from(socket).shutdown(std::net::Shutdown::Both);
            }
        }
    }

    fn compact(&self) {
        let call = |path: &str, body: Value| {
            let mut conn = Conn::open(self.etcd_port.address).unwrap();
            conn.post(path, &body).expect(200)
        };
        let put = call("/v3/kv/put", json!({ "key": "YQ==", "value": "" }));
        let revision = &put["header"]["revision"];
        call("/v3/kv/compaction", json!({ "revision": revision, "physical": true }));
        self.stop();
        self.start_again();
    }

    fn forbid(&self, who: Who, forbidden: bool) {
        // The server learns of its own roles by a watch.
        for namespace in NAMESPACES {
            self.bind(who, "Role", &format!("{}/rolebindings", rbac(namespace)), forbidden);
            until("the roles count", || self.may_read(who, namespace) != forbidden);
        }
        if who.may_review() {
            self.bind(who, "ClusterRole", &format!("{CLUSTER_RBAC}/clusterrolebindings"), forbidden);
            let reviews = json!({ "verb": "create", "group": "authentication.k8s.io", "resource": "tokenreviews" });
            until("the role for reviews counts", || self.may(who, &reviews) != forbidden);
        }
    }

    fn requests(&self, who: Who, verb: &str) -> usize {
        let text = fs::read_to_string(self.folder.path().join("audit.log")).unwrap_or_default();
        let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let (resource, verb) = if verb == "tokenreviews" { (verb, "create") } else { ("leases", verb) };
        let is_it = |event: &Value| {
            event["user"]["username"] == who.user()
                && event["verb"] == verb
                && event["objectRef"]["resource"] == resource
        };
        lines.filter(|line| is_it(&serde_json::from_str(line).unwrap())).count()
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let server = self.server.get_mut().ok().and_then(Option::as_mut);
        for child in server.into_iter().chain([&mut self.etcd]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

const CLUSTER_RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

fn rbac(namespace: &str) -> String {
    format!("{CLUSTER_RBAC}/namespaces/{namespace}")
}

fn role_object(kind: &str, who: Who, mut more: Value) -> Value {
    more["kind"] = json!(kind);
    more["apiVersion"] = json!("rbac.authorization.k8s.io/v1");
    more["metadata"] = json!({ "name": who.user() });
    more
}

fn spawn(mut command: Command, folder: &Path, name: &str) -> Child {
    let log = || fs::OpenOptions::new().create(true).append(true).open(folder.join(format!("{name}.log"))).unwrap();
    let child = command.stdin(Stdio::null()).stdout(log()).stderr(log()).spawn();
    child.unwrap_or_else(|error| panic!("{}: {error}", command.get_program().display()))
}

fn start_etcd(folder: &Path, address: SocketAddr) -> Child {
    let (url, peers) = (format!("http://{address}"), Port::hold());
    let peer_url = format!("http://{}", peers.address);
    let mut command = Command::new("etcd");
    command.arg("--data-dir").arg(folder.join("etcd"));
    command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
    command.args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url]);
    command.args(["--initial-cluster", &format!("default={peer_url}")]);
    let child = spawn(command, folder, "etcd");
    let answers = || {
        let mut conn = Conn::open(address).ok()?;
        conn.try_call("POST", "/v3/kv/range", &[], b"{\"key\":\"YQ==\"}").ok().filter(|answer| answer.status == 200)
    };
    until("etcd answers", || answers().is_some());
    child
}

/// The inodes of a port's connections.
fn connections_of(port: u16) -> Vec<String> {
    let (own, established) = (format!(":{port:04X}"), "01");
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours = rows.filter(|row| row.len() > 9 && row[1].ends_with(&own) && row[3] == established);
    ours.map(|row| row[9].to_owned()).collect()
}
