//! `fencegate cert` and `fencegate migrate`, as an operator runs them.

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output, Stdio},
};

use serde_json::{Value, json};

use super::USERS;
use crate::support::{
    process::{Gate, Site, binary, stderr, stdout},
    run::output_of,
    store::Store,
};

fn run(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(binary());
    let mut child =
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    output_of(&format!("fencegate {}", arguments.join(" ")), &mut child)
}

#[track_caller]
fn works(arguments: &[&str], input: &str) -> String {
    let done = run(arguments, input);
    assert!(done.status.success(), "{arguments:?}: {}{}", stderr(&done), stdout(&done));
    stdout(&done)
}

fn keygen(folder: &Path, name: &str) -> (String, Value) {
    let key = folder.join(format!("{name}.key")).display().to_string();
    let printed = works(&["cert", "keygen", "--out", &key, "--json"], "");
    (key, serde_json::from_str(&printed).unwrap())
}

fn certificate(seq: u64) -> Value {
    json!({
        "type": "FENCE_CERTIFICATE", "domain": USERS, "fenced_lease_id": "london-1", "lease_seq": seq,
        "lease_start_ms": 1, "fence_time": "2:0", "issuer": "europe-cg", "cluster_id": "test", "key_epoch": 1,
    })
}

#[test]
fn keys_are_made_once_and_only_for_their_owner() {
    let folder = tempfile::tempdir().unwrap();
    let (key, printed) = keygen(folder.path(), "europe");
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(works(&["cert", "pop", "--key", &key, "--json"], "").trim(), printed.to_string());
    let lines = works(&["cert", "pop", "--key", &key], "");
    assert!(lines.starts_with("public_key = \"0x") && lines.contains("\nproof_of_possession = \"bls:0x"), "{lines}");
    let again = run(&["cert", "keygen", "--out", &key], "");
    assert!(!again.status.success() && stderr(&again).contains("exists"), "{}", stderr(&again));
    let secret = fs::read_to_string(&key).unwrap();
    for shown in [works(&["cert", "pop", "--key", &key], ""), printed.to_string(), stderr(&again)] {
        assert!(!shown.contains(secret.trim().trim_start_matches("0x")), "the secret was shown");
    }
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let open = run(&["cert", "pop", "--key", &key], "");
    assert!(!open.status.success() && stderr(&open).contains("chmod 600"), "{}", stderr(&open));
}

/// Two readers could disagree: one may take the first of two equal keys, and another the last.
#[test]
fn a_message_with_a_key_that_stands_twice_is_not_signed() {
    let folder = tempfile::tempdir().unwrap();
    let (key, printed) = keygen(folder.path(), "europe");
    let twice = certificate(3).to_string().replacen('{', "{\"lease_seq\":4,", 1);
    let refused = run(&["cert", "sign", "--key", &key, "-"], &twice);
    assert!(!refused.status.success() && stdout(&refused).is_empty(), "{}", stdout(&refused));
    assert!(stderr(&refused).contains("\"lease_seq\" stands twice"), "{}", stderr(&refused));
    let signed = works(&["cert", "sign", "--key", &key, "-"], &certificate(3).to_string());
    let twice = signed.replacen('{', "{\"lease_seq\":4,", 1);
    let public = printed["public_key"].as_str().unwrap();
    for arguments in [&["cert", "verify", "--public-key", public][..], &["cert", "show"]] {
        assert!(!run(arguments, &twice).status.success(), "{arguments:?}");
        works(arguments, &signed);
    }
}

