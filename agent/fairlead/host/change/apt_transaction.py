"""Packages by apt: one transaction of exact files, simulated first, and nothing beyond the declared set.

The files lie in a cache on the node (``CACHE``), put there by `fairlead provision` or fetched from the site's mirror, and are
installed by their paths, each checked by its hash. apt gets no package lists: what the files and the installed packages do not
satisfy between them is named and refused, not fetched from somewhere. A run that was killed is made good by the next: what
dpkg left half done is configured or unpacked again. Sources: apt-get(8), apt.conf(5) (DPkg::Lock::Timeout), dpkg(1).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fairlead.errors import HostError
from fairlead.host.file_lock import locked_within
from fairlead.host.root import Root
from fairlead.model.change import Package, Packages

CACHE = "/var/cache/fairlead/packages"
APT_SECONDS = 3300.0  # dkms builds a module for each kernel: minutes, on a slow machine many; less than apply's own mark
SIMULATE_SECONDS = 120.0
FETCH_SECONDS = 60.0  # without a byte
LOCK_SECONDS = 120.0
SPARE_BYTES = 64 << 20
_STEP = re.compile(r"^(Inst|Remv|Purg) ([^\s:]+)(?::\w+)?(?: \[([^\]]*)\])?(?: \((\S+))?", re.MULTILINE)
_MAKE_LOG = re.compile(r"/var/lib/dkms/\S+/make\.log")
_UNMET = re.compile(r"^\s*(\S+) : ((?:Pre)?Depends|Conflicts|Breaks): (\S+)", re.MULTILINE)
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
    "APT_LISTCHANGES_FRONTEND": "none",
    "NEEDRESTART_SUSPEND": "1",  # it would restart slurmd, and with other options ask
    "UCF_FORCE_CONFFOLD": "1",
}
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


class LaterError(HostError):
    """Another program has dpkg's database: the change waits for another run."""


def has_apt(root: Root) -> bool:
    """Whether packages can be changed there: a running system, or an image with apt and dpkg's database in it."""
    return root.exists("/usr/bin/apt-get") and root.exists("/var/lib/dpkg/status")


def install(change: Packages, root: Root) -> str:
    """Make the change; what was done, in one line. Raises HostError with what is in the way, LaterError, OSError."""
    cache = root.join(CACHE)
    os.makedirs(f"{cache}/.lists/partial", mode=0o755, exist_ok=True)
    if not root.is_live:
        _images_null(root)
    wait_for_lock(root.join("/var/lib/dpkg/lock-frontend"))
    repaired = _repair(root)
    if change.install or change.remove:
        _room(change, root)
        for package in change.install:
            _have_package(package, change.mirror, cache)
        _unpack_torn(change, root)
        words = [f"{CACHE}/{p.file}" for p in change.install] + [f"{name}-" for name in change.remove]
        refuse_more(change, _apt(root, ["--simulate", *_VERBS, *words], SIMULATE_SECONDS, change))
        _apt(root, ["--yes", *_VERBS, *words], APT_SECONDS, change)
    if change.hold:
        _tool(root, ["apt-mark", "hold", *change.hold])
    if change.install:
        _prune(cache, (*(p.file for p in change.allowed), *change.keep))
    done = [f"{len(change.install)} installed"] if change.install else []
    done += [f"{len(change.remove)} removed"] if change.remove else []
    done += [f"{len(change.hold)} held"] if change.hold else []
    return ", ".join([*done, *(["an interrupted run of dpkg made good"] if repaired else [])])


_WORDS = tuple(w for key, value in _OPTIONS.items() for w in ("-o", f"{key}={value}"))
_VERBS = ("--allow-downgrades", "--allow-change-held-packages", "--no-install-recommends", "install")


def _images_null(root: Root) -> None:
    if not os.path.exists(root.join("/dev/null")):
        raise HostError(f"{root.path}: no /dev/null in this image", hint="mount /dev there")


# -- before ----------------------------------------------------------------------------------------


