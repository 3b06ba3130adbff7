"""Reads and narrows what this process may use: CPU affinity, the cpuset that it is in, the memory policy.

Sources: sched_setaffinity(2), cpuset(7) and cgroups(7), set_mempolicy(2) and get_mempolicy(2). All of it stays in force over
exec.
"""

from __future__ import annotations

import os

from fairlead.model.cpulist import cpus_in
from fairlead.topology.binding.binding_plan import Doubt, parse_cpu_set

MPOL_DEFAULT = 0
MPOL_PREFERRED = 1
NODES_MAX = 1024  # MAX_NUMNODES is at most that (CONFIG_NODES_SHIFT of 10)

#: (set_mempolicy, get_mempolicy) by machine, as the C library has no wrapper. Source: arch/*/kernel/syscalls/syscall*.tbl of
#: Linux.
_CALLS = {"x86_64": (238, 239), "aarch64": (237, 236), "ppc64le": (261, 260)}


def text(path: str, limit: int = 1 << 20) -> str:
    """Return the first ``limit`` bytes of a file. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while limit > 0 and (part := os.read(file, min(limit, 1 << 16))):
            parts.append(part)
            limit -= len(part)
        return b"".join(parts).decode("latin-1")
    finally:
        os.close(file)


def affinity() -> int:
    """Return the CPUs that this process may run on, as a bit set."""
    return sum(1 << cpu for cpu in os.sched_getaffinity(0))


def set_affinity(cpus: int) -> None:
    """Run on these CPUs only, and read that back. Raises Doubt when the kernel does not take exactly these CPUs; the affinity
    is then as before."""
    before = os.sched_getaffinity(0)
    wanted = set(cpus_in(cpus))
    try:
        os.sched_setaffinity(0, wanted)
    except OSError as e:
        raise Doubt(f"the kernel refuses these CPUs: {e.strerror}") from None
    if os.sched_getaffinity(0) != wanted:
        os.sched_setaffinity(0, before)
        raise Doubt("the kernel has set other CPUs")


def cpuset(fs: str = "/sys/fs/cgroup") -> int:
    """Return the CPUs of the cgroup (v1 or v2) that this process is in, or the CPUs online without any cpuset. Raises Doubt,
    OSError."""
    unified = None
    for line in text("/proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if "cpuset" in controllers.split(","):
            for folder in (path, ""):  # a container shows its own group as the root
                for name in ("cpuset.effective_cpus", "cpuset.cpus"):
                    if os.path.exists(f"{fs}/cpuset{folder}/{name}"):
                        return parse_cpu_set(text(f"{fs}/cpuset{folder}/{name}"))
        if number == "0" and not controllers:
            unified = path.rstrip("/")
    while unified is not None:
        for name in (f"{fs}{unified}/cpuset.cpus.effective", f"{fs}/unified{unified}/cpuset.cpus.effective"):
            if os.path.exists(name):
                return parse_cpu_set(text(name))
        unified = unified.rpartition("/")[0] if unified else None
    return parse_cpu_set(text("/sys/devices/system/cpu/online"))


def memory_policy() -> int:
    """Return the mode of this thread's memory policy (MPOL_DEFAULT, ...). Raises Doubt when the kernel does not say it."""
    import ctypes

    mode = ctypes.c_int(-1)
    _call(1, ctypes.byref(mode), None, 0, None, 0)
    return mode.value


def prefer_memory(node: int) -> None:
    """Take memory from NUMA node ``node`` while it has some, else from other nodes. Raises Doubt, and then changes nothing.

    The kernel takes only nodes with memory that the cpuset allows (set_mempolicy(2), EINVAL).
    """
    import ctypes

    if not 0 <= node < NODES_MAX:
        raise Doubt(f"there is no NUMA node {node}")
    bits = ctypes.sizeof(ctypes.c_ulong) * 8
    mask = (ctypes.c_ulong * (NODES_MAX // bits))()
    mask[node // bits] = 1 << node % bits
    _call(0, MPOL_PREFERRED, mask, NODES_MAX)


def _call(which: int, *words: object) -> None:
    import ctypes

    numbers = _CALLS.get(os.uname().machine)
    if numbers is None:
        raise Doubt(f"memory policies are not known on {os.uname().machine}")
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = [ctypes.c_long(w) if isinstance(w, int) else w for w in words]
    if libc.syscall(ctypes.c_long(numbers[which]), *arguments) != 0:
        raise Doubt(f"the kernel refuses the memory policy: {os.strerror(ctypes.get_errno())}")
