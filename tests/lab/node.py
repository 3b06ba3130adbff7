"""One namespaced host of a rack: a Debian root with systemd as PID 1 and a machine tree for hardware.

``HostSpec`` says what it consists of; ``power_on`` does what firmware and boot loader do; ``boot`` forks it. All of
this runs in the rack's supervisor (supervise.py). A host's folder on disk:

    disk/        what it writes to its root (kept over reboots)
    hw/proc/     its /proc files of the tree, put back at every power-on; the tree's sys is laid under /sys
    sim/         its /etc/fairlead-sim: nvml.conf, nvml.control, the kernel log's FIFO kmsg
    next/        what becomes of it at its next power-on, once: tree (a link), nvml.conf, address, machine-id
    firmware_seconds  what its firmware takes at a reboot, where that is not the usual time
    log          its console
    init         pid of its init as the machine sees it, and uptime of the machine at its boot, in seconds
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tests.lab import bounds, box, linux, net

#: Files of a tree's proc that a host must not have (they are its own kernel's business), or cannot have: the kernel shows the
#: thresholds of the neighbour table in the first network namespace alone (net/core/neighbour.c, neigh_sysctl_register).
_OWN_PROC = ("uptime", "mounts", "net/", "self/", "1/", "sys/net/ipv4/neigh/")


@dataclass(frozen=True)
class HostSpec:
    """What a host consists of. ``tree`` is a machine tree, '' for a host without simulated hardware; ``memory`` a cgroup v1
    that bounds its memory, '' for none."""

    name: str
    folder: str
    lower: str
    netns: str
    cgroup: str
    tree: str = ""
    binds: tuple[box.Bind, ...] = ()
    majors: tuple[tuple[int, int], ...] = ()
    memory: str = ""

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> HostSpec:
        """The reverse of to_json."""
        binds = tuple((str(a), str(b), bool(c)) for a, b, c in data["binds"])
        majors = tuple((int(a), int(b)) for a, b in data["majors"])
        return cls(**{**data, "binds": binds, "majors": majors})


def local_majors(trees: list[Path]) -> tuple[tuple[int, int], ...]:
    """A local major (240-254) for every major in the trees' dev/nodes: never NVIDIA's own on a real machine."""
    found: dict[int, int] = {}
    for tree in trees:
        for _, major, _, _ in device_lines(tree):
            if major not in found:
                found[major] = box.free_major(frozenset(found.values()))
    return tuple(found.items())


def device_lines(tree: Path) -> list[box.Device]:
    """TREE/dev/nodes: ``nvidia0 c 195 0 0666`` a line."""
    nodes = tree / "dev/nodes"
    lines = [line.split() for line in nodes.read_text().splitlines()] if nodes.is_file() else []
    return [(words[0], int(words[2]), int(words[3]), int(words[4], 8)) for words in lines if len(words) == 5]


def refitted(spec: HostSpec) -> HostSpec:
    """The host with what was laid in its next/ folder: other hardware, another address, another installation."""
    folder = Path(spec.folder)
    following = folder / "next"
    for name, place in (("tree", folder / "tree"), ("nvml.conf", folder / "sim/nvml.conf")):
        if os.path.lexists(following / name):
            (following / name).rename(place)
    if (following / "address").exists():
        address = (following / "address").read_text().strip()
        dev = net.interface(spec.name)
        net.ip(f"addr flush dev {dev}\naddr add {address}/16 dev {dev}\n", spec.netns)
        (following / "address").unlink()
    if (following / "machine-id").exists():
        (following / "machine-id").rename(folder / "disk/up/etc/machine-id")
    return replace(spec, tree=str((folder / "tree").resolve())) if spec.tree else spec


def power_on(spec: HostSpec, fifo: int) -> None:
    """Put every volatile thing of the hardware to its power-on value: boot id, /proc files, faults, kernel log.

    ``fifo`` is the supervisor's end of the kernel log, opened for reading and writing without blocking. A fault
    that is to outlast a reboot is written to sim/nvml.power-on instead of sim/nvml.control.
    """
    folder = Path(spec.folder)
    proc = folder / "hw/proc"
    shutil.rmtree(proc, ignore_errors=True)
    if spec.tree:
        shutil.copytree(Path(spec.tree, "proc"), proc)
    fresh = proc / "sys/kernel/random/boot_id"
    fresh.parent.mkdir(parents=True, exist_ok=True)
    fresh.write_text(f"{uuid.uuid4()}\n")
    if not spec.tree:
        return
    words = (proc / "cmdline").read_text().strip() + " " + grub(folder / "disk/up")
    (proc / "cmdline").write_text(words.strip() + "\n")
    for word in words.split():
        if word in ("numa_balancing=disable", "numa_balancing=enable"):
            (proc / "sys/kernel/numa_balancing").write_text(f"{int(word.endswith('enable'))}\n")
    _load_driver(folder / "disk/up", proc / "driver/nvidia/params")
    sim = folder / "sim"
    keep_modes(sim)
    kept = b"".join(f.read_bytes() for f in (sim / "nvml.power-on", sim / "nvml.inforom") if f.is_file())
    (sim / "nvml.control").write_bytes(kept)
    try:
        while os.read(fifo, 65536):
            pass
    except BlockingIOError:
        pass
    records = Path(spec.tree, "dev/kmsg")
    for record in records.read_text().splitlines() if records.is_file() else ():
        os.write(fifo, f"{record}\n".encode())


def _load_driver(disk: Path, params: Path) -> None:
    """What the NVIDIA module was loaded with: the options in the node's own modprobe.d, those of names that it has."""
    if not params.is_file():
        return
    lines = params.read_text().splitlines()
    for path in sorted((disk / "etc/modprobe.d").glob("*.conf")):
        for words in (line.split() for line in path.read_text().splitlines()):
            given = dict(w.removeprefix("NVreg_").split("=", 1) for w in words[2:] if words[:2] == ["options", "nvidia"])
            lines = [f"{n}: {given.get(n, v)}" for n, v in (line.split(": ", 1) for line in lines)]
    params.write_text("\n".join(lines) + "\n")


