//! How much group commit gains: lease changes with 256 callers at once, compared with one synced write at a time, in
//! turns in one run. Fails below 15 times. `bench/out/ledger.json` gets the rounds.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a bench measures time")]
#![allow(clippy::pedantic, reason = "a bench is read, not called")]

use std::{path::Path, sync::Arc, time::Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use fencegate::{
    clock::Clock,
    fence::{HolderId, ObjectId, Ttl},
    metrics::Metrics,
    route::RouteFingerprint,
    table::{
        Batch, Table,
        codec::{Key, encode_mark},
        ledger::{Core, Ledger, Setup, Wanted},
        news::News,
        open::{self, OpenedTable},
        records::Records,
    },
};
use tokio::{runtime::Runtime, task::JoinSet};

/// The same allocator as in the gate.
#[global_allocator]
static MEMORY: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const CALLERS: usize = 256;
const AT_LEAST: f64 = 15.0;
const ROUNDS: usize = 45;
/// Lease changes of each caller in a round.
const EACH: usize = 20;
/// Synced writes in a round.
const ALONE: usize = 200;

struct Bench {
    runtime: Runtime,
    ledger: Ledger,
    table: Arc<dyn Table>,
    _folder: tempfile::TempDir,
}

fn start() -> Bench {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    open::init(folder.path()).unwrap();
    let clock = Clock::machine();
    let OpenedTable { table, context, meta, mark, .. } =
        open::begin(folder.path(), false, &clock, RouteFingerprint::default()).unwrap();
    let records = Arc::new(Records::new(Arc::clone(&table), context, 100_000));
    let core = Core::new(Setup {
        records,
        news: Arc::new(News::new(1_024, mark)),
        clock: clock.clone(),
        metrics: Metrics::new().ledger,
        meta,
        mark,
        journal_keep: 1_000,
        keys_keep_ms: 86_400_000,
        takeover_after_ms: 0,
        waiters_max: 1,
        unclean: false,
        fingerprint: RouteFingerprint::default(),
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    Bench { runtime, ledger: Ledger::start(core, &clock), table, _folder: folder }
}

/// Acquires a lease on an object, by takeover if it has a holder.
async fn acquire(ledger: &Ledger, object: &str) {
    let wanted = Wanted {
        objects: vec![ObjectId::new(object).unwrap()],
        holder: HolderId::new("bench").unwrap(),
        ttl: Ttl(3_600_000),
        wait_ms: 0,
        request: None,
        takeover: true,
    };
    let _ = ledger.acquire(wanted).await.unwrap().take();
}

async fn call(ledger: Ledger, caller: usize) {
    for n in 0..EACH {
        acquire(&ledger, &format!("object-{caller}-{n}")).await;
    }
}

impl Bench {
    /// Lease changes per second, with many callers.
    fn concurrent(&self) -> f64 {
        let begun = Instant::now();
        self.runtime.block_on(async {
            let mut callers = JoinSet::new();
            (0..CALLERS).for_each(|caller| drop(callers.spawn(call(self.ledger.clone(), caller))));
            callers.join_all().await;
        });
        (CALLERS * EACH) as f64 / begun.elapsed().as_secs_f64()
    }

    /// Synced writes per second, one at a time.
    fn one_at_a_time(&self) -> f64 {
        let begun = Instant::now();
        for _ in 0..ALONE {
            let mut batch = Batch::default();
            batch.put(&Key::Mark, encode_mark(fencegate::fence::Hlc::default()));
            self.table.commit(batch).unwrap();
        }
        ALONE as f64 / begun.elapsed().as_secs_f64()
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn write_down(rounds: &[[f64; 2]]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/out");
    std::fs::create_dir_all(&folder).unwrap();
    let figures = serde_json::json!({ "rounds": rounds });
    std::fs::write(folder.join("ledger.json"), format!("{figures:#}\n")).unwrap();
}

fn bench(criterion: &mut Criterion) {
    let bench = start();
    let turn = |_| {
        let single = bench.one_at_a_time();
        [bench.concurrent(), single]
    };
    let rounds: Vec<[f64; 2]> = (0..ROUNDS).map(turn).collect();
    let speedup = median(rounds.iter().map(|[many, single]| many / single).collect());
    let of = |n: usize| median(rounds.iter().map(|round| round[n]).collect());
    println!(
        "{CALLERS} callers: {:.0} lease changes/s; one synced write at a time: {:.0}/s; {speedup:.1} times",
        of(0),
        of(1)
    );
    write_down(&rounds);
    assert!(speedup >= AT_LEAST, "group commit gains too little");
    criterion.bench_function("one acquire, alone", |measure| {
        measure.iter(|| bench.runtime.block_on(acquire(&bench.ledger, "alone")));
    });
}

criterion_group! { name = benches; config = Criterion::default().sample_size(20); targets = bench }
criterion_main!(benches);
