"""Machine trees: one directory describes one GPU node for every part of the tests.

`write_machine` writes sys/, proc/, dev/, nvml.json and README.md of one model as the machine is after power-on: ACS
redirection on, NUMA balancing on, governor and persistence mode as the distribution leaves them. `tuned=True` is the
same machine as fairlead would leave it. `python -m tests.lab.machines` writes again what
tests/machines keeps of them.
"""

from __future__ import annotations

import json
import sys as system
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.lab.cpufacts import CpuLayout, cpulist, layout, write_cpus
from tests.lab.gpufacts import DRIVER_VERSION, digest, gpu_facts, machine_facts, uuid
from tests.lab.hostfacts import write_host
from tests.lab.kernelfacts import write_settings
from tests.lab.models import IMEX, MODELS, Model
from tests.lab.pcitree import Function, link_to, put, walk, write_function
from tests.lab.software import write_software
from tests.lab.trees import ensure, pack

KERNEL = "6.1.0-38-amd64"
BOOT_RECORDS = (
    "6,0,0,-;Linux version 6.1.0-38-amd64 (debian-kernel@lists.debian.org)",
    "6,905,4108312,-;nvidia-nvlink: Nvlink Core is being initialized, major device number 510",
    "6,911,4921007,c;NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.172.08  Release Build",
    "6,1042,9180233,-;nvidia_uvm: module uses symbols nvUvmInterfaceDisableAccessCntr from proprietary module nvidia",
)


@dataclass(frozen=True)
class _Devices:
    """Where every PCI function of the machine lies: (function, directory below TREE/sys), in bus order."""

    all: tuple[tuple[Function, str], ...]

    def of(self, *kinds: str) -> list[tuple[Function, str]]:
        return [(f, path) for f, path in self.all if f.kind in kinds]


def write_machine(
    directory: Path, model: str, *, node: str = "gpu1", cpus: int | None = None, seed: int = 0, tuned: bool = False
) -> Path:
    """Write the tree of one machine into `directory` (created; must not hold one yet) and return it.

    `cpus` gives the small variant for real hosts: the same GPUs, NICs and two sockets, but only that many CPUs,
    numbered from 0. `node` and `seed` vary serials, UUIDs, GUIDs and the boot id. Raises ValueError for an unknown
    model or fewer than 2 CPUs, FileExistsError where a tree is already there.
    """
    if model not in MODELS:
        raise ValueError(f"{model}: no such machine model; there are {', '.join(sorted(MODELS))}")
    m = MODELS[model]
    return write_tree(Path(directory), m, _readme(m, cpus, tuned), node=node, cpus=cpus, seed=seed, tuned=tuned)


def write_tree(
    tree: Path, m: Model, readme: str, *, node: str = "gpu1", cpus: int | None = None, seed: int = 0, tuned: bool = False
) -> Path:
    """As `write_machine`, for a machine that is no model of the racks; `readme` is the text of README.md."""
    if (tree / "sys").exists():
        raise FileExistsError(f"{tree}: already holds a machine tree")
    processors = layout(m, cpus)
    write_cpus(tree, m, processors, "performance" if tuned else m.governors.split()[1])
    devices = _write_pci(tree / "sys", m, processors, tuned)
    _write_networks(tree / "sys", m, devices, node, seed)
    write_host(tree, m, [tree / "sys" / path for _, path in devices.of("nvme")])
    gpus = [
        gpu_facts(m, n, f.address, node=node, seed=seed, cpus=processors.cpulist(f.numa_node), numa=f.numa_node,
                  persistence=int(tuned))
        for n, (f, _) in enumerate(devices.of("gpu"))
    ]  # fmt: skip
    write_nvml(tree, machine_facts(gpus))
    _write_kernel(tree, m, gpus, node=node, seed=seed, tuned=tuned)
    _write_dev(tree / "dev", m, gpus, devices)
    write_settings(tree, m, processors, tuned=tuned)
    write_software(tree, m)
    put(tree / "README.md", readme)
    return tree


def write_nvml(tree: Path, nvml: dict[str, Any]) -> None:
    """Write TREE/nvml.json."""
    put(tree / "nvml.json", json.dumps(nvml, indent=1))


def read_nvml(tree: Path) -> dict[str, Any]:
    """Read TREE/nvml.json."""
    return dict(json.loads((tree / "nvml.json").read_text()))


