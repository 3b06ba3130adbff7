"""Resolves the driver that a site declares into exact RPM packages, for fairlead.lock. libsolv on the admin host chooses them.

Packages come from dnf repositories or from a folder of package files. The resolved set has every package that the declared
packages need and that the node does not have yet. Three things differ from what dnf would do alone. Every package of the driver
has the driver's exact version, whatever is newest. In a repository that has the driver, the versions of all module streams are
seen (as with ``module_hotfixes=1``), and packages of a module stream elsewhere are used only where nothing else will do. Weak
dependencies are left out, but a set that names no kernel module gets the precompiled modules of the node's kernels.
Sources: dnf.conf(5); NVIDIA Driver Installation Guide, Precompiled kernel modules and version locking.
"""

from __future__ import annotations

import hashlib
import platform
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fairlead.config.driver_lock_file import LockedSet
from fairlead.config.driver_rules import OPEN, PROPRIETARY, driver_version
from fairlead.errors import ConfigError, DataError, InputMissing
from fairlead.host.rpm_header import RpmHeader, read_package
from fairlead.model import rpm_version
from fairlead.model.change import Package
from fairlead.model.plain_text import one_line
from fairlead.provision import dnf_repository, node_rpms
from fairlead.provision.driver_lock import PackageSources, cache_folder, choose_version
from fairlead.provision.rpm_pool import Candidate, PackageFile, RpmPool, RpmSolution
from fairlead.settings.driver import DriverWant

FILES_MAX = 20_000
LOCATION_MAX = 500
_OURS = re.compile(
    r"^(lib)?(nvidia|cuda|nvsdm|gdrdrv|gdrcopy|gdrapi|dcgm)|^kmod-(nvidia|gdrcopy)|^datacenter-gpu-manager|^(nvlsm|nvlink5)$"
    r"|^dnf-plugin-nvidia$"
)
#: NVIDIA's modules for one kernel: kmod-nvidia-VERSION-KERNEL, and with "open" in the name the distribution's own.
_PRECOMPILED = re.compile(r"kmod-nvidia-(open-)?(\d{3}\.[0-9.]+)-(\d+\.\S+)")
_KERNELS = ("kernel-core", "kernel")
#: The package without which dnf's versionlock list does nothing.
PLUGIN = "python3-dnf-plugin-versionlock"
_HEADERS = ("kernel-devel", "kernel-devel-matched")
#: File and key of the declaration, for messages.
_Where = tuple[str, str]
#: A set with one of these builds the module on the node.
_BUILDS = re.compile(r"^dkms$|^kmod-nvidia.*-dkms$")


