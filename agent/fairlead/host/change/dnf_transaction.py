"""Packages by dnf: one transaction of exact files, simulated first, and nothing beyond the declared set.

The files lie in the node's cache (``cached_packages``), and dnf gets them by their paths, without any repository. `dnf install
--allowerasing` is the one verb that moves a set up, back and over NVIDIA's renames. Others fail: `dnf downgrade` and `dnf shell`
leave a mixture and end with 0. So after each run rpm's database is asked what is there.

A run that was killed leaves packages in the database twice, and the same command again ends with 0 and leaves them so. The next
run erases the instances that are not wanted (`rpm -e --nodeps`, which keeps files that the other instance has too), installs
what is missing, and removes former names. A script that was killed is never run again by dnf, and the script of a dkms package
swallows its failure, so the kernel modules are built here. `dnf reinstall` is not used: it runs the new script, and then the old
one, which takes the module away.

Sources: dnf(8), dnf.conf(5) (exit_on_lock), rpm(8) of dnf 4.14 and rpm 4.18; NVIDIA's yum-packaging-nvidia-kmod (scripts).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence

from fairlead.errors import HostError
from fairlead.host import rpm_database
from fairlead.host.change import dkms, dnf_lock, package_command
from fairlead.host.change.cached_packages import CACHE, fill, make_folder, prune
from fairlead.host.change.package_command import (
    SIMULATE_SECONDS,
    TRANSACTION_SECONDS,
    LaterError,
    no_room,
    refuse_undeclared,
    run,
    tool,
    wait_for_lock,
)
from fairlead.host.root import Root
from fairlead.model import rpm_version
from fairlead.model.change import Package, Packages
from fairlead.model.missing import Missing

PROGRAM = "/usr/bin/dnf"
_OPTIONS = (
    "-y", "--disablerepo=*", "--disableexcludes=all", "--disableplugin=versionlock", "--setopt=install_weak_deps=False",
    "--setopt=strict=True", "--setopt=clean_requirements_on_remove=False", "--setopt=installonly_limit=0",
    "--setopt=exit_on_lock=1",
)  # fmt: skip
_INSTALL = ("--allowerasing", "install")
_TEST = "--setopt=tsflags=test"  # resolves, prints the table, has rpm test the transaction, and changes nothing
_ANOTHER_DNF = 200
_POLL_SECONDS = 1.0
#: The names of rpm's temporary files end in the second of the transaction. A second run within it fails at the first of them.
_AFTER_A_KILL_SECONDS = 1.2
_INSTALLS = ("Installing", "Upgrading", "Downgrading", "Reinstalling")
_REPLACING = re.compile(r"^\s+replacing\s+(\S+)\.[^\s.]+\s+(\S+)$")
_UNMET = re.compile(r"nothing provides (.+?) needed by (\S+)")
_CONFLICT = re.compile(r"package (\S+) (?:conflicts with|obsoletes) (.+?) provided by (\S+)")
_SCRIPT = re.compile(
    r"^(?:Error in|error:) (\S+?)(?: scriptlet in rpm package |\()(\S+?)\)?(?: scriptlet failed.*)?$", re.MULTILINE
)
_NO_ROOM = re.compile(r"At least .* more space needed on the .* filesystem|No space left on device|database or disk is full")
_UNSIGNED = re.compile(r"^Package (\S+) is not signed|^Public key for (\S+) is not installed", re.MULTILINE)
_NO_DATABASE = re.compile(r"rpmdb open failed|database disk image is malformed|file is not a database")
#: A file that is not as its package has it: what differs, an attribute (c: configuration), the path (rpm(8), "VERIFY OPTIONS").
_VERIFIED = re.compile(r"^(missing|[.?SM5DLUGTPC]{8,9}) +(?:([acdglrm]) +)?(/.*?)(?: \(.*\))?$", re.MULTILINE)
_VERIFY = ("--nodeps", "--noscripts", "--nomtime", "--nomode", "--nouser", "--nogroup", "--nordev", "--nocaps")
_REST = re.compile(r"(.+);[0-9a-f]{8}")

#: Versions (EPOCH:VERSION-RELEASE) and architectures of what is installed, by package name, oldest first.
Instances = dict[str, list[tuple[str, str]]]


def has_dnf(root: Root) -> bool:
    """Say whether packages can be changed there: a running system or an image, with dnf and rpm's database in it."""
    return root.exists(PROGRAM) and rpm_database.folder(root) is not None


