//! Writes that stream: the next holder's advance stops them, or they commit at the last moment. What was sent of a
//! write that broke off may land until its bound has passed.

use std::{
    future::Future,
    pin::pin,
    task::{Context, Waker},
};

use fencegate::{barrier::flight::Cancel, fence::write::Event};
use shuttle::future::block_on;

use crate::world::{BOUND, Guard, Held, World, is_sent, join, object};

impl World {
    /// Sends part of a write, then its end, unless it is stopped first. `waits`: the end never comes, so the write
    /// waits until it is stopped.
    fn stream(&self, held: &Held, waits: bool) {
        let Some(write) = self.admit(held) else { return };
        if !is_sent(&write.on(Event::Connected { whole: false })) {
            return;
        }
        let cancel = write.cancel().expect("it streams");
        if waits {
            block_on(cancel.notified());
            return self.break_off(held, &write);
        }
        self.look(held.object());
        if is_told(&cancel) || !is_sent(&write.on(Event::Complete)) {
            return self.break_off(held, &write);
        }
        self.land(held, || true);
        let _ = write.on(Event::Answered { settles: true });
    }

    fn break_off(&self, held: &Held, write: &Guard) {
        let closed = self.now();
        let _ = write.on(Event::Closed { left: true });
        self.land(held, || self.now().since(closed) < BOUND.0);
    }
}

fn is_told(cancel: &Cancel) -> bool {
    pin!(cancel.notified()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// A stream that sends its end, one whose end never comes, a whole write, and the next holder.
pub fn stopped() {
    let (world, users) = (World::new(64), object("users"));
    let first = world.acquire(&users).expect("the object is free");
    let mut threads = vec![];
    for waits in [false, true] {
        let first = first.clone();
        threads.push(world.spawn(move |world| world.stream(&first, waits)));
    }
    threads.push(world.spawn(move |world| {
        world.write(&first);
    }));
    // Time may pass at any moment.
    threads.push(world.spawn(|world| world.pass(BOUND.0)));
    let wanted = users.clone();
    let next = world.spawn(move |world| {
        let next = world.acquire(&wanted).expect("no other caller wants it");
        assert!(world.write(&next), "the next lease is open");
    });
    join(threads);
    // All unknown writes have passed their bound by then.
    world.pass(BOUND.0);
    join([next]);
    world.end();
}

/// A stream whose end never comes, and the next holder, which waits for ever unless the stream is stopped.
pub fn endless() {
    let (world, users) = (World::new(64), object("users"));
    let first = world.acquire(&users).expect("the object is free");
    let stream = world.spawn(move |world| world.stream(&first, true));
    let wanted = users.clone();
    let next = world.spawn(move |world| {
        let next = world.acquire(&wanted).expect("no other caller wants it");
        assert!(world.write(&next), "the next lease is open");
    });
    join([stream]);
    world.pass(BOUND.0);
    join([next]);
    world.end();
}
