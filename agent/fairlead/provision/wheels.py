"""Makes and reads the wheels that are sent to the nodes: fairlead's own, packed from this installation, and its three
dependencies.

Nodes may have no network and different versions of Python. A wheelhouse has wheels for several Pythons, and wheel_tags.py
chooses those that fit the Python and machine that a node reports. For the dependencies, only wheels in the lock (wheel_lock.py)
are used. Source: PEP 427 (wheel files).
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import platform
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

import fairlead
from fairlead import assets
from fairlead.errors import DataError, InputMissing, ProvisionError
from fairlead.provision.wheel_lock import NODE_FILE, load, read_locked
from fairlead.provision.wheel_tags import DEPENDENCIES, normal

WHEEL_BYTES_MAX = 256 << 20
_EPOCH = (1980, 1, 1, 0, 0, 0)
_WHEEL = "Wheel-Version: 1.0\nGenerator: fairlead\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


class Wheel(Struct, frozen=True):
    """Holds a wheel file's name and content."""

    name: str
    content: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def record(self) -> str:
        """Return the sorted RECORD, which lists the files in the wheel. It does not depend on the compression. Raises DataError
        if the content is no wheel with this name."""
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
    """Return a wheel that has ``files``, given as (path, content, mode), and a RECORD. The same files give the same bytes."""
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
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for path in (os.path.join(parent, name) for name in names if not name.endswith((".pyc", ".pyo"))):
            with open(path, "rb") as file:
                mode = 0o755 if os.fstat(file.fileno()).st_mode & 0o100 else 0o644
                found.append((f"{prefix}/{os.path.relpath(path, folder)}", file.read(), mode))
    return sorted(found)


def own_wheel() -> Wheel:
    """Return fairlead's wheel from the files of this very installation, a checkout or site-packages."""
    package = Path(fairlead.__file__).resolve().parent
    files = [f for f in _tree(package, "fairlead") if not f[0].startswith("fairlead/_data/")]
    for name in ("playbooks", "templates", "slurm"):
        files += _tree(assets.directory(name), f"fairlead/_data/{name}")
    for name in assets.DOC_KINDS:
        files += _tree(assets.directory("docs") / name, f"fairlead/_data/docs/{name}")
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
    """Return a wheel from a file. Raises InputMissing, and DataError for a file that is too large for a wheel."""
    try:
        with open(path, "rb") as file:
            data = file.read(WHEEL_BYTES_MAX + 1)
    except OSError as e:
        raise InputMissing(f"{path}: {e.strerror}") from None
    if len(data) > WHEEL_BYTES_MAX:
        raise DataError(f"{path}: larger than {WHEEL_BYTES_MAX >> 20} MiB", hint="is it a wheel?")
    return Wheel(os.path.basename(path), data)


def own_from(path: str) -> Wheel:
    """Return fairlead's wheel from the file ``path``, or for "" from this installation. Raises InputMissing, DataError."""
    own = read_wheel(path) if path else own_wheel()
    if own.distribution != "fairlead":
        raise DataError(f"{own.name}: not a wheel of fairlead", hint="--wheel takes fairlead's own; dependencies: --wheelhouse")
    return own


def wheelhouse(folder: str) -> tuple[Wheel, ...]:
    """Return every wheel of the dependencies in a folder. Raises InputMissing, and DataError for a wheel that is not in the
    lock."""
    if not os.path.isdir(folder):
        raise InputMissing(f"{folder}: no such wheelhouse", hint="fill one with `fairlead bundle`, which makes one in its folder")
    names = sorted(n for n in os.listdir(folder) if n.endswith(".whl") and normal(n.split("-")[0]) in DEPENDENCIES)
    return tuple(Wheel(n, read_locked(os.path.join(folder, n))) for n in names)


def cache_folder() -> str:
    """Return the folder in which downloaded wheels are kept."""
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "fairlead", "wheelhouse")


def pip_download(words: Sequence[str], purpose: str, seconds: float, hint: str) -> None:
    """Run `pip download` with ``words``, which must name requirements with hashes. Raises ProvisionError with pip's reason.
    ``purpose``: for the error message."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--only-binary=:all:"]
    command += ["--require-hashes", "--retries", "1", "--timeout", "10", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise ProvisionError(f"pip download for {purpose}: no end within {seconds:.0f} s") from None
    if not done.returncode:
        return
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
    if said[-1].endswith("No module named pip"):
        words_of = f"pip download for {purpose}: this fairlead comes from a package, which has no pip"
        raise ProvisionError(words_of, hint="install the package fairlead on the nodes, or name wheels with --wheelhouse")
    other = next((i for i, line in enumerate(said) if "DO NOT MATCH THE HASHES" in line), None)
    if other is not None:
        file = said[min(other + 1, len(said) - 1)].removesuffix(":")
        words_of = f"pip download for {purpose}: {file}: not a file of fairlead's lock (another sha256)"
        raise ProvisionError(
            words_of, hint="ask who keeps the index or mirror that pip is configured with; nothing was taken from it"
        )
    raise ProvisionError(f"pip download for {purpose}: {said[-1]}", hint=hint)


def download(python: str, machine: str, folder: str) -> None:
    """Fetch the wheels of the dependencies in the lock with pip, for a node's Python. Raises ProvisionError."""
    os.makedirs(folder, exist_ok=True)
    kinds = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_17", "manylinux2014")
    platforms = [x for kind in kinds for x in ("--platform", f"{kind}_{machine}")]
    target = ["--python-version", python, "--implementation", "cp", *platforms]
    hint = "without a network, make a bundle elsewhere with `fairlead bundle`, and name it with --bundle"
    pip_download([*target, "--no-deps", "-d", folder, "-r", str(NODE_FILE)], f"Python {python} on {machine}", 180, hint)


def collect(folder: str, *, fetch: bool = False) -> tuple[Wheel, ...]:
    """Return the dependencies' wheels on this host: all wheels of the wheelhouse ``folder``, or for "" those downloaded before.

    fetch: if no wheel was downloaded before, download the wheels for the Python and machine of this host. Raises InputMissing,
    DataError, and with fetch also ProvisionError.
    """
    if folder:
        return wheelhouse(folder)
    # the folder may also have wheels of older versions, which are not used
    cached = [os.path.join(cache_folder(), w.name) for p in load().packages for w in p.wheels]
    if fetch and not any(map(os.path.exists, cached)):
        download("{}.{}".format(*sys.version_info[:2]), platform.machine(), cache_folder())
    return tuple(Wheel(os.path.basename(path), read_locked(path)) for path in cached if os.path.exists(path))
