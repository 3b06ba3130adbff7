"""Makes the folder of `fairlead bundle`: everything that a site without internet needs. offline_bundle_check.py checks it.

README.md           what the bundle is for, and the commands that use it
SHA256SUMS          the sha256 of every other file, for sha256sum -c; a site may sign it (SHA256SUMS.sig)
fairlead-*.whl      fairlead itself, with its playbooks, templates and hooks inside
node.txt            what fairlead needs on the nodes, with hashes, for `pip --require-hashes`
wheelhouse/         the wheels of node.txt, for each requested Python
admin.txt           what fairlead needs on an admin host, with hashes: ansible-core and the rest, all as wheels
admin/              the wheels of admin.txt, for an admin host with the same Python as this host
playbooks/          the roles, for a site that has its own site.yml
fairlead.lock       the lock of the driver's packages
packages/           the package files in this lock

The same inputs give the same bytes, because all files have the same fixed date.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

import fairlead
from fairlead import assets
from fairlead.config.driver_lock_file import Lock
from fairlead.errors import UsageError
from fairlead.model.change import Package
from fairlead.provision import driver_lock as locking
from fairlead.provision import package_files, wheel_lock, wheels

SUMS, README = "SHA256SUMS", "README.md"
PIP_SECONDS = 600
_EPOCH = 315532800  # 1980-01-01, as in the wheels

#: Matches the text in a bundle's README that names the Python versions and the machine type of the wheels in wheelhouse/.
WHEELS_FOR = re.compile(r"wheels for ((?:Python [0-9.]+(?:, )?)+) on ([a-z0-9_]+) are in `wheelhouse/`")
README_TEXT = """\
# fairlead {version}: everything for a site without internet

    find . ! -type f ! -type d -o -name '*[!A-Za-z0-9._+%~^-]*' ! -name . # prints nothing: no odd names, no links
    sha256sum -c --quiet SHA256SUMS                                    # is it whole?
    python3 -I -m venv /opt/fairlead-admin
{install}    /opt/fairlead-admin/bin/pip install --no-index --no-deps {wheel}
    /opt/fairlead-admin/bin/fairlead provision --site SITE.toml --bundle .

{host}The nodes need nothing but ssh and Python 3.11 or newer: wheels for {pythons} on {machine} are in `wheelhouse/`.
{driver}
`playbooks/` are the roles, for a playbook of your own; `fairlead provision` carries its own copy.
"""

INSTALL = """\
    /opt/fairlead-admin/bin/pip install --no-index --find-links admin --require-hashes -r admin.txt
