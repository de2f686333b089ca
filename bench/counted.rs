//! What instructions are counted of: `counted NAME TIMES`. bench/instructions runs it under callgrind, which
//! counts only while a function of `measured` runs.

use std::{
    env,
    hint::black_box,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use fencegate::{
    api::Gate,
    clock::Clock,
    config::{LeaseSettings, Mode, RouteSettings, Settings},
    fence::{Hlc, HolderId, ObjectId, TableKey, Ttl},
    kubernetes::elections::Elections,
    metrics::Metrics,
    table::{
        Table,
        codec::{Meta, Terms},
        flight::{End, Stage},
        ledger::{Core, Ledger, Setup, Wanted},
        memory::MemoryTable,
        news::News,
        open::{Begun, begin_on, write_meta},
        records::Records,
        rocks::Recovered,
    },
    write_path::{
        Plane, Worker,
        connection::{Connections, serve},
        receipts::Receipts,
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    runtime::{Builder, LocalOptions, LocalRuntime},
    sync::{Semaphore, watch},
};

const OBJECT: &str = "bench";
/// An id as long as people's are.
const LONGER: &str = "/tenants/17/objects/123456";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nserver: store\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok";

mod measured {
    use std::hint::black_box;

    use fencegate::{
        fence::{FenceToken, Now, ObjectId, Permit, Record, verdict},
        table::{
            codec::{Context, decode_record, encode_record},
            records::Records,
            stripes::Place,
        },
    };
    use tokio::runtime::LocalRuntime;

    /// A write with its token, judged by what is in memory, and counted in flight.
    #[inline(never)]
    pub(super) fn judge(records: &Records, object: &str, token: &str, now: Now) -> Option<(Permit, Place)> {
        records.stripes.admit(object, |record, sealed| verdict::judge_text(record, sealed, token, now))?.ok()
    }

    #[inline(never)]
    pub(super) fn parse(token: &str) -> bool {
        black_box(FenceToken::parse(token)).is_ok()
    }

    /// A record's row, written and read.
    #[inline(never)]
    pub(super) fn codec(record: &Record, object: &ObjectId, context: &Context) -> bool {
        let row = encode_record(record, 1);
        black_box(decode_record(object.clone(), &row, context)).is_ok()
    }

    /// Requests, one after the other, over pipes in memory.
    #[inline(never)]
    pub(super) fn requests(runtime: &LocalRuntime, talk: impl Future<Output = ()>) {
        runtime.block_on(talk);
    }
}

/// A gate on a table in memory.
fn gate() -> Arc<Gate> {
    let (key, clock) = (TableKey::from_bytes([7; 32]), Clock::machine());
    let table = Arc::new(MemoryTable::default());
    write_meta(&*table, &Meta::new(&key, true), Hlc::default()).expect("memory takes it");
    let table = table as Arc<dyn Table>;
    let begun = begin_on(table, key, Recovered::Whole, (&clock, Terms::default()), "memory").expect("it is whole");
    let Begun { table, context, meta, mark, .. } = begun;
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
        terms: Terms::default(),
    });
    let ledger = Ledger::start(core, &clock);
    let about = metrics.kubernetes.clone();
    Arc::new(Gate {
        elections: Elections::new(1, ledger.clone(), clock.clone(), about),
        records,
        ledger,
        news,
        clock,
        authority: arc_swap::ArcSwap::default(),
        routes: arc_swap::ArcSwap::from_pointee(
            fencegate::route::Routes::new(&Settings::default()).expect("the defaults are sound"),
        ),
        limits: LeaseSettings::default(),
        deadline: Duration::ZERO,
        metrics,
        receipts: Receipts::new(100, 1),
        watchers: Arc::new(Semaphore::new(0)),
        draining: AtomicBool::new(false),
        stopping: watch::Sender::new(false),
    })
}

/// A lease; its token.
async fn acquire(gate: &Gate, object: &str) -> String {
    let wanted = Wanted {
        objects: vec![ObjectId::new(object).expect("an id")],
        holder: HolderId::new("bench").expect("an id"),
        ttl: Ttl(3_600_000),
        wait_ms: 0,
        request: None,
        takeover: true,
    };
    let granted = gate.ledger.acquire(wanted).await.expect("nobody else wants it");
    granted[0].lease.token(&granted[0].object).expose()
}

