//! Writers with numbers of an outside lock service: a higher number comes while lower ones are on their way.

use std::sync::Arc;

use fencegate::{
    barrier::in_flight::Permitted,
    fence::{
        Denial, LeaseSeq, ObjectId, State, Ttl,
        external::{ExternalLimits, Number},
        outside::{Claim, Update},
        verdict::{self, Presented, View},
        write::{Event, Stage},
    },
};
use shuttle::{future::block_on, thread::JoinHandle};

use crate::world::{World, is_sent, join, object};

fn number(seq: u64) -> Number {
    let limits = ExternalLimits { max_jump: 1_000, silence: Ttl::FOR_EVER };
    Number { seq: LeaseSeq::new(seq).unwrap(), limits }
}

/// Moves the fence to a number, and waits for the writes with lower ones.
fn follow(world: &World, object: &ObjectId, seq: u64) {
    // A lower number is refused; a number that was overtaken gets that answer.
    if let Ok(moved) = block_on(world.gate.ledger.follow(object.clone(), Update::Number(number(seq))))
        && moved.record.fence.get() == seq
        && matches!(moved.record.state, State::Open { .. })
    {
        world.oracle.freed(object, seq);
    }
}

/// Does what `decide` does: judges, moves the fence if it must, and judges from the start. Returns whether the
/// write was sent.
fn write(world: &World, object: &ObjectId, seq: u64) -> bool {
    let presented = Presented::Outside(Claim::Number(number(seq)));
    let judge = |record: &_, sealed| verdict::judge(View::Known { record, sealed }, &presented, world.gate.now());
    loop {
        match world.gate.records.stripes.admit(object.as_str(), judge) {
            None => drop(world.gate.records.read(object).unwrap()),
            Some(Err(Denial::Behind(_))) => follow(world, object, seq),
            Some(Err(_)) => return false,
            Some(Ok(admitted)) => {
                let write = world.guard(Permitted::waiting(admitted), Stage::Waiting);
                let is_sent = is_sent(&write.on(Event::Connected { whole: true }));
                if is_sent {
                    world.oracle.apply(object, seq, || true);
                    let _ = write.on(Event::Answered { settles: true });
                }
                return is_sent;
            }
        }
    }
}

fn writer(world: &Arc<World>, object: &ObjectId, seq: u64) -> JoinHandle<()> {
    let object = object.clone();
    world.spawn(move |world| {
        // The oracle checks whether it was sent.
        for _ in 0..2 {
            write(world, &object, seq);
        }
    })
}

/// Three numbers, one of them twice, and a thread that reads the fence.
pub fn numbers() {
    let (world, users) = (World::new(64), object("users"));
    assert!(write(&world, &users, 5), "the first may be any");
    let (watched, called) = (users.clone(), users.clone());
    join([
        writer(&world, &users, 5),
        writer(&world, &users, 6),
        writer(&world, &users, 6),
        writer(&world, &users, 9),
        world.spawn(move |world| (0..3).for_each(|_| world.look(&watched))),
        world.spawn(move |world| follow(world, &called, 7)),
    ]);
    assert!(write(&world, &users, 9), "the highest is open");
    assert!(!write(&world, &users, 7) && !write(&world, &users, 5), "the others are not");
    world.end();
}
