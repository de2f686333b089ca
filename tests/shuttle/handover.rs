//! Writers of a lease, and its next holder.

use std::sync::Arc;

use fencegate::fence::{ObjectId, write::Event};
use shuttle::{sync::mpsc::sync_channel, thread::JoinHandle};

use crate::world::{Held, World, is_sent, join, object};

fn begin() -> (Arc<World>, ObjectId, Held) {
    let (world, users) = (World::new(64), object("users"));
    let first = world.acquire(&users).expect("the object is free");
    (world, users, first)
}

fn writer(world: &Arc<World>, held: &Held) -> JoinHandle<()> {
    let held = held.clone();
    world.spawn(move |world| {
        world.write(&held);
    })
}

/// A writer whose writes are complete when they are judged.
fn quick_writer(world: &Arc<World>, held: &Held) -> JoinHandle<()> {
    let held = held.clone();
    world.spawn(move |world| {
        world.write_at_once(&held);
    })
}

/// A writer whose first connection is dead.
fn unlucky_writer(world: &Arc<World>, held: &Held) -> JoinHandle<()> {
    let held = held.clone();
    world.spawn(move |world| {
        world.write_twice(&held);
    })
}

fn watcher(world: &Arc<World>, object: &ObjectId) -> JoinHandle<()> {
    let object = object.clone();
    world.spawn(move |world| (0..3).for_each(|_| world.look(&object)))
}

/// Takes over and writes, unless another successor is about to.
fn successor(world: &Arc<World>, objects: &[&ObjectId]) -> JoinHandle<()> {
    let objects: Vec<ObjectId> = objects.iter().map(|object| (*object).clone()).collect();
    world.spawn(move |world| {
        for held in world.acquire_all(&objects, true).unwrap_or_default() {
            world.write(&held);
        }
    })
}

fn operator(world: &Arc<World>, object: &ObjectId, force: bool) -> JoinHandle<()> {
    let object = object.clone();
    world.spawn(move |world| world.revoke(&object, force))
}

/// All threads are done: the object is free, and only its last lease counts.
fn end(world: Arc<World>, first: &Held) {
    world.look(first.object());
    let last = world.acquire(first.object()).expect("nothing is on its way");
    assert!(!last.tainted && world.write(&last), "the last lease is open");
    assert!(!world.write(first), "the first one is not");
    world.end();
}

/// Two threads take over, one perhaps from the other.
pub fn to_the_next() {
    let (world, users, first) = begin();
    join([
        writer(&world, &first),
        unlucky_writer(&world, &first),
        successor(&world, &[&users]),
        successor(&world, &[&users]),
        watcher(&world, &users),
    ]);
    end(world, &first);
}

/// The same, with writes that are judged only once.
pub fn past_quick_ones() {
    let (world, users, first) = begin();
    join([
        quick_writer(&world, &first),
        quick_writer(&world, &first),
        successor(&world, &[&users]),
        successor(&world, &[&users]),
        watcher(&world, &users),
    ]);
    end(world, &first);
}

/// A write that was taken back waits for a connection longer than the handover takes.
pub fn past_one_that_waits() {
    let (world, users, first) = begin();
    let (granted, is_granted) = sync_channel(1);
    let held = first.clone();
    let waits = world.spawn(move |world| {
        let Some(write) = world.admit(&held) else { return };
        if is_sent(&write.on(Event::Connected { whole: true })) {
            let _ = write.on(Event::Closed { left: false });
            is_granted.recv().expect("the handover does not wait for it");
            assert!(!is_sent(&write.on(Event::Connected { whole: true })), "its lease is over");
        }
    });
    let wanted = users.clone();
    let next = world.spawn(move |world| {
        let next = world.acquire(&wanted).expect("no other caller wants it");
        let _ = granted.send(());
        assert!(world.write(&next), "the next lease is open");
    });
    join([writer(&world, &first), waits, next, watcher(&world, &users)]);
    end(world, &first);
}

/// The holder releases its lease while its own writes are on their way, and another thread waits for the lease.
pub fn to_one_who_waits() {
    let (world, users, first) = begin();
    let wanted = users.clone();
    let waits = world.spawn(move |world| {
        let next = world.wait_for(&wanted);
        assert!(world.write(&next), "the next lease is open");
        world.release(&next);
    });
    let released = first.clone();
    let releases = world.spawn(move |world| world.release(&released));
    join([writer(&world, &first), unlucky_writer(&world, &first), watcher(&world, &users), waits, releases]);
    end(world, &first);
}

/// Two objects are taken over together, and an operator moves the fence of one meanwhile.
pub fn overtaken() {
    let (world, users, first) = begin();
    let others = object("others");
    let second = world.acquire(&others).expect("the object is free");
    join([
        writer(&world, &first),
        writer(&world, &second),
        successor(&world, &[&users, &others]),
        operator(&world, &users, false),
        watcher(&world, &users),
    ]);
    end(world, &first);
}

/// An operator does not wait: the next holder gets the answer that older writes may land.
pub fn forced() {
    let (world, users, first) = begin();
    join([
        writer(&world, &first),
        unlucky_writer(&world, &first),
        operator(&world, &users, true),
        successor(&world, &[&users]),
        successor(&world, &[&users]),
    ]);
    end(world, &first);
}
