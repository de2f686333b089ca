//! A reload that changes a route. Writes of the old version may go to what is another object by now, so before they
//! have landed, no lease is granted and no write uses the new version.

use std::{
    rc::Rc,
    sync::{Arc, Mutex},
};

use fencegate::{
    barrier::{
        generation::Generation,
        in_flight::{Admission, InFlight},
    },
    fence::{
        ObjectId,
        write::{Event, Write, WriteOptions},
    },
};

use crate::world::{BOUND, Guard, World, is_sent, join, object};

/// The present route: `Plan` without the other settings.
struct Route {
    place: ObjectId,
    /// The number of the version, the version, and the older versions that it waits for.
    now: Mutex<(u64, Arc<Generation>, Vec<Arc<Generation>>)>,
}

impl World {
    /// A write on a route that does not check leases. `loses`: its connection breaks, and the store applies it
    /// late.
    fn write_by(&self, route: &Route, loses: bool) {
        let (version, generation, waits_for) = route.now.lock().unwrap().clone();
        if !waits_for.iter().all(|older| older.is_over(self.now())) {
            return;
        }
        let mut life = Write::new(WriteOptions { unfenced: true, ..WriteOptions::default() });
        let _ = life.on(Event::Arrived { whole: false });
        let entered = generation.enter(&self.gate.clock, BOUND);
        let admission = Admission::Unfenced(route.place.clone());
        let write: Guard = InFlight::new(Rc::new(Arc::clone(&self.gate)), life, admission, entered);
        if !is_sent(&write.on(Event::Connected { whole: true })) {
            return;
        }
        if !loses {
            self.oracle.apply(&route.place, version, || true);
            let _ = write.on(Event::Answered { settles: true });
            return;
        }
        let closed = self.now();
        // Dropped while the write is on its way: its outcome is unknown.
        drop(write);
        self.oracle.apply(&route.place, version, || self.now().since(closed) < BOUND.0);
    }

    /// Does what `Plane::reload` does.
    fn reload(&self, route: &Route) {
        let (version, old, _) = route.now.lock().unwrap().clone();
        self.gate.records.stripes.generations.retire(std::iter::once(Arc::clone(&old)));
        *route.now.lock().unwrap() = (version + 1, Arc::default(), vec![old]);
    }
}

/// Writers on the old route and on the new one, and the next holder of the object that the new one writes to.
pub fn one_route() {
    let (world, users) = (World::new(64), object("users"));
    let route =
        Arc::new(Route { place: object("what-the-route-writes-to"), now: Mutex::new((1, Arc::default(), vec![])) });
    let mut threads = vec![];
    for loses in [false, false, true] {
        let route = Arc::clone(&route);
        threads.push(world.spawn(move |world| (0..2).for_each(|_| world.write_by(&route, loses))));
    }
    threads.push(world.spawn(|world| world.pass(BOUND.0)));
    let changed = Arc::clone(&route);
    let next = world.spawn(move |world| {
        world.reload(&changed);
        let next = world.acquire(&users).expect("no other caller wants it");
        // No write on the old route lands from here on.
        world.oracle.freed(&changed.place, 2);
        assert!(world.write(&next), "the lease is open");
    });
    join(threads);
    world.pass(BOUND.0);
    join([next]);
    world.end();
}
