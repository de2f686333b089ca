"""Charts as SVG text, without any library. Pure. Legible on light and on dark pages."""
import math
from typing import NamedTuple

WIDTH, HEIGHT = 820, 420
LEFT, RIGHT, TOP, BOTTOM = 100, 190, 50, 60
# Most colour-blind readers can distinguish these, on white and on black.
COLOURS = ["#0b84d8", "#e0751a", "#2ca05a", "#c05ab5", "#8a8f98", "#b59a00"]

STYLE = """\
<style>
  .page { fill: #ffffff } .text { fill: #24292f; font: 13px sans-serif } .title { font-size: 16px; font-weight: bold }
  .axis { stroke: #57606a } .grid { stroke: #d8dee4 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117 } .text { fill: #e6edf3 } .axis { stroke: #9198a1 } .grid { stroke: #30363d }
  }
</style>"""


class Line(NamedTuple):
    name: str
    points: list  # (x, y) or (x, y, least, greatest)
    colour: int
    dashed: bool = False


class Bar(NamedTuple):
    name: str
    parts: list  # (label, value): one after the other
    least: float
    greatest: float


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def text(x, y, said, anchor="start", more=""):
    return f'<text class="text {more}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(said)}</text>'


def rule(x1, y1, x2, y2, kind="grid"):
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def document(title, parts, height=HEIGHT):
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>", STYLE,
        f'<rect class="page" width="{WIDTH}" height="{height}"/>',
        text(LEFT, 28, title, more="title"), *parts, "</svg>", ""])


class Scale:
    """From figures to places, linear from 0 or logarithmic."""

    def __init__(self, values, begin, end, logarithmic):
        self.begin, self.end, self.logarithmic = begin, end, logarithmic
        if logarithmic:
            self.low = 10 ** math.floor(math.log10(min(values)))
            self.high = 10 ** math.ceil(math.log10(max(max(values), self.low * 1.01)))
        else:
            self.step = step(max(values))
            self.low, self.high = 0, math.ceil(max(values) / self.step) * self.step

    def at(self, value):
        if self.logarithmic:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = value / self.high
        return self.begin + share * (self.end - self.begin)

    def ticks(self):
        if self.logarithmic:
            powers = round(math.log10(self.high / self.low))
            return [self.low * 10 ** power for power in range(powers + 1)]
        return [self.step * n for n in range(round(self.high / self.step) + 1)]


def step(most):
    """Between 4 and 10 ticks at round numbers."""
    power = 10 ** math.floor(math.log10(most)) if most > 0 else 1
    return next(power * each for each in (0.2, 0.5, 1, 2) if most / (power * each) <= 7)


def figure(value):
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:g}"


def lines(title, x_title, y_title, series, log_x=False, log_y=False):
    points = [point for line in series for point in line.points]
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    x = Scale([point[0] for point in points], LEFT, right, log_x)
    y = Scale([max(point[1:]) for point in points] + [min(point[1:]) for point in points], bottom, TOP, log_y)
    parts = []
    for tick in y.ticks():
        parts += [rule(LEFT, y.at(tick), right, y.at(tick)), text(LEFT - 8, y.at(tick) + 4, figure(tick), "end")]
    for tick in x.ticks():
        parts += [rule(x.at(tick), TOP, x.at(tick), bottom), text(x.at(tick), bottom + 18, figure(tick), "middle")]
    parts += [rule(LEFT, bottom, right, bottom, "axis"), rule(LEFT, TOP, LEFT, bottom, "axis")]
    parts += [text((LEFT + right) / 2, HEIGHT - 14, x_title, "middle"), turned(y_title, (TOP + bottom) / 2)]
    for number, line in enumerate(series):
        parts += drawn(line, x, y)
        parts += legend(line, right + 12, TOP + 10 + 20 * number)
    return document(title, parts)


def turned(said, y):
    place = f'transform="translate(18 {y:.1f}) rotate(-90)" text-anchor="middle"'
    return f'<text class="text" {place}>{escape(said)}</text>'


def stroke(line):
    dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
    return f'stroke="{COLOURS[line.colour % len(COLOURS)]}" stroke-width="2" fill="none"{dashes}'


def drawn(line, x, y):
    path = " ".join(f"{x.at(point[0]):.1f},{y.at(point[1]):.1f}" for point in line.points)
    parts = [f'<polyline points="{path}" {stroke(line)}/>']
    colour = COLOURS[line.colour % len(COLOURS)]
    for point in line.points:
        parts.append(f'<circle cx="{x.at(point[0]):.1f}" cy="{y.at(point[1]):.1f}" r="3" fill="{colour}"/>')
        if len(point) == 4:
            at = x.at(point[0])
            parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{y.at(point[2]):.1f}" y2="{y.at(point[3]):.1f}" '
                         f'stroke="{colour}"/>')
    return parts


def legend(line, at, y):
    return [f'<line x1="{at}" x2="{at + 22}" y1="{y - 4}" y2="{y - 4}" {stroke(line)}/>', text(at + 28, y, line.name)]


def bars(title, x_title, rows):
    """Bars from left to right, a row each, with a whisker from the least to the greatest."""
    name_width, row = 150, 34
    bottom = TOP + row * len(rows)
    x = Scale([max(bar.greatest, sum(value for _, value in bar.parts)) for bar in rows], name_width, WIDTH - 110, False)
    parts = []
    for tick in x.ticks():
        parts += [rule(x.at(tick), TOP, x.at(tick), bottom), text(x.at(tick), bottom + 18, figure(tick), "middle")]
    for number, bar in enumerate(rows):
        parts += one_bar(bar, x, TOP + row * number, number)
    parts += [rule(name_width, TOP, name_width, bottom, "axis"),
              text((name_width + WIDTH - 110) / 2, bottom + 42, x_title, "middle")]
    return document(title, parts, bottom + 60)


def one_bar(bar, x, y, number):
    parts, at = [text(x.begin - 8, y + 21, bar.name, "end")], 0
    for part, (label, value) in enumerate(bar.parts):
        colour = COLOURS[0 if number == 0 else 4] if part == 0 else COLOURS[1]
        parts.append(f'<rect x="{x.at(at):.1f}" y="{y + 6}" width="{x.at(at + value) - x.at(at):.1f}" height="22" '
                     f'fill="{colour}"><title>{escape(label)}: {value:.1f}</title></rect>')
        at += value
    parts.append(rule(x.at(bar.least), y + 17, x.at(bar.greatest), y + 17, "axis"))
    said = f"{at:.1f}" + "".join(f", {label} {value:.1f} of it" for label, value in bar.parts[1:])
    # To the right of the bar, or, where it ends too far right, before its end.
    end = x.at(max(at, bar.greatest)) + 6
    parts.append(text(end, y + 21, said) if end + 7 * len(said) < WIDTH else text(WIDTH - 4, y + 21, said, "end"))
    return parts
