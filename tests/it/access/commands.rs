//! The command line: rules that are asked about, tokens that are made, and writers on the way through TLS.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use super::Authority;
use crate::support::{
    process::{Gate, Site, binary, stderr, stdout},
    run::{Ends, output_of},
    store::Store,
    until,
};

struct Said {
    code: i32,
    out: String,
    err: String,
}

fn fencegate(arguments: &[&str]) -> Said {
    let done = Command::new(binary()).args(arguments).ends();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().trim_end().to_owned();
    Said { code: done.status.code().unwrap(), out: text(done.stdout), err: text(done.stderr) }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_token_is_made_listed_and_revoked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.toml");
    let file = path(&file);
    let made = fencegate(&["access", "token", "new", "nightly", "--file", file, "--group", "ops"]);
    assert!(made.code == 0 && made.out.starts_with("fga1."), "{}", made.err);
    let other = fencegate(&["access", "token", "new", "etl", "--file", file, "--expires-at", "2030-01-31T00:00:00Z"]);
    assert_eq!(other.code, 0, "{}", other.err);
    let listed = fencegate(&["access", "token", "list", "--file", file]);
    assert!(listed.out.contains("nightly") && listed.out.contains("2030-01-31"), "{}", listed.out);
    let secret = made.out.rsplit('.').next().unwrap();
    assert!(!listed.out.contains(secret) && !fs::read_to_string(file).unwrap().contains(secret));
    let id = made.out.split('.').nth(1).unwrap();
    let revoked = fencegate(&["access", "token", "revoke", id, "--file", file]);
    assert_eq!((revoked.code, revoked.out.as_str()), (0, "revoked 1"), "{}", revoked.err);
    let again = fencegate(&["access", "token", "revoke", "nightly", "--file", file]);
    assert!(again.code == 1 && again.err.contains("no token"), "{}", again.err);
    for bad in [["new", "a/b"], ["new", "system:x"]] {
        let refused = fencegate(&["access", "token", bad[0], bad[1], "--file", file]);
        assert_eq!(refused.code, 1, "{bad:?}");
    }
    let refused = fencegate(&["access", "token", "new", "x", "--file", file, "--expires-at", "tomorrow"]);
    assert!(refused.code == 1 && refused.err.contains("tomorrow"), "{}", refused.err);
}

#[test]
fn check_says_which_grant_decides() {
    let folder = tempfile::tempdir().unwrap();
    let (config, file) = (folder.path().join("gate.toml"), folder.path().join("tokens.toml"));
    fencegate(&["access", "token", "new", "nightly", "--file", path(&file)]);
    let text = format!(
        "[[identity]]\nname = 'files'\nkind = 'tokens'\nfile = '{}'\n\
         [[grant]]\nname = 'backups'\nprincipals = ['nightly']\noperations = ['acquire']\nobjects = ['/data/']\n",
        file.display()
    );
    fs::write(&config, text).unwrap();
    let ask =
        |more: &[&str]| fencegate(&[&["access", "check", "--config", path(&config), "--as", "nightly"], more].concat());
    let allowed = ask(&["--do", "acquire", "--object", "/data/users/"]);
    assert!(allowed.code == 0 && allowed.out.contains("\"backups\""), "{} {}", allowed.out, allowed.err);
    for (more, why) in [
        (&["--do", "read", "--object", "/data/users/"][..], "no grant lets nightly read"),
        (&["--do", "acquire", "--object", "/database"][..], "but not /database"),
        (&["--do", "acquire", "--object", "/data/x", "--holder", "me"][..], "only as the holder \"nightly\""),
    ] {
        let denied = ask(more);
        assert!(denied.code == 1 && denied.err.contains(why), "{more:?}: {} {}", denied.out, denied.err);
    }
    let unknown = ask(&["--do", "acquire", "--object", "/data/x", "--source", "lost"]);
    assert!(unknown.code == 1 && unknown.err.contains("lost"), "{}", unknown.err);
}

/// A gate whose api asks every caller, over TLS, and what a command needs to call it.
struct Asking {
    gate: Gate,
    api: String,
    authority: Authority,
    /// The file of tokens, and that of one token, which names `nightly`.
    tokens: PathBuf,
    token: PathBuf,
    _site: Site,
    _store: Store,
}

impl Asking {
    fn new() -> Self {
        let (store, authority) = (Store::start(), Authority::new());
        let site = Site::with_table();
        let tokens = authority.folder.path().join("tokens.toml");
        let token = authority.folder.path().join("nightly.token");
        fs::write(&token, new_token(&tokens)).unwrap();
        let (cert, key) = authority.sign("localhost");
        let config = fs::read_to_string(site.config()).unwrap();
        let tls = format!(
            "[api]\ntls_cert_file = '{}'\ntls_key_file = '{}'\ntls_client_ca_file = '{}'",
            cert.display(),
            key.display(),
            authority.ca().display()
        );
        assert_eq!(config.matches("[api]").count(), 1, "{config}");
        let more = format!(
            "[store]\nurl = '{}'\n[access]\nloopback = 'authenticate'\n\
             [[identity]]\nname = 'files'\nkind = 'tokens'\nfile = '{}'\n[[identity]]\nname = 'certs'\nkind = 'mtls'\n\
             [[grant]]\nname = 'all'\nprincipals = ['nightly', 'etl']\noperations = ['acquire', 'read']\nobjects = ['*']\n",
            store.url(),
            tokens.display()
        );
        fs::write(site.config(), format!("{}{more}", config.replacen("[api]", &tls, 1))).unwrap();
        let gate = site.serve();
        let api = format!("https://localhost:{}", gate.api.port());
        Self { gate, api, authority, tokens, token, _site: site, _store: store }
    }