#[test]
fn messages_are_signed_checked_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    let (key, printed) = keygen(folder.path(), "europe");
    let unsigned: String = (1..=5).map(|seq| format!("{}\n", certificate(seq))).collect();
    let signed = works(&["cert", "sign", "--key", &key, "-"], &unsigned);
    assert_eq!(signed.lines().count(), 5);
    let public = printed["public_key"].as_str().unwrap();
    let verdicts = works(&["cert", "verify", "--public-key", public], &signed);
    assert_eq!(verdicts.lines().filter(|line| line.starts_with("valid ")).count(), 5, "{verdicts}");
    // One of them is changed: the command names it, and the others still verify.
    let forged = signed.replacen("\"lease_seq\":3", "\"lease_seq\":4", 1);
    let done = run(&["cert", "verify", "--public-key", public], &forged);
    assert_eq!(done.status.code(), Some(1));
    let verdicts: Vec<String> =
        stdout(&done).lines().map(|line| line.split_whitespace().next().unwrap().to_owned()).collect();
    assert_eq!(verdicts, ["valid", "valid", "INVALID", "valid", "valid"]);
    let shown = works(&["cert", "show"], signed.lines().next().unwrap());
    assert!(shown.contains("lease_seq") && shown.contains("with the signature"), "{shown}");
    for (bad, why) in [
        ("", "there is no message"),
        ("{}", "cannot be signed"),
        ("{\"type\": \"RELAY_FENCE\"}", "cannot be signed"),
        ("{\"type\": \"LEASE_GRANT\"}", "missing field"),
        ("nonsense", "not a message"),
    ] {
        let done = run(&["cert", "sign", "--key", &key], bad);
        assert!(!done.status.success() && stderr(&done).contains(why), "{bad}: {}", stderr(&done));
    }
    let mut zero = certificate(1);
    zero["lease_seq"] = json!(0);
    let done = run(&["cert", "sign", "--key", &key], &zero.to_string());
    assert!(stderr(&done).contains("lease_seq: must be at least 1"), "{}", stderr(&done));
}

struct Hand {
    site: Site,
    gate: Gate,
    _store: Store,
    london: String,
    perth: String,
}

/// A gate that is europe, with London and Perth as requesters.
fn gate() -> Hand {
    let (site, store) = (Site::with_table(), Store::start());
    let [(europe, its), (london, londons), (perth, perths)] =
        ["europe", "london", "perth"].map(|name| keygen(site.folder.path(), name));
    let party = |section: &str, name: &str, key: &Value| {
        let (public, proof) = (key["public_key"].as_str().unwrap(), key["proof_of_possession"].as_str().unwrap());
        format!(
            "[[{section}]]\nname = '{name}'\npublic_key = '{public}'\nproof_of_possession = '{proof}'\ndomains = ['/data']\n"
        )
    };
    let more = [
        format!("[store]\nurl = '{}'\n", store.url()),
        format!("[authority]\ncluster_id = 'test'\nissuer = 'europe-cg'\nkey_file = '{europe}'\n"),
        party("issuer", "europe-cg", &its),
        party("requester", "london-cg", &londons),
        party("requester", "perth-cg", &perths),
        "[[route]]\nname = 'data'\nmatch = '/data/{domain}/{rest...}'\nobject = '/data/{domain}/'\njournal = true\n\
         lease_source = 'authority'\n"
            .to_owned(),
    ];
    site.configure(&more.concat());
    let gate = site.serve();
    Hand { site, gate, _store: store, london, perth }
}

impl Hand {
    fn migrate(&self, to: &str, key: &str, more: &[&str]) -> Output {
        let api = format!("http://{}", self.gate.api);
        let fixed =
            ["migrate", "--domain", USERS, "--to", to, "--key", key, "--cluster", "test", "--api", api.as_str()];
        run(&[&fixed, more].concat(), "")
    }
}

