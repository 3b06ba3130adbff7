"""The machines of the lab, declared: which GPUs, NICs, switches, sockets. Values are written by hand.

Shapes follow published machines (DGX H100 and DGX A100 user guides, common 8-slot L40S servers); nothing here was
recorded from one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.lab.pcitree import DOWNSTREAM, ENDPOINT, ROOT_PORT, UPSTREAM, Function, Product

FABRIC_MANAGER, IMEX = "nv-fabricmanage", "nvidia-imex"  # the kernel keeps 15 characters of nv-fabricmanager


@dataclass(frozen=True)
class GpuModel:
    """What NVML says about one kind of GPU; clocks in MHz, power in milliwatts, memory in bytes."""

    name: str
    gres_type: str
    product: Product
    architecture: int
    compute_capability: tuple[int, int]
    board_part_number: str
    vbios_version: str
    inforom_image_version: str
    memory_bytes: int
    reserved_bytes: int
    bar1_bytes: int
    power_milliwatts: int
    power_minimum_milliwatts: int
    idle_milliwatts: int
    sm_clock: int
    sm_clock_maximum: int
    memory_clock: int
    slowdown_celsius: int
    shutdown_celsius: int
    remap_banks: int
    pcie_generation: int
    cores: int
    memory_temperature: bool = True
    memory_max_celsius: int = 0  # 0: the driver says none
    nvlinks: int = 0
    nvlink_version: int = 0
    fabric: bool = False
    fabric_clique: int = 0
    fabric_cluster: str = "0" * 32
    fabric_health: int = 0  # NVML's health mask
    mig: bool = True


@dataclass(frozen=True)
class RootComplex:
    """One host bridge folder, /sys/devices/pciDOMAIN:BUS, on one NUMA node."""

    bus: int
    numa_node: int
    ports: tuple[Function, ...]
    domain: int = 0


@dataclass(frozen=True)
class Model:
    """One kind of machine. `memory_kib` is per NUMA node with CPUs. `gpu_memory_kib`: the memory of the NUMA nodes without CPUs,
    in the order of their numbers. `daemons`: the first 15 characters of the names of processes of the driver."""

    name: str
    vendor: str
    product: str
    cpu_vendor: str
    cpu_name: str
    sockets: int
    cores_per_socket: int
    threads: int
    numa_nodes: int
    memory_kib: int
    governors: str
    gpu: GpuModel
    infiniband_rate: str
    ethernet_speed: int
    roots: tuple[RootComplex, ...]
    nic: str
    nic_firmware: str
    nic_board: str
    note: str
    controllers: int = 8  # of EDAC
    daemons: tuple[str, ...] = ()
    gpu_memory_kib: tuple[int, ...] = ()
    interleaved: bool = False  # CPU numbers go round the sockets
    iommu: str = "identity"


_INTEL = Product(0x8086, 0x352A, 0x060400, ROOT_PORT, revision=4, driver="pcieport", pcie_offset=0x40,
                 acs_offset=0x220, max_read_request=4096)  # fmt: skip
_AMD = Product(0x1022, 0x1483, 0x060400, ROOT_PORT, driver="pcieport", pcie_offset=0x58, aer_offset=0x150,
               acs_offset=0x2A0)  # fmt: skip
_PEX5_UP = Product(0x1000, 0xC030, 0x060400, UPSTREAM, revision=0xB0, driver="pcieport", pcie_offset=0x68,
                   aer_offset=0x1F0, max_read_request=128)  # fmt: skip
_PEX5_DOWN = replace(_PEX5_UP, port_type=DOWNSTREAM, acs_offset=0x170, acs_capabilities=0x5F)
_PEX4_UP, _PEX4_DOWN = replace(_PEX5_UP, device=0xC010), replace(_PEX5_DOWN, device=0xC010)
_PMC_UP, _PMC_DOWN = replace(_PEX5_UP, vendor=0x11F8, device=0x4128), replace(_PEX5_DOWN, vendor=0x11F8, device=0x4128)
_GPU = Product(0x10DE, 0x2330, 0x030200, ENDPOINT, (0x10DE, 0x16C1), 0xA1, "nvidia", aer_offset=0x12C)
_NVSWITCH = Product(0x10DE, 0x22A3, 0x068000, ENDPOINT, (0x10DE, 0x1796), 0xA1, "nvidia-nvswitch", config_bytes=256)
_CX7_IB = Product(0x15B3, 0x1021, 0x020700, ENDPOINT, (0x15B3, 0x0041), 0, "mlx5_core")
_CX7_ETH = replace(_CX7_IB, class_code=0x020000)
_CX6_IB = Product(0x15B3, 0x101B, 0x020700, ENDPOINT, (0x15B3, 0x0007), 0, "mlx5_core")
_CX6_ETH = Product(0x15B3, 0x101D, 0x020000, ENDPOINT, (0x15B3, 0x0016), 0, "mlx5_core")
_NVME = Product(0x144D, 0xA80A, 0x010802, ENDPOINT, (0x144D, 0xA801), 0, "nvme", config_bytes=256)

H100 = GpuModel(
    name="NVIDIA H100 80GB HBM3", gres_type="h100", product=_GPU, architecture=9, compute_capability=(9, 0),
    board_part_number="692-2G520-0200-000", vbios_version="96.00.89.00.01", inforom_image_version="G520.0200.00.05",
    memory_bytes=81559 << 20, reserved_bytes=479 << 20, bar1_bytes=131072 << 20,
    power_milliwatts=700000, power_minimum_milliwatts=200000, idle_milliwatts=70000,
    sm_clock=345, sm_clock_maximum=1980, memory_clock=2619, slowdown_celsius=89, shutdown_celsius=92,
    remap_banks=2560, pcie_generation=5, cores=16896, nvlinks=18, nvlink_version=4, fabric=True,
)  # fmt: skip
A100 = GpuModel(
    name="NVIDIA A100-SXM4-80GB", gres_type="a100", product=replace(_GPU, device=0x20B2, subsystem=(0x10DE, 0x1463)),
    architecture=7, compute_capability=(8, 0), board_part_number="692-2G506-0212-002",
    vbios_version="92.00.9E.00.01", inforom_image_version="G506.0212.00.02",
    memory_bytes=81920 << 20, reserved_bytes=640 << 20, bar1_bytes=131072 << 20,
    power_milliwatts=400000, power_minimum_milliwatts=100000, idle_milliwatts=58000,
    sm_clock=210, sm_clock_maximum=1410, memory_clock=1593, slowdown_celsius=89, shutdown_celsius=92,
    remap_banks=640, pcie_generation=4, cores=6912, memory_max_celsius=95, nvlinks=12, nvlink_version=3,
)  # fmt: skip
L40S = GpuModel(
    name="NVIDIA L40S", gres_type="l40s", product=replace(_GPU, device=0x26B9, subsystem=(0x10DE, 0x1851)),
    architecture=8, compute_capability=(8, 9), board_part_number="900-2G133-0080-000",
    vbios_version="95.02.66.00.02", inforom_image_version="G133.0242.00.03",
    memory_bytes=46068 << 20, reserved_bytes=498 << 20, bar1_bytes=65536 << 20,
    power_milliwatts=350000, power_minimum_milliwatts=100000, idle_milliwatts=33000,
    sm_clock=210, sm_clock_maximum=2520, memory_clock=9001, slowdown_celsius=95, shutdown_celsius=100,
    remap_banks=192, pcie_generation=4, cores=18176, memory_temperature=False, mig=False,
)  # fmt: skip


def _bdf(bus: int, device: int = 0, function: int = 0) -> str:
    return f"0000:{bus:02x}:{device:02x}.{function}"


def _bridge(bus: int, device: int, product: Product, generation: int, *below: Function, function: int = 0) -> Function:
    return Function(_bdf(bus, device, function), product, "bridge", generation, children=below)


def _gpu(bus: int, model: GpuModel) -> Function:
    return Function(_bdf(bus), model.product, "gpu", model.pcie_generation)


def _nic(bus: int, product: Product, generation: int) -> Function:
    return Function(_bdf(bus), product, "infiniband" if product.class_code == 0x020700 else "ethernet", generation)


def _nvme(bus: int) -> Function:
    return Function(_bdf(bus), _NVME, "nvme", 4, 4)


def _on_root(bus: int, numa: int, *ports: Function) -> RootComplex:
    return RootComplex(bus, numa, tuple(port.on_numa_node(numa) for port in ports))


def _h100_pair(root: int, numa: int, nic: int, gpu: int) -> RootComplex:
    """One half of a PCIe switch: its own root port, one HCA and one GPU (DGX H100 has four switches of two halves)."""
    down = [
        _bridge(root + 2, 0, _PEX5_DOWN, 5, _nic(nic, _CX7_IB, 5)),
        _bridge(root + 2, 2, _PEX5_DOWN, 5, _gpu(gpu, H100)),
    ]
    return _on_root(root, numa, _bridge(root, 1, _INTEL, 5, _bridge(root + 1, 0, _PEX5_UP, 5, *down)))


def _a100_quad(root: int, numa: int, gpus: tuple[int, int], nics: tuple[int, int]) -> RootComplex:
    """Two GPUs on one second-level switch and two HCAs on the other: PXB between them (as on DGX A100)."""
    first, second = gpus
    switch_a = [_bridge(root + 4, slot, _PEX4_DOWN, 4, _gpu(bus, A100)) for slot, bus in ((0, first), (16, second))]
    switch_b = [_bridge(second + 2, slot, _PEX4_DOWN, 4, _nic(bus, _CX6_IB, 4)) for slot, bus in zip((0, 16), nics, strict=True)]
    branches = [
        _bridge(root + 2, 0, _PEX4_DOWN, 4, _bridge(root + 3, 0, _PEX4_UP, 4, *switch_a)),
        _bridge(root + 2, 16, _PEX4_DOWN, 4, _bridge(second + 1, 0, _PEX4_UP, 4, *switch_b)),
    ]
    return _on_root(root, numa, _bridge(root, 1, _AMD, 4, _bridge(root + 1, 0, _PEX4_UP, 4, *branches), function=1))


def _l40s_socket(root: int, numa: int) -> RootComplex:
    """One switch per socket with four GPUs and a NIC."""
    down = [_bridge(root + 2, n, _PEX4_DOWN, 4, _gpu(root + 3 + 2 * n, L40S)) for n in range(4)]
    down.append(_bridge(root + 2, 4, _PEX4_DOWN, 4, _nic(root + 11, _CX7_ETH, 4)))
    return _on_root(root, numa, _bridge(root, 1, _INTEL, 4, _bridge(root + 1, 0, _PEX4_UP, 4, *down)))


def _storage(root: int, numa: int, port: Product, generation: int, *devices: Function) -> RootComplex:
    ports = [_bridge(root, 1 + 2 * n, port, generation, device) for n, device in enumerate(devices)]
    return _on_root(root, numa, *ports)


_NVSWITCHES = _on_root(
    0x80, 1, _bridge(0x80, 1, _INTEL, 4, _bridge(0x81, 0, _PMC_UP, 4, *(
        _bridge(0x82, n, _PMC_DOWN, 4, Function(_bdf(0x83 + n), _NVSWITCH, "nvswitch", 2, 2)) for n in range(4)
    ))),
)  # fmt: skip

HGX_H100 = Model(
    name="hgx-h100", vendor="NVIDIA", product="DGXH100", cpu_vendor="GenuineIntel",
    cpu_name="Intel(R) Xeon(R) Platinum 8480C", sockets=2, cores_per_socket=56, threads=1, numa_nodes=2,
    memory_kib=1056964608, governors="performance powersave",
    gpu=H100, infiniband_rate="400 Gb/sec (4X NDR)", ethernet_speed=200000,
    nic="MT4129", nic_firmware="28.41.1000", nic_board="MT_0000000838",
    roots=(
        _h100_pair(0x15, 0, 0x18, 0x1B), _storage(0x26, 0, _INTEL, 5, _nic(0x29, _CX7_ETH, 5), _nvme(0x2A), _nvme(0x2B)),
        _h100_pair(0x3D, 0, 0x40, 0x43), _h100_pair(0x4C, 0, 0x4F, 0x52), _h100_pair(0x5B, 0, 0x5E, 0x61),
        _NVSWITCHES,
        _h100_pair(0x97, 1, 0x9A, 0x9D), _storage(0xA7, 1, _INTEL, 5, _nic(0xAA, _CX7_ETH, 5), _nvme(0xAB), _nvme(0xAC)),
        _h100_pair(0xBD, 1, 0xC0, 0xC3), _h100_pair(0xCB, 1, 0xCE, 0xD1), _h100_pair(0xD9, 1, 0xDC, 0xDF),
    ),
    daemons=(FABRIC_MANAGER,),
    note="8 H100 SXM, each beside one ConnectX-7 400G HCA on half a PCIe switch; 2 storage NICs (Ethernet), 4 NVMe.",
)  # fmt: skip
HGX_A100 = Model(
    name="hgx-a100", vendor="NVIDIA", product="DGXA100 920-23687-2530-000", cpu_vendor="AuthenticAMD",
    cpu_name="AMD EPYC 7742 64-Core Processor", sockets=2, cores_per_socket=64, threads=2, numa_nodes=8,
    memory_kib=131072000, governors="conservative ondemand userspace powersave performance schedutil",
    gpu=A100, infiniband_rate="200 Gb/sec (4X HDR)", ethernet_speed=100000,
    nic="MT4123", nic_firmware="20.39.2048", nic_board="MT_0000000223",
    roots=(
        _a100_quad(0x00, 3, (0x07, 0x0F), (0x12, 0x14)), _storage(0x20, 2, _AMD, 4, _nvme(0x21), _nvme(0x22)),
        _a100_quad(0x40, 1, (0x47, 0x4E), (0x51, 0x53)), _a100_quad(0x80, 7, (0x87, 0x90), (0x93, 0x95)),
        _storage(0xA0, 6, _AMD, 4, _nvme(0xA1), _nvme(0xA2)), _a100_quad(0xB0, 5, (0xB7, 0xBD), (0xC0, 0xC2)),
        _storage(0xE0, 4, _AMD, 4, _nic(0xE1, _CX6_ETH, 4)),
    ),
    controllers=2, daemons=(FABRIC_MANAGER,),
    note="8 A100 SXM4, GPU pairs and HCA pairs on nested PCIe switches; EPYC with NPS4 and SMT; bus order is not NUMA order.",
)  # fmt: skip
L40S_PCIE = Model(
    name="l40s-pcie", vendor="Supermicro", product="SYS-421GE-TNRT", cpu_vendor="GenuineIntel",
    cpu_name="Intel(R) Xeon(R) Gold 6448Y", sockets=2, cores_per_socket=32, threads=1, numa_nodes=2,
    memory_kib=528482304, governors="performance powersave",
    gpu=L40S, infiniband_rate="", ethernet_speed=200000,
    nic="MT4129", nic_firmware="28.41.1000", nic_board="MT_0000000834",
    roots=(_l40s_socket(0x16, 0), _storage(0x49, 0, _INTEL, 5, _nvme(0x4A)),
           _l40s_socket(0x97, 1), _storage(0xC9, 1, _INTEL, 5, _nvme(0xCA))),
    note="8 L40S, four on each socket's PCIe switch beside one 200G Ethernet NIC; no NVLink.",
)  # fmt: skip

MODELS = {model.name: model for model in (HGX_H100, HGX_A100, L40S_PCIE)}
