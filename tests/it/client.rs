//! The library for writers: a lease is kept, lost and given back, on a wire that goes wrong.

use std::time::Duration;

use fencegate::{
    client::{LeaseApi, Lost, NotHad, Progress, Wanted, lease::NotRenewed},
    fence::{HolderId, ObjectId},
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::support::{
    gate::acquire,
    process::{Gate, Site},
    until,
    wire::{Mode, Wire},
};

const TTL: u64 = 1_000;

fn wanted(holder: &str) -> Wanted {
    Wanted::new(ObjectId::new("users").unwrap(), HolderId::new(holder).unwrap()).with_ttl_ms(TTL)
}

struct Bench {
    site: Site,
    gate: Gate,
    wire: Wire,
    runtime: Runtime,
}

impl Bench {
    fn new() -> Self {
        Self::with("")
    }

    fn with(settings: &str) -> Self {
        let site = Site::with_table();
        site.configure(settings);
        let gate = site.serve();
        let wire = Wire::to(gate.api);
        Self { site, gate, wire, runtime: Runtime::new().unwrap() }
    }

    fn api(&self) -> LeaseApi {
        LeaseApi::new(&self.wire.url()).unwrap()
    }

    fn leases(&self) -> Vec<Value> {
        self.gate.api().get("/v1/leases?prefix=users").expect(200)["leases"].as_array().unwrap().clone()
    }

    /// Whether the gate would take a write with this token.
    fn is_valid(&self, token: &str) -> bool {
        self.gate.api().post("/v1/tokens/check", &json!({ "fence_token": token })).expect(200)["valid"] == true
    }

    /// Returns once so many more renewals were seen.
    fn renewals(&self, count: usize) {
        let mut stream = self.gate.api();
        stream.send("GET", "/v1/watch", &[], b"").unwrap();
        let mut seen = 0;
        while seen < count {
            seen += usize::from(stream.read_line().unwrap() == "event: renewed");
        }
    }
}

#[test]
fn a_lease_is_kept_until_it_is_released() {
    let bench = Bench::new();
    let lease = bench.runtime.block_on(bench.api().acquire(&wanted("a"), |_| {})).unwrap();
    assert_eq!((lease.seq(), lease.object().as_str(), lease.ttl_ms()), (1, "users", TTL));
    let token = lease.token().unwrap();
    // Four renewals are more than one ttl.
    bench.renewals(4);
    assert_eq!(lease.token(), Ok(token.clone()));
    assert!(lease.left_ms() > 0 && bench.is_valid(token.expose()));
    bench.runtime.block_on(lease.release()).unwrap();
    assert_eq!(lease.token(), Err(Lost::Released));
    assert_eq!(bench.runtime.block_on(lease.lost()), Lost::Released);
    assert_eq!(bench.leases()[0]["state"], "released");
    assert_eq!(format!("{token:?}"), "***");
    assert!(!format!("{lease:?}").contains(token.expose()), "a secret in {lease:?}");
    // Once more changes nothing.
    bench.runtime.block_on(lease.release()).unwrap();
}

#[test]
fn a_lost_answer_leaves_no_lease_behind() {
    let bench = Bench::new();
    bench.wire.set(Mode::LosesAnswers);
    let mut heard = vec![];
    let lease = bench.runtime.block_on(bench.api().acquire(&wanted("a"), |progress| {
        heard.push(progress.clone());
        bench.wire.set(Mode::Pass);
    }));
    let lease = lease.unwrap();
    assert!(matches!(&heard[..], [Progress::Unreachable { .. }]), "{heard:?}");
    assert_eq!((lease.seq(), bench.leases().len()), (1, 1), "the second call got the first one's lease");
    assert!(bench.is_valid(lease.token().unwrap().expose()));
}

#[test]
fn a_lost_answer_is_asked_for_again_even_by_whoever_does_not_wait() {
    let bench = Bench::new();
    bench.wire.set(Mode::LosesAnswers);
    let not_waiting = wanted("a").with_wait(Duration::ZERO);
    let lease = bench.runtime.block_on(bench.api().acquire(&not_waiting, |_| bench.wire.set(Mode::Pass))).unwrap();
    assert_eq!((lease.seq(), bench.leases().len()), (1, 1));
}

#[test]
fn a_definite_refusal_is_loss_at_once_and_says_why() {
    let bench = Bench::new();
    let lease = bench.runtime.block_on(bench.api().acquire(&wanted("a"), |_| {})).unwrap();
    bench.gate.api().post("/v1/objects/users/revoke", &json!({ "reason": "a test" })).expect(200);
    let lost = bench.runtime.block_on(lease.lost());
    assert_eq!(lost.reason(), "LEASE_FENCED");
    assert_eq!(lease.token(), Err(lost.clone()));
    assert!(lost.to_string().contains("the fence has moved past this lease"), "{lost}");
    assert_eq!(lease.left_ms(), 0);
}

#[test]
fn without_answers_a_lease_is_lost_at_its_deadline_and_not_before() {
    let bench = Bench::new();
    let lease = bench.runtime.block_on(bench.api().acquire(&wanted("a"), |_| {})).unwrap();
    bench.renewals(1);
    bench.wire.set(Mode::Cut);
    let tries = bench.wire.calls();
    // It is good for as long as the last renewal lasts, and it is tried again and again until then.
    assert!(lease.token().is_ok());
    let lost = bench.runtime.block_on(lease.lost());
    assert!(matches!(&lost, Lost::Deadline { last: Some(why) } if why.contains("broke")), "{lost}");
    assert!(bench.wire.calls() > tries + 2, "{} calls", bench.wire.calls() - tries);
    assert_eq!(lease.token(), Err(lost));
    // A wire that is dark, not cut: the calls hang.
    bench.wire.set(Mode::Pass);
    let lease = bench.runtime.block_on(bench.api().acquire(&wanted("a"), |_| {})).unwrap();
    bench.wire.set(Mode::Dark);
    assert!(matches!(bench.runtime.block_on(lease.lost()), Lost::Deadline { .. }));
}

#[test]
fn a_gap_in_the_answers_is_ridden_out() {
    let bench = Bench::new();
    let lease = bench.runtime.block_on(bench.api().acquire(&wanted("a"), |_| {})).unwrap();
    let before = bench.wire.calls();
    bench.wire.set(Mode::LosesAnswers);
    until("two renewals without an answer", || bench.wire.calls() >= before + 2);
    bench.wire.set(Mode::Pass);
    bench.renewals(3);
    assert!(lease.token().is_ok());
}

#[test]
fn a_deadline_is_counted_from_when_the_request_was_sent() {
    let bench = Bench::new();
    let late = Duration::from_millis(600);
    bench.wire.set(Mode::Late(late));
    let long = wanted("a").with_ttl_ms(30_000);
    let lease = bench.runtime.block_on(bench.api().acquire(&long, |_| {})).unwrap();
    assert!(lease.left_ms() <= 30_000 - 600, "{} ms left", lease.left_ms());
    bench.runtime.block_on(lease.renew(Duration::from_secs(10))).unwrap();
    assert!(lease.left_ms() <= 30_000 - 600, "{} ms left", lease.left_ms());
}

#[test]
fn a_turn_that_was_long_in_coming_is_good_when_it_comes() {
    let bench = Bench::new();
    // Held for longer than the ttl that is asked for.
    acquire(&mut bench.gate.api(), "users", "first", 2 * TTL);
    let mut heard = vec![];
    let lease = bench.runtime.block_on(bench.api().acquire(&wanted("a"), |progress| heard.push(progress.clone())));
    let lease = lease.unwrap();
    assert_eq!(heard, [Progress::Held { by: Some("first".to_owned()) }]);
    assert_eq!(lease.seq(), 2);
    assert!(lease.left_ms() > TTL / 2 && bench.is_valid(lease.token().unwrap().expose()), "{} ms", lease.left_ms());
}

#[test]
fn a_gate_that_lets_nobody_wait_long_is_asked_again() {
    let bench = Bench::with("[lease]\nwait_ms_max = 300\n");
    acquire(&mut bench.gate.api(), "users", "first", 2 * TTL);
    let lease = bench.runtime.block_on(bench.api().acquire(&wanted("a"), |_| {})).unwrap();
    assert_eq!(lease.seq(), 2);
}

#[test]
fn whoever_does_not_get_it_is_told_why() {
    let bench = Bench::new();
    acquire(&mut bench.gate.api(), "users", "first", 60_000);
    let ask = |wanted: &Wanted| bench.runtime.block_on(bench.api().acquire(wanted, |_| {})).unwrap_err();
    let held = NotHad::Held { by: Some("first".to_owned()) };
    assert_eq!(ask(&wanted("a").with_wait(Duration::ZERO)), held);
    assert_eq!(ask(&wanted("a").with_wait(Duration::from_millis(400))), held);
    let refused = ask(&wanted("a").with_ttl_ms(1));
    assert!(matches!(&refused, NotHad::Refused(why) if why.code == "REQUEST_INVALID"), "{refused}");
    bench.wire.set(Mode::Cut);
    let unreachable = ask(&wanted("a").with_wait(Duration::from_millis(400)));
    assert!(matches!(unreachable, NotHad::Unreachable { .. }), "{unreachable}");
}

#[test]
fn whoever_gives_up_leaves_the_queue() {
    let bench = Bench::new();
    let mut first = bench.gate.api();
    let held = acquire(&mut first, "users", "first", 60_000);
    let given_up = async {
        let waits = || {
            String::from_utf8(bench.gate.ops().get("/metrics").body).unwrap().contains("fencegate_lease_waiters 1\n")
        };
        while !waits() {
            tokio::task::yield_now().await;
        }
    };
    let api = bench.api();
    let patient = wanted("a");
    let gone = bench.runtime.block_on(api.acquire_unless(&patient, |_| {}, given_up));
    assert_eq!(gone.unwrap_err(), NotHad::GivenUp);
    first.delete(&format!("/v1/leases/{}", held["lease_id"].as_str().unwrap()), held["fence_token"].as_str().unwrap());
    assert!(bench.leases().iter().all(|lease| lease["holder_id"] != "a" || lease["state"] != "held"));
}

#[test]
fn a_renewal_that_was_asked_for_is_the_gates_own_word() {
    let bench = Bench::new();
    let lease = bench.runtime.block_on(bench.api().acquire(&wanted("a").with_ttl_ms(60_000), |_| {})).unwrap();
    let renew = || bench.runtime.block_on(lease.renew(Duration::from_secs(5)));
    renew().unwrap();
    bench.wire.set(Mode::Cut);
    assert!(matches!(renew(), Err(NotRenewed::Unconfirmed(_))));
    assert!(lease.token().is_ok(), "no answer is no loss");
    bench.wire.set(Mode::Pass);
    bench.gate.api().post("/v1/objects/users/revoke", &json!({ "reason": "a test" })).expect(200);
    assert!(matches!(renew(), Err(NotRenewed::Lost(why)) if why.reason() == "LEASE_FENCED"));
    assert!(lease.token().is_err());
    assert!(!bench.site.log().contains("panicked"));
}