    /// The arguments of a caller that shows the token of a file.
    fn by_token(&self, token: &Path) -> Vec<String> {
        let ca = self.authority.ca();
        ["--api", &self.api, "--ca", path(&ca), "--token-file", path(token)].map(str::to_owned).to_vec()
    }

    /// The arguments of a caller that shows a certificate of `etl`.
    fn by_certificate(&self) -> Vec<String> {
        let (ca, (shown, key)) = (self.authority.ca(), self.authority.sign("etl"));
        ["--api", &self.api, "--ca", path(&ca), "--cert", path(&shown), "--key", path(&key)].map(str::to_owned).to_vec()
    }

    /// A command that writes to the gate with the token of its lease, and says the status.
    fn write(&self) -> String {
        format!(
            "curl -s -X PUT http://{}/users/1 -H \"Fence-Token: $FENCE_TOKEN\" -d locked -o /dev/null -w '%{{http_code}}'",
            self.gate.gate
        )
    }
}

/// A new token of `nightly` in this file.
fn new_token(tokens: &Path) -> String {
    let made = fencegate(&["access", "token", "new", "nightly", "--file", path(tokens)]);
    assert_eq!(made.code, 0, "{}", made.err);
    made.out
}

fn fencegate_by(before: &[&str], way: &[String], after: &[&str]) -> Said {
    let way: Vec<&str> = way.iter().map(String::as_str).collect();
    fencegate(&[before, &way, after].concat())
}

/// `lease` and `lock` with a token, and with a certificate.
#[test]
fn the_commands_prove_who_they_are() {
    let asking = Asking::new();
    let (by_token, by_certificate) = (asking.by_token(&asking.token), asking.by_certificate());
    for way in [&by_token, &by_certificate] {
        let listed = fencegate_by(&["lease", "list"], way, &[]);
        assert_eq!(listed.code, 0, "{}", listed.err);
    }
    let (api, ca) = (asking.api.as_str(), asking.authority.ca());
    let refused = fencegate(&["lease", "list", "--api", api, "--ca", path(&ca)]);
    assert!(refused.code == 1 && refused.err.contains("IDENTITY_REQUIRED"), "{}", refused.err);
    let refused = fencegate(&["lease", "list", "--api", api, "--token-file", path(&asking.token)]);
    assert!(refused.code == 1 && refused.err.contains("TLS"), "another authority: {}", refused.err);
    // `lock` takes a name that the gate allows, and its write lands.
    let locked = fencegate_by(&["lock", "--object", "users"], &by_token, &["--", "sh", "-c", &asking.write()]);
    assert_eq!((locked.code, locked.out.as_str()), (0, "200"), "{}", locked.err);
    let listed = fencegate_by(&["lease", "list"], &by_certificate, &[]);
    assert!(listed.out.contains("nightly/"), "{}", listed.out);
    // The environment says the same.
    let by_environment = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        command.args(arguments).env("FENCEGATE_API", api).env("FENCEGATE_CA_FILE", &ca);
        command.env("FENCEGATE_TOKEN_FILE", &asking.token).ends()
    };
    let done = by_environment(&["lease", "list"]);
    assert!(done.status.success(), "{}", stderr(&done));
    // Whether a running gate's table is copied or a stopped one's is never said by the environment.
    let done = by_environment(&["table", "backup", "--to", "/nowhere/x"]);
    assert!(done.status.code() == Some(2) && stderr(&done).contains("--config"), "{}", stderr(&done));
    asking.gate.stop();
}

#[test]
fn a_token_that_is_exchanged_during_a_lock_renews_on() {
    let asking = Asking::new();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (begun, go) = (at("begun"), at("go"));
    // The lease would be over three times before the write.
    let script = format!(
        "touch {}; while [ ! -e {} ]; do sleep 0.05; done; sleep 3; {}",
        begun.display(),
        go.display(),
        asking.write()
    );
    let mut lock = Command::new(binary());
    lock.args(["lock", "--object", "users", "--ttl", "1000"]).args(asking.by_token(&asking.token));
    lock.args(["--", "sh", "-c", &script]).stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
    let mut lock = lock.spawn().unwrap();
    until("the command runs", || begun.exists());
    let old = fs::read_to_string(&asking.token).unwrap();
    fs::write(at("old"), &old).unwrap();
    fs::write(at("new"), new_token(&asking.tokens)).unwrap();
    // In one step: `lock` may read it at any moment.
    fs::rename(at("new"), &asking.token).unwrap();
    let id = old.split('.').nth(1).unwrap();
    let revoked = fencegate(&["access", "token", "revoke", id, "--file", path(&asking.tokens)]);
    assert_eq!((revoked.code, revoked.out.as_str()), (0, "revoked 1"), "{}", revoked.err);
    let refused = fencegate_by(&["lease", "list"], &asking.by_token(&at("old")), &[]);
    assert!(refused.code == 1 && refused.err.contains("IDENTITY_REQUIRED"), "{}", refused.err);
    fs::write(&go, "").unwrap();
    let done = output_of("a lock whose token was exchanged", &mut lock);
    assert_eq!((done.status.code(), stdout(&done).trim_end()), (Some(0), "200"), "{}", stderr(&done));
    asking.gate.stop();
}

#[test]
fn tokens_that_are_made_at_the_same_time_are_all_there() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.toml");
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| new_token(&file));
        }
    });
    let listed = fencegate(&["access", "token", "list", "--file", path(&file)]);
    assert_eq!(listed.out.matches("nightly").count(), 8, "{}", listed.out);
}
