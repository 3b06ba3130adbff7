"""Holds facts, which are the values of a node that were read at one time. They are plain frozen values without code that reads
or judges them.

Every value was read, or is :class:`Missing`. Units are in the names. PCI addresses have the form ``0000:1b:00.0``.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from fairlead.model.gpu_activity import GpuActivity
from fairlead.model.gpu_details import GpuDetails
from fairlead.model.gpu_health import AerCounts, RetiredPages
from fairlead.model.gpu_load import NOT_READ, GpuLoad, ProcessOwner, Software
from fairlead.model.gpu_state import GpuState, MigDevice
from fairlead.model.host_facts import Host
from fairlead.model.missing import Missing as Missing  # noqa: PLC0414
from fairlead.model.missing import Why as Why  # noqa: PLC0414
from fairlead.model.missing import unreadable as unreadable  # noqa: PLC0414


class Ecc(Struct, frozen=True, kw_only=True):
    """Holds ECC error counts (nvmlDeviceGetTotalEccErrors). Volatile counts began when the driver was loaded. Aggregate counts
    are of the GPU's lifetime."""

    mode_current: bool | Missing
    mode_pending: bool | Missing
    volatile_corrected: int | Missing
    volatile_uncorrected: int | Missing
    aggregate_corrected: int | Missing
    aggregate_uncorrected: int | Missing
    sram_threshold_exceeded: bool | Missing


class RowRemap(Struct, frozen=True, kw_only=True):
    """Holds the remapped rows of a GPU (nvmlDeviceGetRemappedRows). ``histogram``: the number of memory banks by their remaining
    spare rows (max, high, partial, low, none)."""

    corrected: int
    uncorrected: int
    pending: bool
    failed: bool
    histogram: tuple[int, ...] | Missing


class PcieLink(Struct, frozen=True, kw_only=True):
    """Describes a PCIe link: generation 1 to 6, width in lanes, replays counted since the driver loaded."""

    gen_current: int | Missing
    gen_max: int | Missing
    width_current: int | Missing
    width_max: int | Missing
    replays: int | Missing = Missing(Why.UNREADABLE, "not read")


LEAST_BER = 15e-255  #: NVML's least bit error rate: no error was seen


class NvLink(Struct, frozen=True, kw_only=True):
    link: int
    active: bool | Missing
    remote: str = ""  # "switch", or the peer's PCI address
    crc_errors: int | Missing = Missing(Why.UNREADABLE, "not read")
    replay_errors: int | Missing = Missing(Why.UNREADABLE, "not read")
    recovery_errors: int | Missing = Missing(Why.UNREADABLE, "not read")
    # NVLink 5 has these counters instead (NVML_FI_DEV_NVLINK_COUNT_*)
    malformed_packets: int | Missing = Missing(Why.UNREADABLE, "not read")
    receive_errors: int | Missing = Missing(Why.UNREADABLE, "not read")
    recoveries_failed: int | Missing = Missing(Why.UNREADABLE, "not read")
    recoveries: int | Missing = Missing(Why.UNREADABLE, "not read")
    effective_errors: int | Missing = Missing(Why.UNREADABLE, "not read")
    # and the rate of bits that stay wrong after correction, and the same of symbols; LEAST_BER if no error was seen
    effective_ber: float | Missing = Missing(Why.UNREADABLE, "not read")
    symbol_ber: float | Missing = Missing(Why.UNREADABLE, "not read")
    version: int | Missing = Missing(Why.UNREADABLE, "not read")  # is read even if the far end of the link cannot be read


class GpuProcess(Struct, frozen=True):
    """Describes a compute process on a GPU. It has no name: nothing that a user chose may reach a reason or a metric."""

    pid: int
    used_bytes: int
    owner: ProcessOwner | Missing = NOT_READ


