//! The audit log: who did what by the lease api, and who was denied. One JSON line each, chained by hashes.
//!
//! - [`facts`]: what a call says of itself. [`entry`]: what a line says. [`chain`]: its place in the chain.
//! - [`denials`]: how many denied calls get a line. `queue`: the way to the thread that writes.
//! - `writer`: that thread. `file`: the file that it writes to. `files`: its
//!   rotated files. [`verify`]: checks the chain over files.
//!
//! No call waits for a disk here. While lines cannot be written, operators' calls get no [`Place`], and are refused.
//! The path of a write knows nothing of this module.

pub mod chain;
pub mod denials;
#[cfg(test)]
mod disk_tests;
pub mod entry;
pub mod facts;
mod file;
mod files;
mod queue;
#[cfg(test)]
mod tests;
pub mod verify;
mod writer;

use std::{sync::Arc, thread::JoinHandle, time::Duration};

pub use self::{entry::Entry, facts::Facts, queue::Place};
use self::{
    file::{Files, Output, Stderr},
    queue::Queue,
    writer::Writer,
};
use crate::{
    clock::{Clock, Stopwatch},
    config::{AuditSettings, AuditTo, Fault},
    fence::{HolderId, ObjectId, WallMs},
    metrics::AuditMetrics,
};

/// How many lines may wait to be written.
const LINES_MAX: usize = 8_192;
/// How long an end waits for the last lines.
const LAST_LINES: Duration = Duration::from_secs(2);
/// The most keys that a line about a faulty reload names.
const KEYS_MAX: usize = 16;

/// The audit log, as the parts of a gate hold it.
#[derive(Clone)]
pub struct Audit(Option<On>);

#[derive(Clone)]
struct On {
    queue: Arc<Queue>,
    clock: Clock,
    metrics: AuditMetrics,
}

/// The thread that writes. Dropping this writes what is left and a last line, and waits for that, but not for long: the
/// disk may hang.
pub struct Thread {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

/// The present second, of a clock that is never set.
fn second() -> u64 {
    Stopwatch::start().begun().0 / 1_000
}

/// What would prevent the log from being written, as far as that shows without writing.
///
/// # Errors
/// With the setting and what is wrong.
pub fn check(settings: &AuditSettings) -> Result<(), Fault> {
    match settings.to {
        AuditTo::File => file::check(&settings.file).map_err(|error| fault(settings, &error)),
        AuditTo::Off | AuditTo::Stderr => Ok(()),
    }
}

fn fault(settings: &AuditSettings, error: &std::io::Error) -> Fault {
    Fault::new("audit.file", format!("{}: {error}", settings.file.display()))
}

/// Starts the log by these settings.
///
/// # Errors
/// When its file cannot be opened, or is not an audit log.
pub fn start(
    settings: &AuditSettings,
    clock: &Clock,
    metrics: &AuditMetrics,
) -> Result<(Audit, Option<Thread>), Fault> {
    let begun = match settings.to {
        AuditTo::Off => return Ok((Audit::off(), None)),
        AuditTo::Stderr => begin(Stderr, Queue::new(LINES_MAX), clock, metrics),
        AuditTo::File => begin(Files::new(settings), Queue::new(LINES_MAX), clock, metrics),
    };
    let (audit, thread) = begun.map_err(|error| fault(settings, &error))?;
    Ok((audit, Some(thread)))
}

fn begin(
    output: impl Output + 'static,
    queue: Queue,
    clock: &Clock,
    metrics: &AuditMetrics,
) -> std::io::Result<(Audit, Thread)> {
    let queue = Arc::new(queue);
    let writer = Writer::open(Arc::clone(&queue), output, clock.clone(), metrics.clone())?;
    let thread = run(writer)?;
    let shown = Arc::clone(&queue);
    metrics.ask_whether_up(move || shown.is_up());
    Ok((Audit(Some(On { queue, clock: clock.clone(), metrics: metrics.clone() })), thread))
}

fn run(writer: Writer<impl Output + 'static>) -> std::io::Result<Thread> {
    let queue = Arc::clone(&writer.queue);
    let thread = std::thread::Builder::new().name("audit".to_owned()).spawn(move || writer.run())?;
    Ok(Thread { queue, thread: Some(thread) })
}

impl Thread {
    /// The same as dropping it.
    pub fn stop(self) {}
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.queue.end();
        if !self.queue.wait_ended(LAST_LINES) {
            tracing::error!("the audit log's disk hangs: its last lines may be lost");
        } else if let Some(thread) = self.thread.take() {
            // A thread that panicked has ended too.
            let _ = thread.join();
        }
    }
}

impl Audit {
    /// No log: everything is let through, and nothing is written.
    #[must_use]
    pub fn off() -> Self {
        Self(None)
    }

    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Keeps a place for the line of a call that must not be carried out without one. `None`: the log cannot take it.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        self.0.as_ref().map_or_else(|| Some(Place::default()), |on| on.queue.reserve())
    }

    /// Adds a line. Without a place, and where the queue has none, the line is lost and counted.
    pub fn record(&self, place: Option<Place>, mut entry: Entry) {
        let Some(on) = &self.0 else { return };
        entry.time = on.clock.wall();
        let is_kept = match place {
            Some(place) => place.fill(entry),
            None => on.queue.push(entry),
        };
        if !is_kept {
            on.metrics.lost(1);
        }
    }

    /// Adds a line about a denied call, or counts it where this second has had too many.
    pub fn record_denied(&self, entry: Entry) {
        let Some(on) = &self.0 else { return };
        if on.queue.admits_denial(second(), entry.principal.is_some()) {
            self.record(None, entry);
        }
    }

    /// Adds a line about what the gate itself has done to an object, without a caller.
    pub fn by_gate(&self, call: &str, object: &ObjectId, holder: Option<&HolderId>, seq: u64, detail: (&str, &str)) {
        let mut line = Entry::of_gate(call, entry::OK, WallMs(0)).with(detail.0, entry::bounded(detail.1));
        line.source = Some(entry::GATE.to_owned());
        line.objects = vec![object.to_string()];
        (line.holder, line.lease_seq) = (holder.map(ToString::to_string), Some(seq));
        self.record(None, line);
    }

    /// Adds a line about a reload. `faults`: why it changed nothing.
    pub fn reloaded(&self, faults: &[Fault]) {
        let Some(on) = &self.0 else { return };
        let outcome = if faults.is_empty() { entry::OK } else { entry::FAULTY };
        let mut line = Entry::of_gate(entry::RELOAD, outcome, on.clock.wall());
        if !faults.is_empty() {
            // The keys only: a fault's text may quote the file.
            let keys: Vec<_> = faults.iter().take(KEYS_MAX).map(|fault| entry::bounded(&fault.key)).collect();
            line = line.with("keys", keys);
        }
        self.record(None, line);
    }
}