def _write_pci(sys: Path, model: Model, cpus: CpuLayout, tuned: bool) -> _Devices:
    found: list[tuple[Function, str]] = []
    for root in model.roots:
        numa = cpus.numa_node(root.numa_node)
        ports = tuple(port.on_numa_node(numa) for port in root.ports)
        for function, below in walk(ports):
            path = f"devices/pci{root.domain:04x}:{root.bus:02x}/{below}"
            found.append((function, path))
            written = replace(function, acs_control=0) if tuned else function
            write_function(sys, sys / path, written, cpus.cpulist(numa))
    found.sort(key=lambda entry: entry[0].address)
    endpoints = [(f, path) for f, path in found if f.kind != "bridge"]
    for number, (f, path) in enumerate(endpoints):
        group = sys / f"kernel/iommu_groups/{number}"
        put(group / "type", model.iommu)
        link_to(group / "devices" / f.address, sys / path)
        link_to(sys / path / "iommu_group", group)
    for number, (f, _) in enumerate((f, p) for f, p in endpoints if f.kind == "gpu"):
        put(sys / f"bus/pci/slots/{number + 1}/address", f.address[:-2])
    return _Devices(tuple(found))


def _roce_gids(number: int, identity: str) -> Iterator[tuple[str, str]]:
    """As mlx5 fills the table: link-local, then the interface's IPv4 address, each for RoCE v1 and v2."""
    local = f"fe80:0000:0000:0000:ba{identity[:2]}:{identity[2:4]}ff:fe{identity[4:6]}:{identity[6:10]}"
    for gid in (local, f"0000:0000:0000:0000:0000:ffff:0a00:{number + 1:02x}05"):
        for kind in ("IB/RoCE v1", "RoCE v2"):
            yield gid, kind


def _write_networks(sys: Path, model: Model, devices: _Devices, node: str, seed: int) -> None:
    for number, (f, path) in enumerate(devices.of("infiniband", "ethernet")):
        fabric = f.kind == "infiniband"
        identity = digest(node, seed, "nic", f.address)
        hca = sys / path / "infiniband" / f"mlx5_{number}"
        put(hca / "fw_ver", model.nic_firmware)
        put(hca / "hca_type", model.nic)
        put(hca / "board_id", model.nic_board)
        put(hca / "node_guid", f"b83f:d203:00{identity[0:2]}:{identity[2:6]}")
        put(hca / "node_desc", f"{node} mlx5_{number}")
        port = hca / "ports/1"
        speed = model.ethernet_speed // 1000
        rate = model.infiniband_rate if fabric else f"{speed} Gb/sec (4X {'HDR' if speed > 100 else 'EDR'})"
        values = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": rate,
                  "link_layer": "InfiniBand" if fabric else "Ethernet", "lid": f"0x{number + 1 if fabric else 0:x}"}  # fmt: skip
        for name, value in values.items():
            put(port / name, value)
        for counter in ("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors",
                        "local_link_integrity_errors", "excessive_buffer_overrun_errors", "port_xmit_discards",
                        "port_rcv_data", "port_xmit_data"):  # fmt: skip
            put(port / "counters" / counter, 0)
        for counter in ("local_ack_timeout_err", "packet_seq_err", "rx_icrc_encapsulated", "out_of_sequence"):
            put(port / "hw_counters" / counter, 0)
        for index, (gid, kind) in enumerate(() if fabric else _roce_gids(number, identity)):
            put(port / f"gids/{index}", gid)
            put(port / f"gid_attrs/types/{index}", kind)
        link_to(hca / "device", sys / path)
        link_to(sys / "class/infiniband" / hca.name, hca)
        slot = int(f.address[5:7], 16)
        domain = int(f.address[:4], 16)
        name = f"{'ib' if fabric else 'en'}{f'P{domain}' if domain else ''}p{slot}s0{'' if fabric else 'np0'}"
        address = ":".join(identity[i : i + 2] for i in range(0, 10, 2))
        net = sys / path / "net" / name
        values = {"operstate": "up", "mtu": "4092" if fabric else "9000", "type": "32" if fabric else "1",
                  "carrier_changes": "2", "carrier_down_count": "1", "carrier_up_count": "1",
                  "address": f"00:00:10:29:fe:80:00:00:00:00:00:00:b8:3f:d2:{address}" if fabric else f"b8:{address}",
                  "speed": str(int(model.infiniband_rate.split()[0]) * 1000 if fabric else model.ethernet_speed)}  # fmt: skip
        for attribute, text in values.items():
            put(net / attribute, text)
        link_to(net / "device", sys / path)
        link_to(sys / "class/net" / name, net)
    for number, (_, path) in enumerate(devices.of("lan")):  # no RDMA: the network of the node's management
        net = sys / path / f"net/eno{number + 1}"
        values = {"operstate": "up", "mtu": "1500", "type": "1", "carrier_changes": "2", "carrier_down_count": "1",
                  "carrier_up_count": "1", "address": f"02:00:00:00:00:{number:02x}", "speed": "10000"}  # fmt: skip
        for attribute, text in values.items():
            put(net / attribute, text)
        link_to(net / "device", sys / path)
        link_to(sys / "class/net" / net.name, net)
    loopback = sys / "devices/virtual/net/lo"
    for attribute, text in {"operstate": "unknown", "mtu": "65536", "type": "772", "address": "00:00:00:00:00:00"}.items():
        put(loopback / attribute, text)
    link_to(sys / "class/net/lo", loopback)


