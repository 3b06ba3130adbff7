"""Knows the packages of dnf repositories and of a node, and finds with libsolv what a list of packages needs.

libsolv is the library that dnf itself uses. Its Python package ``solv`` is on PyPI, so the admin host needs no dnf. The package
is imported here only, because an admin host for Debian nodes does not need it. Source: libsolv 0.7, libsolv-bindings(3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from fairlead.errors import DataError, ProvisionError
from fairlead.host.rpm_header import EQUAL, GREATER, LESS, Relation, RpmHeader
from fairlead.model.plain_text import one_line

#: dnf(8), installonlypkgs: several versions of these packages may be installed at once.
INSTALL_ONLY = (
    "kernel", "kernel-core", "kernel-devel", "kernel-devel-matched", "kernel-modules", "kernel-modules-core",
    "kernel-modules-extra",
)  # fmt: skip


class Candidate(Struct, frozen=True, kw_only=True):
    """Describes one package of a repository. number: what libsolv calls it. version: EPOCH:VERSION-RELEASE. repository: the
    position of its repository in the order of declaration."""

    number: int
    name: str
    version: str
    architecture: str
    repository: int


class RpmSolution(Struct, frozen=True, kw_only=True):
    """Describes what libsolv found. new: packages to install. reason: why there is no solution, or ""."""

    new: tuple[Candidate, ...] = ()
    reason: str = ""


class PackageFile(Struct, frozen=True, kw_only=True):
    """Says what a repository knows of a package's file. location: the path in the repository. sha256: "" if it has none."""

    location: str
    sha256: str
    size: int
    installed_kib: int


def _solv() -> Any:
    try:
        import solv
    except ImportError:
        hint = "pip install 'fairlead[el]' on this host (the package is solv)"
        raise ProvisionError("libsolv for Python is not installed here, and EL nodes need it", hint=hint) from None
    return solv


