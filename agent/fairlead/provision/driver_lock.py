"""Resolves the driver that a site declares into exact packages, for fairlead.lock. apt on the admin host chooses the packages.

apt runs with separate package lists in a cache folder, and with the package database of a node (``status``). The resolved set
has every package that the declared packages need and that this node does not have yet. Nothing on the admin host is installed
or changed. Source: apt-get(8) (--print-uris), apt_preferences(5) (a pin above 1000 installs a version even if it is older),
deb-control(5).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from fairlead.config.driver_lock_file import SCHEMA, Lock, LockedSet
from fairlead.config.driver_rules import driver_version, numbers
from fairlead.errors import ConfigError, DataError, InputMissing, ProvisionError
from fairlead.model.change import Package
from fairlead.settings.driver import DriverWant

APT_SECONDS = 300
STATUS_MAX = 256 << 20
#: For a package, another one that it needs but only recommends. NVIDIA's build checks that the compiler can make programs
#: (conftest.sh, cc_sanity_check), which needs the C library's headers. dkms only recommends these headers.
ALSO = {"dkms": "libc6-dev"}
_URI = re.compile(r"^'([^']+)' (\S+) (\d+) (?:SHA256:([0-9a-f]{64}))?", re.MULTILINE)
_OURS = re.compile(
    r"^(lib)?(nvidia|cuda|nvcuvid|nvoptix|gdrdrv|gdrcopy|gdrapi|dcgm)|^datacenter-gpu-manager|^firmware-nvidia"
    r"|^linux-(modules|objects|signatures)-nvidia|^nvlsm$"
)


class PackageSources(Struct, frozen=True, kw_only=True):
    """Says where packages come from. repositories: lines of sources.list(5), or addresses of dnf repositories. debs and rpms: a
    folder of package files. With none of these, the admin host's own apt sources are used. status: a node's package database."""

    repositories: tuple[str, ...] = ()
    debs: str = ""
    rpms: str = ""
    status: str = "/var/lib/dpkg/status"


class Archive(Protocol):
    """Finds the packages of a declared driver: ``AptArchive`` here, or ``RpmArchive`` (rpm_archive.py)."""

    def resolve(self, want: DriverWant, file: str, key: str) -> LockedSet: ...


def choose_version(want: DriverWant, every: Iterable[str], file: str, key: str) -> str:
    """Return the driver's exact version: as declared, or the newest of its branch. every: the versions of all packages that
    `install` names. Raises ConfigError."""
    known = sorted({driver_version(version) for version in every} - {""}, key=numbers, reverse=True)
    hint = f"there are {', '.join(known[:5])}" if known else "no package in `install` is a driver"
    if want.version:
        if want.version not in known:
            raise ConfigError(file, f"{key}.version", f"{want.version} is in none of the repositories", hint=hint)
        return want.version
    of_branch = [v for v in known if v.partition(".")[0] == want.branch]
    if not of_branch:
        raise ConfigError(file, f"{key}.branch", f"no version of branch {want.branch} in the repositories", hint=hint)
    return of_branch[0]


def cache_folder() -> Path:
    """Return the folder in which package lists and files are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "fairlead")


