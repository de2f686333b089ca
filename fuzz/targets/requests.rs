//! Bytes on a client's connection: whatever the gate forwards is a request that a strict parser reads there too, with the
//! same method, target and body, and in the same order. Head, target, Host, trailers and chunks are all in it.
#![no_main]

#[path = "../../bench/in_memory.rs"]
#[allow(dead_code, unreachable_pub, reason = "it serves others too")]
mod in_memory;
mod reference;

use std::{cell::RefCell, rc::Rc, sync::Arc, time::Duration};

use fencegate::{
    config::{Mode, RouteSettings, Settings},
    fence::BootMs,
    write_path::{
        Plane, Worker,
        connection::{Connections, serve},
    },
};
use libfuzzer_sys::fuzz_target;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    runtime::{Builder, LocalOptions, LocalRuntime},
};

use self::reference::Read;

/// A worker whose route forwards writes without a token, since nothing here could make one.
struct Range {
    runtime: LocalRuntime,
    worker: Rc<Worker>,
    connections: Connections,
}

thread_local! {
    static RANGE: Range = Range::new();
}

/// Connections to the store that are there for one input.
const CONNECTIONS: usize = 4;

impl Range {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).expect("a runtime");
        let route = RouteSettings { mode: Mode::Off, ..RouteSettings::default() };
        let settings = Settings { route: vec![route], ..Settings::default() };
        let worker = runtime.block_on(async {
            let plane = Plane::new(Arc::clone(&in_memory::gate()), &settings, 1_000, None);
            Worker::new(plane.expect("the settings are good"))
        });
        Self { runtime, worker, connections: Connections::default() }
    }

    /// What the store sees of these bytes.
    fn forwarded(&self, bytes: &[u8]) -> Vec<u8> {
        self.runtime.block_on(async {
            let seen = Rc::<RefCell<Vec<u8>>>::default();
            let pool = Rc::clone(&self.worker.worker_plan().pools[0]);
            let stores: Vec<_> = (0..CONNECTIONS)
                .map(|_| {
                    let (ours, theirs) = duplex(1 << 20);
                    pool.adopt(ours);
                    tokio::task::spawn_local(store(theirs, Rc::clone(&seen)))
                })
                .collect();
            let (mut client, served) = duplex(1 << 20);
            serve(&self.worker, &self.connections, served, "127.0.0.1:1".parse().expect("an address"));
            client.write_all(bytes).await.expect("there is room");
            client.shutdown().await.expect("it ends");
            let answers = tokio::time::timeout(Duration::from_secs(5), client.read_to_end(&mut vec![]));
            answers.await.expect("a client that has hung up is let go").ok();
            stores.iter().for_each(tokio::task::JoinHandle::abort);
            for store in stores {
                let _ = store.await;
            }
            pool.tidy(BootMs(0));
            seen.take()
        })
    }
}

/// Writes down every request, and answers it.
async fn store(mut pipe: DuplexStream, seen: Rc<RefCell<Vec<u8>>>) {
    let mut read = vec![];
    while pipe.read_buf(&mut read).await.is_ok_and(|read| read > 0) {
        let whole = reference::requests(&read);
        // One request at a time: it is whole once the strict parser has it.
        if !whole.is_empty() {
            seen.borrow_mut().extend_from_slice(&read);
            read.clear();
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            if pipe.write_all(answer).await.is_err() {
                return;
            }
        }
    }
}

/// The gate forwards a target without its scheme and host.
fn is_same(sent: &Read, forwarded: &Read) -> bool {
    let path = forwarded.target.strip_prefix(b"/").unwrap_or(&forwarded.target);
    sent.method == forwarded.method
        && (sent.target == forwarded.target
            || sent.target.windows(3).any(|scheme| scheme == b"://") && sent.target.ends_with(path))
        && sent.body == forwarded.body
}

fuzz_target!(|bytes: &[u8]| {
    let sent = reference::requests(bytes);
    let seen = RANGE.with(|range| range.forwarded(bytes));
    // Some are marked as the last of their connection; here all stand one behind the other.
    let (mut forwarded, mut rest) = (vec![], &seen[..]);
    while !rest.is_empty() {
        let (one, behind) = reference::first(rest).expect("the gate itself writes strictly");
        forwarded.push(one);
        rest = behind;
    }
    let mut left = sent.iter();
    for each in &forwarded {
        assert!(left.any(|sent| is_same(sent, each)), "forwarded {each:?}, but the client sent {sent:?}");
    }
});
