//! The client-go candidate of other tests, here without a gate: it leads, hands over, and, if it is stopped in the
//! middle, goes on writing with its old token. The store takes that write; a gate would refuse it. The results are the
//! same with the fake and the real API server.

use rustix::process::Signal;
use serde_json::Value;

use super::super::support::{
    kube::{ApiServer, Candidate, NAMESPACES, fence_token},
    store::Store,
};

const LEASE: (&str, &str) = (NAMESPACES[0], "users");

struct World {
    server: ApiServer,
    store: Store,
}

impl World {
    fn each(test: impl Fn(&Self)) {
        for server in [ApiServer::fake(), ApiServer::start()] {
            test(&Self { server, store: Store::start() });
        }
    }

    fn candidate(&self, identity: &str, flags: &[&str]) -> Candidate {
        Candidate::start(&self.server, LEASE, identity, &format!("{}/users/1", self.store.url()), flags)
    }

    fn lease(&self) -> Value {
        self.server.lease(LEASE.0, LEASE.1).unwrap()
    }

    fn tokens(&self) -> Vec<String> {
        let token = |each: &Value| each["headers"]["fence-token"].as_str().unwrap().to_owned();
        self.store.applied().iter().map(token).collect()
    }
}

#[test]
fn a_leader_that_stops_in_good_order_writes_no_more() {
    World::each(|world| {
        let mut first = world.candidate("a", &["--release-on-cancel"]);
        let token = first.leads();
        assert_eq!(token, fence_token(&world.lease()));
        first.next("answer", |answer| answer["status"] == 200 && answer["token"] == token);
        let mut second = world.candidate("b", &[]);
        second.next("leader", |event| event["leader"] == "a");
        first.signal(Signal::TERM);
        assert_eq!(first.ended().code(), Some(0));
        let after = second.leads();
        second.next("answer", |answer| answer["token"] == after);
        assert!(after.ends_with(".1") && world.lease()["spec"]["holderIdentity"] == "b", "{after}");
        assert!(world.tokens().is_sorted(), "never back to the first one");
        second.signal(Signal::TERM);
        assert_eq!(second.ended().code(), Some(0));
    });
}

#[test]
fn a_leader_that_was_stopped_too_long_writes_once_more() {
    World::each(|world| {
        let mut first = world.candidate("a", &[]);
        let token = first.leads();
        first.next("answer", |_| true);
        first.signal(Signal::STOP);
        first.rest();
        let second = world.candidate("b", &[]);
        let after = second.leads();
        second.next("answer", |_| true);
        first.signal(Signal::CONT);
        assert_eq!(first.ended().code(), Some(3));
        first.next("lost", |_| true);
        let story = world.tokens();
        let begun = story.iter().position(|each| *each == after).unwrap();
        assert!(story[begun..].contains(&token), "the write that a gate must refuse: {story:?}");
    });
}

#[test]
fn a_leader_whose_api_server_is_away_gives_up() {
    World::each(|world| {
        let mut first = world.candidate("a", &[]);
        first.leads();
        // The second starts only now: of two that start together, either may win.
        let mut second = world.candidate("b", &["--stay"]);
        second.next("leader", |event| event["leader"] == "a");
        world.server.stop();
        first.next("lost", |_| true);
        assert_eq!(first.ended().code(), Some(3));
        world.server.start_again();
        assert!(second.leads().ends_with(".1"));
        second.signal(Signal::TERM);
        assert_eq!(second.ended().code(), Some(0));
    });
}
