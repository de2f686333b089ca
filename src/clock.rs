//! The only file that reads a clock.
//!
//! [`Clock::now`] reads the wall clock and CLOCK_BOOTTIME together; all code that decides takes the reading as an
//! argument. Tests and the simulation drive their own clock. A lint bans `SystemTime` and `Instant` elsewhere.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::time::ClockId;

use crate::fence::{BootMs, Now, WallMs};

/// A source of time: the machine's, or a test's.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    Machine,
    Driven(Arc<Mutex<Driven>>),
}

struct Driven {
    now: Now,
    on_change: Vec<Box<dyn Fn() + Send>>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine => f.write_str("Machine"),
            Self::Driven(driven) => write!(f, "Driven({:?})", lock(driven).now),
        }
    }
}

fn lock(driven: &Mutex<Driven>) -> MutexGuard<'_, Driven> {
    driven.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Clock {
    /// The machine's clocks.
    #[must_use]
    pub fn machine() -> Self {
        Self(Source::Machine)
    }

    /// A clock that only its [`Driver`] moves.
    #[must_use]
    pub fn driven(start: Now) -> (Self, Driver) {
        let driven = Arc::new(Mutex::new(Driven { now: start, on_change: vec![] }));
        (Self(Source::Driven(Arc::clone(&driven))), Driver(driven))
    }

    /// Both clocks, read now.
    #[must_use]
    pub fn now(&self) -> Now {
        match &self.0 {
            Source::Machine => Now { wall: WallMs(read(ClockId::Realtime)), boot: BootMs(read(ClockId::Boottime)) },
            Source::Driven(driven) => lock(driven).now,
        }
    }

    /// The wall clock, read now.
    #[must_use]
    pub fn wall(&self) -> WallMs {
        match &self.0 {
            Source::Machine => WallMs(read(ClockId::Realtime)),
            Source::Driven(driven) => lock(driven).now.wall,
        }
    }

    /// Both clocks, and a stopwatch that was started at the same moment.
    #[must_use]
    pub fn now_and_watch(&self) -> (Now, Stopwatch) {
        match &self.0 {
            Source::Machine => {
                let (boot, stopwatch) = self.boot_and_watch();
                (Now { wall: WallMs(read(ClockId::Realtime)), boot }, stopwatch)
            }
            Source::Driven(_) => (self.now(), Stopwatch::start()),
        }
    }

    /// The boot clock, and a stopwatch that was started at the same moment.
    #[must_use]
    pub fn boot_and_watch(&self) -> (BootMs, Stopwatch) {
        match &self.0 {
            Source::Machine => {
                let boot = nanos(ClockId::Boottime);
                (BootMs(boot / 1_000_000), Stopwatch(boot))
            }
            Source::Driven(_) => (self.now().boot, Stopwatch::start()),
        }
    }

    /// How long to sleep until `boot`; `None` where only a driver moves the time.
    #[must_use]
    pub fn sleep_until(&self, boot: BootMs) -> Option<Duration> {
        match &self.0 {
            Source::Machine => Some(Duration::from_millis(boot.since(self.now().boot))),
            Source::Driven(_) => None,
        }
    }

    /// Calls `wake` whenever a driver has moved this clock. Does nothing for the machine's clock, which moves by
    /// itself.
    pub fn on_change(&self, wake: impl Fn() + Send + 'static) {
        match &self.0 {
            Source::Machine => {}
            Source::Driven(driven) => lock(driven).on_change.push(Box::new(wake)),
        }
    }
}

fn read(id: ClockId) -> u64 {
    nanos(id) / 1_000_000
}

fn nanos(id: ClockId) -> u64 {
    #[allow(clippy::disallowed_methods, reason = "this file is where clocks are read")]
    let time = rustix::time::clock_gettime(id);
    // A wall clock before 1970 reads as 0, and no lease is granted at that time.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// Moves a driven clock.
#[derive(Clone)]
pub struct Driver(Arc<Mutex<Driven>>);

impl Driver {
    /// Moves both clocks forward.
    pub fn advance(&self, ms: u64) {
        self.change(|now| {
            now.wall.0 += ms;
            now.boot.0 += ms;
        });
    }

    /// Sets the wall clock forward or back.
    pub fn step_wall(&self, ms: i64) {
        self.change(|now| now.wall.0 = now.wall.0.saturating_add_signed(ms));
    }

    fn change(&self, change: impl FnOnce(&mut Now)) {
        let mut driven = lock(&self.0);
        change(&mut driven.now);
        for wake in &driven.on_change {
            wake();
        }
    }
}

/// How far the wall clock was set since the last measurement, compared with the boot clock.
#[derive(Debug)]
pub struct StepMeter {
    last: Now,
}

impl StepMeter {
    #[must_use]
    pub fn new(now: Now) -> Self {
        Self { last: now }
    }

    /// Milliseconds the wall clock jumped since the last call: positive forward, negative back.
    #[allow(clippy::cast_possible_wrap, reason = "milliseconds since 1970 fit an i64 for ages")]
    pub fn measure(&mut self, now: Now) -> i64 {
        let wall = now.wall.0 as i64 - self.last.wall.0 as i64;
        let boot = now.boot.0 as i64 - self.last.boot.0 as i64;
        self.last = now;
        wall - boot
    }
}

/// Measures how long something took, for metrics and timeouts: no right depends on it. It always uses the machine's
/// boot clock, also where a test drives the clock of the leases.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(u64);

impl Stopwatch {
    #[must_use]
    pub fn start() -> Self {
        Self(nanos(ClockId::Boottime))
    }

    /// The seconds since the start, and another stopwatch that starts now.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a measurement")]
    pub fn lap(&self) -> (f64, Self) {
        let next = Self::start();
        (next.0.saturating_sub(self.0) as f64 * 1e-9, next)
    }

    /// When the stopwatch was started.
    #[must_use]
    pub fn begun(&self) -> BootMs {
        BootMs(self.0 / 1_000_000)
    }

    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.lap().0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driven_clock_moves_only_when_driven_and_says_so() {
        let start = Now { wall: WallMs(1_000), boot: BootMs(10) };
        let (clock, driver) = Clock::driven(start);
        let steps = Arc::new(Mutex::new(0));
        let count = Arc::clone(&steps);
        clock.on_change(move || *count.lock().unwrap() += 1);
        let mut meter = StepMeter::new(clock.now());
        assert_eq!(clock.now(), start);
        driver.advance(5);
        assert_eq!(meter.measure(clock.now()), 0);
        driver.step_wall(-700);
        assert_eq!(clock.now(), Now { wall: WallMs(305), boot: BootMs(15) });
        assert_eq!((meter.measure(clock.now()), *steps.lock().unwrap()), (-700, 2));
        assert_eq!(clock.sleep_until(BootMs(99)), None);
    }

    #[test]
    fn the_machines_clocks_are_read_in_milliseconds() {
        let (one, two) = (Clock::machine().now(), Clock::machine().now());
        assert!(one.is_plausible() && two.boot >= one.boot);
    }
}
