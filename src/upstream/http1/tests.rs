//! A connection over a stream that follows a script.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    io::IoSlice,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body::{Body, Frame};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::*;
use crate::upstream::observed::Observed;

fn pass() -> Pass {
    Pass::Read(ReadOnly::classified())
}

/// What a stream does next when it is written to, or read from.
#[derive(Debug)]
enum Does {
    /// Takes at most this many bytes.
    Takes(usize),
    Says(&'static [u8]),
    Waits,
    /// Takes what has come for itself, and returns no bytes.
    Swallows,
    Ends,
    Breaks(io::ErrorKind),
}

#[derive(Default)]
struct Script {
    writes: VecDeque<Does>,
    reads: VecDeque<Does>,
    flushes: VecDeque<Does>,
    taken: Vec<u8>,
    /// Something has come that a read does not show yet.
    has_come: bool,
}

#[derive(Clone, Default)]
struct Scripted(Rc<RefCell<Script>>);

impl Scripted {
    fn writes(self, does: impl IntoIterator<Item = Does>) -> Self {
        self.0.borrow_mut().writes.extend(does);
        self
    }

    fn reads(self, does: impl IntoIterator<Item = Does>) -> Self {
        self.0.borrow_mut().reads.extend(does);
        self
    }

    fn flushes(self, does: impl IntoIterator<Item = Does>) -> Self {
        self.0.borrow_mut().flushes.extend(does);
        self
    }

    fn has_come(&self, has_come: bool) {
        self.0.borrow_mut().has_come = has_come;
    }

    fn http1(&self) -> Http1Conn {
        let wire = Rc::<Wire>::default();
        Http1Conn::new(Observed::with(self.clone(), Rc::clone(&wire)), wire)
    }

    fn taken(&self) -> String {
        String::from_utf8(self.0.borrow().taken.clone()).unwrap()
    }
}

impl Io for Scripted {
    fn has_come(&self) -> bool {
        self.0.borrow().has_come
    }
}

impl AsyncRead for Scripted {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let does = self.0.borrow_mut().reads.pop_front();
        match does {
            None | Some(Does::Waits) => Poll::Pending,
            Some(Does::Says(bytes)) => {
                buffer.put_slice(bytes);
                Poll::Ready(Ok(()))
            }
            Some(Does::Swallows) => {
                self.0.borrow_mut().has_come = false;
                Poll::Pending
            }
            Some(Does::Ends) => Poll::Ready(Ok(())),
            Some(Does::Breaks(kind)) => Poll::Ready(Err(kind.into())),
            Some(other @ Does::Takes(_)) => panic!("{other:?} is not for reads"),
        }
    }
}