def install(change: Packages, root: Root) -> str:
    """Make the change, and return in one line what was done. Raises HostError with what is in the way, LaterError, OSError."""
    began = time.monotonic()
    cache = make_folder(root)
    folder = rpm_database.folder(root) or rpm_database.FOLDERS[0]
    wait_for_lock(root.join(f"{folder}/.rpm.lock"), "rpm")
    fill(change, root, cache)
    repaired = _erase_doubled(change, root, folder)
    files = [f"{CACHE}/{p.file}" for p in change.install]
    _refuse_before(change, root, folder, files)
    time.sleep(max(0.0, _AFTER_A_KILL_SECONDS - (time.monotonic() - began)))
    said = _dnf(root, [*_INSTALL, *files], TRANSACTION_SECONDS, change) if files else ""
    former = _remove_former(change, root, folder)
    _require_installed(change, _instances(root, folder))
    done = [f"{len(change.install)} installed"] if change.install else []
    done += [f"{len(former)} removed"] if former else []
    done += [f"an interrupted run made good ({repaired} packages were there twice)"] if repaired else []
    done += _make_files_whole(change, root)
    if repaired and root.exists("/sbin/ldconfig"):
        tool(root, ["/sbin/ldconfig"], check=False)  # a trigger of the killed transaction would have run it
    done += [f"a script of {name} failed" for _, name in _SCRIPT.findall(said)]
    done += _build_modules(change, root)
    done += _rests(change, root)
    prune(change, cache)
    return ", ".join(done)


# -- what is there ---------------------------------------------------------------------------------


def _instances(root: Root, folder: str) -> Instances:
    lines = rpm_database.lines(root, folder)
    if isinstance(lines, Missing):
        words = f"rpm's database cannot be read: {lines.detail}"
        raise HostError(words, hint="`rpm --rebuilddb` makes it anew from what is readable; then run it again")
    found: Instances = {}
    for line in lines.splitlines():
        name, architecture, version, _, _ = line.split(" ")
        found.setdefault(name, []).append((version, architecture))
    return found


def _of(package: Package, there: Instances) -> list[tuple[str, str]]:
    """Return version and architecture of what is installed of this package, without libraries of 32 bits beside it."""
    return [(v, a) for v, a in there.get(package.name, ()) if a == package.architecture or a not in ("i386", "i686")]


def _erase_doubled(change: Packages, root: Root, folder: str) -> int:
    """Erase the unwanted instances of packages of the set that a killed run has left twice, and return how many packages that
    were. Where no instance is the wanted one, the last that was installed stays, and the transaction moves it."""
    there = _instances(root, folder)
    labels, count = [], 0
    for package in change.allowed:
        found = _of(package, there)
        if len(found) < 2 or package.name.startswith(rpm_database.INSTALL_ONLY):
            continue
        count += 1
        stays = next((one for one in found if one[0] == package.version), found[-1])
        labels += [f"{package.name}-{v.partition(':')[2]}.{a}" for v, a in found if (v, a) != stays]
    if labels:
        tool(root, ["rpm", "-e", "--nodeps", *labels], seconds=TRANSACTION_SECONDS)
    return count


# -- before ----------------------------------------------------------------------------------------


def steps(table: str) -> Iterator[tuple[str, str, str]]:
    """Return (install, remove or replace; package; EPOCH:VERSION-RELEASE) for each row of the table that dnf prints.

    A long name or version is followed by a new line in the table. ``replace`` is a package that another one of the table
    obsoletes.
    """
    verb, row = "", list[str]()
    for line in table.partition("Dependencies resolved.")[2].partition("Transaction Summary")[0].splitlines():
        starts_row = line[:1] == " " and line[1:2] not in ("", " ")
        if not line.startswith(" ") or starts_row:
            yield from _step(verb, row)
            row = line.split() if starts_row else []
        if not line.startswith(" ") and line.endswith(":"):
            word = line.split()[0].rstrip(":")
            verb = "install" if word in _INSTALLS else "remove" if word == "Removing" else ""
        elif replaced := _REPLACING.match(line):
            yield "replace", replaced[1], _with_epoch(replaced[2])
        elif not starts_row:
            row += line.split()
    yield from _step(verb, row)


