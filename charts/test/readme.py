"""The table of values in the chart's README: made of the comments in values.yaml, as helm-docs would."""
import json
import re
from typing import Any

import yaml

from tools import CHART

VALUES = CHART / "values.yaml"
README = CHART / "README.md"
BEGIN, END = "<!-- values: written by charts/test/run --bless -->", "<!-- end of values -->"


def described() -> dict[str, tuple[str, str]]:
    """Every key with a comment `# -- ...`: what it says, and the default that it shows."""
    values = yaml.safe_load(VALUES.read_text())
    found: dict[str, tuple[str, str]] = {}
    path: list[tuple[int, str]] = []
    said: list[str] = []
    shown = ""
    for line in VALUES.read_text().splitlines():
        comment = re.match(r" *# (?:(--|@default --) )?(.*)$", line)
        if comment and comment[1] == "--":
            said, shown = [comment[2]], ""
        elif comment and comment[1]:
            shown = comment[2]
        elif comment and said:
            said.append(comment[2])
        elif key := re.match(r"( *)([\w.]+):", line):
            path = [step for step in path if step[0] < len(key[1])] + [(len(key[1]), key[2])]
            if said:
                name = ".".join(step for _, step in path)
                found[name] = (" ".join(said), shown or f"`{json.dumps(value_at(values, name))}`")
            said = []
    return found


def value_at(values: Any, name: str) -> Any:
    for step in name.split("."):
        values = values[step]
    return values


def leaves(values: dict[str, Any], before: str = "") -> list[str]:
    """The keys that are no sections."""
    found = []
    for key, value in values.items():
        found += leaves(value, f"{before}{key}.") if isinstance(value, dict) and value else [before + key]
    return found


def table() -> str:
    rows = [f"| `{name}` | {default} | {text} |" for name, (text, default) in described().items()]
    return "\n".join([BEGIN, "| key | default | |", "|---|---|---|", *rows, END])


def with_table(text: str) -> str:
    before, rest = text.split(BEGIN)
    return before + table() + rest.split(END)[1]
