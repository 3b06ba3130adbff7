"""Checks a bundle for `fairlead provision --bundle`. The bundle must be as `fairlead bundle` made it (offline_bundle.py).

The sums in the bundle detect damage, but a person who changes a file on purpose can write new sums. Therefore each file that
comes from fairlead must be equal to the file of the running fairlead, and each wheel must be in its locks. Each node checks the
package files against the hashes in its document.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

import fairlead
from fairlead import assets
from fairlead.config.driver_lock_file import NAME as LOCK
from fairlead.config.driver_lock_file import load_lock
from fairlead.errors import DataError, InputMissing
from fairlead.model.plain_text import one_line
from fairlead.provision import wheel_lock, wheels
from fairlead.provision.offline_bundle import README, SUMS, WHEELS_FOR
from fairlead.provision.wheel_tags import choose, normal

SIGNATURE = SUMS + ".sig"  # the site that made the bundle may have signed the sums
LARGEST_SUMS = 1 << 20  # bytes: about 8,000 files
LARGEST_WHEEL = 64 << 20  # bytes, packed and unpacked
_NEWEST = ("glibc", "2.99")  # newer than any C library, so that no wheel is left out because of it
#: The files of a bundle (offline_bundle.py). What is in playbooks/ and packages/ is compared with lists.
_KNOWN = re.compile(
    rf"{re.escape(README)}|{re.escape(SIGNATURE)}|fairlead-[^/]+\.whl|node\.txt|admin\.txt|{re.escape(LOCK)}"
    r"|(wheelhouse|admin)/[^/]+\.whl|packages/[^/]+\.(deb|rpm)|playbooks/.+"
)


def open_bundle(folder: str) -> tuple[str, str]:
    """Check a bundle, and return the paths of its wheelhouse/ and its packages/. The bundle must have the files that its sums
    list, and no others. Its wheel of fairlead must be equal to the fairlead that runs here. Its wheels for nodes must be in the
    lock of this fairlead. Raises InputMissing, DataError."""
    base = Path(folder)
    listed = _sums(base)
    there, folders = _files(base)
    for name in sorted(there - set(listed) - {SUMS, SIGNATURE}):
        raise DataError(f"{base / name}: not listed in {SUMS}", hint="take it out, or copy the bundle again")
    for name in sorted(set(listed) - there):
        raise InputMissing(f"{base / name}: no such file", hint="the bundle is not whole: copy it again")
    _refuse_empty(base, folders, listed)
    for name, digest in listed.items():
        with open(base / name, "rb") as f:
            if hashlib.file_digest(f, "sha256").hexdigest() != digest:
                raise DataError(f"{base / name}: not what {SUMS} says", hint="the bundle is damaged: copy it again")
    _refuse_unknown(base, listed)
    _refuse_other_fairlead(base, [name for name in listed if re.fullmatch(r"fairlead-[^/]*\.whl", name)])
    _refuse_other_lists(base, listed)
    _refuse_other_admin(base, listed)
    _refuse_other_packages(base, listed)
    _refuse_incomplete(base, listed)
    _refuse_other_pythons(base, listed)
    wheels.wheelhouse(str(base / "wheelhouse"))
    return str(base / "wheelhouse"), str(base / "packages")


def _sums(base: Path) -> dict[str, str]:
    """Return the sha256 of each path in the bundle's sums. Each path must be below the bundle and be listed once. Raises
    InputMissing, DataError."""
    path = base / SUMS
    try:
        regular = stat.S_ISREG(path.lstat().st_mode)
        with open(path, "rb") if regular else io.BytesIO() as f:
            text = f.read(LARGEST_SUMS + 1).decode("utf-8", "replace")
    except OSError as e:
        raise InputMissing(f"{path}: {e.strerror}", hint="make one with `fairlead bundle`") from None
    listed: dict[str, str] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):  # sha256sum(1) ends a line only at LF
        digest, _, name = line.partition("  ")
        plain = re.fullmatch(r"[A-Za-z0-9_.+~^%:/-]+", name) and not {"", ".", ".."} & set(name.split("/"))
        if not re.fullmatch("[0-9a-f]{64}", digest) or not plain or name in listed:
            raise DataError(f"{path}: line {number} is no sum of a file of a bundle", hint="make the bundle again")
        listed[name] = digest
    if len(text) > LARGEST_SUMS:
        raise DataError(f"{path}: not the sums of a bundle", hint="make it again with `fairlead bundle`")
    return listed


def _files(base: Path) -> tuple[set[str], set[str]]:
    """Return every file and every folder below the bundle. Raises DataError for anything else, such as a link or a device."""
    found: set[str] = set()
    below: set[str] = set()
    for folder, folders, names in os.walk(base):
        for name in (*folders, *names):
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
                raise DataError(f"{path}: a link or a device, and a bundle has only files", hint="copy the bundle again")
            (found if stat.S_ISREG(mode) else below).add(os.path.relpath(path, base))
    return found, below


def _refuse_empty(base: Path, folders: Iterable[str], listed: Mapping[str, str]) -> None:
    """Raise DataError for a folder that has no listed file in it, because the sums do not cover its name. packages/ may be
    empty."""
    used = {str(parent) for name in listed for parent in PurePosixPath(name).parents} | {"packages"}
    for name in sorted(set(folders) - used):
        raise DataError(f"{base}/{one_line(name)}: a folder that no bundle has", hint="take it out, or copy the bundle again")


def _refuse_unknown(base: Path, listed: Mapping[str, str]) -> None:
    """Raise DataError for a listed file that no bundle has, because a person can write sums that list any file."""
    for name in listed:
        if not _KNOWN.fullmatch(name):
            raise DataError(f"{base / name}: no file of a bundle", hint="take it out, or make the bundle again")
        if name.startswith("wheelhouse/"):
            wheel_lock.locked(str(base / name))


def _refuse_incomplete(base: Path, listed: Mapping[str, str]) -> None:
    """Raise InputMissing unless the bundle has all files that a bundle must have."""
    missing = [name for name in (README, "node.txt") if name not in listed]
    distributions = {normal(name.split("/")[1].split("-")[0]) for name in listed if name.startswith("wheelhouse/")}
    missing += [f"wheelhouse/{name}-*.whl" for name in wheel_lock.load().versions() if normal(name) not in distributions]
    if "admin.txt" in listed:
        brought = {_distribution(name) for name in listed if name.startswith("admin/")}
        missing += [f"admin/{name}-{version}-*.whl" for name, version in wheel_lock.admin() if (name, version) not in brought]
    elif any(name.startswith("admin/") for name in listed):
        missing.append("admin.txt")
    if missing:
        raise InputMissing(f"{base / missing[0]}: no such file", hint="the bundle is not whole: make it again")


def _distribution(name: str) -> tuple[str, str]:
    """Return (name, version) of a wheel from the name of its file."""
    parts = name.rpartition("/")[2].removesuffix(".whl").split("-")
    return (normal(parts[0]), parts[1]) if len(parts) in (5, 6) else ("", "")


def _refuse_other_admin(base: Path, listed: Mapping[str, str]) -> None:
    """Raise DataError unless admin.txt has each wheel in admin/ under its name and version, and admin/ has no second wheel of
    the same package."""
    seen: set[tuple[str, str]] = set()
    for name, digest in listed.items():
        if name.startswith("admin/"):
            which = _distribution(name)
            if digest not in wheel_lock.admin().get(which, ()):
                raise DataError(f"{base / name}: not in admin.txt", hint="take it out, or make the bundle again")
            if which in seen:
                raise DataError(f"{base / name}: there is another wheel of {which[0]}", hint="make the bundle again")
            seen.add(which)


def _refuse_other_pythons(base: Path, listed: Mapping[str, str]) -> None:
    """Raise DataError or InputMissing unless wheelhouse/ fits the Pythons and the machine that README.md names. For each of
    these Pythons it must have one wheel of each package in the lock, and it must have no other wheel."""
    said = WHEELS_FOR.search((base / README).read_text(encoding="utf-8", errors="replace"))
    if said is None:
        raise DataError(f"{base / README}: does not say what its wheels are for", hint="make the bundle again")
    names = [name.removeprefix("wheelhouse/") for name in listed if name.startswith("wheelhouse/")]
    used: set[str] = set()
    for python in re.findall(r"Python (3\.[0-9]{1,2})\b", said[1]):
        chosen, missing = choose(names, python, said[2], _NEWEST)
        if missing:
            words = f"{base}/wheelhouse: no wheel of {', '.join(missing)} for Python {python} on {said[2]}, which {README} names"
            raise InputMissing(words, hint="the bundle is not whole: make it again")
        used |= set(chosen)
    if more := sorted(set(names) - used):
        words = f"{base / 'wheelhouse' / more[0]}: for no Python that {README} names, or there are two for one"
        raise DataError(words, hint="take it out, or make the bundle again")


def _refuse_other_fairlead(base: Path, names: Sequence[str]) -> None:
    """Raise DataError unless the bundle has one wheel of fairlead, with the same contents as the fairlead that runs here. Nodes
    get hooks, units and the lock from the running fairlead. The sums prove nothing, because a person who has changed the wheel
    may have changed the sums too."""
    if len(names) != 1:
        words = f"{base}: {len(names) or 'no'} wheels of fairlead in it"
        raise DataError(words.replace("no wheels", "no wheel"), hint="make one with `fairlead bundle`")
    path, version = base / names[0], names[0].split("-")[1]
    if version != fairlead.__version__:
        words = f"{base}: a bundle of fairlead {version}, and this is {fairlead.__version__}"
        raise DataError(words, hint=f"install {names[0]} from the bundle first (its README says how)")
    if path.stat().st_size > LARGEST_WHEEL or _contents(path.name, path.read_bytes()) != _contents(
        path.name, wheels.own_wheel().content
    ):
        words = f"{path}: other contents than the fairlead {version} that runs here"
        raise DataError(words, hint="one of them was changed: verify both against the release (docs/how-to/verify-a-release.md)")


def _refuse_other_lists(base: Path, listed: Mapping[str, str]) -> None:
    """Raise DataError or InputMissing unless node.txt, admin.txt and the roles are those of the fairlead that runs here."""
    roles = assets.directory("playbooks")
    ours = {path.name: path for path in (wheel_lock.NODE_FILE, wheel_lock.ADMIN_FILE)}
    made = [path for path in roles.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    ours |= {f"playbooks/{path.relative_to(roles).as_posix()}": path for path in made}
    if absent := sorted(name for name in ours if "/" in name and name not in listed):
        raise InputMissing(f"{base / absent[0]}: no such file", hint="the bundle is not whole: make it again")
    for name, digest in listed.items():
        theirs = name in ("node.txt", "admin.txt") or name.startswith("playbooks/")
        if theirs and (name not in ours or hashlib.sha256(ours[name].read_bytes()).hexdigest() != digest):
            words = f"{base / name}: not as the fairlead {fairlead.__version__} that runs here has it"
            raise DataError(words, hint="make the bundle again")


def _refuse_other_packages(base: Path, listed: Mapping[str, str]) -> None:
    """Raise DataError or InputMissing unless packages/ has exactly the files that fairlead.lock beside it names. Nodes use the
    site's own lock, so a wrong lock in the bundle cannot harm them. It can only harm a site that copies it."""
    digests = {name.removeprefix("packages/"): digest for name, digest in listed.items() if name.startswith("packages/")}
    named: dict[str, str] = {}
    if LOCK in listed:
        for found in load_lock(str(base / LOCK)).sets.values():
            named |= {package.file: package.sha256 for package in found.packages}
    for name, digest in digests.items():
        if named.get(name) != digest:
            words = f"{base / 'packages' / name}: not a package file that the bundle's {LOCK} names"
            raise DataError(words, hint="take it out, or make the bundle again")
    if absent := sorted(set(named) - set(digests)):
        raise InputMissing(f"{base / 'packages' / absent[0]}: no such file", hint="the bundle is not whole: make it again")


def _contents(name: str, wheel: bytes) -> dict[str, tuple[int, str]]:
    """Return the mode and the hash of each file in a wheel. They do not depend on the compression. Raises DataError."""
    try:
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            members = archive.infolist()
            if sum(m.file_size for m in members) > LARGEST_WHEEL or len({m.filename for m in members}) < len(members):
                raise DataError(f"{name}: not a wheel that fairlead packs", hint="make the bundle again")
            return {m.filename: (m.external_attr >> 16, hashlib.sha256(archive.read(m)).hexdigest()) for m in members}
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError):
        raise DataError(f"{name}: not a wheel", hint="make the bundle again") from None