def _step(verb: str, row: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    if verb and len(row) >= 3:
        yield verb, row[0], _with_epoch(row[2])


def _with_epoch(version: str) -> str:
    return version if ":" in version else f"0:{version}"


def refuse_more(change: Packages, table: str, also: Sequence[str] = ()) -> None:
    """Raise HostError where dnf would do more than is declared, with the names.

    A package may be removed if the former set had it, if a package of the set obsoletes it (NVIDIA's renames), or if its name
    is in ``also``.
    """
    allowed = {p.name: p.version for p in change.allowed}
    more = []
    for verb, name, version in steps(table):
        if verb == "remove" and name not in change.remove and name not in also:
            more.append(f"remove {name} {version}")
        elif verb == "install" and allowed.get(name) != version:
            more.append(f"install {name} {version}")
    refuse_undeclared("dnf", more)


def _refuse_before(change: Packages, root: Root, folder: str, files: Sequence[str]) -> None:
    """Raise HostError if the transaction, or the removal of former names after it, would do more than is declared, or if rpm's
    own test of the transaction fails. Nothing is changed."""
    goes: set[str] = set()
    if files:
        table = _dnf(root, [_TEST, *_INSTALL, *files], SIMULATE_SECONDS, change)
        refuse_more(change, table)
        goes = {name for verb, name, _ in steps(table) if verb != "install"}
    former = [n for n in change.remove if n not in goes and n in _instances(root, folder)]
    if former:  # what needs them of the set itself moves before they go
        table = _dnf(root, [_TEST, "remove", *former], SIMULATE_SECONDS, change)
        refuse_more(change, table, also=[p.name for p in change.allowed])


# -- the transaction -------------------------------------------------------------------------------


def _dnf(root: Root, words: Sequence[str], seconds: float, change: Packages) -> str:
    """Run dnf without repositories, and return what it prints. Another dnf or rpm is waited for. Raises HostError, LaterError."""
    end = time.monotonic() + package_command.LOCK_SECONDS
    while True:
        code, out = run(root, [PROGRAM, *_OPTIONS, *words], seconds)
        if code != _ANOTHER_DNF and "transaction lock" not in out:
            break
        if code == _ANOTHER_DNF and dnf_lock.remove_dead(root):
            continue
        if time.monotonic() > end:
            who = f"another dnf or rpm has been running for more than {package_command.LOCK_SECONDS:.0f} s"
            raise LaterError(who, hint="`ps -C dnf,rpm` names it; then run it again")
        time.sleep(_POLL_SECONDS)
    if code == 0:
        return out
    raise _failed(code, out, change, root)


def _failed(code: int, out: str, change: Packages, root: Root) -> HostError:
    """Return the error for what dnf said when it failed."""
    if full := _NO_ROOM.search(out):
        return no_room(root, full[0])
    if _NO_DATABASE.search(out):
        return HostError("rpm's database cannot be read", hint="`rpm --rebuilddb` makes it anew; then run it again")
    if unmet := _UNMET.findall(out):
        known = {p.name for p in change.allowed}
        need, package = next((u for u in unmet if u[0].split(" ")[0] not in known), unmet[0])
        words = f"{package} needs {need}, and the declared set says nothing of it"
        return HostError(words, hint="run `fairlead lock` again with the state of such a node")
    if conflict := _CONFLICT.search(out):
        return HostError(f"{conflict[1]} does not go with {conflict[2]} of {conflict[3]}", hint="run `fairlead lock` again")
    if unsigned := _UNSIGNED.search(out):
        words = f"localpkg_gpgcheck is on, and {unsigned[1] or unsigned[2]} has no signature of a key that this node knows"
        return HostError(words, hint="`rpm --import` the key of the repository, or take localpkg_gpgcheck out of dnf.conf")
    if (failed := dkms.failure(root, out)) is not None:
        return failed
    if code < 0:
        return HostError(f"dnf was ended by signal {-code}", hint="run it again")
    return HostError(f"dnf: {_reason(out, code)[:300]}", hint="`dnf history` has the runs of dnf; then run it again")


def _reason(out: str, code: int) -> str:
    """Return the line of dnf's output that says why it failed. After "Error: ...:" that is the next line."""
    lines = [line.strip() for line in out.splitlines() if line.strip() and not line.startswith("No repository match")]
    if torn := next((line for line in lines if "unpacking of archive failed" in line), ""):
        return torn
    at = next((n for n, line in enumerate(lines) if line.startswith("Error:")), None)
    if at is None:
        return (lines or [f"exit code {code}"])[-1]
    if not lines[at].endswith(":") or at + 1 == len(lines):
        return lines[at]
    return " ".join(lines[at + 1 : at + 3]) if lines[at + 1].startswith("Problem") else lines[at + 1]


def _remove_former(change: Packages, root: Root, folder: str) -> list[str]:
    """Remove the packages of the former set that the new one has not, and that the transaction left. Return their names."""
    there = _instances(root, folder)
    names = [name for name in change.remove if name in there]
    if names:
        refuse_more(change, _dnf(root, [_TEST, "remove", *names], SIMULATE_SECONDS, change))
        _dnf(root, ["remove", *names], TRANSACTION_SECONDS, change)
    return list(change.remove)


# -- after -----------------------------------------------------------------------------------------


def _require_installed(change: Packages, there: Instances) -> None:
    """Raise HostError unless the database has each package of the set once, in its version. dnf's exit code does not say that."""
    for package in change.allowed:
        versions = [version for version, _ in _of(package, there)]
        newer = not package.kept and versions and rpm_version.key(versions[-1]) > rpm_version.key(package.version)
        several = package.name.startswith(rpm_database.INSTALL_ONLY)
        if versions != [package.version] and not newer and not (several and package.version in versions):
            now = " and ".join(versions) or "not installed"
            words = f"dnf has ended, and {package.name} is {now}, wanted {package.version}"
            raise HostError(words, hint="`dnf history info last` says what dnf did; then run it again")


def _make_files_whole(change: Packages, root: Root) -> list[str]:
    """Unpack again the packages of the set with files that are missing or have other content, without running their scripts.
    Return words for what was done. Raises HostError with package and file where that does not help."""
    kept = [p for p in change.allowed if p.kept]
    if not _changed_files(root, [p.name for p in kept]):
        return []
    torn = [p for p in kept if _changed_files(root, [p.name])]
    for package in torn:
        path = f"{CACHE}/{package.file}"
        if root.exists(path):
            words = ["rpm", "-U", "--force", "--nodeps", "--noscripts", "--notriggers", path]
            tool(root, words, check=False, seconds=TRANSACTION_SECONDS)
        if files := _changed_files(root, [package.name]):
            words_ = f"{package.name}: {files[0]} is missing, or is not the file of the package"
            raise HostError(words_, hint=f"`rpm -V {package.name}` lists them; run `fairlead provision` again")
    return [f"{len(torn)} unpacked again because files were torn"] if torn else []


def _changed_files(root: Root, names: Sequence[str]) -> list[str]:
    """Return the files of these packages that are missing or have other content. Files of configuration and files that a package
    only names (ghosts) are the site's."""
    found = _VERIFIED.findall(run(root, ["rpm", "-V", *_VERIFY, *names], SIMULATE_SECONDS)[1]) if names else []
    return [path for _, attribute, path in found if attribute not in ("c", "g")]


def _build_modules(change: Packages, root: Root) -> list[str]:
    """Build the modules of the set's dkms packages for each kernel that has headers and lacks them. Return words for what was
    done. Raises HostError as ``dkms.build_missing``."""
    done = []
    for package in change.allowed:
        if package.name.endswith("-dkms"):
            version = rpm_version.split(package.version)[1]
            listed = tool(root, ["rpm", "-ql", package.name], check=False)
            for module in re.findall(rf"^/usr/src/(\S+)-{re.escape(version)}/dkms\.conf$", listed, re.MULTILINE):
                done += dkms.build_missing(root, module, version, package.name)
    return done


def _rests(change: Packages, root: Root) -> list[str]:
    """Return words for rpm's temporary files (``FILE;6b0319b4``) of the set that killed runs have left. They are harmless, and a
    person may remove them."""
    names = [p.name for p in change.allowed if p.kept]
    paths = {line for line in tool(root, ["rpm", "-ql", *names], check=False).splitlines() if line.startswith("/")}
    found = []
    for folder in sorted({os.path.dirname(path) for path in paths}):
        for name in root.names(folder):
            if (rest := _REST.fullmatch(name)) and f"{folder}/{rest[1]}" in paths:
                found.append(f"{folder}/{name}")
    if not found:
        return []
    return [f"left by a killed run: {found[0]}" + (f" and {len(found) - 1} more" if len(found) > 1 else "") + " (may be removed)"]
