//! Real lock services, as Debian packages them, and a lock on each as its users take it.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use super::{http::Conn, until};

/// A service in its own process, killed when dropped.
pub struct Service {
    child: Child,
    folder: tempfile::TempDir,
}

impl Service {
    fn start(mut command: Command, folder: tempfile::TempDir) -> Self {
        let log = || fs::OpenOptions::new().create(true).append(true).open(folder.path().join("log")).unwrap();
        let child = command.stdin(Stdio::null()).stdout(log()).stderr(log()).spawn().unwrap();
        Self { child, folder }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that was free a moment ago, for services that cannot choose one. It is below the range from which the system
/// picks ports, so no other test gets it meanwhile.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let place = std::process::id().wrapping_mul(97).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 15_000 + u16::try_from(place % 15_000).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Whether a server listens on the port.
fn listens(port: u16) -> bool {
    let wanted = format!(":{port:04X}");
    let is_it = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (own, _, state) = (words.next(), words.next(), words.next());
        own.is_some_and(|own| own.ends_with(&wanted)) && state == Some("0A")
    };
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| fs::read_to_string(table).unwrap().lines().any(is_it))
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Redis, with a lock by a script that counts and takes.
pub struct Redis {
    service: Service,
}

const TAKE: &str = "local token = redis.call('INCR', KEYS[2]) \
    if redis.call('SET', KEYS[1], token, 'PX', ARGV[1], 'NX') then return token else return nil end";

impl Redis {
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]);
        command.arg(folder.path().join("redis.sock")).arg("--dir").arg(folder.path());
        let redis = Self { service: Service::start(command, folder) };
        until("Redis listens", || UnixStream::connect(redis.socket()).is_ok());
        redis
    }

    fn socket(&self) -> std::path::PathBuf {
        self.service.folder.path().join("redis.sock")
    }

    /// Redis's answer: a number, or `None` for nil.
    fn call(&self, words: &[&str]) -> Option<u64> {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        let words: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        let count = words.matches("\r\n").count() / 2;
        stream.write_all(format!("*{count}\r\n{words}").as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        match line.trim_end().split_at(1) {
            (":", number) => Some(number.parse().unwrap()),
            ("$", "-1") => None,
            (_, other) => panic!("Redis says {other}"),
        }
    }

    /// Takes the lock. Returns its token, or `None` if the lock is held.
    pub fn take(&self, resource: &str, ttl_ms: u64) -> Option<u64> {
        let (lock, token) = (format!("lock:{resource}"), format!("token:{resource}"));
        self.call(&["EVAL", TAKE, "2", &lock, &token, &ttl_ms.to_string()])
    }

    /// Ends the lock's ttl: its holder loses the lock.
    pub fn expire(&self, resource: &str) {
        assert_eq!(self.call(&["DEL", &format!("lock:{resource}")]), Some(1), "a holder had it");
    }

    /// The data loss of a Redis that runs without a disk.
    pub fn lose_everything(&self, resource: &str) {
        self.call(&["DEL", &format!("token:{resource}")]);
        self.call(&["DEL", &format!("lock:{resource}")]);
    }
}

/// etcd, with its own lock.
pub struct Etcd {
    service: Service,
    address: SocketAddr,
}

/// A held lock of etcd.
pub struct EtcdLock {
    lease: String,
    /// The revision that created its key.
    pub revision: u64,
}

impl Etcd {
    pub fn start() -> Self {
        let (folder, client, peer) = (tempfile::tempdir().unwrap(), free_port(), free_port());
        let (client_url, peer_url) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(folder.path().join("data"));
        command.args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url]);
        command.args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url]);
        command.args(["--initial-cluster", &format!("default={peer_url}")]);
        let etcd = Self { service: Service::start(command, folder), address: local(client) };
        until("etcd listens", || listens(client));
        until("etcd answers", || etcd.try_call("/v3/kv/range", &json!({ "key": "AA==" })).is_some());
        etcd
    }

    fn try_call(&self, path: &str, body: &Value) -> Option<Value> {
        let mut conn = Conn::open(self.address).ok()?;
        let answer = conn.try_call("POST", path, &[], body.to_string().as_bytes()).ok()?;
        (answer.status == 200).then(|| answer.json())
    }

    fn call(&self, path: &str, body: &Value) -> Value {
        self.try_call(path, body).unwrap_or_else(|| panic!("etcd: {path}\n{}", self.service.log()))
    }

    /// Takes the lock; waits for its present holder.
    pub fn lock(&self, name: &str) -> EtcdLock {
        let lease = self.call("/v3/lease/grant", &json!({ "TTL": "600" }))["ID"].as_str().unwrap().to_owned();
        let key = self.call("/v3/lock/lock", &json!({ "name": BASE64_STANDARD.encode(name), "lease": lease }));
        let found = self.call("/v3/kv/range", &json!({ "key": key["key"] }));
        let revision = found["kvs"][0]["create_revision"].as_str().unwrap().parse().unwrap();
        EtcdLock { lease, revision }
    }

    /// Ends the lock's lease: its holder loses the lock.
    pub fn expire(&self, lock: &EtcdLock) {
        self.call("/v3/lease/revoke", &json!({ "ID": lock.lease }));
    }
}