class Gpu(Struct, frozen=True, kw_only=True):
    """Describes one GPU. ``pci`` and ``uuid`` identify the GPU. ``index`` is for display only."""

    pci: str
    index: int
    lost: bool = False  # the driver says GPU_IS_LOST (NVML return 15)
    uuid: str | Missing
    serial: str | Missing
    minor: int | Missing
    name: str | Missing
    persistence: bool | Missing
    mig_current: bool | Missing
    mig_pending: bool | Missing
    ecc: Ecc | Missing
    remap: RowRemap | Missing
    pcie: PcieLink | Missing
    nvlinks: tuple[NvLink, ...] | Missing
    memory_total_bytes: int | Missing
    memory_used_bytes: int | Missing
    temperature_celsius: int | Missing
    power_draw_watts: float | Missing
    power_limit_watts: float | Missing
    clock_sm_hertz: int | Missing
    throttle_reasons: int | Missing  # bit mask, nvml.h nvmlClocksEventReason*
    utilization_percent: int | Missing
    performance_state: int | Missing
    recovery_action: int | Missing  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: 0 none 1 reset 2 reboot 3 drain P2P 4 drain+reset
    processes: tuple[GpuProcess, ...] | Missing
    retired: RetiredPages | Missing = Missing(Why.UNREADABLE, "not read")
    inforom_valid: bool | Missing = Missing(Why.UNREADABLE, "not read")  # nvmlDeviceValidateInforom
    aer: AerCounts | Missing | None = None  # None: the kernel has no such counters for this GPU
    port_aer: AerCounts | Missing | None = None  # of the port above the GPU
    load: GpuLoad = GpuLoad()
    details: GpuDetails = GpuDetails()
    state: GpuState = GpuState()
    activity: GpuActivity | Missing = NOT_READ  # Missing on a machine tree, on which nothing runs
    mig_devices: tuple[MigDevice, ...] | Missing = NOT_READ  # () while MIG is off


class Driver(Struct, frozen=True, kw_only=True):
    """Describes the NVIDIA driver: the values of the kernel module and those of the library."""

    module_version: str | Missing  # /sys/module/nvidia/version or /proc/driver/nvidia/version
    library_version: str | Missing  # nvmlSystemGetDriverVersion
    nvml_version: str | Missing
    cuda_version: int | Missing  # 12080 means 12.8
    init_code: int = 0  # why NVML as a whole does not answer (nvmlReturn_t); 0 if NVML answers or the reason is not known
    software: Software = Software()


class StuckCall(Struct, frozen=True, kw_only=True):
    """Describes an NVML call that has not returned. ``process_state``: the NVML worker's state letter in /proc/PID/stat."""

    call: str
    gpu: str  # PCI address, or "" for a call about the whole system
    seconds: float
    process_state: str  # "D": uninterruptible sleep. "R", "S": the call may still return. "X": the worker is gone


# No device has this class. Class 0 cannot be used, because devices such as the PIIX4 of an EC2 instance have it ("unclassified").
CLASS_UNREADABLE = 0xFFFFFF


class PciDevice(Struct, frozen=True, kw_only=True):
    """Describes one PCI function. ``path``: addresses from the host bridge (``pci0000:15``) down to the device itself."""

    address: str
    vendor: int  # 0: not readable
    device: int
    class_code: int  # 24 bit, 0x030200 is a 3D controller
    path: tuple[str, ...]
    numa: int | Missing
    link: PcieLink | Missing
    link_speed: str = ""  # as sysfs says it: "32.0 GT/s PCIe"
    driver: str = ""
    bridge_role: str = ""  # "root_port", "switch_upstream", "switch_downstream", "" for an endpoint
    acs_capability: int | Missing | None = None  # ACSCap; None: the device has no ACS capability
    acs_control: int | Missing | None = None  # ACSCtl word
    acs_offset: int | None = None  # offset of the ACS extended capability in config space
    express_offset: int | None = None  # offset of the PCI Express capability, which has device_control and link_control
    device_control: int | Missing | None = None  # PCI_EXP_DEVCTL of GPUs, adapters and NVMe drives; None: not read
    link_control: int | Missing | None = None  # PCI_EXP_LNKCTL of GPUs, adapters and NVMe drives; None: not read
    virtual_function: bool = False
    local_cpus: tuple[int, ...] = ()  # read if the NUMA node is unknown, because some firmware gives CPUs and no NUMA node
    subsystem: int = 0  # subsystem vendor and device, 32 bit, of bridges whose vendor gives them a meaning; 0: not read


