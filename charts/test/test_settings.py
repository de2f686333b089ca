"""The settings files that come of the values, shown to fencegate itself; and the keys that the values may have."""
import json
import re
import tempfile
import tomllib
import unittest
from pathlib import Path

from tools import CHART, FENCEGATE, ROOT, everything, of_kind, rendered, run

CHECKS = {"fencegate.toml": ("check", "--config"), "agent.toml": ("agent", "--check", "--config")}
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def certificates(folder: Path) -> None:
    """A certificate and its key, which are also their own authority, where the settings look for all of them."""
    made = run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
               "-days", "2", "-subj", "/CN=localhost", "-keyout", folder / "tls.key", "-out", folder / "tls.crt")
    if made.returncode:
        raise AssertionError(made.stderr)
    (folder / "ca.crt").write_bytes((folder / "tls.crt").read_bytes())


def tokens(folder: Path) -> None:
    """A file of tokens, with one in it, and a file with a bearer token, as the kubelet writes one."""
    (folder / "token").write_text("a.projected.token")
    made = run(FENCEGATE, "access", "token", "new", "nightly-backup", "--file", folder / "tokens.toml")
    if made.returncode:
        raise AssertionError(made.stderr)


class Settings(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not FENCEGATE.exists():
            raise AssertionError(f"{FENCEGATE} is missing: run `make build` first")
        folder = tempfile.TemporaryDirectory(prefix="fencegate-chart-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        certificates(cls.folder)
        tokens(cls.folder)

    def check(self, kind: str, text: str):
        """What fencegate says of a settings file, with the certificates and tokens of this test in place of a pod's."""
        path = self.folder / kind
        files = r'"/(?:etc|var/run)/[^"]*/([^"/]+\.(?:crt|key|toml)|token)"'
        path.write_text(re.sub(files, rf'"{self.folder}/\1"', text))
        return run(FENCEGATE, *CHECKS[kind], path)

    def files(self):
        for name, manifests in everything():
            for config in of_kind(manifests, "ConfigMap"):
                for kind in CHECKS.keys() & config["data"].keys():
                    yield name, kind, config["data"][kind]

    def test_fencegate_finds_nothing_wrong_with_them(self):
        kinds = set()
        for name, kind, text in self.files():
            with self.subTest(name=name, kind=kind):
                answer = self.check(kind, text)
                self.assertEqual(answer.returncode, 0, answer.stderr + text)
                kinds.add(kind)
        self.assertEqual(kinds, set(CHECKS))

    def test_fencegate_finds_what_is_wrong(self):
        for name, kind, changes in (
            ("default", "fencegate.toml", {"25000": "25000.0", "[ops]": "[opps]", "127.0.0.1:8081": "0.0.0.0:8081"}),
            ("consumer", "agent.toml", {"https://": "http://", "tls.key": "ca.crt", "ledger-writer": "Ledger"}),
            ("consumer-api", "agent.toml", {"api = \"https://": "api = \"http://"}),
            ("api", "fencegate.toml", {"api-tls/tls.crt": "api-tls/none.crt", '"acquire"': '"aquire"',
                                       '"system:serviceaccount:shop:writer"': '"system:*:writer"',
                                       '"stderr"': '"syslog"'}),
            ("api-outside", "fencegate.toml", {"tokens.toml": "none.toml", '["backups"]': '["none"]'}),
            ("mesh", "fencegate.toml", {'"authenticate"': '"trusted"'}),
        ):
            [text] = [text for found, of, text in self.files() if (found, of) == (name, kind)]
            for old, new in changes.items():
                wrong = text.replace(old, new)
                self.assertNotEqual(wrong, text)
                self.assertEqual(self.check(kind, wrong).returncode, 2, wrong)

    def test_awkward_texts_and_numbers_come_through(self):
        object_id = 'a "quoted" \\ <b> & \t ünï'
        asked = ("--set-json", f"gate.config.route[0].object={json.dumps(object_id)}",
                 "--set", "gate.config.route[0].max_jump=4503599627370497")
        manifests = rendered("helm4", "everything", "1.37", *asked)
        [config] = [m for m in of_kind(manifests, "ConfigMap") if "fencegate.toml" in m["data"]]
        route = tomllib.loads(config["data"]["fencegate.toml"])["route"][0]
        self.assertEqual((route["object"], route["max_jump"]), (object_id, 4503599627370497))


class Keys(unittest.TestCase):
    def keys_of(self, path: Path) -> set[str]:
        """Every key of a shipped settings file, those of the lists in its comments too."""
        text = path.read_text()
        keys = {f"{section}.{key}" for section, of in tomllib.loads(text).items() for key in of}
        section = None
        for line in text.splitlines():
            if header := re.match(r"# \[\[(\w+)\]\]", line):
                section = header[1]
            elif section and (table := re.match(rf"# \[{section}\.(\w+)\]", line)):
                keys.add(f"{section}.{table[1]}")
                section = None
            elif line.startswith("["):
                section = None
            elif section and (key := re.match(r"# (\w+) = ", line)):
                keys.add(f"{section}.{key[1]}")
        return keys

    def test_the_schema_has_the_keys_of_the_shipped_settings_and_no_others(self):
        for part, name in (("gate", "fencegate.toml"), ("agent", "agent.toml")):
            sections = SCHEMA["properties"][part]["properties"]["config"]["properties"]
            found = {f"{section}.{key}" for section, of in sections.items()
                     for key in (of.get("items") or of)["properties"]}
            shipped = self.keys_of(ROOT / "config" / name)
            with self.subTest(name=name):
                # A requester has the keys of an issuer, which the file does not repeat.
                found = {key for key in found if not key.startswith("requester.")}
                shipped = {key for key in shipped if not key.startswith("requester.")}
                self.assertEqual(found ^ shipped, set())

    def test_every_object_of_the_schema_is_closed(self):
        def look(schema, path):
            if schema.get("type") == "object" and "properties" in schema:
                self.assertIs(schema["additionalProperties"], False, path)
                for key, part in schema["properties"].items():
                    look(part, f"{path}.{key}")
            if "items" in schema:
                look(schema["items"], f"{path}[]")
        look(SCHEMA, "values")
