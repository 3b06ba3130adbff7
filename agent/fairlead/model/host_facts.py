"""Holds facts about the host itself: ports, memory errors, disks, file systems, tasks, units, the clock. They are read on
thorough sweeps.

A field of ``Host`` that is Missing could not be read at all; ``()`` means that there is none. Counters are as the kernel
counts them: since the driver loaded. Some of them stop at their width (``PORT_COUNTER_BITS``).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from fairlead.model.missing import Missing, unreadable

#: Widths at which a port's error counters stop: the fields of the InfiniBand PortCounters attribute (IBTA volume 1;
#: drivers/infiniband/core/sysfs.c, PORT_PMA_ATTR). The hw_counters of a driver are 64 bit wide.
PORT_COUNTER_BITS = {
    "symbol_error": 16,
    "link_error_recovery": 8,
    "link_downed": 8,
    "port_rcv_errors": 16,
    "local_link_integrity_errors": 4,
    "excessive_buffer_overrun_errors": 4,
}
#: Names of block devices that a job's user may provide begin so: files, network and removable devices.
USERS_DEVICES = ("loop", "nbd", "rbd", "sr", "fd", "ram", "zram")
NOT_READ = unreadable("not read")


class RdmaPort(Struct, frozen=True, kw_only=True):
    """Holds what the errors of one RDMA port are judged by. Its state and rate are in ``Node.nics``.

    width_lanes: 4 of "400 Gb/sec (4X NDR)". counters: of ``counters`` (``PORT_COUNTER_BITS``) and ``hw_counters``.
    carrier_downs: per interface of the adapter (/sys/class/net/NAME/carrier_down_count, Linux 4.16).
    """

    name: str
    port: int
    pci: str
    width_lanes: int | Missing
    counters: Mapping[str, int | Missing]
    carrier_downs: Mapping[str, int | Missing] = field(default_factory=dict)


class MemoryController(Struct, frozen=True, kw_only=True):
    """Describes one EDAC memory controller (/sys/devices/system/edac/mc/mcN), with errors since the driver loaded.

    worst_dimm: the label of the DIMM with the most corrected errors, "" where none is named.
    """

    name: str
    corrected: int | Missing
    uncorrected: int | Missing
    worst_dimm: str = ""


class NvmeController(Struct, frozen=True, kw_only=True):
    """Describes one NVMe controller. ``state``: live, new, resetting, connecting, deleting, dead (drivers/nvme/host/sysfs.c)."""

    name: str
    pci: str
    state: str | Missing


class MountPoint(Struct, frozen=True, kw_only=True):
    """Describes one mount as PID 1 sees it, but no FUSE mount of a user. ``read_only``: the file system itself is, not only
    this mount of it (mountinfo, last field). ``device``: its major:minor; two mounts with the same one are of the same file
    system."""

    path: str
    device: str
    kind: str  # ext4, xfs, nfs4, tmpfs, ...
    source: str
    read_only: bool
    flagged_read_only: bool = False  # this mount of it


class FsErrors(Struct, frozen=True, kw_only=True):
    """Counts the errors that a file system keeps in its superblock (/sys/fs/ext4/DEVICE/errors_count), over mounts, until
    fsck."""

    device: str
    errors: int | Missing


class Space(Struct, frozen=True, kw_only=True):
    """Holds statfs of one declared mount, which a process of its own has asked for. ``waiting_seconds``: for how long it has
    not answered.

    failed: the error that came instead of an answer, such as a stale file handle. Bytes are those available to users, as df
    counts them. Inodes are 0 of 0 where the file system has none.
    """

    path: str
    total_bytes: int | Missing
    available_bytes: int | Missing
    total_inodes: int | Missing
    free_inodes: int | Missing
    waiting_seconds: float = 0.0
    failed: str = ""


class StuckTask(Struct, frozen=True, kw_only=True):
    """Describes a task in uninterruptible sleep ("D") that has not been scheduled for ``seconds``. It has no name, because a
    user chose that.

    job, step: of its cgroup; 0 and "" where that is none of Slurm's. killed: SIGKILL is pending, so the task cannot be killed.
    kernel: it is a kernel thread. fuse: it waits for the server of a FUSE mount, which is a process, often of the same user,
    or for another task of its user's that does. vfork: it waits for its child of vfork(2), and SIGKILL would end it.
    """

    pid: int
    seconds: float
    job: int = 0
    step: str = ""
    killed: bool = False
    kernel: bool = False
    fuse: bool = False
    vfork: bool = False


class Tasks(Struct, frozen=True, kw_only=True):
    """Holds the stuck tasks. ``seen``: how many processes this sweep went through, of ``total``. On a large machine each sweep
    goes through a part of them."""

    total: int
    seen: int
    stuck: tuple[StuckTask, ...] = ()


class UnitState(Struct, frozen=True, kw_only=True):
    """Holds the state of a systemd unit that is loaded: LoadState, ActiveState, SubState."""

    name: str
    load: str
    active: str
    sub: str


class Clock(Struct, frozen=True, kw_only=True):
    """Describes the kernel's clock (adjtimex(2)). Errors are in seconds. The kernel lets ``maximum_error_seconds`` grow by 500
    ppm while nobody sets the clock, and says unsynchronised at 16 s. offset_seconds: time of day minus CLOCK_BOOTTIME, which
    only a step of the clock changes quickly."""

    synchronised: bool
    maximum_error_seconds: float
    estimated_error_seconds: float
    offset_seconds: float


class Host(Struct, frozen=True, kw_only=True):
    """Holds everything about the host that its checks need. ``spaces`` and ``units`` hold what the document declares."""

    ports: tuple[RdmaPort, ...] | Missing = NOT_READ
    controllers: tuple[MemoryController, ...] | Missing = NOT_READ
    nvme: tuple[NvmeController, ...] | Missing = NOT_READ
    mounts: tuple[MountPoint, ...] | Missing = NOT_READ
    fs_errors: tuple[FsErrors, ...] | Missing = NOT_READ
    devices: frozenset[str] | Missing = NOT_READ  # the node's own block devices, with partitions, and memory controllers, by name
    images: frozenset[str] = frozenset()  # ``USERS_DEVICES`` and devices on top of only these, by name and by major:minor
    spaces: tuple[Space, ...] | Missing = ()
    tasks: Tasks | Missing = NOT_READ
    units: tuple[UnitState, ...] | Missing = ()
    clock: Clock | Missing = NOT_READ
    memory_bytes: int | Missing = NOT_READ
    smt: str | Missing = NOT_READ  # /sys/devices/system/cpu/smt/control: on, off, forceoff, notsupported, notimplemented
    cpus_online: int | Missing = NOT_READ
    hung_task_warnings: int | Missing = NOT_READ  # how many more hung tasks the kernel will report; -1: all


class Wanted(Struct, frozen=True, kw_only=True):
    """Lists what has to be asked for by name: mounts that a process asks, and whether systemd is asked for its units."""

    mounts: tuple[str, ...] = ()
    units: bool = False