class AptArchive:
    """Runs apt with separate package lists. It finds the packages that exist, and those that a set of names needs."""

    def __init__(self, sources: PackageSources, folder: Path | None = None) -> None:
        if shutil.which("apt-get") is None:
            hint = "run it on a Debian or Ubuntu host; for EL nodes name dnf repositories with --repository"
            raise ProvisionError("apt-get is not installed here", hint=hint)
        if not os.access(sources.status, os.R_OK):
            raise InputMissing(f"{sources.status}: no such package database", hint="a copy of a node's /var/lib/dpkg/status")
        if not os.path.isfile(sources.status) or os.path.getsize(sources.status) > STATUS_MAX:
            raise DataError(f"{sources.status}: no package database, or one of more than {STATUS_MAX >> 20} MiB")
        key = hashlib.sha256(msgspec.json.encode(sources)).hexdigest()[:16]
        self._folder = (folder or cache_folder()) / "apt" / key
        self._sources = sources
        self._read = False
        self._versions: dict[str, dict[str, None]] = {}

    def _options(self) -> list[str]:
        f = self._folder
        settings = {
            "Dir::State::Lists": f / "lists",
            "Dir::State::status": f / "status",
            "Dir::Cache": f,
            "Dir::Cache::archives": f / "archives",
            "Dir::Cache::pkgcache": "pkgcache.bin",  # container images switch this cache off (docker-clean)
            "Dir::Cache::srcpkgcache": "srcpkgcache.bin",
            "Dir::Etc::preferences": f / "preferences",
            "Dir::Etc::preferencesparts": "/dev/null",
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
            "Acquire::ForceHash": "SHA256",
            "Debug::NoLocking": "1",
        }
        if self._sources.repositories or self._sources.debs:
            settings |= {"Dir::Etc::sourcelist": f / "sources.list", "Dir::Etc::sourceparts": "/dev/null"}
        return [w for name, value in settings.items() for w in ("-o", f"{name}={value}")]

    def read(self) -> None:
        """Fetch the package lists. Raises ProvisionError with apt's own words."""
        if self._read:
            return
        for sub in ("lists/partial", "archives/partial"):
            (self._folder / sub).mkdir(parents=True, exist_ok=True)
        lines = list(self._sources.repositories)
        if self._sources.debs:
            lines.append(f"deb [trusted=yes] file:{self._index(Path(self._sources.debs))} ./")
        (self._folder / "sources.list").write_text("".join(f"{line}\n" for line in lines))
        (self._folder / "preferences").write_text("")
        self._strip(())
        done = self._run("apt-get", "-qq", "update")
        wrong = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W: Failed"))]
        if done.returncode or wrong:
            said = (wrong or [f"exit code {done.returncode}"])[0]
            raise ProvisionError(f"package lists: {said}", hint="are the repositories right, and reachable from here?")
        self._read = True

    def _index(self, debs: Path) -> Path:
        """Make a folder with an index of the package files, in the form of dpkg-scanpackages(1). Return the folder. Raises
        InputMissing, DataError."""
        files = sorted(debs.glob("*.deb"))
        if not files:
            raise InputMissing(f"{debs}: no package files (*.deb) there")
        flat = self._folder / "debs"
        shutil.rmtree(flat, ignore_errors=True)
        flat.mkdir(parents=True)
        stanzas = []
        for file in files:
            said = subprocess.run(["dpkg-deb", "--field", file], capture_output=True, text=True, timeout=60, check=False)
            if said.returncode:
                raise DataError(f"{file}: not a Debian package", hint="take it out of the folder")
            (flat / file.name).symlink_to(file.absolute())
            with open(file, "rb") as f:
                digest = hashlib.file_digest(f, "sha256").hexdigest()
            stanzas.append(f"{said.stdout.rstrip()}\nFilename: ./{file.name}\nSize: {file.stat().st_size}\nSHA256: {digest}\n")
        (flat / "Packages").write_text("\n".join(stanzas))
        return flat

    def _strip(self, names: Iterable[str]) -> None:
        """Write a copy of the node's package database without its driver and without ``names``, so that apt finds all packages
        of the new set."""
        data = Path(self._sources.status).read_text(encoding="utf-8", errors="replace")
        drop = frozenset(names)
        kept = [s for s in data.split("\n\n") if s.strip() and not _is_driver(s, drop)]
        (self._folder / "status").write_text("\n\n".join(kept) + "\n\n" if kept else "")

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        words = [command[0], *self._options(), *command[1:]]
        try:
            return subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=APT_SECONDS,
                check=False,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
            )
        except subprocess.TimeoutExpired:
            raise ProvisionError(f"{command[0]}: no end within {APT_SECONDS} s", hint="is the mirror slow? try again") from None

    def versions(self, *names: str) -> dict[str, list[str]]:
        """Return the available versions of each package, the newest first. apt is called once for all names, because each call
        takes most of a second."""
        self.read()
        if asked := [n for n in names if n not in self._versions]:
            for line in self._run("apt-cache", "madison", *asked).stdout.splitlines():
                parts = [part.strip() for part in line.split("|")]
                if len(parts) == 3 and "Sources" not in parts[2]:
                    self._versions.setdefault(parts[0], {})[parts[1]] = None
        return {name: sorted(self._versions.get(name, ()), key=numbers, reverse=True) for name in names}

    def driver_of(self, want: DriverWant, file: str, key: str) -> str:
        """Return the driver's exact version: as declared, or the newest of its branch. Raises ConfigError."""
        every = (version for versions in self.versions(*want.install).values() for version in versions)
        return choose_version(want, every, file, key)

    def resolve(self, want: DriverWant, file: str, key: str) -> LockedSet:
        """Return all packages of the declared driver. Raises ConfigError, which says what is missing, if apt cannot satisfy
        them. Raises DataError if the package lists are malformed."""
        if not want.install:
            raise ConfigError(file, f"{key}.install", "no packages are named", hint="docs/how-to/driver.md lists the usual ones")
        version = self.driver_of(want, file, key)
        pin = f"Package: /./\nPin: version {version}*\nPin-Priority: 1001\n"
        epoch = f"Package: /./\nPin: version *:{version}*\nPin-Priority: 1001\n"
        (self._folder / "preferences").write_text(f"{pin}\n{epoch}")
        self._strip(want.install)
        names = list(want.install)
        done = self._run("apt-get", "-qq", "--print-uris", "install", *names)
        for package, needed in ALSO.items():
            if f"/{package}_" in done.stdout and needed not in names:
                names.append(needed)
                done = self._run("apt-get", "-qq", "--print-uris", "install", *names)
        if done.returncode:
            told = self._run("apt-get", "-q", "--simulate", "install", *names)  # with -qq apt gives no reason
            said = [line.strip() for line in (told.stdout + told.stderr).splitlines()]
            unmet = [line for line in said if re.match(r"^\S+ : (Pre)?Depends|^\S+ : (Conflicts|Breaks)", line)]
            words = (unmet or [line for line in said if line.startswith("E:")] or ["apt gives no reason"])[0]
            raise ConfigError(file, key, f"cannot be satisfied: {words}", hint="add a repository, or take the package out")
        found = [(unquote(uri), name, int(size), digest) for uri, name, size, digest in _URI.findall(done.stdout)]
        try:
            packages = self._described(found, want, version)
        except ValueError as e:  # a malformed name is refused, because it could become the path of another file
            raise DataError(f"the package lists, or {self._sources.status}: {e}", hint="check both, and try again") from None
        return LockedSet(
            version=version,
            branch=version.partition(".")[0],
            module=want.module,
            install=tuple(sorted(want.install)),
            architecture=_architecture(),
            packages=packages,
        )

    def _described(self, found: Sequence[tuple[str, str, int, str]], want: DriverWant, version: str) -> tuple[Package, ...]:
        names = {}
        for uri, file, size, digest in found:
            name, number, _ = unquote(file).removesuffix(".deb").split("_")
            names[name, number] = (uri, size, digest)
        shown = self._run("apt-cache", "show", *(f"{name}={number}" for name, number in names)).stdout
        packages = []
        for stanza in shown.split("\n\n"):
            fields = _fields(stanza)
            key = (fields.get("Package", ""), fields.get("Version", ""))
            if key not in names:
                continue
            uri, size, digest = names.pop(key)
            digest = digest or fields.get("SHA256", "")
            if not re.fullmatch("[0-9a-f]{64}", digest):
                raise DataError(f"{key[0]} {key[1]}: the repository gives no sha256", hint="use one that does")
            packages.append(
                Package(
                    name=key[0],
                    version=key[1],
                    architecture=fields.get("Architecture", ""),
                    sha256=digest,
                    size=size,
                    url=uri.removeprefix("file:") if uri.startswith("file:/") else uri,
                    installed_kib=int(fields.get("Installed-Size", "0") or 0),
                    kept=key[0] in want.install or driver_version(key[1]) == version or bool(_OURS.match(key[0])),
                )
            )
        if names:
            raise DataError(f"{next(iter(names))[0]}: apt names it and does not describe it", hint="try again")
        return tuple(sorted(packages, key=lambda p: p.name))


