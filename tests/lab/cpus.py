"""CPUs for the lab: this machine's own, a larger machine's by pretence, and real cpusets of a cluster's own."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.lab.roots import LabError, lab_dir

SOURCE = Path(__file__).with_name("fakeaff.c")
#: Where the preloaded library lies inside a root.
INSIDE = "/usr/lib/fairlead-lab/fakeaff.so"


def digest(sources: Sequence[Path]) -> str:
    """Twelve hex digits of what the files hold."""
    total = hashlib.sha256()
    for source in sources:
        total.update(source.read_bytes())
    return total.hexdigest()[:12]


def fakeaff() -> Path:
    """The built fakeaff.so, cached by its source. Raises LabError when there is no C compiler."""
    return preload(SOURCE)


def preload(source: Path) -> Path:
    """A C file as a shared library for LD_PRELOAD, cached by its source. Raises LabError when there is no C compiler."""
    built = lab_dir() / "build" / f"{source.stem}-{digest([source])}.so"
    if not built.is_file():
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise LabError("no C compiler; run: apt-get install gcc libc6-dev")
        built.parent.mkdir(parents=True, exist_ok=True)
        fresh = built.with_suffix(f".{os.getpid()}")
        command = [compiler, "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", str(source), "-o", str(fresh)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"{source.name} does not compile: {done.stderr.strip()}")
        fresh.rename(built)
    return built


def simulation(sockets: int, cores: int, threads: int = 1) -> dict[str, str]:
    """Environment that makes slurmd and tasks see ``sockets`` x ``cores`` cores that they can be bound to.

    Hardware threads are numbered as Linux does on x86: first one CPU of every core, then the next of every core.
    """
    total = sockets * cores
    numbers = ",".join(str(thread * total + core) for core in range(total) for thread in range(threads))
    return {
        "HWLOC_SYNTHETIC": f"pack:{sockets} numa:1 core:{cores} pu:{threads}" + (f"(indexes={numbers})" if threads > 1 else ""),
        "HWLOC_THISSYSTEM": "1",
        "FAKEAFF_NCPU": str(total * threads),
        "FAKEAFF_DIR": "/run/fakeaff",
        "LD_PRELOAD": INSIDE,
    }


def v1_controllers() -> dict[str, Path]:
    """Mounted cgroup v1 controllers by name; {} on a machine with the v2 hierarchy alone."""
    found: dict[str, Path] = {}
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, options = line.split()[:4]
        if kind == "cgroup":
            for name in ("cpuset", "cpu", "cpuacct", "memory", "freezer", "devices"):
                if name in options.split(","):
                    found[name] = Path(where)
    return found


def cgroup2() -> Path:
    """Where the v2 hierarchy is mounted. Raises LabError when it is nowhere."""
    for line in Path("/proc/mounts").read_text().splitlines():
        if line.split()[2] == "cgroup2":
            return Path(line.split()[1])
    raise LabError("no cgroup2 file system is mounted; try: mount -t cgroup2 none /sys/fs/cgroup")


def own_cpusets(name: str) -> dict[str, Path]:
    """The v1 groups that a cluster of this name will have. Raises LabError on a machine without cgroup v1."""
    controllers = v1_controllers()
    if not {"cpuset", "freezer"} <= controllers.keys():
        raise LabError("this machine has no cgroup v1 cpuset and freezer: cgroup=True needs a hybrid hierarchy")
    kinds = ("cpuset", "freezer", "memory", "cpuacct")
    return {kind: controllers[kind] / f"fairlead-lab-{name}" for kind in kinds if kind in controllers}


def make(groups: dict[str, Path]) -> None:
    """Make them; a new v1 cpuset takes no process before it has CPUs and memory nodes (cpuset(7))."""
    for group in groups.values():
        group.mkdir(exist_ok=True)
        for key in ("cpuset.cpus", "cpuset.mems"):
            if (group / key).exists():
                (group / key).write_text((group.parent / key).read_text())


def make_cgroups(top: Path, below: Sequence[str]) -> None:
    """Make ``top`` and groups below it, and pass down the v2 controllers that ``top`` is given.

    The machine's own groups are left as they are. On a hybrid machine v2 has no controllers, and nothing is passed.
    """
    for group in (top, *(top / name for name in below)):
        group.mkdir(parents=True, exist_ok=True)
    for group in (top, *sorted({(top / name).parent for name in below})):
        try:
            for name in (group / "cgroup.controllers").read_text().split():
                (group / "cgroup.subtree_control").write_text(f"+{name}")
        except OSError:
            continue


def write_masks(tree: Path) -> None:
    """Add to a tree the mask files beside the lists: hwloc and lscpu read only those (kernel cputopology.rst)."""
    system = tree / "sys/devices/system"
    cpu_folders = sorted((system / "cpu").glob("cpu[0-9]*"))
    packages: dict[str, int] = {}
    for folder in cpu_folders:
        package = (folder / "topology/physical_package_id").read_text().strip()
        packages[package] = packages.get(package, 0) | 1 << int(folder.name[3:])
    masks: dict[Path, int] = {}
    for folder in cpu_folders:
        topology = folder / "topology"
        together = packages[(topology / "physical_package_id").read_text().strip()]
        core = _cpus((topology / "thread_siblings_list").read_text())
        masks.update(dict.fromkeys((topology / "core_cpus", topology / "thread_siblings"), core))
        masks.update(dict.fromkeys((topology / "package_cpus", topology / "core_siblings"), together))
        for cache in folder.glob("cache/index*"):
            masks[cache / "shared_cpu_map"] = _cpus((cache / "shared_cpu_list").read_text())
    for numa in (system / "node").glob("node[0-9]*"):
        masks[numa / "cpumap"] = _cpus((numa / "cpulist").read_text())
    words = max(1, (len(cpu_folders) + 31) // 32)
    for path, mask in masks.items():
        if not path.exists():
            # 32-bit words in hexadecimal, the most significant one first.
            path.write_text(",".join(f"{mask >> (32 * word) & 0xFFFFFFFF:08x}" for word in reversed(range(words))) + "\n")
    if not (system / "cpu/kernel_max").exists():
        (system / "cpu/kernel_max").write_text("8191\n")


def _cpus(text: str) -> int:
    """A list such as 0-3,8 as a mask."""
    mask = 0
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1) if first else ():
            mask |= 1 << number
    return mask