class RpmPool:
    """Holds the packages of all repositories and of the node."""

    def __init__(self, architecture: str) -> None:
        self._solv = _solv()
        self._pool = self._solv.Pool()
        self._pool.setdisttype(self._solv.Pool.DISTTYPE_RPM)
        self._pool.setarch(architecture)
        self._repositories: list[Any] = []
        self._files: dict[int, PackageFile] = {}

    def add_list(self, path: str, name: str) -> None:
        """Add a repository by its unpacked list of packages. Raises DataError for a file that is no such list."""
        repo = self._new_repository()
        opened = self._solv.xfopen(path)
        if opened is None or not repo.add_rpmmd(opened, None):
            words = f"{name}: not a list of packages: {one_line(str(self._pool.errstr), 120)}"
            raise DataError(words, hint="the repository is not whole: try again, or use another mirror")

    def add_files(self, files: Iterable[tuple[RpmHeader, PackageFile]]) -> None:
        """Add a repository of package files."""
        repo = self._new_repository()
        for header, file in files:
            self._files[self._add(repo, header).id] = file
        repo.internalize()

    def _new_repository(self) -> Any:
        repo = self._pool.add_repo(str(len(self._repositories)))
        repo.subpriority = -len(self._repositories)  # of two equal packages, that of the first repository
        self._repositories.append(repo)
        return repo

    def _add(self, repo: Any, header: RpmHeader) -> Any:
        solv, found = self._solv, repo.add_solvable()
        found.name, found.arch, found.evr = header.name, header.architecture, header.version.removeprefix("0:")
        own = Relation(header.name, EQUAL, found.evr)
        programs = [Relation(path) for p in header.programs for path in {p, p.removeprefix("/usr")}]
        for key, relations in (
            (solv.SOLVABLE_PROVIDES, (*{own: None, **dict.fromkeys(header.provides)}, *programs)),
            (solv.SOLVABLE_REQUIRES, header.requires),
            (solv.SOLVABLE_CONFLICTS, header.conflicts),
            (solv.SOLVABLE_OBSOLETES, header.obsoletes),
            (solv.SOLVABLE_SUPPLEMENTS, header.supplements),
        ):
            for relation in relations:
                found.add_deparray(key, self._dependency(relation))
        return found

    def _dependency(self, relation: Relation) -> Any:
        if relation.name.startswith("("):
            return self._pool.parserpmrichdep(relation.name) or self._pool.Dep(relation.name)
        name, solv = self._pool.Dep(relation.name), self._solv
        if not relation.comparison or not relation.version:
            return name
        flags = ((LESS, solv.REL_LT), (EQUAL, solv.REL_EQ), (GREATER, solv.REL_GT))
        comparison = sum(theirs for ours, theirs in flags if relation.comparison & ours)
        return name.Rel(comparison, self._pool.Dep(relation.version.removeprefix("0:")))

    def add_node(self, headers: Sequence[RpmHeader], *, has_relations: bool) -> None:
        """Add the packages that the node has, after all repositories. Without relations (the text of rpm -qa) each package is
        taken to provide what the package of its name in the repositories provides, of the same version if there is one."""
        repo = self._pool.add_repo("the node")
        known = {} if has_relations else self._by_name()
        for header in headers:
            found = self._add(repo, header)
            same = known.get((header.name, header.architecture), ())
            like = next((s for s in same if _version(s) == header.version), same[-1] if same else None)
            for provided in self._provided(like) if like is not None else ():
                found.add_deparray(self._solv.SOLVABLE_PROVIDES, provided)
        repo.internalize()
        self._pool.installed = repo
        self._pool.addfileprovides()
        self._pool.createwhatprovides()

    def _by_name(self) -> dict[tuple[str, str], list[Any]]:
        found: dict[tuple[str, str], list[Any]] = {}
        for repo in self._repositories:
            for s in repo.solvables:
                found.setdefault((s.name, s.arch), []).append(s)
        return found

    def _provided(self, like: Any) -> Iterable[Any]:
        """Return what a package provides but for its own name, and its files."""
        for dependency in like.lookup_deparray(self._solv.SOLVABLE_PROVIDES):
            if str(dependency).partition(" ")[0] != like.name:
                yield dependency
        for file in like.Dataiterator(self._solv.SOLVABLE_FILELIST, None, self._solv.Dataiterator.SEARCH_FILES):
            for path in {file.str, file.str.removeprefix("/usr")}:
                yield self._pool.Dep(path)

    def candidates(self) -> tuple[Candidate, ...]:
        """Return every package of the repositories, in the order of the repositories."""
        return tuple(
            Candidate(number=s.id, name=s.name, version=_version(s), architecture=s.arch, repository=n)
            for n, repo in enumerate(self._repositories)
            for s in repo.solvables
        )

    def solve(self, wanted: Iterable[Candidate], without: Iterable[Candidate], last: Iterable[Candidate] = ()) -> RpmSolution:
        """Return what has to be installed for the wanted packages, or why that is impossible. without: packages that must not be
        used. last: packages that are used only if nothing else will do. Weak dependencies are not followed."""
        solv, job = self._solv, self._solv.Job
        self._pool.set_disabled_list([c.number for c in without])
        jobs = [self._pool.Job(job.SOLVER_INSTALL | job.SOLVER_SOLVABLE, c.number) for c in wanted]
        jobs += [self._pool.Job(job.SOLVER_DISFAVOR | job.SOLVER_SOLVABLE, c.number) for c in last]
        for name in INSTALL_ONLY:
            jobs.append(self._pool.Job(job.SOLVER_MULTIVERSION | job.SOLVER_SOLVABLE_NAME, self._pool.str2id(name)))
        solver = self._pool.Solver()
        solver.set_flag(solv.Solver.SOLVER_FLAG_IGNORE_RECOMMENDED, 1)
        solver.set_flag(solv.Solver.SOLVER_FLAG_ALLOW_VENDORCHANGE, 1)  # dnf allows it (dnf.conf(5), allow_vendor_change)
        if problems := solver.solve(jobs):
            return RpmSolution(reason=self._reason(problems[0]))
        new = solver.transaction().newsolvables()
        positions: Mapping[str, int] = {repo.name: n for n, repo in enumerate(self._repositories)}
        rows = (
            Candidate(number=s.id, name=s.name, version=_version(s), architecture=s.arch, repository=positions[s.repo.name])
            for s in new
        )
        return RpmSolution(new=tuple(rows))

    def _reason(self, problem: Any) -> str:
        """Return libsolv's own words for a problem. What nothing provides is the cause of what cannot be installed, so it is
        returned before libsolv's first choice."""
        missing = self._solv.Solver.SOLVER_RULE_PKG_NOTHING_PROVIDES_DEP
        infos = [info for rule in problem.findallproblemrules() for info in rule.allinfos()]
        chosen = next((info for info in infos if info.type == missing), None) or problem.findproblemrule().info()
        return one_line(chosen.problemstr(), 300) or "libsolv gives no reason"

    def provided_by(self, relation: Relation) -> frozenset[tuple[str, str]]:
        """Return name and version of all packages, of repositories and node, that provide this."""
        return frozenset((s.name, _version(s)) for s in self._pool.whatprovides(self._dependency(relation)))

    def file_of(self, candidate: Candidate) -> PackageFile:
        """Return what the repository says of a package's file."""
        if candidate.number in self._files:
            return self._files[candidate.number]
        solv, found = self._solv, self._pool.id2solvable(candidate.number)
        checksum = found.lookup_checksum(solv.SOLVABLE_CHECKSUM)
        location = found.lookup_location() or [""]
        base = found.lookup_str(solv.SOLVABLE_MEDIABASE) or ""
        return PackageFile(
            location=f"{base.rstrip('/')}/{location[0]}" if base else str(location[0] or ""),
            sha256=checksum.hex() if checksum is not None and checksum.type == solv.REPOKEY_TYPE_SHA256 else "",
            size=found.lookup_num(solv.SOLVABLE_DOWNLOADSIZE),
            installed_kib=-(-found.lookup_num(solv.SOLVABLE_INSTALLSIZE) // 1024),
        )


def _version(solvable: Any) -> str:
    """Return EPOCH:VERSION-RELEASE, with the epoch also where it is 0. libsolv leaves that out."""
    text = str(solvable.evr)
    return text if ":" in text else f"0:{text}"
