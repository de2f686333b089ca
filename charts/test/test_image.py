"""The Dockerfile, the bill of materials, and the image itself.

No docker daemon is needed: the image is made by buildah (`make image`), unpacked, and its program is run from its root,
read-only and as its own user. That takes root and the archive, whose path is in IMAGE_ARCHIVE; `make test-image` sees
to both, and without it these tests are left out.
"""
import contextlib
import http.client
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path
from typing import Iterator

from alerts.lab import PATIENCE_S, ROOT, Store, environment, port_of

DOCKERFILE = ROOT / "Dockerfile"
ARCHIVE = os.environ.get("IMAGE_ARCHIVE")
USER = 65532
# What may be in the image beside the program, the libraries and what is said about them.
SETTINGS = {"etc/passwd", "etc/group", "etc/nsswitch.conf", "etc/os-release", "etc/ssl/certs/ca-certificates.crt"}


def hadolint() -> str:
    """Where scripts/setup puts it, or wherever it is."""
    places = [ROOT / "target/chart/python/bin", ROOT / "target/chart/bin"]
    found = shutil.which("hadolint", path=os.pathsep.join([*map(str, places), os.environ["PATH"]]))
    if not found:
        raise AssertionError("hadolint is not there: run scripts/setup chart")
    return found


def lint(text: str) -> str:
    """What the linter has against a Dockerfile."""
    done = subprocess.run([hadolint(), "--no-color", "-"], input=text, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr if done.returncode else ""


def unpack(archive: Path, folder: Path) -> tuple[dict, Path]:
    """An OCI archive's configuration, and the root that its layers make."""
    layout, root = folder / "layout", folder / "root"
    for where in (layout, root):
        where.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", layout], check=True)

    def blob(digest: str) -> Path:
        return layout / "blobs" / digest.replace(":", "/")

    index = json.loads((layout / "index.json").read_text())
    manifest = json.loads(blob(index["manifests"][0]["digest"]).read_text())
    for layer in manifest["layers"]:
        subprocess.run(["tar", "-xzf", blob(layer["digest"]), "-C", root], check=True)
    return json.loads(blob(manifest["config"]["digest"]).read_text())["config"], root


class Dockerfile(unittest.TestCase):
    def test_the_linter_has_nothing_against_it(self):
        self.assertEqual(lint(DOCKERFILE.read_text()), "")

    def test_bad_ones_are_refused(self):
        text = DOCKERFILE.read_text()
        for right, wrong, rule in [
            ("${RUST_IMAGE}", "rust:latest", "DL3007"),
            ("WORKDIR /src", "WORKDIR src", "DL3000"),
            ("--no-install-recommends ", "", "DL3015"),
            ('ENTRYPOINT ["/fencegate"]', "ENTRYPOINT /fencegate", "DL3025"),
            ("# hadolint ignore=DL3008\n", "", "DL3008"),
        ]:
            with self.subTest(wrong=wrong or f"without {right}"):
                self.assertIn(right, text)
                self.assertIn(rule, lint(text.replace(right, wrong)))

    def test_the_toolchain_is_the_one_that_the_crate_asks_for_and_the_version_the_crates(self):
        package = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]
        text = DOCKERFILE.read_text()
        self.assertIn(f"ARG RUST_IMAGE=rust:{package['rust-version']}.", text)
        self.assertIn(f"ARG VERSION={package['version']}\n", text)
        self.assertIn(f'image.licenses="{package["license"]}"', text)
        self.assertIn(f'image.description="{package["description"]}"', text)

    def test_the_build_gets_every_file_that_cargo_asks_for(self):
        """What .dockerignore leaves out, held against Cargo.toml."""
        ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
        manifest = tomllib.loads((ROOT / "Cargo.toml").read_text())
        targets = [each for kind in ("bin", "test", "example", "bench") for each in manifest[kind]]
        named = [each.get("path", f"benches/{each['name']}.rs") for each in targets]
        self.assertIn("bench/bare.rs", named)
        for path in [*named, "src/lib.rs", "config/fencegate.toml", "scripts/image", "LICENSE", "Cargo.lock"]:
            self.assertTrue((ROOT / path).exists(), path)
            self.assertFalse([line for line in ignored if f"{path}/".startswith(f"{line}/")], path)