/// ZooKeeper.
pub struct ZooKeeper {
    service: Service,
    address: SocketAddr,
}

/// One client's session, and its place in the queue for the lock.
pub struct ZooKeeperLock {
    stream: TcpStream,
    name: String,
    /// The transaction that made its node.
    pub zxid: u64,
}

const CREATE_2: i32 = 15;
const CHILDREN: i32 = 8;
const CLOSE: i32 = -11;
const EPHEMERAL_SEQUENTIAL: i32 = 3;
const EVERYTHING: i32 = 31;

impl ZooKeeper {
    pub fn start() -> Self {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let config = folder.path().join("zoo.cfg");
        let text = format!(
            "tickTime=500\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n",
            folder.path().join("data").display()
        );
        fs::write(&config, text).unwrap();
        let mut command = Command::new("java");
        command.args(["-Xmx128m", "-cp", "/usr/share/java/zookeeper.jar"]);
        command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(config);
        let zookeeper = Self { service: Service::start(command, folder), address: local(port) };
        until("ZooKeeper listens", || listens(port));
        until("ZooKeeper answers", || zookeeper.connect().is_some());
        zookeeper
    }

    /// A session.
    fn connect(&self) -> Option<TcpStream> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
        let mut hello = vec![];
        hello.extend(0_i32.to_be_bytes());
        hello.extend(0_i64.to_be_bytes());
        hello.extend(20_000_i32.to_be_bytes());
        hello.extend(0_i64.to_be_bytes());
        hello.extend(16_i32.to_be_bytes());
        hello.extend([0; 16]);
        hello.push(0);
        send(&mut stream, &hello).ok()?;
        receive(&mut stream).ok()?;
        Some(stream)
    }

    /// Queues for the lock by ZooKeeper's recipe: a separate numbered node, which is deleted with the session.
    pub fn queue(&self) -> ZooKeeperLock {
        let mut stream = self.connect().unwrap_or_else(|| panic!("no session\n{}", self.service.log()));
        let mut request = vec![];
        request.extend(1_i32.to_be_bytes());
        request.extend(CREATE_2.to_be_bytes());
        put_text(&mut request, "/lock-");
        request.extend(0_i32.to_be_bytes());
        request.extend(1_i32.to_be_bytes());
        request.extend(EVERYTHING.to_be_bytes());
        put_text(&mut request, "world");
        put_text(&mut request, "anyone");
        request.extend(EPHEMERAL_SEQUENTIAL.to_be_bytes());
        let answer = call(&mut stream, &request);
        let (name, stat) = take_text(&answer[16..]);
        let zxid = u64::from_be_bytes(stat[..8].try_into().unwrap());
        ZooKeeperLock { stream, name: name.trim_start_matches('/').to_owned(), zxid }
    }
}

impl ZooKeeperLock {
    /// Whether it is this session's turn: no node has a lower number.
    pub fn is_held(&mut self) -> bool {
        let mut request = vec![];
        request.extend(2_i32.to_be_bytes());
        request.extend(CHILDREN.to_be_bytes());
        put_text(&mut request, "/");
        request.push(0);
        let answer = call(&mut self.stream, &request);
        let count = i32::from_be_bytes(answer[16..20].try_into().unwrap());
        let mut rest = &answer[20..];
        let mut names = vec![];
        for _ in 0..count {
            let (name, behind) = take_text(rest);
            names.push(name);
            rest = behind;
        }
        names.retain(|name| name.starts_with("lock-"));
        names.sort();
        names.first() == Some(&self.name)
    }

    /// Ends the session, and with it the lock.
    pub fn expire(mut self) {
        let mut request = vec![];
        request.extend(3_i32.to_be_bytes());
        request.extend(CLOSE.to_be_bytes());
        call(&mut self.stream, &request);
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend(i32::try_from(text.len()).unwrap().to_be_bytes());
    out.extend(text.as_bytes());
}

fn take_text(bytes: &[u8]) -> (String, &[u8]) {
    let length = usize::try_from(i32::from_be_bytes(bytes[..4].try_into().unwrap())).unwrap();
    (String::from_utf8(bytes[4..4 + length].to_vec()).unwrap(), &bytes[4 + length..])
}

fn send(stream: &mut TcpStream, message: &[u8]) -> std::io::Result<()> {
    let length = i32::try_from(message.len()).unwrap().to_be_bytes();
    stream.write_all(&[&length[..], message].concat())
}

fn receive(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut message = vec![0; usize::try_from(i32::from_be_bytes(length)).unwrap()];
    stream.read_exact(&mut message)?;
    Ok(message)
}

/// A call and its answer: a header of 16 bytes, which must report success, and the data after it.
fn call(stream: &mut TcpStream, request: &[u8]) -> Vec<u8> {
    send(stream, request).unwrap();
    let answer = receive(stream).unwrap();
    assert_eq!(i32::from_be_bytes(answer[12..16].try_into().unwrap()), 0, "ZooKeeper refuses");
    answer
}