def wait_for_lock(path: str) -> None:
    """Wait until no other apt or dpkg has the lock file (fcntl, as they lock it). Raises LaterError."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as e:
        raise HostError(f"{path}: {e.strerror}") from None
    try:
        if not locked_within(fd, LOCK_SECONDS, take=fcntl.lockf, poll_seconds=0.2):
            words = f"another program has held dpkg's lock for more than {LOCK_SECONDS:.0f} s"
            raise LaterError(words, hint=f"`fuser -v {path}` names it; then run it again")
    except OSError as e:
        raise HostError(f"{path}: {e.strerror}") from None
    finally:
        os.close(fd)


def _repair(root: Root) -> bool:
    """Have dpkg finish what a killed run left. What it cannot (a package half unpacked) the transaction unpacks again."""
    journal = [n for n in root.names("/var/lib/dpkg/updates") if n.isdecimal()]
    if not journal and not _tool(root, ["dpkg", "--audit"], check=False).strip():
        return False
    _tool(root, ["dpkg", "--force-confold", "--configure", "-a"], check=False, seconds=APT_SECONDS)
    return True


def _unpack_torn(change: Packages, root: Root) -> None:
    """What was cut short between two packages of the set is broken for apt, which then neither takes a package to an older
    version nor one that is on hold; dpkg is given the whole set at once, and apt looks at the outcome."""
    if not _tool(root, ["dpkg", "--audit"], check=False).strip() and not _broken(root):
        return
    files = [f"{CACHE}/{p.file}" for p in change.install]
    _tool(root, ["dpkg", "--force-confold", "--force-depends", "--unpack", *files], check=False, seconds=APT_SECONDS)
    _tool(root, ["dpkg", "--force-confold", "--configure", "-a"], check=False, seconds=APT_SECONDS)


def _broken(root: Root) -> bool:
    return run(root, ["apt-get", "-q", *_WORDS, "check"], SIMULATE_SECONDS)[0] != 0


def _room(change: Packages, root: Root) -> None:
    """Raises HostError, before anything is changed, where the new files do not fit beside the old ones."""
    for path, needed in (
        ("/usr", sum(p.installed_kib for p in change.install) * 1024),
        (CACHE, sum(p.size for p in change.install if not root.exists(f"{CACHE}/{p.file}"))),
    ):
        free = shutil.disk_usage(root.join(path)).free
        if free < needed + SPARE_BYTES:
            words = f"{path}: {free >> 20} MiB free, {(needed + SPARE_BYTES) >> 20} MiB needed for {len(change.install)} packages"
            raise HostError(words, hint="make room there; nothing was changed")


def _have_package(package: Package, mirror: str, cache: str) -> None:
    """The file is in the cache with the content that the lock says; fetched from the mirror where it is not."""
    path = os.path.join(cache, package.file)
    if not os.path.exists(path):
        if not mirror:
            words = f"{package.file}: not in {CACHE}, and no mirror is declared"
            raise HostError(words, hint="run `fairlead provision`, or declare settings.driver.mirror")
        _fetch(package, mirror, path)
    with open(path, "rb") as f:
        digest = hashlib.file_digest(f, "sha256").hexdigest()
    if digest != package.sha256:
        os.unlink(path)
        raise HostError(f"{package.file}: not the file that the lock names (another sha256)", hint="it was removed; run it again")


def _fetch(package: Package, mirror: str, path: str) -> None:
    """A folder of files, local or by http: whole or not at all."""
    from urllib.error import URLError
    from urllib.parse import quote
    from urllib.request import urlopen

    part = f"{path}.part"
    source = f"{mirror.rstrip('/')}/{package.file}"
    try:
        if mirror.startswith("/"):
            shutil.copyfile(source, part)
        else:
            url = f"{mirror.rstrip('/')}/{quote(package.file)}"
            with urlopen(url, timeout=FETCH_SECONDS) as answer, open(part, "wb") as out:  # noqa: S310 (the document's own URL)
                shutil.copyfileobj(answer, out, 1 << 20)
        os.rename(part, path)
    except (OSError, URLError, ValueError) as e:
        said = getattr(e, "reason", None) or getattr(e, "strerror", None) or e
        raise HostError(f"{source}: {said}", hint="is the mirror complete? `fairlead lock --check --mirror` says") from None
    finally:
        if os.path.exists(part):
            os.unlink(part)


# -- the transaction -------------------------------------------------------------------------------


def steps(simulated: str) -> Iterator[tuple[str, str, str]]:
    """(Inst, Remv or Purg; package; version) of what `apt-get --simulate` printed."""
    for verb, name, before, after in _STEP.findall(simulated):
        yield verb, name, after or before


def refuse_more(change: Packages, simulated: str) -> None:
    """Raises HostError where apt would do more than is declared, with the names."""
    allowed = {p.name: p.version for p in change.allowed}
    more = []
    for verb, name, version in steps(simulated):
        if verb != "Inst" and name not in change.remove:
            more.append(f"remove {name} {version}".strip())
        elif verb == "Inst" and allowed.get(name) != version:
            more.append(f"install {name} {version}")
    if more:
        words = f"apt would also {'; '.join(more[:6])}" + (f" and {len(more) - 6} more" if len(more) > 6 else "")
        raise HostError(
            f"{words}: not in the declared set", hint="declare them in settings.driver.install, or take them out here"
        )


def _apt(root: Root, words: Sequence[str], seconds: float, change: Packages) -> str:
    code, out = run(root, ["apt-get", "-q", *_WORDS, *words], seconds)
    if code == 0:
        return out
    if "Could not get lock" in out or "Unable to acquire the dpkg frontend lock" in out:
        raise LaterError("another program has dpkg's lock", hint="run it again")
    if "No space left on device" in out:
        raise HostError("no space left on this node while packages were unpacked", hint="make room, then run it again")
    unmet = _UNMET.findall(out)
    known = {p.name for p in change.allowed}
    if unmet:
        package, relation, other = next((u for u in unmet if u[2] not in known), unmet[0])
        verb = "needs" if relation.endswith("Depends") else "does not go with"
        words_ = f"{package} {verb} {other}, and the declared set says nothing of it"
        hint = "run `fairlead lock` again with --status of such a node (its /var/lib/dpkg/status)"
        raise HostError(words_, hint=hint)
    if built := _MAKE_LOG.search(out):
        raise HostError(f"dkms could not build the module: {_last_error(root, built[0])}", hint=f"see {built[0]}")
    marks = ("E:", "dpkg: error", "Error!", "ERROR")
    errors = [line for line in out.splitlines() if line.startswith(marks) and "Can not write log" not in line]
    errors.sort(key=lambda line: line.startswith("E: Sub-process"))  # dpkg's own words, not that it has failed
    raise HostError(f"apt-get: {(errors or out.strip().splitlines() or [f'exit code {code}'])[0]}", hint="run it again")


def _last_error(root: Root, path: str) -> str:
    """What the compiler or NVIDIA's own checks said."""
    text = root.read_text(path)
    lines = [line.strip() for line in (text if isinstance(text, str) else "").splitlines()]
    said = [line for line in lines if "error:" in line or "does not appear" in line or line.startswith("ERROR")]
    return (said or lines[-1:] or ["no log"])[0][:200]