class GpuLink(Struct, frozen=True, kw_only=True):
    """Describes the links between two GPUs of which NVML has no data (AMD's xGMI). a, b: the GPUs' PCI addresses. count: the
    number of links."""

    a: str
    b: str
    count: int


class NumaNode(Struct, frozen=True, kw_only=True):
    id: int
    cpus: tuple[int, ...]
    memory_bytes: int | Missing
    distances: tuple[int, ...] = ()


class Cpu(Struct, frozen=True, kw_only=True):
    id: int
    package: int
    core: int
    numa: int  # -1 unknown
    l3: int  # lowest CPU sharing the L3 cache, -1 unknown
    siblings: tuple[int, ...]  # hardware threads of the same core, itself included
    online: bool = True


class Gid(Struct, frozen=True):
    """Describes one entry of a RoCE port's GID table (sysfs-class-infiniband: gids/, gid_attrs/types/): an IPv6 address. An
    IPv4 address is written ``::ffff:a.b.c.d``. ``version``: RoCE 1 or 2."""

    index: int
    text: str
    version: int


class Nic(Struct, frozen=True, kw_only=True):
    """Describes a network device: a port of an RDMA device (``rdma`` is set), or a plain interface."""

    name: str  # mlx5_0, or eth0
    pci: str  # "" when not on PCI
    rdma: bool
    port: int  # 1 for plain interfaces
    link_layer: str  # "InfiniBand" | "Ethernet"
    state: str | Missing  # "ACTIVE", "DOWN", ...
    physical_state: str | Missing
    rate_gbps: float | Missing
    interfaces: tuple[str, ...] = ()  # netdevs of an RDMA device
    virtual_function: bool = False
    numa: int | Missing = Missing(Why.UNREADABLE, "not read")
    mtu_bytes: int | Missing = Missing(Why.UNREADABLE, "not read")  # of the interface
    master: str = ""  # the bond or bridge that the interface belongs to
    gids: tuple[Gid, ...] | Missing = ()  # of an RDMA port on Ethernet


class Node(Struct, frozen=True, kw_only=True):
    """Holds everything that is known about one node at one time.

    ``thorough``: True if all facts were read for this sweep. Otherwise only the facts that are judged at every sweep were read.
    The other facts are from the last thorough sweep. Among them, facts from NVML (``host.nvml_device``) may be newer, from the
    time when metrics were last written. ``texts``: the files that settings and checks declare in their ``reads``, by absolute
    path on the node. A value is the content, ``None`` if there is no such file, or Missing if it could not be read.
    """

    name: str
    boot_id: str | Missing
    uptime_seconds: float | Missing
    virtual: bool | Missing  # the CPU flag `hypervisor` (/proc/cpuinfo)
    cpus: tuple[Cpu, ...]
    numa: tuple[NumaNode, ...]
    pci: tuple[PciDevice, ...]
    nics: tuple[Nic, ...]
    driver: Driver
    gpus: tuple[Gpu, ...] | Missing  # Missing: the driver did not say which GPUs there are
    stuck: StuckCall | None = None
    gpu_links: tuple[GpuLink, ...] = ()
    thorough: bool = True
    host: Host | Missing = Missing(Why.UNREADABLE, "not read")
    texts: Mapping[str, str | Missing | None] = field(default_factory=dict)
    nvml_released: bool = False  # the agent has released NVML on request

    def text(self, path: str) -> str | Missing | None:
        """Return the entry of ``texts`` for a file, or Missing if no setting or check has declared the file."""
        return self.texts.get(path, Missing(Why.UNREADABLE, f"{path} was not read"))
