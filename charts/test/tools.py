"""What the chart's tests share: where things are, and helm's answers."""
import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Iterator

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CHART = HERE.parent / "fencegate"
TOOLS = ROOT / "target/chart"
FENCEGATE = ROOT / "target/debug/fencegate"
HELMS = {"helm3": TOOLS / "helm3", "helm4": TOOLS / "helm4"}
# The oldest Kubernetes that the chart is for, and the newest that there are schemas of.
KUBERNETES = ["1.29", "1.37"]
CI = sorted((CHART / "ci").glob("*-values.yaml"))
BLESS = bool(os.environ.get("CHART_BLESS"))

Document = dict[str, Any]


def run(*command: Any) -> subprocess.CompletedProcess[str]:
    """Runs a program without the settings of the user that runs the tests."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("FENCEGATE", "HELM_", "KUBE"))}
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, env=own, check=False)


@functools.cache
def consumer() -> Path:
    """The example of a chart that depends on ours, with ours put where Helm looks for it."""
    folder = Path(tempfile.mkdtemp(prefix="fencegate-chart-"))
    atexit.register(shutil.rmtree, folder)
    shutil.copytree(HERE / "consumer", folder / "ledger")
    shutil.copytree(CHART, folder / "ledger/charts/fencegate")
    return folder / "ledger"


def template(helm: str, chart: Path, *more: Any, kubernetes: str = "1.37") -> subprocess.CompletedProcess[str]:
    release = "ledger" if chart.name == "ledger" else "demo"
    return run(HELMS[helm], "template", release, chart, "--namespace", "ledger", "--kube-version", kubernetes, *more)


def chart_of(name: str) -> tuple[Any, ...]:
    """A chart, and the values with which it is rendered under this name."""
    if name == "consumer":
        return (consumer(),)
    if name == "consumer-api":
        return (consumer(), "--values", consumer() / "ci/api-values.yaml")
    return (CHART, "--values", CHART / "ci" / f"{name}-values.yaml")


@functools.cache
def rendered(helm: str, name: str, kubernetes: str, *more: str) -> list[Document]:
    """The manifests of a ci-values file, or of the example (`consumer`, `consumer-api`)."""
    answer = template(helm, *chart_of(name), *more, kubernetes=kubernetes)
    if answer.returncode:
        raise AssertionError(f"{helm} template of {name}: {answer.stderr}")
    return documents(answer.stdout)


def documents(text: str) -> list[Document]:
    return [document for document in yaml.safe_load_all(text) if document]


def names() -> list[str]:
    return [path.name.removesuffix("-values.yaml") for path in CI] + ["consumer", "consumer-api"]


def everything(kubernetes: str = "1.37") -> Iterator[tuple[str, list[Document]]]:
    """Each rendering by its name."""
    for name in names():
        yield name, rendered("helm4", name, kubernetes)


def of_kind(manifests: list[Document], *kinds: str) -> list[Document]:
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def pods(manifests: list[Document]) -> Iterator[tuple[Document, Document]]:
    """Whatever runs pods, and its pods' template."""
    for manifest in of_kind(manifests, "StatefulSet", "Deployment", "Job"):
        yield manifest, manifest["spec"]["template"]


def containers(pod: Document) -> list[Document]:
    return pod["spec"].get("initContainers", []) + pod["spec"]["containers"]
