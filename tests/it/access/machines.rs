//! README's section on writers on other machines: a gate and two writers, each in a network of its own.
//!
//! The test runs itself once more inside new namespaces, where it may give addresses and names as it likes.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use super::Authority;
use crate::support::{
    kube::{ApiServer, NAMESPACES, Who},
    process::{Gate, Site, binary, stderr, stdout},
    run::Ends,
    store::Store,
    until,
};

/// Set inside the namespaces.
const INSIDE: &str = "FENCEGATE_TEST_OWN_NETWORK";
const GATE: &str = "10.77.0.1";
/// The namespace of the README's writers, and what stands for it here.
const SHOP: (&str, &str) = ("shop", NAMESPACES[0]);

/// A block of the README's section.
fn block(kind: &str) -> String {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let section = text.split("\n## Writers on other machines\n").nth(1).expect("the section is there");
    let section = section.split("\n## ").next().unwrap();
    let block = section.split(&format!("\n```{kind}\n")).nth(1).expect("its block is there");
    block.split("\n```\n").next().unwrap().to_owned() + "\n"
}

/// A machine: a network of its own, joined to the gate's.
struct Machine {
    holds: Child,
    token: PathBuf,
    ca: PathBuf,
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.holds.kill();
        let _ = self.holds.wait();
    }
}

fn run(script: &str) {
    let done = Command::new("sh").args(["-euc", script]).ends();
    assert!(done.status.success(), "{script}: {}", stderr(&done));
}

impl Machine {
    /// `number`: of its network. `account`: the ServiceAccount of its pod.
    fn new(number: u8, account: &str, server: &ApiServer, authority: &Authority) -> Self {
        let holds = Command::new("unshare").args(["--net", "sleep", "600"]).spawn().unwrap();
        let network = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let own = network(std::process::id());
        until("the machine has a network of its own", || network(holds.id()).is_some_and(|found| Some(found) != own));
        let (pid, near) = (holds.id(), format!("10.77.{number}"));
        run(&format!(
            "ip link add m{number} type veth peer name eth0 netns {pid}
             ip address add {near}.1/24 dev m{number}
             ip link set m{number} up
             nsenter --net=/proc/{pid}/ns/net sh -euc '
                 ip link set lo up
                 ip address add {near}.2/24 dev eth0
                 ip link set eth0 up
                 ip route add {GATE} via {near}.1'"
        ));
        server.service_account(SHOP.1, account);
        let token = authority.folder.path().join(format!("{account}.token"));
        fs::write(&token, server.projected_token(SHOP.1, account, "fencegate", 600)).unwrap();
        Self { holds, token, ca: authority.ca() }
    }

    /// Runs commands there, with the README's paths replaced by this machine's.
    fn bash(&self, commands: &str) -> Output {
        let commands = commands
            .replace("/var/run/secrets/fencegate/token", self.token.to_str().unwrap())
            .replace("=ca.crt", &format!("={}", self.ca.display()));
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", binary().parent().unwrap().display());
        let network = format!("--net=/proc/{}/ns/net", self.holds.id());
        let mut command = Command::new("nsenter");
        command.args([&network, "bash", "-euc", &commands]).env("PATH", path).stdin(Stdio::null());
        command.ends()
    }
}

/// The gate of the README's settings.
fn gate(site: &Site, store: &Store, server: &ApiServer, authority: &Authority) -> Gate {
    let (chain, key) = authority.sign("gate.example");
    let readme = block("toml")
        .replace("\"tls.crt\"", &format!("{:?}", chain.display().to_string()))
        .replace("\"tls.key\"", &format!("{:?}", key.display().to_string()))
        .replace(SHOP.0, SHOP.1);
    let ca = server.ca_file().map(|ca| format!("ca_file = {:?}\n", ca.display().to_string())).unwrap_or_default();
    let config = format!(
        "{readme}\n[gate]\nlisten = '0.0.0.0:8080'\n[ops]\nlisten = '127.0.0.1:0'\n[store]\nurl = '{}'\n\
         [table]\npath = '{}'\n[lease]\nttl_ms_min = 10\n[kubernetes]\nurl = '{}'\ntoken_file = '{}'\n{ca}",
        store.url(),
        site.data().display(),
        server.url(),
        server.token_file(Who::Gate).display(),
    );
    fs::write(site.config(), config).unwrap();
    assert!(site.run(&["table", "init"]).status.success());
    site.serve()
}

