//! The programs whose instructions are counted: `counted NAME TIMES`. bench/instructions runs this under callgrind,
//! which counts only while a function of `measured` runs.

mod in_memory;

use std::{env, hint::black_box, sync::Arc};

use fencegate::{
    barrier::flight::{Counted, End},
    config::{Mode, RouteSettings, Settings},
    fence::ObjectId,
    write_path::{
        Plane, Worker,
        connection::{Connections, serve},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    runtime::{Builder, LocalOptions, LocalRuntime},
};

use self::in_memory::{acquire, gate};

const OBJECT: &str = "bench";
/// An id as long as usual ones.
const LONGER: &str = "/tenants/17/objects/123456";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nserver: store\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok";

mod measured {
    use std::hint::black_box;

    use fencegate::{
        barrier::stripes::Place,
        fence::{FenceToken, Now, ObjectId, Permit, Record, verdict},
        table::{
            codec::{Context, decode_record, encode_record},
            records::Records,
        },
    };
    use tokio::runtime::LocalRuntime;

    /// Judges a write with its token from memory, and counts it in flight.
    #[inline(never)]
    pub(super) fn judge(records: &Records, object: &str, token: &str, now: Now) -> Option<(Permit, Place)> {
        records.stripes.admit(object, |record, sealed| verdict::judge_text(record, sealed, token, now))?.ok()
    }

    #[inline(never)]
    pub(super) fn parse(token: &str) -> bool {
        black_box(FenceToken::parse(token)).is_ok()
    }

    /// Encodes and decodes a record's row.
    #[inline(never)]
    pub(super) fn codec(record: &Record, object: &ObjectId, context: &Context) -> bool {
        let row = encode_record(record, 1);
        black_box(decode_record(object.clone(), &row, context)).is_ok()
    }

    /// Sends requests, one after the other, over pipes in memory.
    #[inline(never)]
    pub(super) fn requests(runtime: &LocalRuntime, talk: impl Future<Output = ()>) {
        runtime.block_on(talk);
    }
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

/// Sends this many writes through a worker, and checks each. `mode`: of the route; `stale`: the token is an older
/// lease's.
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
        worker.worker_plan().pools[0].adopt(ours);
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
    // The first requests set things up, and are not counted.
    runtime.block_on(talk(10));
    measured::requests(runtime, talk(times));
}

fn judge(runtime: &LocalRuntime, times: usize) {
    let gate = gate();
    let token = runtime.block_on(acquire(&gate, LONGER));
    for _ in 0..times {
        let judged = measured::judge(&gate.records, LONGER, black_box(&token), gate.now());
        let (_permit, place) = judged.expect("a permit");
        gate.records.stripes.end(place, &Counted::Waiting, End::Nothing);
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
