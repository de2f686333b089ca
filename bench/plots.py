"""The plots of RESULTS.md, from the raw rounds. Pure."""
import svg
from ratios import peers_of, summary

# A peer has the same colour in every plot.
COLOURS = {"fencegate": 0, "nginx": 1, "haproxy": 2, "nginx+lua+redis": 3, "direct": 4}
LATENCY, CPU, OBJECTS = "latency.svg", "cpu.svg", "objects.svg"


def titles(rounds):
    """The plots that these rounds have enough for, with their titles."""
    kinds = {each["kind"] for each in rounds}
    wanted = {"ladder": (LATENCY, "Latency over load"), "saturated": (CPU, "CPU per request"),
              "spread": (OBJECTS, "CPU per write over the number of objects written to")}
    return dict(found for kind, found in wanted.items() if kind in kinds)


def draw(rounds):
    """SVG by file name."""
    makers = {LATENCY: latency, CPU: cpu, OBJECTS: objects}
    return {name: makers[name](title, rounds) for name, title in titles(rounds).items()}


def latency(title, rounds):
    rungs = [each for each in rounds if each["kind"] == "ladder"]
    series = []
    for peer in peers_of(rounds, "ladder"):
        rates = sorted({each["rate"] for each in rungs if each["peer"] == peer})
        for name, dashed in (("p50", False), ("p99", True)):
            points = [(rate, summary([each for each in rungs if each["rate"] == rate], "ladder", peer,
                                     f"{name}_us")["median"]) for rate in rates]
            series.append(svg.Line(f"{peer} {name}", points, COLOURS.get(peer, 5), dashed))
    return svg.lines(title, "requests per second, open loop", "latency from when due, us", series, log_y=True)


def cpu(title, rounds):
    rows = []
    for peer in peers_of(rounds, "saturated"):
        found = summary(rounds, "saturated", peer, "cpu_us")
        parts = [("CPU", found["median"])]
        mine = [each for each in rounds if (each["kind"], each["peer"]) == ("saturated", peer)]
        if "cpu_us_redis" in mine[0]:
            redis = summary(mine, "saturated", peer, "cpu_us_redis")["median"]
            parts = [("nginx", found["median"] - redis), ("Redis", redis)]
        rows.append(svg.Bar(peer, parts, found["min"], found["max"]))
    return svg.bars(title, "us of CPU per request, flat out: median, least and greatest round", rows)


def objects(title, rounds):
    points = []
    for over in sorted({each["objects"] for each in rounds if each["kind"] == "spread"}):
        found = summary(rounds, "spread", str(over), "cpu_us")
        points.append((over, found["median"], found["min"], found["max"]))
    return svg.lines(title, "objects written to", "us of CPU per write", [svg.Line("fencegate", points, 0)], log_x=True)
