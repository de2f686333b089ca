//! The library for writers: a lease is kept, lost and given back, on a wire with faults.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    thread,
    time::Duration,
};

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
/// The time limit of one call.
const PATIENCE: Duration = Duration::from_secs(60);

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

    /// Returns once this many more renewals were seen.
    fn renewals(&self, count: usize) {
        let mut stream = self.gate.api();
        stream.send("GET", "/v1/watch", &[], b"").unwrap();
        for _ in 0..count {
            stream.until_line("a renewal", |line| line == "event: renewed");
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
    // A second release changes nothing.
    bench.runtime.block_on(lease.release()).unwrap();
}

#[test]
fn a_lost_answer_leaves_no_lease_behind() {
    let bench = Bench::new();
    bench.wire.set(Mode::LosesAnswers);
    let mut reports = vec![];
    let lease = bench.runtime.block_on(bench.api().acquire(&wanted("a"), |progress| {
        reports.push(progress.clone());
        bench.wire.set(Mode::Pass);
    }));
    let lease = lease.unwrap();
    assert!(matches!(&reports[..], [Progress::Unreachable { .. }]), "{reports:?}");
    assert_eq!((lease.seq(), bench.leases().len()), (1, 1), "the second call got the first one's lease");
    assert!(bench.is_valid(lease.token().unwrap().expose()));
}

#[test]
fn a_lost_answer_is_asked_for_again_even_by_a_caller_that_does_not_wait() {
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
    // The lease is valid for as long as the last renewal lasts, and the library tries again until then.
    assert!(lease.token().is_ok());
    let lost = bench.runtime.block_on(lease.lost());
    assert!(matches!(&lost, Lost::Deadline { last: Some(why) } if why.contains("broke")), "{lost}");
    assert!(bench.wire.calls() > tries + 2, "{} calls", bench.wire.calls() - tries);
    assert_eq!(lease.token(), Err(lost));
    // The wire carries nothing but is not cut: calls hang.
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
    // The gate grants more than the ttl that the client asked for.
    acquire(&mut bench.gate.api(), "users", "first", 2 * TTL);
    let mut reports = vec![];
    let lease = bench.runtime.block_on(bench.api().acquire(&wanted("a"), |progress| reports.push(progress.clone())));
    let lease = lease.unwrap();
    assert_eq!(reports, [Progress::Held { by: Some("first".to_owned()) }]);
    assert_eq!(lease.seq(), 2);
    assert!(lease.left_ms() > TTL / 2 && bench.is_valid(lease.token().unwrap().expose()), "{} ms", lease.left_ms());
}

#[test]
fn a_gate_that_lets_callers_wait_only_shortly_is_asked_again() {
    let bench = Bench::with("[lease]\nwait_ms_max = 300\n");
    acquire(&mut bench.gate.api(), "users", "first", 2 * TTL);
    let lease = bench.runtime.block_on(bench.api().acquire(&wanted("a"), |_| {})).unwrap();
    assert_eq!(lease.seq(), 2);
}

#[test]
fn a_caller_that_does_not_get_the_lease_learns_why() {
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
fn a_caller_that_gives_up_leaves_the_queue() {
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

/// A gate that gives the test's answers or none, and reports the requests that it got.
fn fake_gate(
    answer: impl Fn(usize, &str) -> Option<(u16, Value)> + Send + 'static,
) -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (says, said) = mpsc::sync_channel(100);
    thread::spawn(move || {
        let mut kept = vec![];
        for (n, stream) in listener.incoming().map_while(Result::ok).enumerate() {
            let (mut stream, asked) = read_request(stream);
            if let Some((status, body)) = answer(n, &asked) {
                let body = body.to_string();
                let _ = write!(stream, "HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            }
            kept.push(stream);
            says.send(asked).unwrap();
        }
    });
    (url, said)
}

fn grant(ttl_ms: u64, left_ms: u64) -> Value {
    json!({
        "lease_id": "l", "lease_seq": 1, "object_id": "users", "holder_id": "a", "acquired_at": "", "expires_at": "",
        "ttl_ms": ttl_ms, "state": "held", "expires_in_ms": left_ms, "tainted": false, "fence_token": "fg1.1.x.y",
        "drain": { "settled": 0, "cancelled": 0, "unknown": 0, "waited_ms": 0 },
    })
}

/// Reads a request to its end. Returns its first line.
fn read_request(stream: TcpStream) -> (TcpStream, String) {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).unwrap();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim_end().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    reader.read_exact(&mut vec![0; length]).unwrap();
    (reader.into_inner(), first.trim_end().to_owned())
}

#[test]
fn a_grant_that_is_not_confirmed_yet_can_be_given_up_and_is_given_back() {
    // The grant arrives with one minute of its hour left, and no renewal is answered.
    let (url, said) = fake_gate(|_, asked| (!asked.contains("/renew")).then(|| (201, grant(3_600_000, 60_000))));
    let runtime = Runtime::new().unwrap();
    let (give_up, given_up) = tokio::sync::oneshot::channel();
    let asked = thread::spawn(move || {
        let mut asked = vec![];
        while !asked.last().is_some_and(|last: &String| last.contains("/renew")) {
            asked.push(said.recv_timeout(PATIENCE).expect("a call at the gate"));
        }
        give_up.send(()).unwrap();
        asked.push(said.recv_timeout(PATIENCE).expect("the lease given back"));
        asked
    });
    let api = LeaseApi::new(&url).unwrap();
    let long = wanted("a").with_ttl_ms(3_600_000);
    let gone = runtime.block_on(api.acquire_unless(&long, |_| {}, async { given_up.await.unwrap() }));
    assert_eq!(gone.unwrap_err(), NotHad::GivenUp);
    assert_eq!(asked.join().unwrap().last().unwrap(), "DELETE /v1/leases/l HTTP/1.1");
}

/// The gate keeps such a grant for its `request_id`, and makes it when the older writes are settled.
#[test]
fn a_grant_that_waits_for_older_writes_is_given_back_by_a_caller_that_does_not_wait_for_it() {
    let draining = json!({ "code": "FENCE_DRAINING", "detail": "d", "retryable": true, "retry_after_ms": 5_000 });
    for waits in [true, false] {
        let draining = draining.clone();
        let (url, said) =
            fake_gate(move |n, _| if n == 0 { Some((503, draining.clone())) } else { Some((201, grant(TTL, TTL))) });
        let api = LeaseApi::new(&url).unwrap();
        let answered = tokio::sync::Notify::new();
        let wanted = if waits { wanted("a") } else { wanted("a").with_wait(Duration::ZERO) };
        let given_up = async {
            if !waits {
                std::future::pending::<()>().await;
            }
            answered.notified().await;
        };
        let gone = Runtime::new().unwrap().block_on(api.acquire_unless(
            &wanted,
            |progress| {
                assert_eq!(*progress, Progress::Held { by: None });
                answered.notify_one();
            },
            given_up,
        ));
        assert_eq!(gone.unwrap_err(), if waits { NotHad::GivenUp } else { NotHad::Held { by: None } });
        let asked: Vec<_> = (0..3).map(|_| said.recv_timeout(PATIENCE).expect("three calls")).collect();
        assert_eq!(asked[2], "DELETE /v1/leases/l HTTP/1.1", "{asked:?}");
    }
}

#[test]
fn a_gate_that_is_dark_is_not_waited_for_much_longer_than_was_wanted() {
    let bench = Bench::new();
    bench.wire.set(Mode::Dark);
    let not_waiting = wanted("a").with_wait(Duration::ZERO);
    let asked = async {
        let api = bench.api();
        tokio::time::timeout(Duration::from_secs(13), api.acquire(&not_waiting, |_| {})).await
    };
    let asked = bench.runtime.block_on(asked).expect("the gate's own 5 s, and a few short calls");
    assert!(matches!(asked.unwrap_err(), NotHad::Unreachable { .. }));
    assert_eq!(bench.wire.calls(), 3);
}

#[test]
fn a_gate_that_lets_no_caller_wait_is_not_asked_all_the_time() {
    let bench = Bench::with("[lease]\nwait_ms_max = 0\n");
    acquire(&mut bench.gate.api(), "users", "first", 4 * TTL);
    let lease = bench.runtime.block_on(bench.api().acquire(&wanted("a"), |_| {})).unwrap();
    assert_eq!(lease.seq(), 2);
    // The first calls learn that the gate lets no caller wait; after that each pause is longer than the last.
    assert!(bench.wire.calls() < 34, "{} calls", bench.wire.calls());
}