impl AsyncWrite for Scripted {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut script = self.0.borrow_mut();
        let most = match script.writes.pop_front() {
            None => usize::MAX,
            Some(Does::Takes(most)) => most,
            Some(Does::Waits) => return Poll::Pending,
            Some(Does::Breaks(kind)) => return Poll::Ready(Err(kind.into())),
            Some(other) => panic!("{other:?} is not for writes"),
        };
        let taken = bytes.len().min(most);
        script.taken.extend_from_slice(&bytes[..taken]);
        Poll::Ready(Ok(taken))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let joined: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.poll_write(context, &joined)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.0.borrow_mut().flushes.pop_front() {
            Some(Does::Waits) => Poll::Pending,
            _ => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A body whose frames a test hands out one by one.
#[derive(Clone, Default)]
struct Coming(Rc<RefCell<VecDeque<Frame<Bytes>>>>, Rc<Cell<bool>>);

impl Coming {
    fn send(&self, data: &'static [u8]) {
        self.0.borrow_mut().push_back(Frame::data(Bytes::from_static(data)));
    }

    fn end(&self) {
        self.1.set(true);
    }

    fn body(&self) -> StoreBody {
        StoreBody::Stream(Box::pin(self.clone()))
    }
}

impl Body for Coming {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match self.0.borrow_mut().pop_front() {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None if self.1.get() => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

fn held(bytes: impl Into<Bytes>) -> StoreBody {
    StoreBody::held(bytes.into(), VecDeque::new(), None)
}

fn begin(http1: &mut Http1Conn) {
    http1.begin(pass(), false, Framing::Length, Reuse::Always).extend_from_slice(b"HEAD|");
}

fn poll(http1: &mut Http1Conn, body: &mut StoreBody) -> Poll<Result<Box<Head>, Failed>> {
    http1.poll_answer(&mut Context::from_waker(Waker::noop()), body)
}

#[track_caller]
fn answered(http1: &mut Http1Conn, body: &mut StoreBody) -> Box<Head> {
    match poll(http1, body) {
        Poll::Ready(Ok(head)) => head,
        other => panic!("no answer: {other:?}"),
    }
}

fn frame(http1: &mut Http1Conn) -> Poll<Option<Result<Frame<Bytes>, Failed>>> {
    http1.poll_frame(&mut Context::from_waker(Waker::noop()))
}

const OK: Does = Does::Says(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");

#[test]
fn a_request_is_out_when_its_last_byte_was_taken_and_flushed() {
    let script = Scripted::default().writes([Does::Takes(3), Does::Waits]).flushes([Does::Waits]).reads([
        Does::Waits,
        Does::Waits,
        Does::Waits,
        Does::Waits,
        Does::Waits,
        OK,
    ]);
    let (mut http1, mut body) = (script.http1(), held("body"));
    begin(&mut http1);
    assert!(poll(&mut http1, &mut body).is_pending() && !http1.is_out());
    assert_eq!((script.taken().as_str(), http1.wire().sent.get()), ("HEA", 3));
    // The stream took all of it, but may still hold some of it back.
    assert!(poll(&mut http1, &mut body).is_pending() && !http1.is_out());
    assert_eq!(script.taken(), "HEAD|body");
    assert!(poll(&mut http1, &mut body).is_pending() && http1.is_out());
    assert!(!http1.is_reusable(), "its answer has not come");
    assert_eq!(answered(&mut http1, &mut body).status, 200);
    assert!(http1.is_over() && http1.is_reusable());
}

#[test]
fn a_long_piece_goes_behind_its_head_however_it_is_taken() {
    let long = vec![b'x'; COPY_MAX + 100];
    for cut in [1, 4, 5, 6, COPY_MAX, long.len() + 4] {
        let script = Scripted::default().writes([Does::Takes(cut)]).reads([OK]);
        let (mut http1, mut body) = (script.http1(), held(long.clone()));
        begin(&mut http1);
        let head = answered(&mut http1, &mut body);
        assert!(http1.is_out() && head.status == 200, "{cut}");
        assert!(script.taken().strip_prefix("HEAD|").is_some_and(|rest| rest.as_bytes() == long), "{cut}");
    }
}

#[test]
fn only_what_was_not_begun_can_be_taken_back() {
    let dead = Scripted::default().writes([Does::Breaks(io::ErrorKind::NotConnected)]);
    let (coming, mut http1) = (Coming::default(), dead.http1());
    let mut body = coming.body();
    http1.begin(pass(), false, Framing::Chunks { trailers: vec![] }, Reuse::Always).extend_from_slice(b"HEAD|");
    coming.send(b"one");
    assert!(matches!(poll(&mut http1, &mut body), Poll::Ready(Err(Failed::Io(_)))));
    let unsent = http1.take_back().expect("nothing of it was taken");
    // The body that was gathered for the first connection is sent on the second one.
    let script = Scripted::default().reads([Does::Waits, Does::Waits, OK]);
    let mut second = script.http1();
    second.begin_again(pass(), unsent);
    assert!(poll(&mut second, &mut body).is_pending());
    coming.send(b"two");
    coming.end();
    assert_eq!(answered(&mut second, &mut body).status, 200);
    assert_eq!(script.taken(), "HEAD|3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n");
    assert!(second.take_back().is_none(), "it was sent");
    let partly = Scripted::default().writes([Does::Takes(1), Does::Breaks(io::ErrorKind::NotConnected)]);
    let (mut http1, mut body) = (partly.http1(), held("body"));
    begin(&mut http1);
    assert!(matches!(poll(&mut http1, &mut body), Poll::Ready(Err(Failed::Io(_)))));
    assert!(http1.take_back().is_none(), "a byte of it was");
}

#[test]
fn interim_answers_are_passed_over_and_do_not_count_as_heard() {
    let many: Vec<Does> = (0..40).map(|_| Does::Says(b"HTTP/1.1 102 Processing\r\n\r\n")).collect();
    let script = Scripted::default().reads([Does::Waits, Does::Says(b"HTTP/1.1 100 Cont")]);
    let (mut http1, coming) = (script.http1(), Coming::default());
    let mut body = coming.body();
    begin(&mut http1);
    coming.send(b"a");
    assert!(poll(&mut http1, &mut body).is_pending() && !http1.wire().has_received.get());
    assert!(poll(&mut http1, &mut body).is_pending() && http1.wire().has_received.get(), "it may be an answer");
    let script = script.reads([Does::Says(b"inue\r\n\r\n"), Does::Waits]);
    assert!(poll(&mut http1, &mut body).is_pending() && !http1.wire().has_received.get(), "it was none");
    let script = script.reads(many).reads([OK]);
    coming.send(b"b");
    coming.end();
    assert_eq!(answered(&mut http1, &mut body).status, 200);
    // The answer came before the rest was sent, so the rest was not sent.
    assert_eq!((script.taken().as_str(), http1.is_out(), http1.is_reusable()), ("HEAD|a", false, false));
}

#[test]
fn a_store_that_only_ever_says_that_it_goes_on_is_given_up() {
    const WORD: &[u8] = b"HTTP/1.1 102 Processing\r\n\r\n";
    let words = (0..=INTERIM_BYTES_MAX / WORD.len()).map(|_| Does::Says(WORD));
    let (mut http1, mut body) = (Scripted::default().reads(words).http1(), held("body"));
    begin(&mut http1);
    assert!(matches!(poll(&mut http1, &mut body), Poll::Ready(Err(Failed::Unreadable(_)))));
}

#[test]
fn behind_a_store_that_hung_up_nothing_more_is_sent() {
    for gone in [Does::Ends, Does::Breaks(io::ErrorKind::ConnectionReset), Does::Says(b"garbage\r\n\r\n")] {
        let script = Scripted::default().reads([Does::Waits, gone]);
        let (mut http1, coming) = (script.http1(), Coming::default());
        let mut body = coming.body();
        begin(&mut http1);
        coming.send(b"first");
        assert!(poll(&mut http1, &mut body).is_pending());
        coming.send(b"last");
        coming.end();
        assert!(matches!(poll(&mut http1, &mut body), Poll::Ready(Err(_))));
        assert_eq!(script.taken(), "HEAD|first");
        assert!(coming.0.borrow().len() == 1, "the last frame was not even asked for");
    }
}

/// The end is not sent after an answer that the runtime has not noticed yet: the store may have answered without
/// reading on.
#[test]
fn an_answer_that_comes_between_two_writes_is_early() {
    let script = Scripted::default().reads([Does::Waits, Does::Waits, Does::Waits]);
    let (mut http1, coming) = (script.http1(), Coming::default());
    let mut body = coming.body();
    http1.begin(pass(), false, Framing::Length, Reuse::AfterSuccess).extend_from_slice(b"HEAD|");
    coming.send(b"first");
    assert!(poll(&mut http1, &mut body).is_pending());
    script.has_come(true);
    coming.send(b"last");
    coming.end();
    assert!(poll(&mut http1, &mut body).is_pending());
    assert_eq!((script.taken().as_str(), http1.is_out()), ("HEAD|first", false));
    let script = script.reads([OK]);
    script.has_come(false);
    assert_eq!(answered(&mut http1, &mut body).status, 200);
    assert_eq!((script.taken().as_str(), http1.is_reusable()), ("HEAD|first", false));
}

/// Over TLS, what has come may not be part of an answer. Then the end is sent.
#[test]
fn behind_what_tls_has_for_itself_the_rest_is_sent() {
    let (script, coming) = (Scripted::default().reads([Does::Waits, Does::Waits, Does::Swallows]), Coming::default());
    let (mut http1, mut body) = (script.http1(), coming.body());
    begin(&mut http1);
    let woken = Arc::new(Woken(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    coming.send(b"begun");
    assert!(http1.poll_answer(&mut context, &mut body).is_pending() && script.taken().ends_with("begun"));
    coming.send(b" and over");
    coming.end();
    script.has_come(true);
    assert!(http1.poll_answer(&mut context, &mut body).is_pending() && !http1.is_out(), "it may be an answer");
    assert_eq!(woken.0.load(Ordering::Relaxed), 1, "it was none");
    assert!(http1.poll_answer(&mut context, &mut body).is_pending() && http1.is_out());
    assert!(script.taken().ends_with("begun and over"));
}

/// What has come may be an interim answer. Then the rest is sent.
#[test]
fn behind_an_interim_answer_the_rest_is_sent() {
    let script = Scripted::default().reads([Does::Waits, Does::Waits, Does::Waits]);
    let (mut http1, coming) = (script.http1(), Coming::default());
    let mut body = coming.body();
    begin(&mut http1);
    coming.send(b"first|");
    assert!(poll(&mut http1, &mut body).is_pending());
    script.has_come(true);
    coming.send(b"last");
    coming.end();
    assert!(poll(&mut http1, &mut body).is_pending());
    let script = script.reads([Does::Says(b"HTTP/1.1 102 Processing\r\n\r\n"), Does::Waits, OK]);
    script.has_come(false);
    assert_eq!(answered(&mut http1, &mut body).status, 200);
    assert_eq!((script.taken().as_str(), http1.is_out(), http1.is_reusable()), ("HEAD|first|last", true, true));
}

#[test]
fn what_a_store_said_before_it_hung_up_is_read() {
    let refusal = Does::Says(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    // The write fails before the runtime has noticed that there is something to read.
    let script = Scripted::default().writes([Does::Takes(5), Does::Breaks(io::ErrorKind::BrokenPipe)]).reads([
        Does::Waits,
        Does::Waits,
        refusal,
    ]);
    let (mut http1, mut body) = (script.http1(), held("body"));
    begin(&mut http1);
    assert!(poll(&mut http1, &mut body).is_pending());
    let head = answered(&mut http1, &mut body);
    assert_eq!((head.status.as_u16(), http1.is_out(), http1.is_reusable()), (413, false, false));
    // If nothing has come, the error of the write is returned.
    let script = Scripted::default().writes([Does::Breaks(io::ErrorKind::BrokenPipe)]).reads([Does::Waits, Does::Ends]);
    let (mut http1, mut body) = (script.http1(), held("body"));
    begin(&mut http1);
    assert!(poll(&mut http1, &mut body).is_pending());
    match poll(&mut http1, &mut body) {
        Poll::Ready(Err(Failed::Io(why))) => assert_eq!(why.kind(), io::ErrorKind::BrokenPipe),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_connection_with_something_left_on_it_is_not_used_again() {
    let answers: [(&'static [u8], bool); 5] = [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", true),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP", false),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", false),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", false),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n", false),
    ];
    for (answer, is_reusable) in answers {
        let (mut http1, mut body) = (Scripted::default().reads([Does::Says(answer)]).http1(), held("body"));
        begin(&mut http1);
        assert_eq!(answered(&mut http1, &mut body).status, 200);
        let mut read = vec![];
        while let Poll::Ready(Some(Ok(piece))) = frame(&mut http1) {
            read.extend_from_slice(&piece.into_data().unwrap());
        }
        assert!(read == b"ok" && http1.is_over(), "{}", String::from_utf8_lossy(answer));
        assert_eq!(http1.is_reusable(), is_reusable, "{}", String::from_utf8_lossy(answer));
    }
}

#[test]
fn an_idle_connection_that_says_anything_is_dead() {
    for (does, is_dead) in [
        (Does::Waits, false),
        (Does::Ends, true),
        (Does::Says(b"HTTP/1.1 408 Request Timeout\r\n\r\n"), true),
        (Does::Breaks(io::ErrorKind::ConnectionReset), true),
    ] {
        let what = format!("{does:?}");
        assert_eq!(Scripted::default().reads([does]).http1().is_dead(), is_dead, "{what}");
    }
}

/// Unread bytes in the kernel answer what the store took for a request. The next request must not get them.
#[test]
fn an_idle_connection_on_which_something_has_come_unnoticed_is_dead_behind_a_body() {
    for (reuse, is_dead) in [(Reuse::AfterSuccess, true), (Reuse::Always, false)] {
        let script = Scripted::default().reads([Does::Says(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")]);
        let (mut http1, mut body) = (script.http1(), held("body"));
        http1.begin(pass(), false, Framing::Length, reuse).extend_from_slice(b"PUT / HTTP/1.1\r\n\r\n");
        assert_eq!(answered(&mut http1, &mut body).status, 200);
        assert!(http1.is_reusable() && !http1.is_dead());
        script.has_come(true);
        assert!(!http1.has_ended(), "the runtime has not noticed");
        assert_eq!(http1.is_dead(), is_dead, "{reuse:?}");
    }
}

#[test]
fn an_answer_that_breaks_off_never_looks_whole() {
    for begun in [
        &b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok"[..],
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n",
    ] {
        let script = Scripted::default().reads([Does::Says(begun), Does::Ends]);
        let (mut http1, mut body) = (script.http1(), held("body"));
        begin(&mut http1);
        assert_eq!(answered(&mut http1, &mut body).status, 200);
        assert!(matches!(frame(&mut http1), Poll::Ready(Some(Ok(_)))));
        assert!(matches!(frame(&mut http1), Poll::Ready(Some(Err(Failed::Closed)))));
        assert!(!http1.is_reusable());
    }
}

#[test]
fn trailers_go_behind_the_last_chunk_if_they_were_announced() {
    let script = Scripted::default().reads([OK]);
    let mut http1 = script.http1();
    let trailers = [("x-sum", "1"), ("x-other", "2"), ("host", "evil")];
    let trailers: HeaderMap =
        trailers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect();
    let mut body = StoreBody::held(Bytes::from_static(b"body"), VecDeque::new(), Some(Box::new(trailers)));
    let announced = vec![HeaderName::from_static("x-sum")];
    http1.begin(pass(), false, Framing::Chunks { trailers: announced }, Reuse::Always).extend_from_slice(b"HEAD|");
    assert_eq!(answered(&mut http1, &mut body).status, 200);
    assert_eq!(script.taken(), "HEAD|4\r\nbody\r\n0\r\nx-sum: 1\r\n\r\n");
}

struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_body_that_waits_for_the_rest_of_an_interim_answer_is_woken_by_it() {
    let (woken, coming) = (Arc::new(Woken(AtomicUsize::new(0))), Coming::default());
    let waker = Waker::from(Arc::clone(&woken));
    let (first, rest) = (Does::Says(b"HTTP/1.1 100 Cont"), Does::Says(b"inue\r\n\r\n"));
    let script = Scripted::default().reads([Does::Waits, first, Does::Waits, rest, Does::Waits]);
    let (mut http1, mut body) = (script.http1(), coming.body());
    begin(&mut http1);
    coming.send(b"a");
    assert!(http1.poll_answer(&mut Context::from_waker(&waker), &mut body).is_pending());
    assert_eq!(woken.0.load(Ordering::Relaxed), 0);
    // Both halves come in one poll, before and after the body is polled.
    assert!(http1.poll_answer(&mut Context::from_waker(&waker), &mut body).is_pending());
    assert_eq!((woken.0.load(Ordering::Relaxed), http1.wire().has_received.get()), (1, false));
}
