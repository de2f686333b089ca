//! Writes to two objects at once, in both orders, while both objects are handed over.

use crate::world::{Held, World, join, neighbour, object};

/// Two writers who name the objects in opposite order, and a successor for each object.
pub fn crossing() {
    let world = World::new(100);
    let users = object("users");
    // There are two stripes: an object that is not the first one's neighbour is in the other stripe.
    let near = neighbour(&users);
    let far = (0..).map(|n| object(&format!("far-{n}")));
    let far = far.into_iter().find(|other| *other != near && neighbour(other) != neighbour(&users)).unwrap();
    let held = [&users, &far].map(|object| world.acquire(object).expect("the object is free"));
    let writer = |first: &Held, second: &Held| {
        let pair = [first.clone(), second.clone()];
        world.spawn(move |world| {
            world.write_to_both(&pair);
        })
    };
    let successor = |held: &Held| {
        let object = held.object().clone();
        world.spawn(move |world| {
            let next = world.acquire(&object).expect("no other caller wants it");
            assert!(world.write(&next), "the next lease is open");
        })
    };
    join([writer(&held[0], &held[1]), writer(&held[1], &held[0]), successor(&held[0]), successor(&held[1])]);
    assert!(!world.write_to_both(&held), "both leases are over");
    world.end();
}
