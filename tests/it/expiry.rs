//! Races at the instant of expiry: renew against acquire. The clock is driven across the instant while the disk's sync
//! is held. Exactly one call wins, and no lease that was called expired later renews.

use std::thread;

use serde_json::{Value, json};

use super::support::{
    gate::{TestGate, acquire, renewal, text, wanted},
    http::{Conn, Response},
};

const TTL: u64 = 1_000;

/// The responses to the three calls of one race.
struct RaceResponses {
    renewed: Response,
    acquired: Response,
    shown: Response,
}

impl RaceResponses {
    /// The winner: the holder (`true`) or the newcomer.
    #[track_caller]
    fn holder_won(&self, case: &str) -> bool {
        let (renewed, acquired) = (self.renewed.status == 200, self.acquired.status == 201);
        assert!(renewed != acquired, "{case}: exactly one wins: {} {}", self.renewed.status, self.acquired.status);
        let state = self.shown.expect(200)["state"].clone();
        if renewed {
            self.acquired.refusal(409, "LEASE_HELD");
            assert_eq!(state, "held", "{case}: shown as {state}, and then it was renewed");
        } else {
            let code = self.renewed.json()["code"].clone();
            assert!(code == "LEASE_FENCED" || code == "LEASE_EXPIRED", "{case}: {code}");
        }
        renewed
    }
}

struct Race {
    gate: TestGate,
    holder: Conn,
    newcomer: Conn,
    onlooker: Conn,
}

impl Race {
    fn new() -> Self {
        let gate = TestGate::start();
        let (holder, newcomer, onlooker) = (gate.api(), gate.api(), gate.api());
        Self { gate, holder, newcomer, onlooker }
    }

    /// Waits until the ledger has done all work that the clock made due: then the next sync is a call's own.
    fn settle(&mut self) {
        self.onlooker.post("/v1/objects/another/revoke", &json!({ "reason": "settle" })).expect(200);
    }

    fn send_renewal(&mut self, lease: &Value) {
        let (path, body) = renewal(lease, 10 * TTL);
        let kind = [("content-type", "application/json")];
        self.holder.send("POST", &path, &kind, body.to_string().as_bytes()).unwrap();
    }

    fn send_acquire(&mut self, object: &str) {
        let body = wanted(object, "newcomer", TTL).to_string();
        self.newcomer.send("POST", "/v1/leases", &[("content-type", "application/json")], body.as_bytes()).unwrap();
    }

    fn send_look(&mut self, lease: &Value) {
        let path = format!("/v1/leases/{}", text(lease, "lease_id"));
        self.onlooker.send("GET", &path, &[], b"").unwrap();
    }

    fn receive(&mut self) -> RaceResponses {
        RaceResponses {
            renewed: self.holder.receive().unwrap(),
            acquired: self.newcomer.receive().unwrap(),
            shown: self.onlooker.receive().unwrap(),
        }
    }
}

#[test]
fn a_renewal_decided_in_time_wins_though_its_sync_ends_after_the_instant() {
    let mut race = Race::new();
    for n in 0..500 {
        let object = format!("o{n}");
        let lease = acquire(&mut race.holder, &object, "holder", TTL);
        race.gate.clock.advance(TTL - 1);
        race.settle();
        race.gate.table.hold_syncs();
        race.send_renewal(&lease);
        race.gate.table.wait_for_held_sync();
        race.gate.clock.advance(1 + n % 3);
        race.send_acquire(&object);
        race.send_look(&lease);
        race.gate.table.release_syncs();
        let responses = race.receive();
        assert!(responses.holder_won(&object), "the renewal was decided before the instant");
    }
}

#[test]
fn at_the_instant_the_newcomer_wins_in_whatever_order_the_calls_come() {
    let mut race = Race::new();
    for n in 0..500 {
        let object = format!("o{n}");
        let lease = acquire(&mut race.holder, &object, "holder", TTL);
        race.gate.clock.advance(TTL - 1);
        race.settle();
        // Another change's sync is held across the instant; both calls queue behind it.
        race.gate.table.hold_syncs();
        let mut other = race.gate.api();
        let reason = json!({ "reason": "held" }).to_string();
        other
            .send("POST", "/v1/objects/held/revoke", &[("content-type", "application/json")], reason.as_bytes())
            .unwrap();
        race.gate.table.wait_for_held_sync();
        race.gate.clock.advance(1);
        if n % 2 == 0 {
            race.send_renewal(&lease);
            race.send_acquire(&object);
        } else {
            race.send_acquire(&object);
            race.send_renewal(&lease);
        }
        race.send_look(&lease);
        race.gate.table.release_syncs();
        let responses = race.receive();
        assert!(!responses.holder_won(&object), "the lease was over");
        assert_ne!(responses.shown.expect(200)["state"], "held");
    }
}

#[test]
fn whatever_the_order_exactly_one_wins() {
    let mut race = Race::new();
    let (mut holder, mut newcomer) = (0, 0);
    for n in 0..300_u64 {
        let object = format!("o{n}");
        let lease = acquire(&mut race.holder, &object, "holder", TTL);
        race.gate.clock.advance(TTL - 1);
        let clock = race.gate.clock.clone();
        let (path, body) = renewal(&lease, 10 * TTL);
        let responses = thread::scope(|scope| {
            let Race { holder, newcomer, onlooker, .. } = &mut race;
            let renewed = scope.spawn(move || holder.post(&path, &body));
            let acquired = scope.spawn(|| {
                // Against a holder that has renewed, every later attempt fails too.
                loop {
                    let answer = newcomer.post("/v1/leases", &wanted(&object, "newcomer", TTL));
                    let left = answer.json()["retry_after_ms"].as_u64();
                    if answer.status == 201 || left > Some(1) {
                        return answer;
                    }
                }
            });
            let shown = scope.spawn(|| onlooker.get(&format!("/v1/leases/{}", text(&lease, "lease_id"))));
            (0..n % 50).for_each(|_| thread::yield_now());
            clock.advance(1);
            let (renewed, acquired) = (renewed.join().unwrap(), acquired.join().unwrap());
            RaceResponses { renewed, acquired, shown: shown.join().unwrap() }
        });
        let shown = responses.shown.expect(200)["state"].clone();
        if responses.renewed.status == 200 {
            holder += 1;
            assert_eq!(responses.acquired.status, 409);
            assert_eq!(shown, "held", "shown as {shown}, and then it was renewed");
        } else {
            newcomer += 1;
            assert_eq!(responses.acquired.status, 201);
        }
        let check = json!({ "fence_token": lease["fence_token"] });
        let verdict = race.onlooker.post("/v1/tokens/check", &check).expect(200);
        assert_eq!(verdict["valid"].as_bool(), Some(responses.renewed.status == 200), "{verdict}");
    }
    // The machine decides how often each order comes; the tests above force each order.
    assert_eq!(holder + newcomer, 300);
}

#[test]
fn a_lease_that_was_called_expired_never_renews_whatever_the_clock_does() {
    let gate = TestGate::start();
    let mut api = gate.api();
    let lease = acquire(&mut api, "users", "a", TTL);
    gate.clock.advance(TTL);
    let shown = api.get(&format!("/v1/leases/{}", text(&lease, "lease_id"))).expect(200);
    assert_eq!(shown["state"], "expired");
    gate.clock.step_wall(-3_600_000);
    let (path, body) = renewal(&lease, TTL);
    api.post(&path, &body).refusal(409, "LEASE_EXPIRED");
}
