//! kill -9 under load, again and again; also with all unsynced data thrown away, as in a power cut. Afterwards every
//! acknowledged grant, renewal and release is still there, and no number is ever granted twice.

use std::{
    collections::HashMap,
    path::PathBuf,
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use serde_json::Value;

use super::support::{
    gate::{renewal, text, wanted},
    http::Conn,
    power::Synced,
    process::{Gate, Site, binary, failpoints_binary},
};

const KILLS: usize = 60;
const OBJECTS: usize = 24;
const CLIENTS: usize = 4;

/// The acknowledged changes of a gate, which must hold.
#[derive(Default)]
struct Acknowledged {
    /// Every grant: its lease id, by object and number.
    grants: HashMap<(String, u64), String>,
    /// The last acknowledged state of each lease: its end, or that it was released.
    leases: HashMap<String, Word>,
    /// The table's incarnation. A kill in the middle of a write can leave half a record at the end of the log. It looks
    /// the same as a lost record, so the next start is a new incarnation, and all leases are void.
    incarnation: u64,
}

#[derive(Clone)]
enum Word {
    HeldUntil(String),
    Released,
    /// A release was asked for and not answered.
    Maybe,
}

impl Acknowledged {
    fn granted(&mut self, lease: &Value) -> Result<(), String> {
        let (object, seq) = (text(lease, "object_id").to_owned(), lease["lease_seq"].as_u64().unwrap());
        let id = text(lease, "lease_id").to_owned();
        self.leases.insert(id.clone(), Word::HeldUntil(text(lease, "expires_at").to_owned()));
        match self.grants.insert((object.clone(), seq), id) {
            None => Ok(()),
            Some(other) => Err(format!("TWICE: {object} {seq} was granted to {other} before")),
        }
    }
}

/// Changes leases until the gate is gone.
fn change_leases(gate: &Gate, client: usize, said: &Mutex<Acknowledged>, over: &AtomicBool) -> Result<(), String> {
    let Ok(mut api) = Conn::open(gate.api) else { return Ok(()) };
    let json = [("content-type", "application/json")];
    let mut held: Vec<Value> = vec![];
    for n in client.. {
        if over.load(Ordering::Relaxed) {
            return Ok(());
        }
        let object = format!("object-{}", (n * 7) % OBJECTS);
        let body = wanted(&object, &format!("client-{client}"), 3_600_000).to_string();
        let Ok(answer) = api.try_call("POST", "/v1/leases", &json, body.as_bytes()) else { return Ok(()) };
        if answer.status == 201 {
            let lease = answer.json();
            said.lock().unwrap().granted(&lease)?;
            held.push(lease);
        }
        if held.len() < 3 {
            continue;
        }
        let lease = held.remove(0);
        let id = text(&lease, "lease_id").to_owned();
        let (path, body) = renewal(&lease, 3_600_000);
        let Ok(renewed) = api.try_call("POST", &path, &json, body.to_string().as_bytes()) else { return Ok(()) };
        let until = text(&renewed.expect(200), "expires_at").to_owned();
        said.lock().unwrap().leases.insert(id.clone(), Word::HeldUntil(until));
        said.lock().unwrap().leases.insert(id.clone(), Word::Maybe);
        let token = text(&lease, "fence_token").to_owned();
        let Ok(released) = api.try_call("DELETE", &format!("/v1/leases/{id}"), &[("fence-token", &token)], b"") else {
            return Ok(());
        };
        released.expect(200);
        said.lock().unwrap().leases.insert(id, Word::Released);
    }
    Ok(())
}

fn incarnation(gate: &Gate) -> u64 {
    let metrics = String::from_utf8(gate.ops().get("/metrics").body).unwrap();
    let line = metrics.lines().find_map(|line| line.strip_prefix("fencegate_table_incarnation "));
    line.unwrap().parse().unwrap()
}

/// Checks a gate against its acknowledgements, and frees all objects for the next round.
fn check(gate: &Gate, said: &mut Acknowledged) -> Result<(), String> {
    let mut api = gate.api();
    let is_new = std::mem::replace(&mut said.incarnation, incarnation(gate)) < said.incarnation;
    for n in 0..OBJECTS {
        let object = format!("object-{n}");
        let fence = api.get(&format!("/v1/objects/{object}")).expect(200)["fence"].as_u64().unwrap();
        let highest = said.grants.keys().filter(|(name, _)| *name == object).map(|(_, seq)| *seq).max().unwrap_or(0);
        if fence < highest {
            return Err(format!("FENCE DOWN: {object} is at {fence}, {highest} was granted"));
        }
    }
    for ((object, seq), id) in &said.grants {
        let answer = api.get(&format!("/v1/leases/{id}"));
        if answer.status != 200 {
            return Err(format!("FORGOTTEN: the grant of {object} {seq} ({id})"));
        }
        let lease = answer.json();
        let state = text(&lease, "state");
        match &said.leases[id] {
            Word::HeldUntil(_) if is_new && state == "fenced" => {}
            Word::HeldUntil(_) if state != "held" => return Err(format!("ENDED: {object} {seq} is {state}")),
            Word::HeldUntil(_) if is_new => return Err(format!("REVIVED: {object} {seq} outlived its incarnation")),
            Word::HeldUntil(until) if text(&lease, "expires_at") < until.as_str() => {
                return Err(format!("SHORTENED: {object} {seq} ends before {until}"));
            }
            Word::Released if state == "held" => return Err(format!("REVIVED: {object} {seq} was released")),
            Word::HeldUntil(_) | Word::Released | Word::Maybe => {}
        }
    }
    for n in 0..OBJECTS {
        api.post(&format!("/v1/objects/object-{n}/revoke"), &serde_json::json!({ "reason": "next round" })).expect(200);
    }
    // A revoked lease is no longer held; the grants themselves stay on the list.
    said.leases.values_mut().for_each(|word| *word = Word::Maybe);
    Ok(())
}

/// Kills a gate under load again and again; `cut` runs after each kill, as the power cut.
fn kill_again_and_again(site: &Site, kills: usize, start: impl Fn() -> Gate, cut: impl Fn()) -> Result<usize, String> {
    let said = Mutex::new(Acknowledged::default());
    for round in 0..kills {
        let gate = start();
        check(&gate, &mut said.lock().unwrap()).map_err(|fault| format!("round {round}: {fault}"))?;
        let over = AtomicBool::new(false);
        let mut gate = Some(gate);
        let outcome: Result<(), String> = thread::scope(|scope| {
            let running = gate.as_ref().unwrap();
            let (said, over) = (&said, &over);
            let clients: Vec<_> =
                (0..CLIENTS).map(|client| scope.spawn(move || change_leases(running, client, said, over))).collect();
            // The time of the kill is the test's input, so there is no event to wait for.
            #[allow(clippy::disallowed_methods, reason = "the length of the load is the test's input")]
            thread::sleep(Duration::from_millis(20 + (round as u64 * 37) % 130));
            running.signal(rustix::process::Signal::KILL);
            over.store(true, Ordering::Relaxed);
            clients.into_iter().try_for_each(|client| client.join().unwrap())
        });
        outcome.map_err(|fault| format!("round {round}: {fault}"))?;
        let _ = gate.take().unwrap().child.wait();
        cut();
    }
    let gate = start();
    let mut said = said.into_inner().unwrap();
    check(&gate, &mut said)?;
    drop(gate);
    let verified = site.run(&["table", "verify"]);
    if !verified.status.success() {
        return Err(format!("VERIFY: {verified:?}"));
    }
    Ok(said.grants.len())
}

#[test]
fn every_acknowledged_change_outlives_kill_9() {
    let site = Site::with_table();
    let grants = kill_again_and_again(&site, KILLS, || site.serve(), || {}).unwrap();
    println!("{KILLS} kills, {grants} grants acknowledged");
    assert!(!site.log().contains("panicked"), "{}", site.log());
    assert!(grants > KILLS, "there was hardly any load: {grants}");
}

struct PowerCut {
    site: Site,
    disk: Synced,
}

impl PowerCut {
    fn new() -> Self {
        let site = Site::with_table();
        let disk = Synced::new(site.folder.path());
        Self { site, disk }
    }

    fn start(&self, binary: PathBuf, fault: Option<&str>) -> Gate {
        let mut command = Command::new(binary);
        self.disk.watch(&[&self.site.data()], &mut command);
        if let Some(fault) = fault {
            command.env("FENCEGATE_TEST_FAULT", fault);
        }
        self.site.serve_with(command)
    }

    fn cut(&self) -> usize {
        self.disk.cut(&[&self.site.data()])
    }
}

#[test]
fn every_acknowledged_change_outlives_a_power_cut() {
    let power = PowerCut::new();
    let lost = std::cell::Cell::new(0);
    let start = || power.start(binary(), None);
    let grants = kill_again_and_again(&power.site, KILLS, start, || lost.set(lost.get() + power.cut())).unwrap();
    println!("{KILLS} power cuts, {grants} grants acknowledged, {} files lost something", lost.get());
    assert!(grants > KILLS && lost.get() > 0, "{grants} grants, {} losses: the cut had no effect", lost.get());
}

#[test]
fn without_syncs_a_power_cut_is_noticed_by_this_very_test() {
    // The negative control: the same test on a gate that does not sync.
    let power = PowerCut::new();
    let start = || power.start(failpoints_binary(), Some("no-sync"));
    let caught = kill_again_and_again(&power.site, 10, start, || {
        power.cut();
    });
    let fault = caught.expect_err("grants were lost, and the test did not notice");
    assert!(fault.contains("FENCE DOWN") || fault.contains("FORGOTTEN"), "{fault}");
}