/// Answers every request that ends in these bytes.
async fn store(mut pipe: DuplexStream, end: &'static [u8]) {
    let mut read = Vec::with_capacity(4_096);
    while pipe.read_buf(&mut read).await.is_ok_and(|read| read > 0) {
        if read.ends_with(end) {
            read.clear();
            pipe.write_all(ANSWER).await.expect("the gate reads on");
        }
    }
}

const BODY: &[u8; 256] = &[b'x'; 256];

/// So many writes through a worker, each checked. `mode`: of the route; `stale`: the token is an older lease's.
fn requests(runtime: &LocalRuntime, mode: Mode, stale: bool, times: usize) {
    let gate = gate();
    let route = RouteSettings {
        name: "all".into(),
        path: "/{object}/{rest...}".into(),
        object: "{object}".into(),
        mode,
        ..RouteSettings::default()
    };
    let settings = Settings { route: vec![route], ..Settings::default() };
    let (mut client, request, wanted) = runtime.block_on(async {
        let token = acquire(&gate, OBJECT).await;
        if stale {
            drop(acquire(&gate, OBJECT).await);
        }
        let worker = Worker::new(Plane::new(Arc::clone(&gate), &settings, 10, None).expect("the settings are good"));
        let (ours, theirs) = duplex(65_536);
        worker.outfit().pools[0].adopt(ours);
        tokio::task::spawn_local(store(theirs, &BODY[..16]));
        let (client, served) = duplex(65_536);
        let connections = Connections::default();
        serve(&worker, &connections, served, "127.0.0.1:1".parse().expect("an address"));
        let head =
            format!("PUT /{OBJECT}/1 HTTP/1.1\r\nhost: bench\r\nfence-token: {token}\r\ncontent-length: 256\r\n\r\n");
        let wanted: &[u8] = if stale { b"HTTP/1.1 412" } else { b"HTTP/1.1 200" };
        (client, [head.as_bytes(), BODY].concat(), wanted)
    });
    let mut talk = async |times: usize| {
        let mut answer = Vec::with_capacity(4_096);
        for _ in 0..times {
            client.write_all(&request).await.expect("the gate reads on");
            answer.clear();
            while !(answer.ends_with(b"ok") || answer.ends_with(b"}")) {
                assert!(client.read_buf(&mut answer).await.is_ok_and(|read| read > 0), "it broke off");
            }
            assert!(answer.starts_with(wanted), "{}", String::from_utf8_lossy(&answer));
        }
    };
    // What is made once is not counted.
    runtime.block_on(talk(10));
    measured::requests(runtime, talk(times));
}

fn judge(runtime: &LocalRuntime, times: usize) {
    let gate = gate();
    let token = runtime.block_on(acquire(&gate, LONGER));
    for _ in 0..times {
        let judged = measured::judge(&gate.records, LONGER, black_box(&token), gate.now());
        let (_permit, place) = judged.expect("a permit");
        gate.records.stripes.end(place, &Stage::Waiting, End::Nothing);
    }
}

fn main() {
    let (name, times) = (env::args().nth(1).unwrap_or_default(), env::args().nth(2));
    let times: usize = times.and_then(|times| times.parse().ok()).expect("usage: counted NAME TIMES");
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).expect("a runtime");
    match name.as_str() {
        "judge" => judge(&runtime, times),
        "parse" => {
            let token = runtime.block_on(acquire(&gate(), LONGER));
            (0..times).for_each(|_| assert!(measured::parse(black_box(&token))));
        }
        "codec" => {
            let gate = gate();
            runtime.block_on(acquire(&gate, OBJECT));
            let object = ObjectId::new(OBJECT).expect("an id");
            let record = gate.records.read(&object).expect("it is in memory");
            (0..times).for_each(|_| assert!(measured::codec(black_box(&record), &object, &gate.records.context)));
        }
        "request" => requests(&runtime, Mode::Enforce, false, times),
        "request-off" => requests(&runtime, Mode::Off, false, times),
        "request-refused" => requests(&runtime, Mode::Enforce, true, times),
        other => panic!("nothing is counted by the name of {other:?}"),
    }
}
