"""Sockets, NUMA nodes and CPUs of a simulated machine: sys/devices/system and the CPU side of proc."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.lab.models import Model
from tests.lab.pcitree import link_to, put


@dataclass(frozen=True)
class Cpu:
    """One logical CPU; `core` is unique within its socket, `cache` names its last-level cache."""

    number: int
    socket: int
    core: int
    numa_node: int
    cache: int


@dataclass(frozen=True)
class CpuLayout:
    """All CPUs of a machine and how its declared NUMA nodes map to the ones that exist."""

    cpus: tuple[Cpu, ...]
    numa_nodes: int
    threads: int
    declared_numa_nodes: int

    def numa_node(self, declared: int) -> int:
        """The NUMA node of a device declared on node `declared` of the full machine."""
        return declared * self.numa_nodes // self.declared_numa_nodes

    def cpulist(self, numa_node: int) -> str:
        """CPUs of one NUMA node; all CPUs for -1."""
        return cpulist(cpu.number for cpu in self.cpus if numa_node in (-1, cpu.numa_node))

    def siblings(self, cpu: Cpu) -> str:
        return cpulist(c.number for c in self.cpus if (c.socket, c.core) == (cpu.socket, cpu.core))

    def cache(self, cpu: Cpu) -> str:
        return cpulist(c.number for c in self.cpus if c.cache == cpu.cache)


def cpulist(numbers: Iterable[int]) -> str:
    """The kernel's list format: `0-3,8`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def layout(model: Model, cpus: int | None) -> CpuLayout:
    """The full machine, or (`cpus` given) its two sockets on that many real CPUs, one thread per core."""
    if cpus is not None:
        if cpus < 2:
            raise ValueError("cpus: two sockets need at least 2 CPUs")
        first = (cpus + 1) // 2
        small = tuple(Cpu(n, int(n >= first), n if n < first else n - first, int(n >= first), int(n >= first))
                      for n in range(cpus))  # fmt: skip
        return CpuLayout(small, 2, 1, model.numa_nodes)
    cores = model.sockets * model.cores_per_socket
    caches = 4 if model.cpu_vendor == "AuthenticAMD" else model.cores_per_socket  # cores that share one L3

    def number(core: int) -> int:
        if not model.interleaved:
            return core
        return core % model.cores_per_socket * model.sockets + core // model.cores_per_socket

    full = tuple(
        Cpu(thread * cores + number(core), core // model.cores_per_socket, core % model.cores_per_socket,
            core * model.numa_nodes // cores, core // caches)
        for thread in range(model.threads) for core in range(cores)
    )  # fmt: skip
    return CpuLayout(full, model.numa_nodes, model.threads, model.numa_nodes)


def write_cpus(tree: Path, model: Model, cpus: CpuLayout, governor: str) -> None:
    """sys/devices/system/{cpu,node}, proc/cpuinfo and proc/meminfo."""
    system = tree / "sys/devices/system"
    everything = cpus.cpulist(-1)
    for name in ("online", "possible", "present"):
        put(system / "cpu" / name, everything)
    for cpu in cpus.cpus:
        here = system / "cpu" / f"cpu{cpu.number}"
        put(here / "topology/core_id", cpu.core)
        put(here / "topology/physical_package_id", cpu.socket)
        put(here / "topology/thread_siblings_list", cpus.siblings(cpu))
        put(here / "topology/core_cpus_list", cpus.siblings(cpu))
        put(here / "cache/index3/level", 3)
        put(here / "cache/index3/shared_cpu_list", cpus.cache(cpu))
        policy = system / f"cpu/cpufreq/policy{cpu.number}"
        put(policy / "scaling_governor", governor)
        put(policy / "scaling_available_governors", model.governors)
        link_to(here / "cpufreq", policy)
    per_node = model.memory_kib * model.numa_nodes // cpus.numa_nodes
    memory_kib = (per_node,) * cpus.numa_nodes + model.gpu_memory_kib
    with_memory = cpulist(number for number, size in enumerate(memory_kib) if size)
    lists = {"has_cpu": cpulist(range(cpus.numa_nodes)), "has_memory": with_memory, "has_normal_memory": with_memory}
    for name in ("online", "possible", "has_cpu", "has_memory", "has_normal_memory"):
        put(system / "node" / name, lists.get(name, cpulist(range(len(memory_kib)))))
    for number, size in enumerate(memory_kib):
        here = system / f"node/node{number}"
        put(here / "cpulist", cpus.cpulist(number))
        put(here / "distance", " ".join(_distance(cpus, number, other) for other in range(len(memory_kib))))
        sizes = {"MemTotal": size, "MemFree": size * 31 // 32, "MemUsed": size // 32}
        put(here / "meminfo", "\n".join(f"Node {number} {key + ':':<15}{value:>10} kB" for key, value in sizes.items()))
    _write_proc(tree / "proc", model, cpus, sum(memory_kib))


def _distance(cpus: CpuLayout, a: int, b: int) -> str:
    """ACPI SLIT distances: 10 here, 12 within the socket (NPS4), 21 or 32 to the other one, 80 to the memory of a GPU."""
    if a == b:
        return "10"
    if max(a, b) >= cpus.numa_nodes:
        return "80"
    per_socket = max(1, cpus.numa_nodes // len({cpu.socket for cpu in cpus.cpus}))
    if a // per_socket == b // per_socket:
        return "12"
    return "32" if cpus.numa_nodes > 2 else "21"


def _write_proc(proc: Path, model: Model, cpus: CpuLayout, total_kib: int) -> None:
    count = len({(cpu.socket, cpu.core) for cpu in cpus.cpus}) // model.sockets
    features = "Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"
    blocks = (
        [f"processor\t: {cpu.number}\n{features}" for cpu in cpus.cpus]
        if model.cpu_vendor == "ARM"
        else [
            f"processor\t: {cpu.number}\nvendor_id\t: {model.cpu_vendor}\nmodel name\t: {model.cpu_name}\n"
            f"physical id\t: {cpu.socket}\nsiblings\t: {count * cpus.threads}\ncore id\t\t: {cpu.core}\n"
            f"cpu cores\t: {count}\nflags\t\t: fpu msr apic ht lm constant_tsc avx2\n"
            for cpu in cpus.cpus
        ]
    )
    put(proc / "cpuinfo", "\n".join(blocks))
    sizes = {"MemTotal": total_kib, "MemFree": total_kib * 31 // 32, "MemAvailable": total_kib * 31 // 32,
             "SwapTotal": 0, "SwapFree": 0, "HugePages_Total": 0}  # fmt: skip
    unit = {key: "" if key.startswith("Huge") else " kB" for key in sizes}
    put(proc / "meminfo", "\n".join(f"{key + ':':<16}{value:>8}{unit[key]}" for key, value in sizes.items()))
