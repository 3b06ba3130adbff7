"""Debian roots for the lab: one per suite, built once, shared by everything as a read-only lower layer.

``root("bookworm")`` gives the folder of a ready root: systemd, sshd, munge and Slurm of that release, a user
``alice``, root's login by the lab's own ssh key. Built by debootstrap into a folder of another name and renamed
when complete, under a lock: a killed build leaves nothing that could be taken for a root. Nothing is installed
on the machine itself, and no daemon starts: the build runs in its own PID namespace, and a package whose
scripts see no running systemd starts nothing.

    FAIRLEAD_LAB_DIR     where roots, wheels and the disks of nodes are kept (default /var/cache/fairlead-lab)
    FAIRLEAD_LAB_MIRROR  package mirror (default: the one that this machine's own apt uses)
    FAIRLEAD_LAB_UBUNTU_MIRROR  an Ubuntu archive with `universe`; without it there is no Ubuntu root
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab import linux

#: Suite -> the Slurm release that Debian ships in it.
SUITES = {"bookworm": "22.05", "trixie": "24.11", "forky": "26.05"}
#: The same for Ubuntu, whose archive has to be named: built by nobody yet (docs/explanation/what-was-proved-where.md).
UBUNTU = {"noble": "23.11"}
UBUNTU_KEYRING = Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg")
RELEASES = SUITES | UBUNTU
#: Free space that a build asks for before it starts, in bytes.
ROOM_BYTES = 3 << 30
#: The user that jobs run as in every root.
USER = "alice"

PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "openssh-server", "python3", "python3-apt", "python3-venv", "iproute2", "procps",
    "kmod", "udev", "munge", "slurmd", "slurmctld", "slurm-client", "slurm-wlm-basic-plugins", "pciutils", "util-linux",
)  # fmt: skip

# Units that make no sense in a namespaced host: they want real devices, a console, or the way out.
MASKED = (
    "systemd-resolved.service", "systemd-udevd.service", "systemd-udev-trigger.service",
    "systemd-udevd-kernel.socket", "systemd-udevd-control.socket", "systemd-modules-load.service",
    "sys-kernel-debug.mount", "sys-kernel-tracing.mount", "sys-kernel-config.mount",
    "sys-fs-fuse-connections.mount", "systemd-firstboot.service", "getty@tty1.service",
    "console-getty.service", "proc-sys-fs-binfmt_misc.automount", "dev-hugepages.mount", "dev-mqueue.mount",
    "systemd-pstore.service", "systemd-binfmt.service", "e2scrub_reap.service", "apt-daily.timer",
    "apt-daily-upgrade.timer", "e2scrub_all.timer", "fstrim.timer", "dpkg-db-backup.timer",
    "systemd-timesyncd.service", "systemd-hwdb-update.service", "kmod-static-nodes.service",
    "systemd-networkd.service", "systemd-journal-flush.service", "systemd-random-seed.service",
)  # fmt: skip

SSHD = """\
PermitRootLogin prohibit-password
UseDNS no
MaxStartups 200
MaxSessions 100
PrintMotd no
"""

# Runs inside the new root. What needs a daemon is only enabled; rack.py masks what a node is not to run.
SETUP = r"""\
set -eu
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
useradd --uid 2001 --create-home --shell /bin/bash alice
for unit in $MASKED; do ln -sf /dev/null "/etc/systemd/system/$unit"; done
ln -sf /lib/systemd/system/multi-user.target /etc/systemd/system/default.target
systemctl --quiet enable ssh.service munge.service slurmd.service slurmctld.service
printf '127.0.0.1 localhost\n' > /etc/hosts
mkdir -p /etc/systemd/journald.conf.d
printf '[Journal]\nStorage=volatile\nRuntimeMaxUse=32M\n' > /etc/systemd/journald.conf.d/lab.conf
mkdir -p /etc/default/grub.d /var/spool/slurm /var/log/slurm /etc/slurm
[ -e /etc/ssh/ssh_host_ed25519_key ] || ssh-keygen -A
install -o munge -g munge -m 700 -d /etc/munge
install -o munge -g munge -m 400 /tmp/munge.key /etc/munge/munge.key
rm -f /tmp/munge.key /etc/machine-id /usr/sbin/policy-rc.d
: > /etc/machine-id
rm -rf /var/cache/apt/archives/*.deb /var/lib/apt/lists/* /usr/share/locale/*
"""


class LabError(Exception):
    """The lab cannot do what was asked; the message is one clear line."""


def lab_dir() -> Path:
    """The folder that everything cached lies in. Raises LabError for a path that overlayfs options cannot carry."""
    folder = Path(os.environ.get("FAIRLEAD_LAB_DIR") or "/var/cache/fairlead-lab").absolute()
    if any(character in ",:\\" or character.isspace() for character in str(folder)):
        raise LabError(f"FAIRLEAD_LAB_DIR={folder}: no comma, colon, backslash or space may be in that path; choose another")
    return folder


def say(text: str) -> None:
    """One progress line, on standard error."""
    print(f"lab: {text}", file=sys.stderr, flush=True)


def recipe_hash(suite: str) -> str:
    """Twelve hex digits that change whenever what the root consists of changes."""
    recipe = json.dumps([suite, PACKAGES, MASKED, SSHD, SETUP, 1])
    return hashlib.sha256(recipe.encode()).hexdigest()[:12]


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lab's lock ``name``; a second builder waits here. It ends with the process that holds it."""
    folder = lab_dir() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / name, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that builds {name}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def root_path(suite: str) -> Path:
    """Where the root of ``suite`` lies once it is built."""
    if suite not in RELEASES:
        raise LabError(f"no such suite: {suite!r}; the lab knows {', '.join(RELEASES)}")
    return lab_dir() / "roots" / f"{suite}-{recipe_hash(suite)}"


def root(suite: str) -> Path:
    """Folder of the finished root of ``suite``, building it first where it is not there (about a minute).

    Raises LabError with one line when there is no room, no debootstrap, or the build fails.
    """
    target = root_path(suite)
    if target.is_dir():
        return target
    with locked(f"root-{suite}"):
        if not target.is_dir():
            _build(suite, target)
    return target


def _build(suite: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    for stale in [*target.parent.glob(f".building-{suite}-*"), *target.parent.glob(f"{suite}-*")]:
        if stale.name.startswith(".") or not in_use(stale):
            shutil.rmtree(stale)
    need_room(target.parent, ROOM_BYTES)
    if shutil.which("debootstrap") is None:
        raise LabError("debootstrap is not installed; run: apt-get install debootstrap")
    building = target.parent / f".building-{suite}-{os.getpid()}"
    command = debootstrap(suite, building)
    began = time.monotonic()
    say(f"building the {suite} root (Slurm {RELEASES[suite]}) in {target}, about a minute")
    say(f"  installs into that folder only: {' '.join(PACKAGES)}")
    log = lab_dir() / f"debootstrap-{suite}.log"
    try:
        isolated(command, log, shown=_stages())
        (building / "tmp/munge.key").write_bytes(munge_key())
        (building / "etc/ssh/sshd_config.d").mkdir(parents=True, exist_ok=True)
        (building / "etc/ssh/sshd_config.d/lab.conf").write_text(SSHD)
        ssh = building / "root/.ssh"
        ssh.mkdir(mode=0o700, exist_ok=True)
        (ssh / "authorized_keys").write_text(ssh_key().with_suffix(".pub").read_text())
        script = f"MASKED='{' '.join(MASKED)}'\n{SETUP}"
        isolated(["chroot", str(building), "/bin/sh", "-c", script], log)
        building.rename(target)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    say(f"{suite} root ready after {time.monotonic() - began:.0f} s")


def debootstrap(suite: str, folder: Path) -> list[str]:
    """The words that build the bare root. Raises LabError where the lab does not know from what."""
    words = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
    scripts, source, pattern = Path("/usr/share/debootstrap/scripts"), mirror(), "sid"
    if suite in UBUNTU:
        source, pattern = os.environ.get("FAIRLEAD_LAB_UBUNTU_MIRROR", ""), "gutsy"
        if not source:
            raise LabError(f"{suite}: no Ubuntu archive is known here; name one: FAIRLEAD_LAB_UBUNTU_MIRROR=URL")
        if not UBUNTU_KEYRING.is_file():
            raise LabError(f"{suite}: {UBUNTU_KEYRING} is missing, and nothing unsigned is installed; install ubuntu-keyring")
        words += ["--components=main,universe", f"--keyring={UBUNTU_KEYRING}", "--force-check-gpg"]
    words += [suite, str(folder)]
    if source:
        words.append(source)
    if not (scripts / suite).exists():
        # A release younger than this machine's debootstrap: the script of its kin knows how (a mirror must be given then).
        words += [str(scripts / pattern)] if source else ["", str(scripts / pattern)]
    return words


def in_use(folder: Path) -> bool:
    """Whether any process has ``folder`` as (part of) a mount or its root: an older lab may still run on it."""
    wanted = str(folder)
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            try:
                if os.readlink(f"/proc/{pid}/root").startswith(wanted):
                    return True
                if wanted in Path(f"/proc/{pid}/mountinfo").read_text():
                    return True
            except OSError:
                continue
    return False


def _stages() -> Callable[[str], None]:
    """A filter that turns debootstrap's hundreds of lines into four."""
    seen: set[str] = set()

    def show(line: str) -> None:
        stage = {
            "Retrieving": "downloading packages",
            "Extracting": "unpacking the base",
            "Unpacking": "unpacking packages",
            "Configuring": "configuring packages",
        }.get(line.removeprefix("I: ").partition(" ")[0])
        if line.startswith("I: ") and stage and stage not in seen:
            seen.add(stage)
            say(f"  {stage}")

    return show


def isolated(command: list[str], log: Path, shown: Callable[[str], None] | None = None) -> None:
    """Run ``command`` in mount and PID namespaces of its own: nothing it starts or mounts outlives it."""
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive", **proxies()}
    for name in ("TMPDIR", "PYTHONPATH", "LD_PRELOAD"):
        environment.pop(name, None)
    unshare = ["unshare", "--mount", "--mount-proc", "--pid", "--fork", "--kill-child", "--propagation", "private", "--"]
    last = ""
    with (
        open(log, "a") as out,
        subprocess.Popen(
            unshare + command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            preexec_fn=linux.die_with_parent,
        ) as child,
    ):
        assert child.stdout is not None
        for line in child.stdout:
            out.write(line)
            last = line.strip() or last
            if shown:
                shown(line)
    if child.returncode != 0:
        raise LabError(f"{command[0]} failed with {child.returncode}: {last}; see {log}")


def need_room(folder: Path, wanted_bytes: int) -> None:
    """Raise LabError unless the file system of ``folder`` has ``wanted_bytes`` free."""
    free = shutil.disk_usage(folder).free
    if free < wanted_bytes:
        raise LabError(
            f"{folder}: {free / 2**30:.1f} GiB free, {wanted_bytes / 2**30:.0f} GiB needed; make room or set FAIRLEAD_LAB_DIR"
        )


def mirror(apt: Path = Path("/etc/apt")) -> str:
    """The Debian mirror that this machine's apt uses for its own release; '' where none can be told.

    Reads one-line and deb822 sources (sources.list(5)); options in brackets are skipped.
    """
    if chosen := os.environ.get("FAIRLEAD_LAB_MIRROR"):
        return chosen
    codename = ""
    for line in Path("/etc/os-release").read_text().splitlines():
        if line.startswith("VERSION_CODENAME="):
            codename = line.partition("=")[2].strip('"')
    entries: list[tuple[list[str], list[str], list[str]]] = []
    for file in sorted([apt / "sources.list", *apt.glob("sources.list.d/*.list")]):
        for line in file.read_text().splitlines() if file.is_file() else ():
            words = [word for word in line.split("#")[0].split() if not (word.startswith("[") or word.endswith("]"))]
            if len(words) >= 4 and words[0] == "deb":
                entries.append(([words[1]], [words[2]], words[3:]))
    for file in sorted(apt.glob("sources.list.d/*.sources")):
        for stanza in file.read_text().split("\n\n"):
            fields = {
                key.strip().lower(): value.split()
                for key, colon, value in (line.partition(":") for line in stanza.splitlines() if line[:1] not in "#")
                if colon
            }
            if "deb" in fields.get("types", []) and fields.get("enabled") != ["no"]:
                entries.append((fields.get("uris", []), fields.get("suites", []), fields.get("components", [])))
    for uris, suites, components in entries:
        if codename in suites and "main" in components:
            for uri in uris:
                if uri.startswith(("http://", "https://", "file:")):
                    return uri
    return ""


def proxies() -> dict[str, str]:
    """apt's own proxies as environment variables for debootstrap's downloader; {} where it has none."""
    found = {}
    for scheme in ("http", "https"):
        asked = subprocess.run(
            ["apt-config", "shell", "P", f"Acquire::{scheme}::Proxy"], capture_output=True, text=True, check=False
        )
        value = asked.stdout.strip().removeprefix("P=").strip("'")
        if value and value != "DIRECT":
            found[f"{scheme}_proxy"] = value
    return found


def ssh_key() -> Path:
    """The lab's private ssh key (its public half beside it with .pub); made at first use."""
    key = lab_dir() / "ssh" / "id_ed25519"
    key.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    with locked("ssh-key"):
        if not key.with_suffix(".pub").is_file():
            key.unlink(missing_ok=True)
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "fairlead-lab", "-f", str(key)]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return key


def munge_key() -> bytes:
    """The lab's munge key, 128 random bytes, made at first use; the same in every root."""
    key = lab_dir() / "munge.key"
    with locked("munge-key"):
        if not key.is_file():
            fresh = key.with_suffix(f".{os.getpid()}")
            fresh.touch(mode=0o600)
            fresh.write_bytes(os.urandom(128))
            fresh.rename(key)
    return key.read_bytes()


def uid(folder: Path, user: str) -> int:
    """A user's number in the root ``folder``. Raises LabError for an unknown one."""
    for line in (folder / "etc/passwd").read_text().splitlines():
        words = line.split(":")
        if words[0] == user:
            return int(words[2])
    raise LabError(f"{folder}/etc/passwd: no user {user}")


if __name__ == "__main__":
    for each in sys.argv[1:] or ["bookworm"]:
        print(root(each))
