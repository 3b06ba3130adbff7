"""Wheels that travel to the nodes: fairlead's own, packed from this installation, and its three dependencies.

Nodes have no network, and each has its own Python: a wheelhouse holds wheels for several, and the right ones are chosen
by what the node says it is (wheel_tags.py). Source: PEP 427 (wheel files).
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

import fairlead
from fairlead import assets
from fairlead.errors import DataError, InputMissing, ProvisionError
from fairlead.provision.wheel_tags import DEPENDENCIES, normal

_EPOCH = (1980, 1, 1, 0, 0, 0)
_WHEEL = "Wheel-Version: 1.0\nGenerator: fairlead\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


class Wheel(Struct, frozen=True):
    """A wheel file's name and content."""

    name: str
    content: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def record(self) -> str:
        """What is in it: its RECORD, sorted, however it was compressed. Raises DataError for what is no wheel of its name."""
        try:
            with zipfile.ZipFile(io.BytesIO(self.content)) as archive:
                text = archive.read("-".join(self.name.split("-")[:2]) + ".dist-info/RECORD").decode()
        except (zipfile.BadZipFile, KeyError, ValueError):
            raise DataError(f"{self.name}: not a wheel of {self.distribution}", hint="build it again") from None
        return "\n".join(sorted(text.splitlines()))

    @property
    def distribution(self) -> str:
        return normal(self.name.split("-")[0])


def pack(files: Iterable[tuple[str, bytes, int]], dist_info: str) -> bytes:
    """A wheel of (path, content, mode), with its RECORD; the same files give the same bytes."""
    out = io.BytesIO()
    rows = []
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content, mode in files:
            info = zipfile.ZipInfo(path, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (0o100000 | mode) << 16
            archive.writestr(info, content, compresslevel=1)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.append(f"{path},sha256={digest},{len(content)}\n")
        record = f"{dist_info}/RECORD"
        archive.writestr(zipfile.ZipInfo(record, _EPOCH), "".join(rows) + f"{record},,\n")
    return out.getvalue()


def _tree(folder: Path, prefix: str) -> list[tuple[str, bytes, int]]:
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in {".pyc", ".pyo"}:
            mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            found.append((f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes(), mode))
    return found


def own_wheel() -> Wheel:
    """fairlead's wheel from the files of this very installation, be it a checkout or site-packages."""
    package = Path(fairlead.__file__).resolve().parent
    files = [f for f in _tree(package, "fairlead") if not f[0].startswith("fairlead/_data/")]
    for name in ("playbooks", "templates", "slurm"):
        files += _tree(assets.directory(name), f"fairlead/_data/{name}")
    version = fairlead.__version__
    info = f"fairlead-{version}.dist-info"
    requires = "".join(f"Requires-Dist: {d}\n" for d in DEPENDENCIES)
    files += [
        (f"{info}/METADATA", f"Metadata-Version: 2.1\nName: fairlead\nVersion: {version}\n{requires}".encode(), 0o644),
        (f"{info}/WHEEL", _WHEEL.encode(), 0o644),
        (f"{info}/entry_points.txt", b"[console_scripts]\nfairlead = fairlead.cli:main\n", 0o644),
    ]
    return Wheel(f"fairlead-{version}-py3-none-any.whl", pack(files, info))


def read_wheel(path: str) -> Wheel:
    """A wheel from a file. Raises InputMissing."""
    try:
        return Wheel(os.path.basename(path), Path(path).read_bytes())
    except OSError as e:
        raise InputMissing(f"{path}: {e.strerror}") from None


def own_from(path: str) -> Wheel:
    """fairlead's wheel: the named file, or "" for one packed from this installation. Raises InputMissing, DataError."""
    own = read_wheel(path) if path else own_wheel()
    if own.distribution != "fairlead":
        raise DataError(f"{own.name}: not a wheel of fairlead", hint="--wheel takes fairlead's own; dependencies: --wheelhouse")
    return own


def repack(distribution: str) -> Wheel | None:
    """A dependency as it is installed beside fairlead here, for nodes of the same Python; None when its files are not known."""
    try:
        dist = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
    files: list[tuple[str, bytes, int]] = []
    tags: list[str] = []
    info = ""
    for file in dist.files or ():
        path = Path(str(dist.locate_file(file)))
        if ".." in file.parts or "__pycache__" in file.parts or not path.is_file():
            continue
        if file.parts[0].endswith(".dist-info"):
            info = file.parts[0]
            if file.name in {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}:
                continue
        content = path.read_bytes()
        if file.name == "WHEEL":
            tags = [line.split(":", 1)[1].strip() for line in content.decode().splitlines() if line.startswith("Tag:")]
        files.append((file.as_posix(), content, 0o644))
    if not info or not tags:
        return None
    python, abi, _ = tags[0].split("-")
    platforms = ".".join(sorted({t.split("-")[2] for t in tags}))
    name = f"{normal(distribution).replace('-', '_')}-{dist.version}-{python}-{abi}-{platforms}.whl"
    return Wheel(name, pack(sorted(files), info))


def wheelhouse(folder: str) -> tuple[Wheel, ...]:
    """Every wheel of the dependencies in a folder. Raises InputMissing for a folder that is not there."""
    if not os.path.isdir(folder):
        raise InputMissing(f"{folder}: no such wheelhouse", hint="fill one with `pip download -d`")
    names = sorted(n for n in os.listdir(folder) if n.endswith(".whl") and normal(n.split("-")[0]) in DEPENDENCIES)
    return tuple(read_wheel(os.path.join(folder, n)) for n in names)


def cache_folder() -> str:
    """Where downloaded wheels are kept."""
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "fairlead", "wheelhouse")


def download(python: str, machine: str, folder: str) -> None:
    """Fetch the dependencies' wheels for a node's Python with pip, in the versions that run here. Raises ProvisionError."""
    os.makedirs(folder, exist_ok=True)
    wanted = [f"{d}=={importlib.metadata.version(d)}" for d in DEPENDENCIES]
    platforms = [
        x
        for p in ("manylinux_2_34", "manylinux_2_28", "manylinux_2_17", "manylinux2014")
        for x in ("--platform", f"{p}_{machine}")
    ]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps", "--only-binary=:all:"]
    command += [
        "--retries",
        "1",
        "--timeout",
        "10",
        "--python-version",
        python,
        "--implementation",
        "cp",
        *platforms,
        "-d",
        folder,
    ]
    try:
        done = subprocess.run([*command, *wanted], capture_output=True, text=True, timeout=180, check=False)
    except subprocess.TimeoutExpired:
        raise ProvisionError(f"pip download for Python {python}: no answer within 180 s") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        raise ProvisionError(
            f"pip download for Python {python} on {machine}: {said[-1]}",
            hint=f"without a network, fill a wheelhouse elsewhere (pip download --python-version {python} "
            "--only-binary=:all:) and name it with --wheelhouse",
        )


def collect(folder: str) -> tuple[Wheel, ...]:
    """The dependencies' wheels at hand: the given wheelhouse, or what was downloaded before and what runs here."""
    if folder:
        return wheelhouse(folder)
    cached = wheelhouse(cache_folder()) if os.path.isdir(cache_folder()) else ()
    return cached + tuple(w for w in map(repack, DEPENDENCIES) if w is not None)
