"""What a PromQL expression asks for: metrics with their labels, read off its text. No parser: promtool says whether an
expression is one at all."""
import re
from typing import NamedTuple

# Labels that Prometheus and its operator put on whatever they scrape.
TARGET_LABELS = {"namespace", "pod", "job", "instance", "container", "endpoint", "service"}
# Grafana's own, and what stands in for them where there is no Grafana.
VARIABLES = {"$__rate_interval": "30s", "$__range": "1h"}

STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
LIST = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
MATCHER = re.compile(r'([a-zA-Z_]\w*)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"')
SELECTOR = re.compile(r"(?<![\w$])([a-zA-Z_:][\w:]*)(?![\w:])\s*(\{[^}]*\})?(?!\s*\()")
WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"} | {"by", "without", "on", "ignoring"}


class Matcher(NamedTuple):
    label: str
    values: list[str]


class Selector(NamedTuple):
    metric: str
    matchers: list[Matcher]


def filled_in(expression: str, variables: list[str] = ()) -> str:
    """An expression as Grafana would send it, with everything chosen."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    for name in variables:
        expression = re.sub(rf"\${name}\b", ".*", expression)
    return expression


def selectors(expression: str) -> list[Selector]:
    """Every metric that an expression names, with what it asks of the labels' values."""
    text = re.sub(r"#.*", "", expression)
    text = LIST.sub(" ", text)
    text = re.sub(r"\[[^\]]*\]|\boffset\s+\w+", " ", text)
    found = []
    for match in SELECTOR.finditer(hide_strings(text)):
        if match[1] in WORDS or match[1].isdigit():
            continue
        inside = text[match.start(2) : match.end(2)] if match[2] else ""
        asked = [Matcher(label, plain_values(how, value)) for label, how, value in MATCHER.findall(inside)]
        found.append(Selector(match[1], asked))
    return found


def hide_strings(text: str) -> str:
    """The same length, without anything in strings that could be taken for something else."""
    return STRING.sub(lambda string: '"' + "_" * (len(string[0]) - 2) + '"', text)


def plain_values(how: str, value: str) -> list[str]:
    """The values that a matcher spells out; none where it is a pattern, a variable, or asks for absence."""
    values = value.split("|") if "~" in how else [value]
    return [each for each in values if re.fullmatch(r"\w+", each)]


def grouped_by(expression: str) -> set[str]:
    """The labels of `by (...)`, `without (...)`, `on (...)`."""
    names = (name.strip() for _, names in LIST.findall(STRING.sub('""', expression)) for name in names.split(","))
    return {name for name in names if name}
