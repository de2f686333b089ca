//! Bytes on a client's connection: whatever the gate forwards is a request that a strict parser reads there too, with the
//! same method, target, Host, fields, body and trailers, and in the same order.
//!
//! An input begins with where its bytes are cut for the gate's reads: how many cuts (15: behind every byte), and for each
//! how many bytes come before it, less one. The rest is what the client sends.
#![no_main]

#[path = "../../bench/in_memory.rs"]
#[allow(dead_code, unreachable_pub, reason = "it serves others too")]
mod in_memory;
mod reference;

use std::{
    cell::RefCell,
    collections::VecDeque,
    io,
    mem::ManuallyDrop,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use fencegate::{
    config::{GateSettings, Mode, RouteSettings, Settings},
    fence::BootMs,
    write_path::{
        Plane, Worker,
        connection::{Connections, serve},
    },
};
use libfuzzer_sys::fuzz_target;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex},
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
    /// Never dropped: at the end of the process, the runtime that its worker needs is gone.
    static RANGE: ManuallyDrop<Range> = ManuallyDrop::new(Range::new());
}

/// Connections to the store that are there for one input.
const CONNECTIONS: usize = 4;

/// Bodies that are longer stream: short, so that both kinds are within reach.
const HOLD: usize = 64;

/// A connection of which each read takes what is there up to the next cut, and finds nothing more at once.
struct Cuts {
    inner: DuplexStream,
    /// How many bytes each read takes.
    cuts: VecDeque<usize>,
    /// Behind the last cut: all at once, or byte by byte.
    then: usize,
    is_empty: bool,
}

impl AsyncRead for Cuts {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let cuts = self.get_mut();
        if std::mem::take(&mut cuts.is_empty) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let most = cuts.cuts.front().copied().unwrap_or(cuts.then).min(out.remaining());
        let mut room = vec![0; most];
        let mut piece = ReadBuf::new(&mut room);
        ready!(Pin::new(&mut cuts.inner).poll_read(context, &mut piece))?;
        let read = piece.filled().len();
        out.put_slice(piece.filled());
        cuts.is_empty = read > 0;
        if let Some(left) = cuts.cuts.front_mut() {
            *left -= read;
            if *left == 0 {
                cuts.cuts.pop_front();
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Cuts {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

/// What the client sends, and where it is cut.
fn input(bytes: &[u8]) -> (&[u8], VecDeque<usize>, usize) {
    let Some((count, rest)) = bytes.split_first() else { return (bytes, VecDeque::new(), usize::MAX) };
    match usize::from(count & 15) {
        15 => (rest, VecDeque::new(), 1),
        count => {
            let (cuts, sent) = rest.split_at(count.min(rest.len()));
            (sent, cuts.iter().map(|cut| usize::from(*cut) + 1).collect(), usize::MAX)
        }
    }
}

impl Range {
    fn new() -> Self {
        let runtime =
            Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).expect("a runtime");
        let route = RouteSettings { mode: Mode::Off, ..RouteSettings::default() };
        let gate = GateSettings { hold_bytes: HOLD, ..GateSettings::default() };
        let settings = Settings { gate, route: vec![route], ..Settings::default() };
        let worker = runtime.block_on(async {
            let plane = Plane::new(Arc::clone(&in_memory::gate()), &settings, 1_000, None);
            Worker::new(plane.expect("the settings are good"))
        });
        Self { runtime, worker, connections: Connections::default() }
    }

    /// What the store sees of these bytes.
    fn forwarded(&self, bytes: &[u8], cuts: VecDeque<usize>, then: usize) -> Vec<u8> {
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
            let (mut client, inner) = duplex(1 << 20);
            let served = Cuts { inner, cuts, then, is_empty: false };
            serve(&self.worker, &self.connections, served, "127.0.0.1:1".parse().expect("an address"));
            client.write_all(bytes).await.expect("there is room");
            client.shutdown().await.expect("it ends");
            let mut all = vec![];
            let answers = tokio::time::timeout(Duration::from_secs(5), client.read_to_end(&mut all));
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

/// The trailers that a gate passes on unless it is set otherwise.
fn is_listed(name: &[u8]) -> bool {
    thread_local! {
        static LISTED: Vec<String> = GateSettings::default().trailers;
    }
    LISTED.with(|listed| listed.iter().any(|each| each.as_bytes() == name))
}

/// Fields that the gate writes itself, or anew.
fn is_written_by_gates(name: &[u8]) -> bool {
    matches!(
        name,
        b"host"
            | b"content-length"
            | b"transfer-encoding"
            | b"trailer"
            | b"connection"
            | b"te"
            | b"via"
            | b"x-request-id"
            | b"x-forwarded-for"
            | b"x-forwarded-proto"
            | b"x-forwarded-host"
    )
}

/// The gate forwards a target without its scheme and host.
fn is_same(sent: &Read, forwarded: &Read) -> bool {
    let path = forwarded.target.strip_prefix(b"/").unwrap_or(&forwarded.target);
    sent.method == forwarded.method
        && (sent.target == forwarded.target
            || sent.target.windows(3).any(|scheme| scheme == b"://") && sent.target.ends_with(path))
        && has_same_host(sent, forwarded)
        && forwarded.fields.iter().all(|field| is_written_by_gates(&field.0) || sent.fields.contains(field))
        && sent.body == forwarded.body
        && has_same_trailers(sent, forwarded)
}

/// One Host, and the client's own.
fn has_same_host(sent: &Read, forwarded: &Read) -> bool {
    let (sent, forwarded): (Vec<_>, Vec<_>) = (sent.values(b"host").collect(), forwarded.values(b"host").collect());
    matches!((&sent[..], &forwarded[..]), ([sent], [forwarded]) if sent.eq_ignore_ascii_case(forwarded))
}

/// Those that are listed, and no others. Where a body streams, only the announced ones.
fn has_same_trailers(sent: &Read, forwarded: &Read) -> bool {
    let sorted = |mut trailers: Vec<reference::Field>| {
        trailers.sort();
        trailers
    };
    let announced = |name: &[u8]| {
        let mut names = sent.values(b"trailer").flat_map(|value| value.split(|byte| *byte == b','));
        names.any(|each| each.trim_ascii().eq_ignore_ascii_case(name))
    };
    let is_held = sent.body.len() <= HOLD;
    let passes = |(name, _): &&reference::Field| is_listed(name) && (is_held || announced(name));
    sorted(sent.trailers.iter().filter(passes).cloned().collect()) == sorted(forwarded.trailers.clone())
}

fuzz_target!(|bytes: &[u8]| {
    let (bytes, cuts, then) = input(bytes);
    let sent = reference::requests(bytes);
    let seen = RANGE.with(|range| range.forwarded(bytes, cuts, then));
    // Some are marked as the last of their connection; here all stand one behind the other.
    let (mut forwarded, mut rest) = (vec![], &seen[..]);
    while !rest.is_empty() {
        let (one, behind) = reference::first(rest).expect("the gate itself writes strictly");
        forwarded.push(one);
        rest = behind;
    }
    let mut left = sent.iter();
    for each in &forwarded {
        let fence = each.fields.iter().find(|(name, _)| name.starts_with(b"fence-") || name.starts_with(b"fence_"));
        assert_eq!(fence, None, "no write was judged here");
        assert!(left.any(|sent| is_same(sent, each)), "forwarded {each:?}, but the client sent {sent:?}");
    }
});
