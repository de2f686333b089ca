//! Real locks of etcd, Redis and ZooKeeper. A takes the lock and writes. A is paused and its lock runs out. B takes the
//! lock and writes. A wakes up and writes with its old token.

use super::World;
use crate::support::locks::{Etcd, Redis, ZooKeeper};

/// A had the lock, and B has it now: A's delayed write must not land.
fn a_sleeps_b_writes(world: &World, a: u64, b: u64) {
    assert!(a < b, "the lock service counts up: {a}, {b}");
    world.put(a).applied();
    world.advance(b).expect(200);
    let late = world.put(a).refusal(412, "WRITE_STALE_FENCE");
    assert_eq!((late["fence"].as_u64(), late["lease_seq"].as_u64()), (Some(b), Some(a)));
    world.put(b).applied();
    world.put(a).refusal(412, "WRITE_STALE_FENCE");
    assert_eq!(world.applied(), [a, b]);
}

#[test]
fn a_lock_of_etcd_is_fenced_by_its_revision() {
    let (etcd, world) = (Etcd::start(), World::new());
    let a = etcd.lock("users");
    etcd.expire(&a);
    let b = etcd.lock("users");
    a_sleeps_b_writes(&world, a.revision, b.revision);
}

#[test]
fn the_lock_of_redis_is_fenced_by_its_counter() {
    let (redis, world) = (Redis::start(), World::new());
    let a = redis.take("users", 60_000).expect("the lock is free");
    assert_eq!(redis.take("users", 60_000), None, "it is a lock");
    redis.expire("users");
    let b = redis.take("users", 60_000).expect("A's has run out");
    a_sleeps_b_writes(&world, a, b);
}

#[test]
fn a_lock_of_zookeeper_is_fenced_by_its_transaction() {
    let (zookeeper, world) = (ZooKeeper::start(), World::new());
    let (mut a, mut b) = (zookeeper.queue(), zookeeper.queue());
    assert!(a.is_held() && !b.is_held());
    let zxid = a.zxid;
    a.expire();
    assert!(b.is_held());
    a_sleeps_b_writes(&world, zxid, b.zxid);
}

#[test]
fn a_lock_service_that_goes_backwards_is_refused_and_nothing_is_lost() {
    let (redis, world) = (Redis::start(), World::new());
    for token in 1..=3 {
        assert_eq!(redis.take("users", 60_000), Some(token));
        world.put(token).applied();
        redis.expire("users");
    }
    redis.lose_everything("users");
    let again = redis.take("users", 60_000).expect("it has forgotten everything");
    assert_eq!(again, 1);
    let refused = world.put(again).refusal(412, "WRITE_STALE_FENCE");
    assert_eq!(refused["fence"], 3);
    assert_eq!(world.applied(), [1, 2, 3]);
}