"""


class BundleEntry(Struct, frozen=True, kw_only=True):
    """Describes a file of the bundle. size_bytes: 0 if the size is not known before the file is fetched."""

    path: str
    size_bytes: int
    source: str


def entries(pythons: Sequence[str], lock: Lock | None, *, admin: bool) -> list[BundleEntry]:
    """Return the files that a bundle would have."""
    own = wheels.own_wheel()
    found = [BundleEntry(path=own.name, size_bytes=len(own.content), source="this installation")]
    for python in pythons:
        for name, version in wheel_lock.load().versions().items():
            found.append(BundleEntry(path=f"wheelhouse/{name} {version} (Python {python})", size_bytes=0, source="pip download"))
    locked = wheel_lock.ADMIN_FILE.read_text(encoding="utf-8") if admin else ""
    for name, version in re.findall(r"^([^#\s]\S*)==(\S+)", locked, re.MULTILINE):
        found.append(BundleEntry(path=f"admin/{name} {version}", size_bytes=0, source="pip download"))
    found += [BundleEntry(path=f"packages/{p.file}", size_bytes=p.size, source=p.url) for p in _packages(lock)]
    return found


def _packages(lock: Lock | None) -> list[Package]:
    every = {p.file: p for found in (lock.sets.values() if lock else ()) for p in found.packages}
    return [every[name] for name in sorted(every)]


def make(
    output: Path,
    *,
    pythons: Sequence[str],
    machine: str,
    lock: Lock | None,
    admin: bool,
    packages: str = "",
    say: Callable[[str], None] = lambda text: None,
) -> list[str]:
    """Write the bundle to ``output``, and return the paths of its files. If ``output`` exists already, it must be a bundle, and
    its files are replaced. Package files that are already in it with the right hash are not fetched again, even if the run that
    fetched them ended early. ``SUMS`` is written last. Raises UsageError, ProvisionError, DataError."""
    if output.exists() and (not output.is_dir() or (any(output.iterdir()) and not (output / README).is_file())):
        raise UsageError(f"{output}: exists already, and is no bundle", hint="name a new folder")
    output.mkdir(parents=True, exist_ok=True)
    own = wheels.own_wheel()
    # README.md is written first, because it marks the folder as a bundle: after an early end, the next run can then go on
    (output / README).write_text(_readme(own.name, pythons, machine, lock, admin=admin))
    for old in output.iterdir():
        if old.name in (README, "packages"):
            continue
        shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    (output / own.name).write_bytes(own.content)
    shutil.copyfile(wheel_lock.NODE_FILE, output / "node.txt")
    (output / "wheelhouse").mkdir()
    for python in pythons:
        say(f"wheels for the nodes' Python {python}")
        wheels.download(python, machine, str(output / "wheelhouse"))
    if admin:
        say("wheels for the admin host")
        shutil.copyfile(wheel_lock.ADMIN_FILE, output / "admin.txt")
        words = ["-d", str(output / "admin"), "-r", str(output / "admin.txt")]
        wheels.pip_download(words, "the admin host", PIP_SECONDS, "--no-admin leaves it out")
    roles = assets.directory("playbooks")
    shutil.copytree(roles, output / "playbooks", ignore=shutil.ignore_patterns("__pycache__"))
    wanted = _packages(lock)
    (output / "packages").mkdir(exist_ok=True)
    for file in (output / "packages").iterdir():
        if file.name not in {p.file for p in wanted}:
            file.unlink()
    here = Path(packages) if packages else package_files.default_folder()
    for package in wanted:
        if package_files.is_right(here / package.file, package) and not (output / "packages" / package.file).exists():
            shutil.copyfile(here / package.file, output / "packages" / package.file)
    package_files.fetch(wanted, output / "packages", say)
    if lock is not None:
        (output / "fairlead.lock").write_text(locking.text(lock))
    return _seal(output)


def _readme(wheel: str, pythons: Sequence[str], machine: str, lock: Lock | None, *, admin: bool) -> str:
    driver = "No driver is locked: `packages/` is empty."
    if lock is not None and lock.sets:
        named = ", ".join(
            f"{name}: {found.version} ({len(found.packages)} packages)" for name, found in sorted(lock.sets.items())
        )
        driver = f"Drivers in `packages/`: {named}. Put `fairlead.lock` beside the site's declaration."
    host = f"The admin host needs {_here()} with its venv module, which the wheels in `admin/` are for.\n" if admin else ""
    return README_TEXT.format(
        host=host,
        version=fairlead.__version__,
        wheel=wheel,
        install=INSTALL if admin else "",
        pythons=", ".join(f"Python {p}" for p in pythons),
        machine=machine,
        driver=driver,
    )


def _here() -> str:
    """Return the Python and the machine of this host, for which pip fetches wheels: "Python 3.11 on x86_64"."""
    return f"Python {sys.version_info.major}.{sys.version_info.minor} on {platform.machine()}"


def _seal(output: Path) -> list[str]:
    """Write the sums, and give all files fixed times and modes, so that equal contents give equal bundles. Return the paths of
    the files."""
    files = sorted(p.relative_to(output).as_posix() for p in output.rglob("*") if p.is_file() and p.name != SUMS)
    lines = []
    for name in files:
        path = output / name
        executable = path.stat().st_mode & 0o100
        path.chmod(0o755 if executable else 0o644)
        with open(path, "rb") as f:
            lines.append(f"{hashlib.file_digest(f, 'sha256').hexdigest()}  {name}\n")
    (output / SUMS).write_text("".join(lines))
    for path in (output, *output.rglob("*")):
        os.utime(path, (_EPOCH, _EPOCH))
    return [*files, SUMS]
