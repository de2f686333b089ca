//! The log on a disk that is full, fails or hangs, and what an end does then.

use std::{
    fs, io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use serde_json::Value;

use super::{
    Audit, On, begin,
    entry::{Entry, LEFT_OUT, LOST, MIGRATION_GRANT, STOP, TORN},
    file::{Files, Found, Output},
    queue::Queue,
    second, start,
    tests::{Log, entry},
    writer::Writer,
};
use crate::{
    clock::Clock,
    config::AuditSettings,
    fence::{HolderId, ObjectId, WallMs},
    metrics::Metrics,
};

/// A file on a disk that can be full.
struct Disk {
    files: Files,
    path: PathBuf,
    state: Arc<AtomicU8>,
}

const GOOD: u8 = 0;
const FULL: u8 = 1;
/// A part of the line is written, and cannot be taken away.
const TEARS: u8 = 2;
const NO_SYNC: u8 = 3;
/// A sync does not return.
const HANGS: u8 = 4;

impl Output for Disk {
    fn open(&mut self) -> io::Result<Found> {
        self.files.open()
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        match self.state.load(Ordering::SeqCst) {
            FULL => Err(io::ErrorKind::StorageFull.into()),
            TEARS => {
                let mut all = fs::read(&self.path)?;
                all.extend_from_slice(&line[..20]);
                fs::write(&self.path, all)?;
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => self.files.append(line),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        until(|| self.state.load(Ordering::SeqCst) != HANGS);
        if self.state.load(Ordering::SeqCst) == NO_SYNC { Err(io::ErrorKind::Other.into()) } else { self.files.sync() }
    }
}

fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        std::thread::yield_now();
    }
}

/// A log that a test drives turn by turn, with four places.
struct Driven {
    log: Log,
    metrics: Metrics,
    audit: Audit,
    writer: Writer<Disk>,
    disk: Arc<AtomicU8>,
}

impl Driven {
    fn new() -> Self {
        let (log, metrics, disk) = (Log::new(), Metrics::new(), Arc::new(AtomicU8::new(GOOD)));
        let (queue, clock) = (Arc::new(Queue::new(4)), Clock::machine());
        let output = Disk { files: Files::new(&log.settings), path: log.path().to_owned(), state: Arc::clone(&disk) };
        let writer = Writer::open(Arc::clone(&queue), output, clock.clone(), metrics.audit.clone()).unwrap();
        let shown = Arc::clone(&queue);
        metrics.audit.ask_whether_up(move || shown.is_up());
        let audit = Audit(Some(On { queue, clock, metrics: metrics.audit.clone() }));
        let mut writer = writer.every(Duration::ZERO);
        writer.begin();
        Self { log, metrics, audit, writer, disk }
    }

    /// As many turns as there may be lines.
    fn turns(&mut self) {
        for _ in 0..10 {
            assert!(self.writer.turn());
        }
    }

    fn record(&self, name: &str) {
        self.audit.record(None, entry(name));
    }

    #[track_caller]
    fn shows(&self, line: &str) {
        let text = self.metrics.render();
        assert!(text.contains(&format!("{line}\n")), "{line}: {text}");
    }

    /// The gate stops, and lines still cannot be written.
    fn gives_up(&mut self) {
        let Audit(Some(On { queue, .. })) = &self.audit else { panic!("it is on") };
        queue.end();
        assert!(!self.writer.turn());
    }

    fn objects(&self) -> Vec<String> {
        self.log.each("object").iter().filter_map(Value::as_str).map(str::to_owned).collect()
    }
}

#[test]
fn a_full_disk_refuses_places_and_keeps_lines_until_there_is_room() {
    for state in [FULL, TEARS] {
        let mut driven = Driven::new();
        driven.record("1");
        driven.turns();
        driven.disk.store(state, Ordering::SeqCst);
        assert!(driven.audit.place().is_some(), "it is not known yet");
        driven.record("2");
        driven.turns();
        assert!(driven.audit.place().is_none());
        driven.shows("fencegate_audit_up 0");
        // Four places, and the line that failed.
        (3..10).for_each(|n| driven.record(&n.to_string()));
        driven.turns();
        driven.shows("fencegate_audit_lost_total 3");
        driven.disk.store(GOOD, Ordering::SeqCst);
        driven.turns();
        assert!(driven.audit.place().is_some());
        driven.shows("fencegate_audit_up 1");
        driven.record("last");
        driven.turns();
        assert_eq!(driven.objects(), ["1", "2", "3", "4", "5", "6", "last"]);
        let lost: Vec<_> = driven.log.each("call").into_iter().filter(|call| call == LOST).collect();
        let lines: Vec<_> =
            driven.log.each("detail").into_iter().filter_map(|detail| detail["lines"].as_u64()).collect();
        assert_eq!((lost.len(), lines), (1, vec![3]));
        let torn = driven.log.each("call").iter().filter(|call| *call == TORN).count();
        assert_eq!(torn, usize::from(state == TEARS));
        assert_eq!(driven.log.verify().unwrap().torn, u64::from(state == TEARS));
    }
}

#[test]
fn a_sync_that_fails_is_a_failure() {
    let mut driven = Driven::new();
    driven.disk.store(NO_SYNC, Ordering::SeqCst);
    driven.record("1");
    driven.turns();
    assert!(driven.audit.place().is_none());
    driven.disk.store(GOOD, Ordering::SeqCst);
    driven.turns();
    assert!(driven.audit.place().is_some());
    driven.log.verify().unwrap();
}

#[test]
fn a_full_queue_refuses_places_and_a_line_says_what_was_lost() {
    let mut driven = Driven::new();
    let place = driven.audit.place();
    (0..5).for_each(|n| driven.record(&n.to_string()));
    assert!(driven.audit.place().is_none(), "three lines, and a place that is kept");
    driven.audit.record(place, entry("operator"));
    driven.turns();
    assert_eq!(driven.objects(), ["0", "1", "2", "operator"]);
    driven.shows("fencegate_audit_lost_total 2");
    assert!(driven.log.each("call").contains(&LOST.into()));
    driven.log.verify().unwrap();
}

#[test]
fn a_gate_that_stops_on_a_full_disk_counts_what_is_lost() {
    let mut driven = Driven::new();
    driven.disk.store(FULL, Ordering::SeqCst);
    (0..3).for_each(|n| driven.record(&n.to_string()));
    driven.turns();
    driven.gives_up();
    driven.shows("fencegate_audit_lost_total 3");
}

#[test]
fn lines_that_had_no_place_are_not_counted_again_at_the_end() {
    let mut driven = Driven::new();
    driven.disk.store(FULL, Ordering::SeqCst);
    (0..7).for_each(|n| driven.record(&n.to_string()));
    driven.turns();
    driven.shows("fencegate_audit_lost_total 3");
    driven.gives_up();
    driven.shows("fencegate_audit_lost_total 7");
}

#[test]
fn a_disk_that_hangs_refuses_places_until_it_goes_on() {
    let (log, metrics, state) = (Log::new(), Metrics::new(), Arc::new(AtomicU8::new(GOOD)));
    let output = Disk { files: Files::new(&log.settings), path: log.path().to_owned(), state: Arc::clone(&state) };
    let queue = Queue::new(4).with_patience(Duration::from_millis(50));
    let (audit, thread) = begin(output, queue, &Clock::machine(), &metrics.audit).unwrap();
    state.store(HANGS, Ordering::SeqCst);
    audit.record(None, entry("1"));
    until(|| audit.place().is_none());
    assert!(metrics.render().contains("fencegate_audit_up 0\n"));
    state.store(GOOD, Ordering::SeqCst);
    until(|| audit.place().is_some());
    until(|| metrics.render().contains("fencegate_audit_up 1\n"));
    // An end does not wait for such a disk for ever.
    state.store(HANGS, Ordering::SeqCst);
    audit.record(None, entry("2"));
    thread.stop();
    assert!(audit.place().is_none());
    state.store(GOOD, Ordering::SeqCst);
}

#[test]
fn an_end_in_haste_writes_what_waits() {
    let log = Log::new();
    let (audit, thread) = start(&log.settings, &Clock::machine(), &log.metrics).unwrap();
    (0..2_000).for_each(|n| audit.record(None, entry(&n.to_string())));
    drop(thread);
    assert_eq!(log.verify().unwrap().last.n, 2_002);
    assert_eq!(log.each("call").last(), Some(&STOP.into()));
    assert!(audit.place().is_none());
}

#[test]
fn denied_calls_are_bounded_and_counted() {
    let log = Log::new();
    let output = Files::new(&log.settings);
    let (audit, thread) = begin(output, Queue::new(8_192), &Clock::machine(), &log.metrics).unwrap();
    let begun = second();
    (0..450).for_each(|_| audit.record_denied(Entry::of_gate("denied", "ACCESS_DENIED", WallMs(0))));
    let seconds = usize::try_from(second() - begun + 1).unwrap();
    thread.stop();
    let calls = log.each("call");
    let lines = calls.iter().filter(|call| *call == "denied").count();
    let told = calls.iter().zip(log.each("detail")).filter(|(call, _)| *call == LEFT_OUT);
    let left_out: u64 = told.map(|(_, detail)| detail["calls"].as_u64().unwrap()).sum();
    assert!(lines >= 10 && lines <= 10 * seconds, "{lines} in {seconds} s");
    assert_eq!(lines as u64 + left_out, 450);
    log.verify().unwrap();
}

#[test]
fn what_the_gate_does_itself_has_a_line_without_a_principal() {
    let driven = &mut Driven::new();
    let (object, holder) = (ObjectId::new("/data/a").unwrap(), HolderId::new("perth").unwrap());
    driven.audit.by_gate(MIGRATION_GRANT, &object, Some(&holder), 7, ("migration", "m-1"));
    driven.turns();
    let last = |field: &str| driven.log.each(field).pop().unwrap();
    assert_eq!(
        ["call", "source", "object", "holder"].map(last),
        [MIGRATION_GRANT, "gate", "/data/a", "perth"].map(Value::from)
    );
    let rest = (last("principal"), last("lease_seq"), last("detail"));
    assert_eq!(rest, (Value::Null, 7.into(), serde_json::json!({ "migration": "m-1" })));
}

#[test]
fn a_log_that_is_off_lets_everything_through() {
    let (audit, thread) = start(&AuditSettings::default(), &Clock::machine(), &Metrics::new().audit).unwrap();
    assert!(thread.is_none() && !audit.is_on() && audit.place().is_some());
    audit.record(audit.place(), entry("1"));
}
