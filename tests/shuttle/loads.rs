//! Loads from the table while fences move, with memory for one record: each load evicts another record.

use std::sync::Arc;

use fencegate::fence::ObjectId;
use shuttle::thread::JoinHandle;

use crate::world::{Held, World, join, neighbour, object};

/// The object is in the table, and another object's record is in memory.
fn begin() -> (Arc<World>, ObjectId, ObjectId, Held) {
    let (world, users) = (World::new(1), object("users"));
    let other = neighbour(&users);
    let first = world.acquire(&users).expect("the object is free");
    world.read(&other);
    (world, users, other, first)
}

fn loader(world: &Arc<World>, object: &ObjectId) -> JoinHandle<()> {
    let object = object.clone();
    world.spawn(move |world| (0..2).for_each(|_| world.read(&object)))
}

fn successor(world: &Arc<World>, object: &ObjectId) -> JoinHandle<()> {
    let object = object.clone();
    world.spawn(move |world| {
        let next = world.acquire(&object).expect("no other caller wants it");
        world.look(&object);
        assert!(world.write(&next), "the next lease is open");
    })
}

fn end(world: Arc<World>, first: &Held) {
    world.read(first.object());
    assert!(!world.write(first), "the first lease is over");
    world.end();
}

/// Loads of the object, of the other one that evicts it, and the next holder.
pub fn among_evictions() {
    let (world, users, other, first) = begin();
    join([loader(&world, &users), loader(&world, &users), loader(&world, &other), successor(&world, &users)]);
    end(world, &first);
}

/// Writers whose record is evicted as soon as no write of theirs is on its way.
pub fn by_writers() {
    let (world, users, other, first) = begin();
    let writer = |first: &Held| {
        let first = first.clone();
        world.spawn(move |world| {
            for _ in 0..2 {
                world.write(&first);
            }
        })
    };
    // The write is looked for where its record was before, and another record may be there by then.
    let quick_writer = |first: &Held| {
        let first = first.clone();
        world.spawn(move |world| {
            world.write_at_once(&first);
        })
    };
    join([writer(&first), quick_writer(&first), loader(&world, &other), successor(&world, &users)]);
    end(world, &first);
}
