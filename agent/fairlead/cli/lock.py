"""Resolve the drivers that a site declares into exact packages with hashes, and write them to fairlead.lock beside site.toml.

For Debian and Ubuntu nodes package lists are read from --repository (a line of sources.list), from a folder of package files
(--debs), or from this host's own sources; apt chooses the packages. For EL nodes they are read from --repository (the address of
a dnf repository) or from a folder of package files (--rpms), and libsolv chooses the packages, so no dnf is needed here. A set of
packages that is known to be bad is refused with the reason. --check says whether the existing lock agrees with the declaration.
Exit codes: 0 the lock is written (with --check: it agrees), 65 metadata or a package database is damaged, 69 a repository does
not answer, 78 the declaration cannot be satisfied, is refused, or does not agree with the lock.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TypedDict

from fairlead import config
from fairlead.cli.output import print_json
from fairlead.config import driver_rules
from fairlead.config.driver_lock_file import Lock, LockedSet, load_lock, path_beside
from fairlead.config.site import Site
from fairlead.errors import ConfigError, ExitCode, HostError, UsageError
from fairlead.host.change import write_file
from fairlead.provision.terminal_frame import beneath
from fairlead.settings.driver import DriverWant


class WrittenLock(TypedDict):
    """The lock that was made. written: not with --dry-run. fetched: how many package files were downloaded. sets: by name."""

    schema: int
    file: str
    written: bool
    fetched: int
    sets: dict[str, LockedSet]


class CheckedLock(TypedDict):
    """Whether a lock holds, and what is wrong. files_missing: package files that the download folder does not have."""

    schema: int
    file: str
    holds: bool
    wrong: list[str]
    files_missing: list[str]


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--site",
        metavar="FILE",
        default="/etc/fairlead/site.toml",
        help="the site's declaration (default %(default)s); the lock is beside it",
    )
    parser.add_argument(
        "--repository",
        action="append",
        default=[],
        metavar="LINE",
        help='a line of sources.list, "deb [...] URL SUITE COMPONENT", or a dnf repository, "[signed-by=KEY] URL" (or folder)',
    )
    parser.add_argument("--debs", default="", metavar="DIR", help="a folder of .deb files to choose from")
    parser.add_argument("--rpms", default="", metavar="DIR", help="a folder of .rpm files to choose from")
    parser.add_argument(
        "--status",
        default="",
        metavar="FILE",
        help="a node's package database: dpkg's status, rpmdb.sqlite, or the text that `rpm -qa` prints (docs/how-to/driver.md);"
        " packages that it has are left out of the set (default: this host's own)",
    )
    parser.add_argument("--set", default="", metavar="NAME", help="resolve only this set")
    parser.add_argument(
        "--check",
        action="store_true",
        help="say whether the existing lock agrees with the site, and which of its files are missing",
    )
    parser.add_argument(
        "--download", default=None, nargs="?", const="", metavar="DIR", help="also fetch the package files into DIR"
    )
    parser.add_argument("-n", "--dry-run", action="store_true", help="resolve and show the set, write nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    site = config.load_site(args.site)
    wanted = declared_sets(site)
    if args.set and args.set not in wanted:
        known = ", ".join(sorted(wanted)) or "none"
        raise UsageError(f"--set {args.set}: no node declares this set", hint=f"declared in {args.site}: {known}")
    if not wanted:
        raise ConfigError(
            args.site, "settings.driver", "no driver is declared", hint='[classes.NAME.settings.driver] version = "..."'
        )
    chosen = {n: w for n, w in wanted.items() if args.set in ("", n)}
    path = path_beside(args.site)
    return _check(path, chosen, args) if args.check else _write(path, chosen, args)


def declared_sets(site: Site) -> dict[str, tuple[DriverWant, str, str]]:
    """Return, for each set, the declared driver, the GPUs' architecture, and the name of a node that declares the set.

    Raise ConfigError if two nodes declare different drivers for one set.
    """
    from fairlead.config.driver_lock_file import DECLARED, declared
    from fairlead.config.site import layers_of
    from fairlead.provision.inventory import all_nodes, classes_of

    found: dict[str, tuple[DriverWant, str, str]] = {}
    for node in all_nodes(site):
        layers, profile = layers_of(site, node, classes_of(site, node))
        want = declared(layers)
        if want is None:
            continue
        first = found.setdefault(want.set, (want, driver_rules.architecture(want.gpu, profile), node))
        for name in DECLARED:
            if getattr(first[0], name) != getattr(want, name):
                words = f"nodes {first[2]} and {node} declare different drivers for the set {want.set}"
                raise ConfigError(
                    site.file, f"settings.driver.{name}", words, hint="give one of them another settings.driver.set"
                )
    return found


def _write(path: str, chosen: dict[str, tuple[DriverWant, str, str]], args: argparse.Namespace) -> ExitCode:
    from fairlead.provision import driver_lock as locking
    from fairlead.provision import package_files
    from fairlead.provision.package_sources import open_archive

    archive = open_archive(tuple(args.repository), debs=args.debs, rpms=args.rpms, status=args.status, warn=warn)
    say("reading package lists")
    made = {}
    for name, (want, gpu, node) in sorted(chosen.items()):
        made[name] = archive.resolve(want, args.site, "settings.driver")
        _refuse(made[name], path, name, gpu, node)
    before = load_lock(path) if os.path.exists(path) else None
    lock = locking.with_sets(before, made)
    if not args.dry_run:
        try:
            write_file(path, locking.text(lock).encode())
        except OSError as e:
            raise HostError(f"{path}: {e.strerror}") from None
    fetched = 0
    folder = Path(args.download) if args.download else package_files.default_folder()
    if args.download is not None and not args.dry_run:
        fetched = package_files.fetch((p for s in made.values() for p in s.packages), folder, say)
    if args.json:
        print_json(WrittenLock(schema=1, file=path, written=not args.dry_run, fetched=fetched, sets=made))
        return ExitCode.OK
    for name, found in made.items():
        old = before.sets.get(name) if before else None
        print(_line(name, found))
        for line in _moves(old, found):
            print(f"  {line}")
    print(
        f"{path}: {'not written (--dry-run)' if args.dry_run else 'written'}"
        + (f"; {fetched} files in {folder}" if fetched else "")
    )
    return ExitCode.OK


def _check(path: str, chosen: dict[str, tuple[DriverWant, str, str]], args: argparse.Namespace) -> ExitCode:
    """Print every fault of the existing lock and every difference from the declaration, one per line. Return the exit code."""
    from fairlead.config.driver_lock_file import DECLARED
    from fairlead.provision import package_files

    lock: Lock = load_lock(path)
    folder = Path(args.download or package_files.default_folder())
    wrong: list[str] = []
    absent: list[str] = []
    for name, (want, gpu, node) in sorted(chosen.items()):
        found = lock.sets.get(name)
        if found is None:
            wrong.append(f"{path}: sets.{name}: node {node} wants this set, but the lock does not have it")
            continue
        for key in DECLARED:
            given, locked = getattr(want, key), getattr(found, key)
            if given and set(_words(given)) != set(_words(locked)):
                words = f"is {' '.join(_words(locked))}, and node {node} is declared with {' '.join(_words(given))}"
                wrong.append(f"{path}: sets.{name}.{key}: {words}")
        wrong += [f"{path}: sets.{name}, of node {node}: {f.text}" for f in driver_rules.faults(_as_set(found, gpu))]
        absent += [p.file for p in package_files.missing(found.packages, folder)]
    if args.json:
        print_json(CheckedLock(schema=1, file=path, holds=not wrong, wrong=wrong, files_missing=absent))
    else:
        for line in wrong:
            print(line)
        if not wrong:
            print(f"{path}: holds" + (f"; {len(absent)} package files are not in {folder} (--download)" if absent else ""))
    return ExitCode.CONFIG if wrong else ExitCode.OK


def _words(value: object) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else (str(value),)


def _as_set(found: LockedSet, gpu: str) -> driver_rules.Set:
    return driver_rules.Set(version=found.version, branch=found.branch, module=found.module, gpu=gpu, packages=found.packages)


def _refuse(found: LockedSet, path: str, name: str, gpu: str, node: str) -> None:
    against = driver_rules.faults(_as_set(found, gpu))
    if against:
        more = "".join(f"\n  also: {f.text}" for f in against[1:])
        raise ConfigError(path, f"sets.{name}, of node {node}", f"{against[0].text}{more}", hint="nothing was written")


def _line(name: str, found: LockedSet) -> str:
    size = sum(p.size for p in found.packages) >> 20
    return f"{name}: driver {found.version}, {found.module} module, {len(found.packages)} packages, {size} MiB"


def _moves(old: LockedSet | None, new: LockedSet) -> list[str]:
    before = {p.name: p.version for p in old.packages} if old else {}
    after = {p.name: p.version for p in new.packages}
    lines = [f"{n} {before[n]} -> {v}" for n, v in after.items() if n in before and before[n] != v]
    lines += [f"{n} {v} is new" for n, v in after.items() if n not in before] if old else []
    return lines + [f"{n} {v} is removed" for n, v in before.items() if n not in after]


def warn(text: str) -> None:
    """Print one line on standard error that the next line of progress does not replace."""
    if sys.stderr.isatty():
        beneath(sys.stderr).write("\r\033[K")
    print(text, file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Print one line of progress on standard error."""
    if sys.stderr.isatty():
        beneath(sys.stderr).write("\r\033[K")
        print(text, end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    return {"": WrittenLock, "--check": CheckedLock}
