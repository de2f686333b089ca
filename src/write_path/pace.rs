//! How fast a client sends a body. It is too slow if it sends no byte for `body_timeout_ms`, or less than
//! `pace_bytes_min` a second on average. Only time that is spent waiting for the client counts.

use std::{
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use super::alarms::{Alarm, Alarms};
use crate::{config::GateSettings, fence::BootMs};

/// How slow a client may be.
#[derive(Clone, Copy, Debug)]
pub struct Slowest {
    /// The longest pause, and the time that an empty body may take.
    pause_ms: u64,
    /// Bytes per second after that; 0: any pace is fast enough.
    pace: u64,
}

impl Slowest {
    #[must_use]
    pub fn of(settings: &GateSettings) -> Self {
        Self { pause_ms: settings.body_timeout_ms, pace: settings.pace_bytes_min }
    }

    /// How many milliseconds a client may take for so many bytes.
    #[must_use]
    pub fn time_for(self, bytes: u64) -> u64 {
        match self.pace {
            0 => u64::MAX,
            pace => self.pause_ms.saturating_add(bytes.saturating_mul(1_000) / pace),
        }
    }
}

/// The pace of one client.
pub struct Pace {
    slowest: Slowest,
    alarms: Rc<Alarms>,
    came: u64,
    waited_ms: u64,
    /// Since when the gate waits for the client, and the alarm that ends the wait.
    waiting: Option<(BootMs, Alarm)>,
}

impl Pace {
    #[must_use]
    pub fn new(alarms: &Rc<Alarms>, slowest: Slowest) -> Self {
        Self { slowest, alarms: Rc::clone(alarms), came: 0, waited_ms: 0, waiting: None }
    }

    /// Counts bytes that have come.
    pub fn came(&mut self, bytes: usize) {
        self.came += bytes as u64;
        if let Some((since, _)) = self.waiting.take() {
            self.waited_ms += self.alarms.now().since(since);
        }
    }

    /// To be called while no byte is ready. Ready when that has lasted too long.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let (slowest, came, waited_ms) = (self.slowest, self.came, self.waited_ms);
        let (_, alarm) = self.waiting.get_or_insert_with(|| {
            let left = slowest.time_for(came).saturating_sub(waited_ms).min(slowest.pause_ms);
            (self.alarms.now(), self.alarms.set(Duration::from_millis(left)))
        });
        alarm.poll(context)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// After how long a client is too slow that sends `bytes` every `every_ms`.
    fn cut_after(pace: u64, bytes: usize, every_ms: u64) -> Option<u64> {
        let alarms = Alarms::new(BootMs(0));
        let mut client = Pace::new(&alarms, Slowest { pause_ms: 30_000, pace });
        let mut context = Context::from_waker(Waker::noop());
        for now in (0..600_000).step_by(100) {
            alarms.tick(BootMs(now), false);
            if now > 0 && now % every_ms == 0 {
                client.came(bytes);
            }
            if client.poll(&mut context).is_ready() {
                return Some(now);
            }
        }
        None
    }

    #[test]
    fn a_client_that_drips_is_cut_off_and_one_that_keeps_pace_is_not() {
        assert_eq!(cut_after(1_024, 1, 20_000), Some(30_100));
        assert_eq!(cut_after(1_024, 0, 700_000), Some(30_100));
        assert_eq!(cut_after(1_024, 1_024, 1_000), None);
        // Half the pace lasts twice as long as the pause.
        assert!(cut_after(1_024, 512, 1_000).is_some_and(|ms| (55_000..65_000).contains(&ms)));
        assert_eq!(cut_after(0, 1, 20_000), None);
        assert_eq!(cut_after(0, 1, 40_000), Some(30_100));
    }
}