/// The token in a lease that the command line has printed.
fn token(printed: &str) -> &str {
    let found = printed.lines().find_map(|line| line.strip_prefix("fence_token"));
    found.unwrap_or_else(|| panic!("{printed}")).trim()
}

fn inside() {
    let (server, authority, store, site) = (ApiServer::start(), Authority::new(), Store::start(), Site::new());
    let _gate = gate(&site, &store, &server, &authority);
    let (one, other) = (Machine::new(1, "one", &server, &authority), Machine::new(2, "other", &server, &authority));
    // The README's lines, as they are.
    let done = one.bash(&block("bash"));
    assert!(done.status.success(), "{}\n{}", stderr(&done), site.log());
    assert_eq!(store.story(), ["PUT /users/1"]);
    // One takes the lease for a moment, and writes.
    let exports = block("bash").lines().filter(|line| line.starts_with("export")).collect::<Vec<_>>().join("\n");
    let holder = format!("system:serviceaccount:{}:one/a", SHOP.1);
    let taken = one.bash(&format!("{exports}\nfencegate lease acquire --object users --holder {holder} --ttl 1000"));
    assert!(taken.status.success(), "{}", stderr(&taken));
    let said = stdout(&taken);
    let put = format!(
        "curl -s -o /dev/null -w '%{{http_code}} %header{{fence-error}}' -X PUT http://gate.example:8080/users/1 -H 'Fence-Token: {}' -d one",
        token(&said)
    );
    assert_eq!(stdout(&one.bash(&put)), "200 ");
    // The other waits for it by the README's lines, and writes.
    let done = other.bash(&block("bash"));
    assert!(done.status.success(), "{}", stderr(&done));
    // What the first one sends now comes too late.
    assert_eq!(stdout(&one.bash(&put)), "412 WRITE_STALE_FENCE");
    assert_eq!(store.story(), ["PUT /users/1"; 3]);
    // Nothing goes without a token, or in another's name.
    let without = other.bash(
        "curl -s -o /dev/null -w '%{http_code}' --cacert ca.crt https://gate.example:8081/v1/leases"
            .replace("ca.crt", authority.ca().to_str().unwrap())
            .as_str(),
    );
    assert_eq!(stdout(&without), "401");
    let stolen = other.bash(&format!("{exports}\nfencegate lease acquire --object users --holder {holder} --ttl 1000"));
    assert!(!stolen.status.success() && stderr(&stolen).contains("ACCESS_DENIED"), "{}", stderr(&stolen));
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the test tells itself apart by a variable")]
fn writers_on_other_machines_are_fenced_as_the_readme_says() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    let hosts = tempfile::NamedTempFile::new().unwrap();
    fs::write(hosts.path(), format!("127.0.0.1 localhost\n{GATE} gate.example\n")).unwrap();
    let script = format!(
        "mount --bind \"$2\" /etc/hosts
         ip link set lo up
         ip address add {GATE}/32 dev lo
         exec \"$1\" --exact access::machines::writers_on_other_machines_are_fenced_as_the_readme_says --nocapture"
    );
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--map-root-user", "sh", "-euc", &script, "sh"]);
    command.arg(std::env::current_exe().unwrap()).arg(hosts.path()).env(INSIDE, "1").process_group(0);
    let done = command.ends();
    assert!(done.status.success() && stdout(&done).contains("1 passed"), "{}{}", stdout(&done), stderr(&done));
}