def keep_modes(sim: Path) -> None:
    """What boards keep (``inforom gpu.N.ecc_mode 0``, which the library writes) is current and pending from now on."""
    control, kept = sim / "nvml.control", sim / "nvml.inforom"
    text = "".join(f.read_text() for f in (kept, control) if f.is_file())
    modes = {words[1]: words[2] for words in map(str.split, text.splitlines()) if len(words) == 3 and words[0] == "inforom"}
    lines = [f"set {k}.{w} {v}\n" for k, v in modes.items() for w in ("current", "pending")]
    kept.write_text("".join(lines) + "".join(f"inforom {k} {v}\n" for k, v in modes.items()))


def grub(disk: Path) -> str:
    """What the node's own grub files add to the kernel command line, as the boot loader's generator would."""
    script = (
        "GRUB_CMDLINE_LINUX= GRUB_CMDLINE_LINUX_DEFAULT=;"
        " for f in etc/default/grub etc/default/grub.d/*.cfg; do [ ! -f $f ] || . ./$f; done;"
        ' echo "$GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT"'
    )
    done = subprocess.run(["/bin/sh", "-c", script], cwd=disk, capture_output=True, text=True, check=False)
    return " ".join(done.stdout.split())


def binds_of(spec: HostSpec) -> tuple[box.Bind, ...]:
    """What is laid over the root, /proc and /etc; only over files of /proc that this kernel has."""
    folder = Path(spec.folder)
    proc = folder / "hw/proc"
    binds: list[box.Bind] = [(str(folder / "log"), "/dev/console", False)]
    if (proc / "driver").is_dir() and Path("/proc/driver").is_dir():
        binds.append((str(proc / "driver"), "/proc/driver", True))
    if (proc / "irq").is_dir():
        binds.append((str(proc / "irq"), "/proc/irq", False))
    for path in sorted(proc.rglob("*")):
        inside = path.relative_to(proc).as_posix()
        if path.is_file() and not inside.startswith((*_OWN_PROC, "driver/", "irq/")) and Path("/proc", inside).exists():
            binds.append((str(path), f"/proc/{inside}", inside.endswith("boot_id") or not inside.startswith("sys/")))
    if spec.tree:
        binds.append((str(folder / "sim"), "/etc/fairlead-sim", False))
    return (*binds, *spec.binds)


def boot(spec: HostSpec, leave: Callable[[], None]) -> int:
    """Fork the host; returns the pid of the process that waits for it. ``leave`` moves that one out of the cgroup."""
    folder = Path(spec.folder)
    majors = dict(spec.majors)
    devices = device_lines(Path(spec.tree)) if spec.tree else []
    made = box.Box(
        hostname=spec.name,
        lower=spec.lower,
        scratch=folder / "scratch",
        upper=folder / "disk",
        sysfs=Path(spec.tree, "sys") if spec.tree else None,
        binds=binds_of(spec),
        devices=tuple((name, majors[major], minor, mode) for name, major, minor, mode in devices),
        proc_ro=True,
    )

    def join() -> Callable[[], None]:
        for group in filter(None, (spec.cgroup, spec.memory)):
            bounds.join(Path(group))
        return leave

    def init() -> None:
        log = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        os.setsid()
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        try:
            box.compose(made)
            Path("/etc/hostname").write_text(f"{spec.name}\n")
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            command = ["/lib/systemd/systemd", "--log-target=console", "--log-level=notice", "--show-status=no"]
            os.execve(command[0], command, {"container": "fairlead-lab", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
        except OSError as error:
            os.write(2, f"lab: {spec.name} does not boot: {error}\n".encode())

    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    between, pid = box.fork_into(init, cgroup=join, net=spec.netns, clock=True)
    fresh = folder / "init.new"
    fresh.write_text(f"{pid} {linux.start_time(pid)} {uptime:.3f}\n")
    fresh.rename(folder / "init")
    return between
