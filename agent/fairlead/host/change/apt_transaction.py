"""Installs and removes packages by apt, in one transaction. It is simulated first, and only declared packages may change.

`fairlead provision` puts the package files into a cache on the node (``CACHE``), or they are fetched from the site's mirror.
The hash of each file is checked, and apt installs the files by their paths. apt gets no package lists, so it cannot download
a package. If neither the files nor the installed packages satisfy a dependency, the change is refused, and the error names the
dependency. If a run was killed, the next run repairs its packages: they are configured or unpacked again. The code that apt and
dnf share is in ``cached_packages`` and ``package_command``.
Sources: apt-get(8), apt.conf(5) (DPkg::Lock::Timeout), dpkg(1).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from fairlead.errors import HostError
from fairlead.host.change import dkms
from fairlead.host.change.cached_packages import CACHE, fill, make_folder, prune
from fairlead.host.change.package_command import (
    LOCK_SECONDS,
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
from fairlead.model.change import Packages

_STEP = re.compile(r"^(Inst|Remv|Purg) ([^\s:]+)(?::\w+)?(?: \[([^\]]*)\])?(?: \((\S+))?", re.MULTILINE)
_UNMET = re.compile(r"^\s*(\S+) : ((?:Pre)?Depends|Conflicts|Breaks): (\S+)", re.MULTILINE)
_OPTIONS = {
    "Dir::Etc::sourcelist": "/dev/null",
    "Dir::Etc::sourceparts": "/dev/null",
    "Dir::Etc::preferences": "/dev/null",
    "Dir::Etc::preferencesparts": "/dev/null",
    "Dir::State::Lists": f"{CACHE}/.lists",
    "Dir::Cache::pkgcache": "",
    "Dir::Cache::srcpkgcache": "",
    "APT::Install-Recommends": "false",
    "APT::Sandbox::User": "root",
    "DPkg::Lock::Timeout": str(int(LOCK_SECONDS)),
    "Dpkg::Options::": "--force-confold",
}


def has_apt(root: Root) -> bool:
    """Return whether packages can be changed in ``root``: it has apt and dpkg's database."""
    return root.exists("/usr/bin/apt-get") and root.exists("/var/lib/dpkg/status")


def install(change: Packages, root: Root) -> str:
    """Make the change, and return one line with what was done. Raises HostError with the cause, LaterError, OSError."""
    cache = make_folder(root)
    os.makedirs(f"{cache}/.lists/partial", mode=0o755, exist_ok=True)
    wait_for_lock(root.join("/var/lib/dpkg/lock-frontend"), "dpkg")
    repaired = _repair(root)
    if change.install or change.remove:
        fill(change, root, cache)
        _unpack_torn(change, root)
        words = [f"{CACHE}/{p.file}" for p in change.install] + [f"{name}-" for name in change.remove]
        refuse_more(change, _apt(root, ["--simulate", *_VERBS, *words], SIMULATE_SECONDS, change))
        _apt(root, ["--yes", *_VERBS, *words], TRANSACTION_SECONDS, change)
    if change.hold:
        tool(root, ["apt-mark", "hold", *change.hold])
    free = _unhold(change, root)
    if change.install:
        prune(change, cache)
    done = [f"{len(change.install)} installed"] if change.install else []
    done += [f"{len(change.remove)} removed"] if change.remove else []
    done += [f"{len(change.hold)} held"] if change.hold else []
    done += [f"{free} no longer held"] if change.unhold else []
    return ", ".join([*done, *(["an interrupted run of dpkg made good"] if repaired else [])])


_WORDS = tuple(w for key, value in _OPTIONS.items() for w in ("-o", f"{key}={value}"))
_VERBS = ("--allow-downgrades", "--allow-change-held-packages", "--no-install-recommends", "install")