def _tool(root: Root, command: Sequence[str], *, check: bool = True, seconds: float = SIMULATE_SECONDS) -> str:
    code, out = run(root, command, seconds)
    if code and check:
        raise HostError(f"{' '.join(command[:2])}: {(out.strip().splitlines() or [f'exit code {code}'])[-1]}")
    return out


def run(root: Root, command: Sequence[str], seconds: float) -> tuple[int, str]:
    """A command there, in a session of its own (what stops us is not to stop dpkg half-way). Raises HostError when it is late
    or missing; then all that it started has ended."""
    words = list(command) if root.is_live else ["chroot", root.path, *command]
    try:
        with subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        ) as process:
            with _ended(process):
                out, _ = process.communicate(timeout=seconds)
            return process.returncode, out.decode("utf-8", "replace")
    except FileNotFoundError:
        raise HostError(f"{command[0]}: not installed") from None
    except subprocess.TimeoutExpired:
        raise HostError(f"{' '.join(command[:2])}: no end within {seconds:.0f} s", hint="run it again: dpkg goes on") from None


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def _prune(cache: str, keep: tuple[str, ...]) -> None:
    """What belongs neither to this set nor to the one before it."""
    for name in os.listdir(cache):
        if name.endswith((".deb", ".part")) and not name.startswith(keep):
            os.unlink(os.path.join(cache, name))