class Sbom(unittest.TestCase):
    """Held against Cargo.lock and against what cargo says it compiles."""

    @classmethod
    def setUpClass(cls):
        command = [sys.executable, "-B", ROOT / "scripts/sbom"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise AssertionError(done.stderr)
        cls.text, cls.document = done.stdout, json.loads(done.stdout)

    @staticmethod
    def of_kind(document: dict, kind: str) -> dict[tuple[str, str], dict]:
        """The packages of a kind, by name and version."""
        packages = (each for each in document["packages"] if each["SPDXID"].startswith(f"SPDXRef-{kind}-"))
        return {(each["name"], each["versionInfo"]): each for each in packages}

    @classmethod
    def faults(cls, document: dict) -> list[str]:
        """What is wrong with the crates of a bill of materials."""
        lock = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
        checksums = {(each["name"], each["version"]): each.get("checksum") for each in lock}
        crates, compiled = cls.of_kind(document, "crate"), set(cls.compiled())
        found = [f"missing: {name}" for name, _ in compiled - set(crates)]
        found += [f"not compiled: {name}" for name, _ in set(crates) - compiled]
        for (name, version), crate in crates.items():
            said = [each["checksumValue"] for each in crate.get("checksums", [])]
            wanted = checksums.get((name, version))
            if said != ([wanted] if wanted else []):
                found.append(f"checksum: {name}")
            words = re.split(r" (?:AND|OR|WITH) ", re.sub(r"[()]", "", crate["licenseDeclared"]))
            if not all(re.fullmatch(r"[A-Za-z0-9.+-]+", word) for word in words):
                found.append(f"licence: {name}")
        return found

    @staticmethod
    def compiled() -> Iterator[tuple[str, str]]:
        """What cargo says it compiles: names and versions."""
        which = ["--locked", "--offline", "--target=x86_64-unknown-linux-gnu", "--edges=normal,build"]
        command = ["cargo", "tree", "--prefix=none", *which]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        for line in done.stdout.splitlines():
            name, version, *_ = line.split()
            yield name, version.removeprefix("v")

    def test_it_has_every_crate_that_is_compiled_with_cargos_checksum_and_a_licence(self):
        self.assertEqual(self.faults(self.document), [])
        names = {name for name, _ in self.of_kind(self.document, "crate")}
        self.assertEqual(names & {"criterion", "rcgen", "ring"}, set(), "crates that only tests use, or no code at all")

    def test_whatever_is_missing_or_wrong_is_caught(self):
        for name, change, fault in [
            ("tokio", lambda packages, it: packages.remove(it), "missing: tokio"),
            ("hyper", lambda packages, it: it["checksums"][0].update(checksumValue="0" * 64), "checksum: hyper"),
            ("serde", lambda packages, it: it.update(versionInfo="0.0.1"), "not compiled: serde"),
            ("http", lambda packages, it: it.update(licenseDeclared="MIT/Apache-2.0"), "licence: http"),
        ]:
            document = json.loads(self.text)
            change(document["packages"], next(each for each in document["packages"] if each["name"] == name))
            self.assertIn(fault, self.faults(document))

    def test_it_names_the_libraries_that_are_not_rust(self):
        libraries = dict(self.of_kind(self.document, "library"))
        self.assertEqual({name for name, _ in libraries}, {"rocksdb", "jemalloc", "aws-lc", "blst"})
        for name, version in libraries:
            self.assertRegex(version, r"^\d+\.\d+", name)

    def test_every_relation_is_between_things_that_are_there(self):
        known = {each["SPDXID"] for each in self.document["packages"]}
        self.assertEqual(len(known), len(self.document["packages"]))
        reached = set()
        for relation in self.document["relationships"]:
            self.assertIn(relation["spdxElementId"], known | {"SPDXRef-DOCUMENT"})
            self.assertIn(relation["relatedSpdxElement"], known)
            reached.add(relation["relatedSpdxElement"])
        self.assertEqual(reached, known, "nothing hangs in the air")


@unittest.skipUnless(ARCHIVE, "make test-image makes an image and runs these")
class Image(unittest.TestCase):
    """The image, unpacked into a folder."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.config, cls.root = unpack(Path(ARCHIVE), Path(folder.name))

    def test_it_is_what_the_dockerfile_says(self):
        self.assertEqual(self.config["User"], f"{USER}:{USER}")
        self.assertEqual(self.config["Entrypoint"], ["/fencegate"])
        self.assertEqual(self.config["Cmd"], ["serve", "--config", "/etc/fencegate/fencegate.toml"])
        self.assertEqual(set(self.config["ExposedPorts"]), {"8080/tcp", "9464/tcp", "8082/tcp", "9465/tcp"})
        stem = "org.opencontainers.image."
        labels = {name.removeprefix(stem): value for name, value in self.config["Labels"].items()}
        self.assertEqual((labels["title"], labels["licenses"]), ("fencegate", "Apache-2.0"))
        self.assertRegex(labels["version"], r"^\d+\.\d+\.\d+$")
        self.assertRegex(labels["revision"], r"^[0-9a-f]{40}$")

    def test_it_has_the_program_its_libraries_and_nothing_that_could_be_run_beside_it(self):
        paths = [path for path in self.root.rglob("*") if path.is_file()]
        names = {str(path.relative_to(self.root)) for path in paths}
        libraries = {name for name in names if re.fullmatch(r"lib(64)?/.*\.so[.\d]*", name)}
        about = {name for name in names if name.startswith(("usr/share/doc/", "var/lib/dpkg/status.d/"))}
        self.assertEqual(names - libraries - about, {"fencegate"} | SETTINGS)
        self.assertTrue(any("libstdc++" in name for name in libraries))
        self.assertEqual([path for path in paths if path.stat().st_mode & 0o7022], [], "nothing setuid or writable")

    def test_every_package_in_it_is_in_its_bill_of_materials_and_has_its_licence(self):
        document = json.loads((Path(ARCHIVE).parent / "sbom.spdx.json").read_text())
        named = {name for name, _ in Sbom.of_kind(document, "debian")}
        noted = {path.name for path in (self.root / "var/lib/dpkg/status.d").iterdir()}
        self.assertEqual(named, noted)
        self.assertLessEqual({"libc6", "libstdc++6", "ca-certificates"}, noted)
        self.assertEqual({path.parent.name for path in self.root.glob("usr/share/doc/*/copyright")}, noted)


CONFIG = """\
[gate]
listen = "127.0.0.1:0"
[store]
url = "http://localhost:{store}"
[api]
listen = "127.0.0.1:0"
[ops]
listen = "127.0.0.1:0"
[table]
path = "/var/lib/fencegate/table"
"""


@unittest.skipUnless(ARCHIVE, "make test-image makes an image and runs these")
@unittest.skipUnless(os.geteuid() == 0, "only root may change its root")
class FromItsRoot(unittest.TestCase):
    """The program, as a cluster would run it: read-only root, its own user, a volume for the table."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        _, cls.root = unpack(Path(ARCHIVE), Path(folder.name))
        cls.store = Store()
        cls.addClassCleanup(cls.store.server_close)
        cls.addClassCleanup(cls.store.shutdown)
        # What a cluster puts in: settings, names of hosts, a volume that belongs to the user.
        (cls.root / "etc/fencegate").mkdir()
        (cls.root / "etc/fencegate/fencegate.toml").write_text(CONFIG.format(store=cls.store.server_port))
        (cls.root / "etc/hosts").write_text("127.0.0.1 localhost\n")
        (cls.root / "proc").mkdir()
        cls.volume = cls.root / "var/lib/fencegate"
        cls.volume.mkdir()
        os.chown(cls.volume, USER, USER)

    def command(self, *arguments: str) -> list:
        """The program, in a mount namespace of its own."""
        script = """
            set -e
            mount --bind "$1" "$1"
            mount --bind "$1/var/lib/fencegate" "$1/var/lib/fencegate"
            mount -t proc proc "$1/proc"
            mount -o remount,bind,ro "$1"
            root=$1
            shift
            exec chroot --userspec=65532:65532 --groups= "$root" /fencegate "$@"
        """
        return ["unshare", "--mount", "sh", "-c", script, "sh", str(self.root), *arguments]

    def run_it(self, *arguments: str) -> subprocess.CompletedProcess:
        command = self.command(*arguments)
        return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S)

    def test_it_checks_its_settings_and_trusts_public_authorities(self):
        done = self.run_it("check", "--config", "/etc/fencegate/fencegate.toml")
        self.assertEqual(done.stdout, "the configuration is sound\n", done.stderr)
        https = self.root / "etc/fencegate/https.toml"
        https.write_text('[store]\nurl = "https://store.example"\n')
        done = self.run_it("check", "--config", "/etc/fencegate/https.toml")
        self.assertEqual(done.stdout, "the configuration is sound\n", done.stderr)
        bundle = self.root / "etc/ssl/certs/ca-certificates.crt"
        kept = bundle.read_bytes()
        try:
            bundle.write_bytes(b"")
            done = self.run_it("check", "--config", "/etc/fencegate/https.toml")
            self.assertIn("no certificate to trust", done.stderr)
        finally:
            bundle.write_bytes(kept)

    def test_it_serves_as_its_own_user_on_a_root_that_it_cannot_write_to(self):
        settings = "/etc/fencegate/fencegate.toml"
        refused = self.root / "etc/fencegate/elsewhere.toml"
        refused.write_text(CONFIG.format(store=1).replace("/var/lib/fencegate/table", "/table"))
        self.assertNotEqual(self.run_it("table", "init", "--config", f"/etc/fencegate/{refused.name}").returncode, 0)
        done = self.run_it("table", "init", "--config", settings)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((self.volume / "table").stat().st_uid, USER)
        with self.serving(settings) as (process, ready):
            status = Path(f"/proc/{process.pid}/status").read_text()
            self.assertRegex(status, rf"Uid:\s+{USER}\s+{USER}\s+{USER}\s+{USER}\n")
            self.assertRegex(status, r"CapEff:\s+0+\n", "no capability")
            self.assertEqual(self.ask(ready, "ops", "GET", "/readyz"), (200, "ready\n"))
            wanted = json.dumps({"object_id": "users", "holder_id": "a", "ttl_ms": 60_000})
            status, text = self.ask(ready, "api", "POST", "/v1/leases", wanted, {"content-type": "application/json"})
            self.assertEqual(status, 201, text)
            token = {"Fence-Token": json.loads(text)["fence_token"]}
            self.assertEqual(self.ask(ready, "gate", "PUT", "/users/1", "x", token)[0], 200, "by the name localhost")
            self.assertEqual(self.ask(ready, "gate", "PUT", "/users/1", "x")[0], 428)
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(PATIENCE_S), 0)

    @contextlib.contextmanager
    def serving(self, settings: str):
        command = self.command("serve", "--config", settings)
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            readable, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
            yield process, process.stdout.readline().decode() if readable else ""
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    @staticmethod
    def ask(ready: str, port: str, method: str, path: str, body: str | None = None, headers: dict | None = None):
        connection = http.client.HTTPConnection("127.0.0.1", port_of(ready, port), timeout=PATIENCE_S)
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        said = answer.status, answer.read().decode()
        connection.close()
        return said


if __name__ == "__main__":
    unittest.main()