def _architecture() -> str:
    done = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.strip() or "amd64"


def _fields(stanza: str) -> dict[str, str]:
    lines = (line.partition(": ") for line in stanza.splitlines() if line[:1] not in ("", " ", "\t"))
    return {key: value.strip() for key, _, value in lines}


def _is_driver(stanza: str, names: frozenset[str]) -> bool:
    fields = _fields(stanza)
    name, source = fields.get("Package", ""), fields.get("Source", "")
    return name in names or bool(_OURS.match(name)) or source.startswith(("nvidia-", "libnvidia-"))


# -- the file --------------------------------------------------------------------------------------


def text(lock: Lock) -> str:
    """Return the lock as TOML. The same sets give the same bytes, and a change of one package is a change of one line."""
    out = ["# Written by `fairlead lock`; beside the site's declaration, under version control. Not for hand-editing.\n"]
    out.append(f"schema = {lock.schema}\n")
    for name, found in sorted(lock.sets.items()):
        out.append(f"\n[sets.{name}]\n")
        out += [f"{key} = {_toml(getattr(found, key))}\n" for key in ("version", "branch", "module", "install", "architecture")]
        out.append("packages = [\n")
        for p in found.packages:
            row = ", ".join(f"{key} = {_toml(value)}" for key, value in msgspec.to_builtins(p).items())
            out.append(f"  {{ {row} }},\n")
        out.append("]\n")
    return "".join(out)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return msgspec.json.encode(str(value)).decode()  # a JSON string is also a TOML basic string


def with_sets(before: Lock | None, made: dict[str, LockedSet]) -> Lock:
    """Return the lock with these sets replaced or added. Other sets stay."""
    return Lock(schema=SCHEMA, sets={**(before.sets if before else {}), **made})
