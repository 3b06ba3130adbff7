"""Holds facts about the host itself: ports, memory errors, disks, file systems, tasks, units, the clock. They are read on
thorough sweeps.

A field of ``Host`` is Missing if it could not be read at all, and ``()`` if the host has no such thing. Counters are those of
the kernel, which begin when the driver is loaded. Some counters stop at their largest value (``PORT_COUNTER_BITS``).
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
#: Block devices whose names begin with these words may be provided by a job's user: files, network and removable devices.
USERS_DEVICES = ("loop", "nbd", "rbd", "sr", "fd", "ram", "zram")
NOT_READ = unreadable("not read")


class RdmaPort(Struct, frozen=True, kw_only=True):
    """Holds the facts by which the errors of one RDMA port are judged. The port's state and rate are in ``Node.nics``.

    width_lanes: the number of lanes, such as 4 for "400 Gb/sec (4X NDR)". counters: the values of the files in the port's
    folders ``counters`` (``PORT_COUNTER_BITS``) and ``hw_counters``. carrier_downs: how often each interface of the adapter
    lost its carrier (/sys/class/net/NAME/carrier_down_count, Linux 4.16).
    """

    name: str
    port: int
    pci: str
    width_lanes: int | Missing
    counters: Mapping[str, int | Missing]
    carrier_downs: Mapping[str, int | Missing] = field(default_factory=dict)


class MemoryController(Struct, frozen=True, kw_only=True):
    """Describes one EDAC memory controller (/sys/devices/system/edac/mc/mcN), with errors since the driver was loaded.

    worst_dimm: the label of the DIMM with the most corrected errors, or "" if no DIMM has a label.
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
    """Describes one mount that PID 1 sees. FUSE mounts of users are left out. ``read_only``: True if the file system itself is
    read-only (mountinfo, last field). ``device``: major:minor of the file system. Two mounts of one file system have the same
    ``device``."""

    path: str
    device: str
    kind: str  # ext4, xfs, nfs4, tmpfs, ...
    source: str
    read_only: bool
    flagged_read_only: bool = False  # True if this mount of the file system is read-only


class FsErrors(Struct, frozen=True, kw_only=True):
    """Holds the number of errors in the superblock of a file system (/sys/fs/ext4/DEVICE/errors_count). This number survives an
    unmount, and fsck resets it."""

    device: str
    errors: int | Missing


class Space(Struct, frozen=True, kw_only=True):
    """Holds the result of statfs(2) for one declared mount. A separate process calls it. ``waiting_seconds``: for how long the
    call has not returned.

    failed: the error of the call, such as a stale file handle, or "". available_bytes: the bytes that users may use, as df
    counts them. Both numbers of inodes are 0 if the file system has no inodes.
    """

    path: str
    total_bytes: int | Missing
    available_bytes: int | Missing
    total_inodes: int | Missing
    free_inodes: int | Missing
    waiting_seconds: float = 0.0
    failed: str = ""


class StuckTask(Struct, frozen=True, kw_only=True):
    """Describes a task in uninterruptible sleep ("D") that has not been scheduled for ``seconds``. The task's name is left out,
    because a user chose it.

    job, step: the job and step of the task's cgroup, or 0 and "" if Slurm did not make that cgroup. killed: SIGKILL is pending,
    so the task cannot be killed. kernel: the task is a kernel thread. fuse: the task waits for the server of a FUSE mount,
    which is a process, often of the same user. Or it waits for another task of the same user that waits for such a server.
    vfork: the task waits for its child of vfork(2), and SIGKILL would end the task.
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
    """Holds the stuck tasks. ``seen``: how many of the ``total`` processes this sweep has read. On a large machine each sweep
    reads only a part of the processes."""

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
    """Describes the kernel's clock (adjtimex(2)). Errors are in seconds. While nobody sets the clock, the kernel increases
    ``maximum_error_seconds`` by 500 ppm. At 16 s it reports the clock as unsynchronised. offset_seconds: time of day minus
    CLOCK_BOOTTIME, which only a step of the clock changes quickly."""

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
    images: frozenset[str] = frozenset()  # ``USERS_DEVICES`` and devices built only on them, by name and by major:minor
    spaces: tuple[Space, ...] | Missing = ()
    tasks: Tasks | Missing = NOT_READ
    units: tuple[UnitState, ...] | Missing = ()
    clock: Clock | Missing = NOT_READ
    memory_bytes: int | Missing = NOT_READ
    smt: str | Missing = NOT_READ  # /sys/devices/system/cpu/smt/control: on, off, forceoff, notsupported, notimplemented
    cpus_online: int | Missing = NOT_READ
    hung_task_warnings: int | Missing = NOT_READ  # how many more hung tasks the kernel will report, -1 for all


class Wanted(Struct, frozen=True, kw_only=True):
    """Lists what must be read because a check needs it. mounts: the paths for statfs(2). units: whether systemd is asked for the
    states of its units."""

    mounts: tuple[str, ...] = ()
    units: bool = False