def _write_kernel(tree: Path, m: Model, gpus: list[dict[str, Any]], *, node: str, seed: int, tuned: bool) -> None:
    proc, sys = tree / "proc", tree / "sys"
    put(sys / "module/nvidia/version", DRIVER_VERSION)
    put(sys / "module/nvidia_drm/parameters/modeset", "Y")
    put(sys / "devices/virtual/dmi/id/sys_vendor", m.vendor)
    put(sys / "devices/virtual/dmi/id/product_name", m.product)
    link_to(sys / "class/dmi/id", sys / "devices/virtual/dmi/id")
    put(proc / "cmdline", f"BOOT_IMAGE=/boot/vmlinuz-{KERNEL} root=/dev/md0 ro quiet iommu=pt")
    put(proc / "version", f"Linux version {KERNEL} (debian-kernel@lists.debian.org) (gcc-12 (Debian 12.2.0-14)) #1 SMP")
    put(proc / "uptime", "86400.00 9000000.00")
    modules = ("nvidia_uvm 3481600 0 -", "nvidia_drm 131072 0 -", "nvidia_modeset 1724416 1 nvidia_drm",
               "nvidia 11579392 2 nvidia_uvm,nvidia_modeset", "mlx5_ib 450560 0 -", "mlx5_core 2117632 1 mlx5_ib")  # fmt: skip
    put(proc / "modules", "\n".join(f"{module}, Live 0x0000000000000000" for module in modules))
    put(proc / "mounts", "/dev/md0 / ext4 rw,relatime 0 0\nproc /proc proc rw,nosuid,nodev,noexec,relatime 0 0\n"
        "sysfs /sys sysfs rw,nosuid,nodev,noexec,relatime 0 0\ntmpfs /run tmpfs rw,nosuid,nodev,mode=755 0 0")  # fmt: skip
    ethernet = next(p.name for p in sorted((sys / "class/net").iterdir()) if p.name.startswith("en"))
    header = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT"
    put(proc / "net/route", f"{header}\n{ethernet}\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0")
    put(proc / "sys/kernel/numa_balancing", 0 if tuned else 1)
    put(proc / "sys/kernel/modprobe", "/sbin/modprobe")
    put(proc / "sys/kernel/random/boot_id", uuid(node, seed, "boot"))
    put(proc / "driver/nvidia/version",
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER_VERSION}  Release Build\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)")  # fmt: skip
    for gpu in gpus:
        put(proc / f"driver/nvidia/gpus/{gpu['pci']}/information",
            f"Model: \t\t {gpu['name']}\nIRQ:   \t\t 0\nGPU UUID: \t {gpu['uuid']}\n"
            f"Video BIOS: \t {gpu['vbios_version']}\nBus Type: \t PCIe\nDMA Size: \t 52 bits\n"
            f"DMA Mask: \t 0xfffffffffffff\nBus Location: \t {gpu['pci']}\nDevice Minor: \t {gpu['minor']}\n"
            f"GPU Firmware: \t {DRIVER_VERSION}\nGPU Excluded:\t No")  # fmt: skip


def _write_dev(dev: Path, m: Model, gpus: list[dict[str, Any]], devices: _Devices) -> None:
    put(dev / "kmsg", "\n".join(BOOT_RECORDS))
    nodes = [f"nvidia{gpu['minor']} c 195 {gpu['minor']} 0666" for gpu in gpus]
    nodes += ["nvidiactl c 195 255 0666", "nvidia-uvm c 508 0 0666", "nvidia-uvm-tools c 508 1 0666"]
    hcas = devices.of("infiniband", "ethernet")
    if IMEX in m.daemons:
        nodes.append("nvidia-caps-imex-channels/channel0 c 234 0 0666")
    nodes += [f"infiniband/uverbs{n} c 231 {192 + n} 0666" for n in range(len(hcas))]
    put(dev / "nodes", "\n".join(nodes))


