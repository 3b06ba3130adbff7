"""Put a root file system together in fresh namespaces and make it the root: what a node and a cluster share.

``fork_into`` forks the first process of new mount, UTS, IPC, PID, cgroup and time namespaces; ``compose`` runs
in it and mounts: an overlay on the Debian root, /proc, /sys (the machine's own, read-only, or a machine tree),
a /dev with only what a container has plus the simulated device nodes, /run, /tmp, and the binds asked for. The device
nodes are the box's own: who changes or removes one of them changes nothing on the machine. Every file system in memory has
a size (SIZES), so that no box fills the machine's memory through one.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.lab import linux

#: (source on the machine, path in the box, read-only)
Bind = tuple[str, str, bool]
#: (name below /dev, major, minor, mode)
Device = tuple[str, int, int, int]

#: As in devices.txt of the kernel: major and minor.
_PLAIN_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
#: What may be written to each file system in memory; "root" is the box's whole disk where that has no folder of its own.
SIZES = {"root": "1g", "sys": "64m", "dev": "4m", "dev/shm": "256m", "run": "128m", "tmp": "512m"}


@dataclass(frozen=True)
class Box:
    """What one root consists of.

    lower     the root below, or several folders of layers with ':' between, the uppermost first (overlay's lowerdir)
    scratch   an empty folder to mount on; its mounts are seen in the box's own namespace only
    upper     folder with up/ and wk/ on disk for what the box writes; None: memory, gone with the box
    sysfs     a tree's sys folder to lay over (writes stay in memory until the box ends); None: the real one
    binds     done last, in this order; missing targets are made where the root is writable
    devices   character devices in /dev
    proc_ro   /proc/sys is read-only but for net.* and for what ``binds`` puts there
    cgroups   cgroup v1 controllers to mount below /sys/fs/cgroup; () mounts cgroup2 there
    """

    hostname: str
    lower: str
    scratch: Path
    upper: Path | None = None
    sysfs: Path | None = None
    binds: tuple[Bind, ...] = ()
    devices: tuple[Device, ...] = ()
    proc_ro: bool = False
    cgroups: tuple[str, ...] = ()


def free_major(taken: frozenset[int] = frozenset()) -> int:
    """A character device major of the local range that no driver of this machine has (devices.txt: 240-254)."""
    used = set(taken)
    for line in Path("/proc/devices").read_text().split("Block devices:")[0].splitlines():
        number = line.split()[0] if line.split() else ""
        if number.isdigit():
            used.add(int(number))
    for major in range(240, 255):
        if major not in used:
            return major
    raise OSError("every local character major (240-254) is in use on this machine")


def fork_into(
    child: Callable[[], None],
    *,
    cgroup: Callable[[], Callable[[], None]] | None = None,
    net: str | None = None,
    clock: bool = False,
) -> tuple[int, int]:
    """Fork the init of a new set of namespaces; ``child`` runs there and must not return.

    Returns two pids as seen from here: the go-between, a child of the caller that waits for init and ends with
    init's status (129, SIGHUP, for a reboot), and init. ``cgroup`` moves the go-between into the box's cgroup and
    returns a call that moves it back: cgroup v2 lets no process stay beside enabled controllers. ``net`` names a
    network namespace to enter; None makes a new one. ``clock``: uptime starts at zero in the box.
    """
    read_end, write_end = os.pipe()
    between = os.fork()
    if between:
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            answer = pipe.read()
        if not answer.isdigit():
            os.waitpid(between, 0)
            raise OSError(f"no namespaces for the box: {answer or 'the process in between ended'}")
        return between, int(answer)
    os.close(read_end)
    try:
        linux.die_with_parent()
        leave = cgroup() if cgroup else None
        if net:
            linux.setns(Path("/run/netns", net), linux.CLONE_NEWNET)
        flags = linux.CLONE_NEWNS | linux.CLONE_NEWUTS | linux.CLONE_NEWIPC | linux.CLONE_NEWPID | linux.CLONE_NEWCGROUP
        linux.unshare(flags | (0 if net else linux.CLONE_NEWNET))
        if clock:
            _fresh_clock()
        init = os.fork()
        if init == 0:
            os.close(write_end)
            linux.die_with_parent()
            try:
                child()
            finally:
                os._exit(70)
        if leave:
            leave()
        os.write(write_end, str(init).encode())
        os.close(write_end)
        _, status = os.waitpid(init, 0)
        os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
    except BaseException as error:
        os.write(write_end, f"{type(error).__name__}: {error}".encode())
        os._exit(70)


def _fresh_clock() -> None:
    """Let the box's uptime start at zero, where the kernel has time namespaces (time_namespaces(7)).

    Without it slurmctld never believes a reboot: it compares the node's uptime with when it asked for one.
    """
    try:
        linux.unshare(linux.CLONE_NEWTIME)
    except OSError:
        return
    offsets = ""
    for name, clock in (("monotonic", time.CLOCK_MONOTONIC), ("boottime", time.CLOCK_BOOTTIME)):
        seconds, rest = divmod(-time.clock_gettime_ns(clock), 10**9)
        offsets += f"{name} {seconds} {rest}\n"
    Path("/proc/self/timens_offsets").write_text(offsets)


def compose(box: Box) -> None:
    """Mount everything and pivot into it. Runs as the first process of fresh namespaces; raises OSError."""
    linux.private_mounts()
    top = box.scratch
    memory = top.parent / f"{top.name}.memory"
    memory.mkdir(exist_ok=True)
    linux.mount("tmpfs", memory, "tmpfs", data=f"mode=755,size={SIZES['sys' if box.upper else 'root']}")
    upper = box.upper or memory / "root"
    _overlay(box.lower, upper, top)
    os.chdir(top)
    socket.sethostname(box.hostname)
    linux.mount("proc", "proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    if Path("proc/sysrq-trigger").exists():
        linux.bind("proc/sysrq-trigger", "proc/sysrq-trigger", readonly=True)
    if box.proc_ro:
        linux.bind("proc/sys", "proc/sys", readonly=True)
        linux.bind("proc/sys/net", "proc/sys/net")
        linux.mount("none", "proc/sys/net", flags=linux.MS_REMOUNT | linux.MS_BIND)
    if box.sysfs:
        (memory / "sys/up/fs/cgroup").mkdir(parents=True)
        _overlay(box.sysfs, memory / "sys", Path("sys"))
    else:
        linux.mount("sysfs", "sys", "sysfs", linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    _cgroups(box.cgroups)
    for target, mode in (("run", 755), ("tmp", 1777), ("dev", 755)):
        linux.mount("tmpfs", target, "tmpfs", data=f"mode={mode},size={SIZES[target]}")
    _devices(box.devices)
    for source, target, readonly in box.binds:
        inside = Path(target.lstrip("/"))
        if not inside.exists():
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.mkdir() if Path(source).is_dir() else inside.touch()
        linux.bind(source, inside, readonly=readonly)
    linux.pivot_root(top)


def _overlay(lower: str | Path, upper: Path, target: Path) -> None:
    for name in ("up", "wk"):
        (upper / name).mkdir(parents=True, exist_ok=True)
    linux.mount("overlay", target, "overlay", data=f"lowerdir={lower},upperdir={upper}/up,workdir={upper}/wk")


def _cgroups(controllers: tuple[str, ...]) -> None:
    if not controllers:
        linux.mount("cgroup2", "sys/fs/cgroup", "cgroup2", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
        return
    linux.mount("tmpfs", "sys/fs/cgroup", "tmpfs", data="mode=755,size=1m")
    for name in controllers:
        Path("sys/fs/cgroup", name).mkdir()
        linux.mount("cgroup", f"sys/fs/cgroup/{name}", "cgroup", data=name)


def _devices(devices: tuple[Device, ...]) -> None:
    plain = tuple((name, major, minor, 0o666) for name, (major, minor) in _PLAIN_DEVICES.items())
    for name in ("pts", "shm"):
        Path("dev", name).mkdir()
    linux.mount("devpts", "dev/pts", "devpts", data="newinstance,ptmxmode=666,mode=620")
    linux.mount("tmpfs", "dev/shm", "tmpfs", data=f"mode=1777,size={SIZES['dev/shm']}")
    for name, to in (
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ):
        os.symlink(to, f"dev/{name}")
    Path("dev/console").touch()
    for name, major, minor, mode in (*plain, *devices):
        path = Path("dev", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(path, mode | stat.S_IFCHR, os.makedev(major, minor))
        path.chmod(mode)