#[test]
fn an_object_is_handed_over_and_each_step_is_shown() {
    let hand = gate();
    let first = hand.migrate("london-cg", &hand.london, &["--activate"]);
    assert!(first.status.success(), "{}", stderr(&first));
    let token =
        |printed: &str| printed.lines().find_map(|line| line.strip_prefix("fence_token  ").map(str::to_owned)).unwrap();
    let london = token(&stdout(&first));
    let put = |path: &str, token: &str| hand.gate.gate().call("PUT", path, &[("fence-token", token)], b"x").status;
    assert_eq!((put("/data/users/1", &london), put("/data/users/2", &london)), (200, 200));
    let second = hand.migrate("perth-cg", &hand.perth, &["--activate", "--reason", "migration_to_perth"]);
    let shown = stdout(&second);
    assert!(second.status.success(), "{shown}{}", stderr(&second));
    for step in ["fencing", "acknowledged", "granted", "active", "the same as the one left behind"] {
        assert!(shown.contains(step), "{step} is not in {shown}");
    }
    assert_eq!((put("/data/users/3", &london), put("/data/users/3", &token(&shown))), (412, 200));
    // Another requester asks for Perth, with its own key; Perth never confirms, and the lease runs out.
    let waits = hand.migrate("perth-cg", &hand.london, &["--as", "london-cg", "--ttl", "1000"]);
    assert_eq!(waits.status.code(), Some(1));
    assert!(stderr(&waits).contains("activation_timed_out"), "{}", stderr(&waits));
    let json = hand.migrate("london-cg", &hand.london, &["--activate", "--json"]);
    let lines: Vec<Value> = stdout(&json).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["state"], &lines[1]["holder_id"]), (&json!("active"), &json!("london-cg")));
}

#[test]
fn a_handover_that_is_refused_says_why() {
    let hand = gate();
    let cases: [(&str, &str, &[&str], &str); 4] = [
        ("london-cg", &hand.perth, &[], "InvalidFenceSignature"),
        ("paris-cg", &hand.perth, &["--as", "perth-cg"], "REQUEST_INVALID"),
        ("london-cg", &hand.london, &["--key-epoch", "2"], "UNKNOWN_ISSUER"),
        ("london-cg", &hand.perth, &["--as", "perth-cg", "--activate"], "next holder itself"),
    ];
    for (to, key, more, why) in cases {
        let done = hand.migrate(to, key, more);
        assert!(!done.status.success() && stderr(&done).contains(why), "{why}: {}", stderr(&done));
    }
    let config = hand.site.config().display().to_string();
    let signed = works(&["cert", "sign", "--key", &hand.london], &certificate(1).to_string());
    let done = run(&["cert", "verify", "--config", &config], &signed);
    assert!(stdout(&done).starts_with("INVALID") && done.status.code() == Some(1), "{}", stdout(&done));
    let mut mine = certificate(1);
    mine["issuer"] = json!("london-cg");
    let signed = works(&["cert", "sign", "--key", &hand.london], &mine.to_string());
    let done = run(&["cert", "verify", "--config", &config], &signed);
    assert!(stdout(&done).contains("not known"), "a requester is no issuer: {}", stdout(&done));
}

#[test]
fn what_a_retired_key_has_signed_is_not_valid() {
    let site = Site::with_table();
    let (europe, its) = keygen(site.folder.path(), "europe");
    let (public, proof) = (its["public_key"].as_str().unwrap(), its["proof_of_possession"].as_str().unwrap());
    let signed = works(&["cert", "sign", "--key", &europe], &certificate(1).to_string());
    let config = site.config().display().to_string();
    for (retired, says, code) in [(false, "valid", 0), (true, "INVALID", 1)] {
        site.configure(&format!(
            "[authority]\ncluster_id = 'test'\n[[issuer]]\nname = 'europe-cg'\npublic_key = '{public}'\n\
             proof_of_possession = '{proof}'\ndomains = ['/data']\nretired = {retired}\n"
        ));
        let done = run(&["cert", "verify", "--config", &config], &signed);
        assert_eq!(done.status.code(), Some(code), "{}{}", stdout(&done), stderr(&done));
        assert!(stdout(&done).starts_with(says), "{}", stdout(&done));
        assert_eq!(stdout(&done).contains("retired"), retired, "{}", stdout(&done));
    }
}
