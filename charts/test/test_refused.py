"""Values that contradict each other are refused, by both helms, with a message that says what to set.

Each file in refused/ has the message in its first lines, and the setting (or the spelling) that corrects it: with that,
the chart must render. So a file that is refused for another reason than its own fails the test.
"""
import functools
import re
import tempfile
import unittest
from pathlib import Path

import tools
from tools import CHART, HELMS, HERE, template

REFUSED = sorted((HERE / "refused").glob("*.yaml"))
BASE = CHART / "ci/default-values.yaml"


def notes(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^# (refused|corrected|spelt|chart|flags): (.+)$", path.read_text(), re.MULTILINE))


@functools.cache
def answer_of(helm: str, path: Path, *more: str):
    about = notes(path)
    where = (tools.consumer(),) if about.get("chart") else (CHART, "--values", BASE)
    return template(helm, *where, "--values", path, *about.get("flags", "").split(), *more)


class Refused(unittest.TestCase):
    def answers(self, path: Path, *more: str):
        for helm in HELMS:
            yield helm, answer_of(helm, path, *more)

    def corrected(self, path: Path):
        about = notes(path)
        if "corrected" in about:
            yield from self.answers(path, "--set", about["corrected"])
            return
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as right:
            right.write(path.read_text().replace(*about["spelt"].split(" -> ")))
            right.flush()
            yield from self.answers(Path(right.name))

    def test_each_is_refused_with_its_message(self):
        for path in REFUSED:
            for helm, answer in self.answers(path):
                with self.subTest(path=path.name, helm=helm):
                    self.assertNotEqual(answer.returncode, 0)
                    self.assertIn(notes(path)["refused"], answer.stderr)

    def test_each_renders_when_it_is_corrected(self):
        for path in REFUSED:
            for helm, answer in self.corrected(path):
                with self.subTest(path=path.name, helm=helm):
                    self.assertEqual(answer.returncode, 0, answer.stderr)

    def test_every_message_of_the_chart_has_a_file(self):
        source = (CHART / "templates/_validate.tpl").read_text()
        messages = re.findall(r'fail (?:\(printf )?"((?:[^"\\]|\\.)+)"', source)
        self.assertGreater(len(messages), 20)
        said = [answer_of("helm4", path).stderr for path in REFUSED]
        for message in messages:
            pieces = [piece for piece in re.split(r"%[sd]", message) if piece]
            with self.subTest(message=message):
                self.assertTrue(any(all(piece in text for piece in pieces) for text in said))
