//! A gate in this process, on real sockets, with a clock that the test drives.

use std::{sync::Arc, time::Duration};

use fencegate::{
    app::{self, Ports, Running},
    clock::{Clock, Driver},
    config::Settings,
    fence::{BootMs, Hlc, Now, TableKey, WallMs},
    table::{
        Table,
        codec::Meta,
        memory::MemoryTable,
        open::{begin_on, write_meta},
        rocks::Recovered,
    },
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::http::Conn;

/// The start of driven clocks.
pub const START: Now = Now { wall: WallMs(1_800_000_000_000), boot: BootMs(5_000_000) };

pub fn key() -> TableKey {
    TableKey::from_bytes([42; 32])
}

pub struct TestGate {
    pub table: Arc<MemoryTable>,
    pub clock: Driver,
    pub running: Option<Running>,
    pub runtime: Runtime,
}

/// Free ports, and small limits.
pub fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.gate.listen.set_port(0);
    settings.gate.workers = 1;
    settings.api.listen.set_port(0);
    settings.ops.listen.set_port(0);
    settings.lease.ttl_ms_min = 10;
    // No write lands late here, unless a test is about that.
    settings.store.delivery_bound_ms = 0;
    settings.store.apply_bound_ms = 0;
    settings
}

impl TestGate {
    pub fn start() -> Self {
        Self::with(&settings())
    }

    pub fn with(settings: &Settings) -> Self {
        let table = Arc::new(MemoryTable::default());
        let meta = Meta::new(&key(), true);
        write_meta(&*table, &meta, Hlc::default()).unwrap();
        Self::on(settings, table, START)
    }

    /// A gate on an existing table, as after a restart at `now`.
    pub fn on(settings: &Settings, table: Arc<MemoryTable>, now: Now) -> Self {
        let (clock, driver) = Clock::driven(now);
        let runtime = Runtime::new().unwrap();
        let shared = Arc::clone(&table) as Arc<dyn Table>;
        let begun = begin_on(
            shared,
            key(),
            Recovered::Whole,
            (&clock, fencegate::route::Routes::new(settings).unwrap().fingerprint),
            "memory",
        )
        .unwrap();
        let running = runtime.block_on(async { app::start_on(settings, clock, begun, Ports::bind(settings).unwrap()) });
        Self { table, clock: driver, running: Some(running.unwrap()), runtime }
    }

    pub fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    pub fn api(&self) -> Conn {
        Conn::open(self.running().api).unwrap()
    }

    /// A connection to the gate's own port, for writes.
    pub fn gate(&self) -> Conn {
        Conn::open(self.running().listens).unwrap()
    }

    pub fn ops(&self) -> Conn {
        Conn::open(self.running().ops).unwrap()
    }

    /// Panics unless a metric's line is there.
    pub fn shows(&self, line: &str) -> bool {
        String::from_utf8(self.ops().get("/metrics").body).unwrap().contains(line)
    }

    /// Stops the gate in good order. Returns the table.
    pub fn stop(self) -> Arc<MemoryTable> {
        self.try_stop().unwrap()
    }

    /// Stops the gate. Returns what was not in good order.
    pub fn try_stop(mut self) -> Result<Arc<MemoryTable>, &'static str> {
        let running = self.running.take().unwrap();
        self.runtime.block_on(running.stop(Duration::from_secs(10)))?;
        Ok(Arc::clone(&self.table))
    }

    /// Reloads settings as SIGHUP does.
    pub fn reload(&self, settings: &Settings) {
        self.runtime.block_on(self.running().reload(Ok(settings.clone()))).unwrap();
    }

    /// The table that a crash at this moment would leave.
    pub fn crash(self) -> Arc<MemoryTable> {
        Arc::new(self.table.after_a_crash())
    }
}

/// The body of an acquire.
pub fn wanted(object: &str, holder: &str, ttl_ms: u64) -> Value {
    json!({ "object_id": object, "holder_id": holder, "ttl_ms": ttl_ms })
}

/// Acquires, and must succeed.
#[track_caller]
pub fn acquire(api: &mut Conn, object: &str, holder: &str, ttl_ms: u64) -> Value {
    api.post("/v1/leases", &wanted(object, holder, ttl_ms)).expect(201)
}

/// A text field.
#[track_caller]
pub fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("no {name} in {value}"))
}

/// The body of a renewal of this lease.
#[track_caller]
pub fn renewal(lease: &Value, ttl_ms: u64) -> (String, Value) {
    let path = format!("/v1/leases/{}/renew", text(lease, "lease_id"));
    (
        path,
        json!({ "fence_token": text(lease, "fence_token"), "holder_id": text(lease, "holder_id"), "ttl_ms": ttl_ms }),
    )
}