def _unhold(change: Packages, root: Root) -> int:
    """Give the packages of ``change.unhold`` free that are on hold now, and return how many these are."""
    on_hold = set(tool(root, ["apt-mark", "showhold"]).split()) if change.unhold else set()
    if names := [name for name in change.unhold if name in on_hold]:
        tool(root, ["apt-mark", "unhold", *names])
    return len(names)


# -- before ----------------------------------------------------------------------------------------


def _repair(root: Root) -> bool:
    """Let dpkg configure the packages that a killed run left unfinished. Return whether there were any.

    dpkg cannot configure a half unpacked package. ``_unpack_torn`` or the transaction unpacks such a package again.
    """
    journal = [n for n in root.names("/var/lib/dpkg/updates") if n.isdecimal()]
    if not journal and not tool(root, ["dpkg", "--audit"], check=False).strip():
        return False
    tool(root, ["dpkg", "--force-confold", "--configure", "-a"], check=False, seconds=TRANSACTION_SECONDS)
    return True


def _unpack_torn(change: Packages, root: Root) -> None:
    """Unpack and configure the whole set with dpkg, if a killed run has left packages that apt considers broken.

    In that state apt neither installs an older version of a package nor changes a package on hold. dpkg does both. The
    transaction that follows checks the result.
    """
    if not tool(root, ["dpkg", "--audit"], check=False).strip() and not _broken(root):
        return
    files = [f"{CACHE}/{p.file}" for p in change.install]
    tool(root, ["dpkg", "--force-confold", "--force-depends", "--unpack", *files], check=False, seconds=TRANSACTION_SECONDS)
    tool(root, ["dpkg", "--force-confold", "--configure", "-a"], check=False, seconds=TRANSACTION_SECONDS)


def _broken(root: Root) -> bool:
    return run(root, ["apt-get", "-q", *_WORDS, "check"], SIMULATE_SECONDS)[0] != 0


# -- the transaction -------------------------------------------------------------------------------


def steps(simulated: str) -> Iterator[tuple[str, str, str]]:
    """Yield (Inst, Remv or Purg; package; version) for each step that `apt-get --simulate` printed."""
    for verb, name, before, after in _STEP.findall(simulated):
        yield verb, name, after or before


def refuse_more(change: Packages, simulated: str) -> None:
    """Raise HostError with the names of the packages if apt would change packages that are not declared."""
    allowed = {p.name: p.version for p in change.allowed}
    more = []
    for verb, name, version in steps(simulated):
        if verb != "Inst" and name not in change.remove:
            more.append(f"remove {name} {version}".strip())
        elif verb == "Inst" and allowed.get(name) != version:
            more.append(f"install {name} {version}")
    refuse_undeclared("apt", more)


def _apt(root: Root, words: Sequence[str], seconds: float, change: Packages) -> str:
    code, out = run(root, ["apt-get", "-q", *_WORDS, *words], seconds)
    if code == 0:
        return out
    if "Could not get lock" in out or "Unable to acquire the dpkg frontend lock" in out:
        raise LaterError("another program has dpkg's lock", hint="run it again")
    if "No space left on device" in out:
        raise no_room(root, "No space left on device")
    unmet = _UNMET.findall(out)
    known = {p.name for p in change.allowed}
    if unmet:
        package, relation, other = next((u for u in unmet if u[2] not in known), unmet[0])
        verb = "needs" if relation.endswith("Depends") else "does not go with"
        words_ = f"{package} {verb} {other}, and the declared set says nothing of it"
        hint = "run `fairlead lock` again with --status of such a node (its /var/lib/dpkg/status)"
        raise HostError(words_, hint=hint)
    if (failed := dkms.failure(root, out)) is not None:
        raise failed
    marks = ("E:", "dpkg: error", "Error!", "ERROR")
    errors = [line for line in out.splitlines() if line.startswith(marks) and "Can not write log" not in line]
    errors.sort(key=lambda line: line.startswith("E: Sub-process"))  # dpkg's own words, not that it has failed
    raise HostError(f"apt-get: {(errors or out.strip().splitlines() or [f'exit code {code}'])[0]}", hint="run it again")
