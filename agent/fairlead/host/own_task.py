"""Reads and sets the CPU affinity and the memory policy of this process, and reads its cpuset.

All three remain in force after execve(2). Sources: sched_setaffinity(2), cpuset(7) and cgroups(7), set_mempolicy(2) and
get_mempolicy(2).
"""

from __future__ import annotations

import os

from fairlead.model.cpulist import cpus_in
from fairlead.topology.binding.binding_plan import Doubt, parse_cpu_set

MPOL_DEFAULT = 0
MPOL_PREFERRED = 1
NODES_MAX = 1024  # the largest MAX_NUMNODES of the kernel (CONFIG_NODES_SHIFT of 10)

#: The numbers of (set_mempolicy, get_mempolicy) by machine, because the C library has no wrappers. Source:
#: arch/*/kernel/syscalls/syscall*.tbl of Linux.
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
    """Restrict this process to these CPUs, and read its affinity back. If the kernel does not set exactly these CPUs, the
    affinity is as before and Doubt is raised."""
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
    """Return the CPUs of the cgroup (v1 or v2) that this process is in, or the CPUs that are online if it is in no cpuset.
    Raises Doubt, OSError."""
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
    """Return the mode of this thread's memory policy (MPOL_DEFAULT, ...). Raises Doubt if it cannot be read."""
    import ctypes

    mode = ctypes.c_int(-1)
    _call(1, ctypes.byref(mode), None, 0, None, 0)
    return mode.value


def prefer_memory(node: int) -> None:
    """Make the kernel allocate memory on NUMA node ``node``, or on other nodes when ``node`` has no free memory.

    The kernel accepts only a node that has memory and that the cpuset allows (set_mempolicy(2), EINVAL). If the kernel refuses
    the node, nothing is changed and Doubt is raised.
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
