//! Bodies that are not as long as was said, which hyper never hands out: one change in it, and they would come. None of
//! them is committed as a whole write.

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::poll_fn,
    net::{IpAddr, Ipv4Addr},
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use tokio::runtime::{Builder, LocalOptions};

use super::{
    Plane, Worker,
    connection::Client,
    guard::WriteGuard,
    hold::{Held, Hold, Limits, NoBody},
    pace::{Pace, Slowest},
    upload::{Broken, Stream, Upload},
};
use crate::{
    barrier::{
        generation::Generation,
        in_flight::{Admission, InFlight, Permitted},
    },
    config::{GateSettings, Settings},
    fence::{
        Ttl, verdict,
        write::{Effect, Event, Stage, Write, WriteOptions},
    },
    gate::Gate,
};

#[path = "../../bench/in_memory.rs"]
#[allow(dead_code, unreachable_pub, reason = "it serves others too")]
mod in_memory;

/// A body as its decoder hands it out.
struct Scripted {
    frames: VecDeque<Frame<Bytes>>,
    /// What it says that is still to come.
    left: Option<u64>,
    /// It says so when nothing is left.
    tells_end: bool,
}

impl Scripted {
    /// Of which `said` bytes are to come, and these come. A trailer follows where it has a name.
    fn new(said: Option<u64>, data: &[&'static str], tells_end: bool) -> Self {
        let frames = data.iter().map(|data| Frame::data(Bytes::from_static(data.as_bytes()))).collect();
        Self { frames, left: said, tells_end }
    }

    fn and_trailers(mut self) -> Self {
        let mut fields = HeaderMap::new();
        fields.append(HeaderName::from_static("content-md5"), HeaderValue::from_static("x"));
        self.frames.push_back(Frame::trailers(fields));
        self
    }
}

impl Body for Scripted {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = self.frames.pop_front();
        let came = frame.as_ref().and_then(Frame::data_ref).map_or(0, |data| data.len() as u64);
        self.left = self.left.map(|left| left.saturating_sub(came));
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.tells_end && self.frames.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

fn client() -> Rc<Client> {
    Client::of_no_connection(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

fn runs<T>(work: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
    runtime.block_on(work)
}

/// What becomes of a body that is collected: all of it, or why not.
fn held(body: Scripted) -> Result<Vec<u8>, NoBody> {
    let settings = GateSettings::default();
    let limits = Limits { hold: 100, most: 1_000, slowest: Slowest::of(&settings) };
    let (mut hold, alarms) = (Hold::new(body, false), super::Alarms::new(crate::fence::BootMs(0)));
    let mut pace = Pace::new(&alarms, limits.slowest);
    match runs(poll_fn(|context| hold.poll(limits, &client(), &mut pace, context)))? {
        Held::Whole { .. } => Ok([&[hold.first][..], hold.parts.make_contiguous()].concat().concat()),
        Held::Long => panic!("it is short"),
    }
}

#[test]
fn a_body_that_is_collected_is_whole_only_if_it_is_as_long_as_was_said() {
    for tells_end in [true, false] {
        let held = |said, data: &[&'static str]| held(Scripted::new(Some(said), data, tells_end));
        assert_eq!(held(5, &["value"]), Ok(b"value".to_vec()));
        assert_eq!(held(5, &["val", "", "ue"]), Ok(b"value".to_vec()));
        for (said, data) in
            [(6, &["value"][..]), (5, &["val"]), (5, &["val", "u"]), (5, &[]), (5, &["value", "!"]), (4, &["value"])]
        {
            assert_eq!(held(said, data), Err(NoBody::Cut), "{said} bytes were said, and {data:?} came");
        }
    }
    assert_eq!(held(Scripted::new(Some(5), &["value"], false).and_trailers()), Ok(b"value".to_vec()));
    assert_eq!(held(Scripted::new(Some(6), &["value"], false).and_trailers()), Err(NoBody::Cut));
    // Of chunks no length is said.
    assert_eq!(held(Scripted::new(None, &["val", "ue"], false)), Ok(b"value".to_vec()));
}

/// A write that was admitted with a lease, and of which a part may go.
async fn streaming(worker: &Worker, gate: &Arc<Gate>) -> Rc<WriteGuard> {
    let token = in_memory::acquire(gate, "users").await;
    let judge = |record: &_, sealed| verdict::judge_text(record, sealed, &token, gate.now());
    let admitted = gate.records.stripes.admit("users", judge).expect("it is in memory").expect("a permit");
    let mut life = Write::new(WriteOptions::default());
    let _ = life.on(Event::Arrived { whole: false });
    let _ = life.on(Event::Permitted(Stage::Waiting));
    let route = Arc::new(Generation::default()).enter(&gate.clock, Ttl(100));
    let permitted = Admission::Permitted(Permitted::waiting(admitted));
    let guard = Rc::new(InFlight::new(Rc::clone(&worker.gate), life, permitted, route));
    assert!(matches!(guard.on(Event::Connected { whole: false }), Effect::Send(_)));
    guard
}

/// What of a body went, why it broke off, and how far its write came.
fn streamed(body: Scripted, has_trailers: bool) -> (Vec<u8>, bool, Stage) {
    runs(async {
        let gate = in_memory::gate();
        let plane = Plane::new(Arc::clone(&gate), &Settings::default(), 10, None).expect("the defaults are sound");
        let worker = Worker::new(plane);
        let guard = streaming(&worker, &gate).await;
        let stream = Stream {
            first: VecDeque::new(),
            share: None,
            length: body.size_hint().exact(),
            rest: body,
            is_h2: false,
            has_trailers,
            client: client(),
            asks_first: false,
            limit: 1_000,
            slowest: Slowest::of(&GateSettings::default()),
        };
        let (mut upload, state) = Upload::new(stream, Some(Rc::clone(&guard)), worker);
        let (mut went, mut breaks) = (vec![], false);
        while let Some(frame) = poll_fn(|context| Pin::new(&mut upload).poll_frame(context)).await {
            match frame {
                Ok(frame) => went.extend_from_slice(frame.data_ref().map_or(&[], |data| data)),
                Err(_) => {
                    assert!(matches!(state.broken(), Some(Broken::Client)), "{:?}", state.broken());
                    breaks = true;
                    break;
                }
            }
            if upload.is_end_stream() {
                break;
            }
        }
        assert_eq!(state.is_released(), guard.stage() == Stage::Committed);
        (went, breaks, guard.stage())
    })
}

#[test]
fn a_body_that_streams_is_committed_only_if_it_is_as_long_as_was_said() {
    let whole = || (b"value".to_vec(), false, Stage::Committed);
    assert_eq!(streamed(Scripted::new(Some(5), &["val", "ue"], false), false), whole());
    assert_eq!(streamed(Scripted::new(Some(5), &["val", "ue"], false).and_trailers(), true), whole());
    assert_eq!(streamed(Scripted::new(None, &["val", "ue"], false), false), whole());
    for (said, data, went) in [
        (6, &["val", "ue"][..], "value"),
        (5, &["val"], "val"),
        (5, &[], ""),
        (4, &["value"], ""),
        (4, &["val", "ue"], "val"),
    ] {
        let (came, breaks, stage) = streamed(Scripted::new(Some(said), data, false), false);
        assert_eq!((String::from_utf8(came).unwrap().as_str(), breaks), (went, true), "{said}, {data:?}");
        assert_eq!(stage, Stage::Streaming, "{said} bytes were said, and {data:?} came");
    }
    // Before trailers the last piece is held back, too.
    let (came, breaks, stage) = streamed(Scripted::new(Some(6), &["val", "ue"], false).and_trailers(), true);
    assert_eq!((came, breaks, stage), (b"val".to_vec(), true, Stage::Streaming));
}
