//! A gate on a table in memory, without sockets: used to count instructions and to fuzz.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use fencegate::{
    clock::Clock,
    config::{LeaseSettings, Settings},
    fence::{Hlc, HolderId, ObjectId, TableKey, Ttl},
    gate::{Gate, receipts::Receipts},
    kubernetes::lease_observer::LeaseObserver,
    metrics::Metrics,
    route::RouteFingerprint,
    table::{
        Table,
        codec::Meta,
        ledger::{Core, Ledger, Setup, Wanted},
        memory::MemoryTable,
        news::News,
        open::{OpenedTable, begin_on, write_meta},
        records::Records,
        rocks::Recovered,
    },
};
use tokio::sync::{Semaphore, watch};

/// A gate on a table in memory.
pub(crate) fn gate() -> Arc<Gate> {
    let (key, clock) = (TableKey::from_bytes([7; 32]), Clock::machine());
    let table = Arc::new(MemoryTable::default());
    write_meta(&*table, &Meta::new(&key, true), Hlc::default()).expect("memory takes it");
    let table = table as Arc<dyn Table>;
    let begun =
        begin_on(table, key, Recovered::Whole, (&clock, RouteFingerprint::default()), "memory").expect("it is whole");
    let OpenedTable { table, context, meta, mark, .. } = begun;
    let (records, news) = (Arc::new(Records::new(table, context, 4_096)), Arc::new(News::new(64, mark)));
    let metrics = Arc::new(Metrics::new());
    let core = Core::new(Setup {
        records: Arc::clone(&records),
        news: Arc::clone(&news),
        clock: clock.clone(),
        metrics: metrics.ledger.clone(),
        meta,
        mark,
        journal_keep: 1_000,
        keys_keep_ms: 86_400_000,
        takeover_after_ms: 0,
        waiters_max: 1,
        unclean: false,
        fingerprint: RouteFingerprint::default(),
    });
    let ledger = Ledger::start(core, &clock);
    let about = metrics.kubernetes.clone();
    Arc::new(Gate {
        lease_observer: LeaseObserver::new(1, ledger.clone(), clock.clone(), about),
        records,
        ledger,
        news,
        clock,
        authority: arc_swap::ArcSwap::default(),
        access: arc_swap::ArcSwap::from_pointee(
            fencegate::access::Access::new(&Settings::default(), None)
                .unwrap_or_else(|_| panic!("the defaults are sound")),
        ),
        access_changes: watch::Sender::new(()),
        turns: fencegate::access::turns::Turns::default(),
        audit: fencegate::audit::Audit::off(),
        routes: arc_swap::ArcSwap::from_pointee(
            fencegate::route::Routes::new(&Settings::default()).expect("the defaults are sound"),
        ),
        limits: LeaseSettings::default(),
        deadline: Duration::ZERO,
        metrics,
        receipts: Receipts::new(100, 1),
        reads: fencegate::gate::reads::Reads::default(),
        watchers: Arc::new(Semaphore::new(0)),
        draining: AtomicBool::new(false),
        stopping: watch::Sender::new(false),
    })
}

/// Acquires a lease and returns its token.
pub(crate) async fn acquire(gate: &Gate, object: &str) -> String {
    let wanted = Wanted {
        objects: vec![ObjectId::new(object).expect("an id")],
        holder: HolderId::new("bench").expect("an id"),
        ttl: Ttl(3_600_000),
        wait_ms: 0,
        request: None,
        takeover: true,
    };
    let granted = gate.ledger.acquire(wanted).await.expect("no other caller wants it").take();
    granted[0].lease.token(&granted[0].object).expose()
}
