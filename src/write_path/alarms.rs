//! Timeouts without timers: a worker's tick wakes each task that has waited for too long, by the boot clock. Setting an
//! alarm, and taking it back, costs a few instructions. An alarm rings with the first tick after its time.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use crate::fence::BootMs;

/// A worker's alarms.
pub struct Alarms {
    waiting: RefCell<Wakers>,
    /// The boot clock, as this worker last read it: at most one tick old, unless the worker was stopped.
    now: Cell<BootMs>,
}

/// The wakers of the tasks that wait for an alarm, each at the place that its alarm knows.
#[derive(Default)]
struct Wakers {
    places: Vec<Option<(BootMs, Waker)>>,
    free: Vec<usize>,
}

/// An alarm that was set. It is taken back when it is dropped.
pub struct Alarm {
    alarms: Rc<Alarms>,
    due: BootMs,
    place: Option<usize>,
}

impl Alarms {
    #[must_use]
    pub fn new(now: BootMs) -> Rc<Self> {
        Rc::new(Self { waiting: RefCell::default(), now: Cell::new(now) })
    }

    /// Sets the boot clock that was just read.
    pub fn now_is(&self, now: BootMs) {
        self.now.set(now);
    }

    /// The boot clock, as it was last read.
    #[must_use]
    pub fn now(&self) -> BootMs {
        self.now.get()
    }

    fn due(&self, patience: Duration) -> BootMs {
        let patience = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        // The clock is read in whole milliseconds.
        BootMs(self.now.get().0.saturating_add(patience).saturating_add(1))
    }

    /// An alarm that rings when `patience` has passed since the clock was last read.
    #[must_use]
    pub fn set(self: &Rc<Self>, patience: Duration) -> Alarm {
        Alarm { alarms: Rc::clone(self), due: self.due(patience), place: None }
    }

    /// Wakes the tasks whose alarms are due, or every waiting task if `all`.
    pub fn tick(&self, now: BootMs, all: bool) {
        self.now.set(now);
        // Waking may run any code, so it happens after the borrow has ended.
        let mut late: Vec<Waker> = vec![];
        for (due, waker) in self.waiting.borrow().places.iter().flatten() {
            if all || *due <= now {
                late.push(waker.clone());
            }
        }
        late.into_iter().for_each(Waker::wake);
    }
}

impl Alarm {
    /// Begins to wait anew.
    pub fn reset(&mut self, patience: Duration) {
        self.due = self.alarms.due(patience);
        let mut waiting = self.alarms.waiting.borrow_mut();
        if let Some((due, _)) = self.place.and_then(|place| waiting.places[place].as_mut()) {
            *due = self.due;
        }
    }

    /// Ready when the alarm rings; otherwise stores the task's waker.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.due <= self.alarms.now.get() {
            return Poll::Ready(());
        }
        let mut waiting = self.alarms.waiting.borrow_mut();
        let waiting = &mut *waiting;
        let place = *self.place.get_or_insert_with(|| {
            waiting.free.pop().unwrap_or_else(|| {
                waiting.places.push(None);
                waiting.places.len() - 1
            })
        });
        match &mut waiting.places[place] {
            Some((_, waker)) => waker.clone_from(context.waker()),
            free @ None => *free = Some((self.due, context.waker().clone())),
        }
        Poll::Pending
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let mut waiting = self.alarms.waiting.borrow_mut();
            waiting.places[place] = None;
            waiting.free.push(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        task::Wake,
    };

    use super::*;

    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn an_alarm_rings_when_its_time_has_passed_and_never_before() {
        let (alarms, woken) = (Alarms::new(BootMs(7_000)), Arc::new(Woken(AtomicUsize::new(0))));
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let count = || woken.0.load(Ordering::Relaxed);
        let mut alarm = alarms.set(Duration::from_millis(150));
        let mut other = alarms.set(Duration::from_secs(1));
        assert!(alarm.poll(&mut context).is_pending() && other.poll(&mut context).is_pending());
        alarms.tick(BootMs(7_100), false);
        // The first and the last of the 150 ms were not whole.
        alarms.tick(BootMs(7_150), false);
        assert!(alarm.poll(&mut context).is_pending() && count() == 0);
        alarms.tick(BootMs(7_200), false);
        assert!(alarm.poll(&mut context).is_ready() && count() == 1);
        alarm.reset(Duration::from_millis(100));
        assert!(alarm.poll(&mut context).is_pending());
        alarms.tick(BootMs(7_250), true);
        assert_eq!(count(), 3, "a reload wakes everyone");
        drop(alarm);
        alarms.tick(BootMs(7_900), false);
        assert_eq!(count(), 3, "what was taken back does not ring");
        assert!(other.poll(&mut context).is_pending());
        // A place that was given back is used again.
        let mut third = alarms.set(Duration::from_millis(100));
        assert!(third.poll(&mut context).is_pending());
        assert_eq!(alarms.waiting.borrow().places.len(), 2);
        // After a long pause of the worker, one tick rings all alarms that are due.
        alarms.tick(BootMs(67_000), false);
        assert!(other.poll(&mut context).is_ready() && third.poll(&mut context).is_ready());
        // An alarm that is set after the pause has its full time, though no tick has passed.
        alarms.now_is(BootMs(127_000));
        let mut fourth = alarms.set(Duration::from_millis(100));
        alarms.tick(BootMs(127_050), false);
        assert!(fourth.poll(&mut context).is_pending());
    }

    #[tokio::test]
    async fn a_task_that_waits_is_woken() {
        let alarms = Alarms::new(BootMs(0));
        let mut alarm = alarms.set(Duration::ZERO);
        let ticks = async {
            tokio::task::yield_now().await;
            alarms.tick(BootMs(1), false);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = poll_fn(|context| alarm.poll(context)) => {}
            () = ticks => unreachable!(),
        }
    }
}