class RpmArchive:
    """Reads the repositories and the node's packages, and finds what a driver needs."""

    def __init__(self, sources: PackageSources, warn: Callable[[str], None] = lambda text: None) -> None:
        self._sources = sources
        self._warn = warn
        self._repositories = [dnf_repository.parse_line(line) for line in sources.repositories]
        self._node = node_rpms.read_rpms(sources.status)
        counted = Counter(h.architecture for h in self._node if h.architecture != "noarch")
        self._architecture = counted.most_common(1)[0][0] if counted else platform.machine()
        self._lists: list[tuple[Path, str]] = []  # the packed list of each repository, and its name in messages
        self._pool: RpmPool | None = None
        self._left_out: frozenset[str] = frozenset()
        self._all: tuple[Candidate, ...] = ()
        self._foreign: tuple[Candidate, ...] = ()  # of other architectures

    def _load(self, want: DriverWant) -> RpmPool:
        """Return the pool for a declared driver. The node's driver and the declared names are left out of the node's packages, so
        that the set has all of them. Raises what ``dnf_repository`` raises, and DataError."""
        left_out = frozenset(h.name for h in self._node if h.name in want.install or _OURS.match(h.name))
        if want.module == "none":  # the node's own module stays, and others may need it
            left_out -= {name for name in left_out if _is_module(name) and name not in want.install}
        if self._pool is not None and left_out == self._left_out:
            return self._pool
        self._lists = self._lists or [self._fetch(repository) for repository in self._repositories]
        pool = RpmPool(self._architecture)
        for packed, name in self._lists:
            with tempfile.NamedTemporaryFile(prefix="fairlead.", suffix=".xml") as out:
                dnf_repository.unpack(packed, name, out)
                out.flush()
                pool.add_list(out.name, name)
        if self._sources.rpms:
            pool.add_files(self._files(Path(self._sources.rpms)))
        node = [h for h in self._node if h.name not in left_out]
        pool.add_node(node, has_relations=any(h.provides for h in self._node))
        self._pool, self._left_out = pool, left_out
        fits = {"noarch", self._architecture, re.sub(r"(?<=^x86_64)_v\d$", "", self._architecture)}
        every = pool.candidates()
        self._all = tuple(c for c in every if c.architecture in fits)
        self._foreign = tuple(c for c in every if c.architecture not in fits)
        return pool

    def _fetch(self, repository: dnf_repository.DnfRepository) -> tuple[Path, str]:
        if repository.address.startswith("http:") and not repository.key:
            self._warn(f"{repository.address}: http and no key, so somebody in between can change the list of packages")
        key = hashlib.sha256(repository.address.encode()).hexdigest()[:16]
        packed, primary = dnf_repository.fetch_primary(repository, cache_folder() / "dnf" / key)
        return packed, f"{repository.address}/{primary.href}"

    def _files(self, folder: Path) -> Iterable[tuple[RpmHeader, PackageFile]]:
        files = sorted(folder.glob("*.rpm"))
        if not files:
            raise InputMissing(f"{folder}: no package files (*.rpm) there", hint="--rpms takes the folder that has them")
        if len(files) > FILES_MAX:
            raise DataError(f"{folder}: more than {FILES_MAX} package files", hint="make it a repository with createrepo_c")
        for path in files:
            try:
                if not path.is_file():
                    raise ValueError("not a file")
                with open(path, "rb") as f:
                    header = read_package(f)
                    f.seek(0)
                    digest = hashlib.file_digest(f, "sha256").hexdigest()
            except (OSError, ValueError) as e:
                words = f"{path}: {getattr(e, 'strerror', None) or e}"
                raise DataError(words, hint="take it out of the folder, or copy it again") from None
            kib = -(-header.installed_bytes // 1024)
            yield (
                header,
                PackageFile(location=str(path.absolute()), sha256=digest, size=path.stat().st_size, installed_kib=kib),
            )

    def resolve(self, want: DriverWant, file: str, key: str) -> LockedSet:
        """Return all packages of the declared driver. Raises ConfigError, which says what is missing, if the repositories
        cannot satisfy them. Raises DataError if their metadata is malformed."""
        if not want.install:
            raise ConfigError(file, f"{key}.install", "no packages are named", hint="docs/how-to/driver.md lists the usual ones")
        where = (file, key)
        pool = self._load(want)
        named = [c for c in self._all if c.name in want.install]
        version = choose_version(want, (c.version for c in named), file, key)
        hidden = {*_other_versions(self._all, version), *_other_module(self._all, want)}
        streams = _foreign_streams(self._all, {c.repository for c in named if driver_version(c.version) == version})
        wanted = self._asked(want, named, hidden, streams, where)
        if not _names_module(want):
            wanted += self._precompiled(want, version, wanted, where)
        found = self._solve(pool, wanted, hidden, streams, where)
        if also := self._also(want, found, hidden | streams):
            found = self._solve(pool, [*wanted, *also], hidden, streams, where)
        self._check_others(pool, found, where)
        try:
            packages = tuple(sorted((self._package(pool, c, want, version) for c in found.new), key=lambda p: p.name))
        except ValueError as e:  # a malformed name is refused, because it could become the path of another file
            raise DataError(f"the lists of packages: {one_line(str(e), 120)}", hint="use another mirror") from None
        return LockedSet(
            version=version,
            branch=version.partition(".")[0],
            module=want.module,
            install=tuple(sorted(want.install)),
            architecture=self._architecture,
            packages=packages,
        )

    def _asked(
        self, want: DriverWant, named: Sequence[Candidate], hidden: set[Candidate], streams: set[Candidate], where: _Where
    ) -> list[Candidate]:
        """Return the newest usable version of each declared package. Raises ConfigError for a package that is nowhere."""
        file, key = where
        wanted = []
        for name in want.install:
            every = [c for c in named if c.name == name]
            usable = [c for c in every if c not in hidden]
            if not usable:
                words = f"{name} is in none of the repositories"
                hint = "add its repository, or take the package out"
                if every:
                    words = f"{name} {newest(every).version} is the other kind of kernel module, and module is {want.module}"
                    hint = f"change {key}.module, or take the package out"
                raise ConfigError(file, f"{key}.install", words, hint=hint)
            wanted.append(newest([c for c in usable if c not in streams] or usable))
        last = self._last_kernel(wanted)
        of_kernel = {c.name: c for c in named if c.name in _HEADERS and c.version == last}
        return [of_kernel.get(c.name, c) for c in wanted]

    def _solve(
        self, pool: RpmPool, wanted: Sequence[Candidate], hidden: set[Candidate], streams: set[Candidate], where: _Where
    ) -> RpmSolution:
        """Return what libsolv finds, first without the packages of module streams. Raises ConfigError with libsolv's reason."""
        streams = streams - set(wanted)
        found = pool.solve(wanted, [*self._foreign, *hidden, *streams])
        if found.reason and streams:
            found = pool.solve(wanted, [*self._foreign, *hidden], last=streams)
        if found.reason:
            hint = "add the repository that has it (the distribution's own, too), or take the package out"
            raise ConfigError(*where, f"cannot be satisfied: {found.reason}", hint=hint)
        return found

    def _precompiled(self, want: DriverWant, version: str, wanted: Sequence[Candidate], where: _Where) -> list[Candidate]:
        """Return the precompiled modules of the kernels that the node has or that the set brings. Raises ConfigError if the
        newest kernel has none, because the node would boot without a driver."""
        if want.module == "none":
            return []
        kernels = {h.version for h in self._node if h.name in _KERNELS and h.name not in self._left_out}
        kernels |= {c.version for c in wanted if c.name in _KERNELS}
        modules: dict[str, Candidate] = {}
        for c in self._all:
            match = _PRECOMPILED.fullmatch(c.name)
            if match and match[2] == version and bool(match[1]) == (want.module == "open"):
                for kernel in kernels:
                    if _is_kernel(match[3], kernel):
                        modules[kernel] = newest([c, modules.get(kernel, c)])
        last = max(kernels, key=rpm_version.key, default="")
        if last not in modules:
            of = f"for kernel {last.partition(':')[2]}" if last else "because no kernel of the node is known"
            words = f"no kernel module is named, and there is no precompiled {want.module} one of {version} {of}"
            hint = "name a package of the kernel module, such as kmod-nvidia-open-dkms (docs/how-to/driver.md)"
            raise ConfigError(where[0], f"{where[1]}.install", words, hint=hint)
        return list(dict.fromkeys(modules.values()))

    def _last_kernel(self, chosen: Iterable[Candidate]) -> str:
        """Return the version of the newest kernel of the node and of these packages, or "" if there is none."""
        versions = [h.version for h in self._node if h.name in _KERNELS] + [c.version for c in chosen if c.name in _KERNELS]
        return max(versions, key=rpm_version.key, default="")

    def _also(self, want: DriverWant, found: RpmSolution, unused: set[Candidate]) -> list[Candidate]:
        """Return what no package requires and the set needs, where a repository has it: the plugin that keeps the versions, and
        for a module that is built on the node the headers of the newest kernel, without which dkms builds nothing."""
        node, new = {(h.name, h.version) for h in self._node}, {c.name for c in found.new}
        usable = [c for c in self._all if c not in unused]
        more = []
        if want.hold and PLUGIN not in new and PLUGIN not in {name for name, _ in node}:
            more += [c for c in usable if c.name == PLUGIN]
        headers = ("kernel-devel", self._last_kernel(found.new))
        if any(_BUILDS.match(name) for name in new) and "kernel-devel" not in new and headers not in node:
            more += [c for c in usable if (c.name, c.version) == headers]
        return [newest(c for c in more if c.name == name) for name in {c.name: None for c in more}]

    def _check_others(self, pool: RpmPool, found: RpmSolution, where: _Where) -> None:
        """Raise ConfigError if a package that the node keeps needs something of the former driver that the set does not have."""
        names = {c.name for c in found.new}
        kept = [h for h in self._node if h.name not in self._left_out]
        after = {(h.name, h.version) for h in kept if h.name not in names or h.name in _KERNELS}
        after |= {(c.name, c.version) for c in found.new}
        of_driver = [h for h in self._node if h.name in self._left_out]
        staying = {r.name for h in of_driver if h.name not in names for r in h.provides}
        gone = {r.name for h in of_driver if h.name in names for r in h.provides} - staying
        for header in kept:
            for relation in header.requires:
                if relation.name in gone and not pool.provided_by(relation) & after:
                    words = (
                        f"{header.name} {header.version}, which the node has, needs {relation.name} {relation.version}".strip()
                    )
                    hint = f"add {header.name} to {where[1]}.install, or remove it from the node"
                    raise ConfigError(*where, f"{words}, which is not in the set", hint=hint)

    def _package(self, pool: RpmPool, c: Candidate, want: DriverWant, version: str) -> Package:
        known, label = pool.file_of(c), one_line(f"{c.name} {c.version}", 120)
        if not re.fullmatch("[0-9a-f]{64}", known.sha256):
            raise DataError(f"{label}: the repository gives no sha256", hint="use one that does")
        url = known.location
        if c.repository < len(self._repositories):
            address = self._repositories[c.repository].address
            if re.match(r"https?://", url) and address.startswith("http"):
                pass  # xml:base: the files are on another server, and their hashes are in the list
            elif not dnf_repository.is_below(url):
                raise DataError(f"{address}: the path of {label} leads out of the repository", hint="use another mirror")
            else:
                url = f"{address}/{url}"
        if len(url) > LOCATION_MAX or not url.isprintable():
            raise DataError(f"{label}: no path of a package file", hint="use another mirror")
        return Package(
            name=c.name,
            version=c.version,
            architecture=c.architecture,
            sha256=known.sha256,
            size=known.size,
            url=url,
            installed_kib=known.installed_kib,
            kept=c.name in want.install or driver_version(c.version) == version or bool(_OURS.match(c.name)),
            format="rpm",
        )


def newest(candidates: Iterable[Candidate]) -> Candidate:
    """Return the candidate with the highest version; of several equal ones that of the first repository."""
    return max(candidates, key=lambda c: (rpm_version.key(c.version), -c.repository))


def _other_versions(every: Iterable[Candidate], version: str) -> Iterable[Candidate]:
    """Yield the other versions of each package that exists in the driver's version."""
    found = list(every)
    names = {c.name for c in found if driver_version(c.version) == version}
    return (c for c in found if c.name in names and driver_version(c.version) != version)


def _other_module(every: Iterable[Candidate], want: DriverWant) -> Iterable[Candidate]:
    """Yield the packages of the kind of kernel module that is not declared."""
    pattern = {"open": PROPRIETARY, "proprietary": OPEN}.get(want.module)
    return (c for c in every if pattern is not None and pattern.match(c.name))


def _foreign_streams(every: Iterable[Candidate], drivers: set[int]) -> set[Candidate]:
    """Return the packages of module streams in repositories that do not have the driver."""
    return {c for c in every if c.repository not in drivers and ".module" in c.version.rpartition("-")[2]}


def _names_module(want: DriverWant) -> bool:
    return any(_is_module(name) for name in want.install)


def _is_module(name: str) -> bool:
    return bool(OPEN.match(name) or PROPRIETARY.match(name))


def _is_kernel(short: str, kernel: str) -> bool:
    """Say whether the end of a precompiled module's name means this kernel: with or without the distribution in the release."""
    whole = kernel.partition(":")[2]
    return short in (whole, re.sub(r"\.(el|fc)\d.*$", "", whole))
