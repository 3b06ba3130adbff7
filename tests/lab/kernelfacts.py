"""What the kernel of a machine tree has been told: huge pages, idle states, energy hints, parameters, module options."""

from __future__ import annotations

from pathlib import Path

from tests.lab.cpufacts import CpuLayout
from tests.lab.models import Model
from tests.lab.pcitree import put

#: name, exit latency in microseconds, of a server processor (drivers/idle/intel_idle.c has such tables).
IDLE_STATES = (("POLL", 0), ("C1", 1), ("C1E", 2), ("C6", 190))
#: /proc/driver/nvidia/params as the open modules print it (kernel-open/nvidia/nv-procfs.c): names without NVreg_.
NVIDIA_PARAMS = {
    "ResmanDebugLevel": 4294967295,
    "InitializeSystemMemoryAllocations": 1,
    "EnableMSI": 1,
    "EnablePCIeGen3": 0,
    "EnablePCIERelaxedOrderingMode": 0,
    "EnableStreamMemOPs": 0,
    "RestrictProfilingToAdminUsers": 1,
    "PreserveVideoMemoryAllocations": 0,
    "CreateImexChannel0": 0,
    "GrdmaPciTopoCheckOverride": 0,
}
NVIDIA_WORDS = {"RegistryDwords": "", "CoherentGPUMemoryMode": ""}
FIRST_IRQ = 64
SYSCTLS = {
    "vm/zone_reclaim_mode": 0,
    "vm/swappiness": 60,
    "net/core/rmem_max": 212992,
    "net/core/wmem_max": 212992,
    "net/ipv4/tcp_rmem": "4096\t131072\t6291456",
    "net/ipv4/tcp_congestion_control": "cubic",
    "net/ipv4/tcp_available_congestion_control": "reno cubic",
    "net/ipv4/neigh/default/gc_thresh1": 128,
    "net/ipv4/neigh/default/gc_thresh2": 512,
    "net/ipv4/neigh/default/gc_thresh3": 1024,
    "fs/nr_open": 1048576,
}


def _interrupts(device: Path) -> bool:
    """Whether it is a GPU or an adapter (PCI classes)."""
    return int((device / "class").read_text(), 16) >> 8 in (0x0302, 0x0200, 0x0207)


def write_settings(tree: Path, model: Model, cpus: CpuLayout, *, tuned: bool) -> None:
    """sys/kernel/mm, cpuidle and energy hints below sys/devices/system/cpu, proc/sys, proc/driver/nvidia/params."""
    sys, proc = tree / "sys", tree / "proc"
    pages = sys / "kernel/mm/transparent_hugepage"
    put(pages / "enabled", "[always] madvise never" if tuned else "always [madvise] never")
    put(pages / "defrag", f"always defer defer+madvise {'[madvise] never' if tuned else 'madvise [never]'}")
    for size in (2048, 1 << 20):
        put(sys / f"kernel/mm/hugepages/hugepages-{size}kB/nr_hugepages", 0)
    for cpu in cpus.cpus[:2]:  # the others would be a thousand files more of the same
        for number, (name, latency) in enumerate(IDLE_STATES):
            state = sys / f"devices/system/cpu/cpu{cpu.number}/cpuidle/state{number}"
            put(state / "name", name)
            put(state / "latency", latency)
            put(state / "disable", int(tuned and latency > 50))
    for cpu in cpus.cpus:
        if model.cpu_vendor == "GenuineIntel":
            policy = sys / f"devices/system/cpu/cpufreq/policy{cpu.number}"
            put(policy / "energy_performance_preference", "performance" if tuned else "balance_performance")
            offered = "default performance balance_performance balance_power power"
            put(policy / "energy_performance_available_preferences", offered)
    put(sys / "module/pcie_aspm/parameters/policy", "default [performance] powersave powersupersave" if tuned
        else "[default] performance powersave powersupersave")  # fmt: skip
    devices = [d.name for d in sorted((sys / "bus/pci/devices").iterdir()) if _interrupts(d)]
    for number, address in enumerate(devices, FIRST_IRQ):  # one each, where real devices have one per queue
        put(sys / f"bus/pci/devices/{address}/msi_irqs/{number}", "msix")
        put(proc / f"irq/{number}/smp_affinity_list", f"0-{len(cpus.cpus) - 1}")
    for path, value in SYSCTLS.items():
        put(proc / "sys" / path, value)
    lines = [f"{name}: {value}" for name, value in NVIDIA_PARAMS.items()]
    put(proc / "driver/nvidia/params", "\n".join([*lines, *(f'{name}: "{text}"' for name, text in NVIDIA_WORDS.items())]))
    known = [f"NVreg_{name}:{name} (uint)" for name in NVIDIA_PARAMS]
    known += [f"NVreg_{name}:{name} (charp)" for name in NVIDIA_WORDS]
    put(tree / "@modinfo/nvidia", "\n".join([*known, "rm_firmware_active:charp"]))