def gres_conf(tree: Path, device_dir: str = "/dev") -> str:
    """gres.conf lines of a machine tree: one per GPU, with its device file and the *cores* nearest to it.

    Slurm's Cores= counts cores, socket by socket, not logical CPUs (gres.conf(5)).
    """
    facts = slurm_node(tree)
    cores = facts.core_of_cpu
    lines = []
    for gpu in read_nvml(tree)["gpus"]:
        pci = tree / "sys/bus/pci/devices" / gpu["pci"]
        near = sorted({cores[cpu] for cpu in expand((pci / "local_cpulist").read_text().strip())})
        lines.append(f"Name=gpu Type={facts.gres_type} File={device_dir}/nvidia{gpu['minor']} Cores={cpulist(near)}")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class SlurmNode:
    """What slurm.conf says about a node; `core_of_cpu` maps logical CPUs to Slurm's abstract core numbers."""

    sockets: int
    cores_per_socket: int
    threads_per_core: int
    real_memory_mib: int
    gres_type: str
    gpus: int
    core_of_cpu: dict[int, int]

    def line(self, name: str, **more: object) -> str:
        """The NodeName line, with any further `key=value` at its end."""
        words = [f"NodeName={name} Sockets={self.sockets} CoresPerSocket={self.cores_per_socket}",
                 f"ThreadsPerCore={self.threads_per_core} RealMemory={self.real_memory_mib}",
                 f"Gres=gpu:{self.gres_type}:{self.gpus}"]  # fmt: skip
        return " ".join(words + [f"{key}={value}" for key, value in more.items()])


def slurm_node(tree: Path) -> SlurmNode:
    """Read sockets, cores, threads, memory and GPUs from a machine tree."""
    where: dict[int, tuple[int, int]] = {}
    for topology in (tree / "sys/devices/system/cpu").glob("cpu[0-9]*/topology"):
        values = [int((topology / name).read_text()) for name in ("physical_package_id", "core_id")]
        where[int(topology.parent.name[3:])] = (values[0], values[1])
    cores = {core: number for number, core in enumerate(sorted(set(where.values())))}
    sockets = len({socket for socket, _ in cores})
    memory_kib = int((tree / "proc/meminfo").read_text().split()[1])
    gpus = read_nvml(tree)["gpus"]
    names = {m.gpu.product.device: m.gpu.gres_type for m in MODELS.values()}
    device = int((tree / "sys/bus/pci/devices" / gpus[0]["pci"] / "device").read_text(), 16)
    return SlurmNode(sockets, len(cores) // sockets, len(where) // len(cores), memory_kib // 1024, names[device],
                     len(gpus), {cpu: cores[core] for cpu, core in where.items()})  # fmt: skip


def expand(text: str) -> list[int]:
    """CPU numbers of a list such as `0-3,8`."""
    pairs = [part.partition("-") for part in text.split(",") if part]
    return [n for first, _, last in pairs for n in range(int(first), int(last or first) + 1)]


def _readme(m: Model, cpus: int | None, tuned: bool) -> str:
    size = f"{m.sockets} sockets x {m.cores_per_socket} cores x {m.threads} threads, {m.numa_nodes} NUMA nodes"
    if cpus is not None:
        size = f"the small variant: 2 sockets, 2 NUMA nodes, {cpus} CPUs in all"
    state = "as fairlead leaves it" if tuned else "as it is after power-on, before fairlead changed anything"
    return (
        f"# {m.name}: a healthy, idle machine, {state}\n\n{m.note}\n{size}.\n\n"
        "Written by tests/lab/machines.py. All values are written by hand; none was recorded from a machine.\n"
        "`sys/`, `proc/` and `dev/` follow the kernel's layout, `nvml.json` holds what NVML says,\n"
        "`host.json` what else is no file: space, units, the clock, sleeping tasks."
    )


def main() -> None:
    from tests.lab.faultytrees import committed

    with tempfile.TemporaryDirectory() as folder:
        for name, write in committed().items():
            pack(name, write(Path(folder, name)))
            print(name, file=system.stderr)
    ensure()


if __name__ == "__main__":
    main()
