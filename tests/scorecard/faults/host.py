"""The host and its network: ports, memory, disks, file systems, mounts, tasks, units, clock, and the site's own patterns.

Forms: Linux Documentation/ABI (sysfs-class-infiniband, sysfs-devices-edac, sysfs-fs-ext4), Documentation/filesystems/proc.rst.
"""

from __future__ import annotations

from tests.lab.hostfacts import MOUNTINFO
from tests.scorecard.entry import Anew, Clock, Document, Elapse, Fast, Fault, File, Kernel, Run, Sweeps

IB = "Linux Documentation/ABI/stable/sysfs-class-infiniband"
EDAC = "Linux Documentation/ABI/testing/sysfs-devices-edac"
PROC = "Linux Documentation/filesystems/proc.rst"
MOUNTS = "/proc/1/mountinfo"
SCRATCH = "/scratch"
PORT = "/sys/class/infiniband/mlx5_%d/ports/1"
MACHINE_CHECK = "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: %s"
UNITS = "slurmd.service loaded active running\nmunge.service %s\nchrony.service loaded active running\n"
WANTED = Document({"checks": {"units": {"wanted": ["slurmd.service", "munge.service"]}}})
PATTERN = Document({"checks": {"kernel_log": {"patterns": [
    {"name": "lustre-evicted", "regex": "LustreError: 167-0: .*evicted", "service": "drain_after_job"}]}}})  # fmt: skip
SPACE = Document({"checks": {"fs_space": {"paths": [SCRATCH]}}})


def port(number: int, state: str = "4: ACTIVE", physical: str = "5: LinkUp", rate: str = "400 Gb/sec (4X NDR)") -> tuple:
    folder = PORT % number
    return (
        File(f"{folder}/state", f"{state}\n"),
        File(f"{folder}/phys_state", f"{physical}\n"),
        File(f"{folder}/rate", f"{rate}\n"),
    )


def counted(path: str, before: int, after: int, seconds: int = 600) -> tuple:
    """A counter in a file, before and after so much time."""
    return (File(path, f"{before}\n"), Anew(), Sweeps(1, thorough=True), Elapse(seconds), File(path, f"{after}\n"))


def scratch(kib: int) -> Run:
    """A file system of 4 MiB with so much in it."""
    fill = f"dd if=/dev/zero of={SCRATCH}/full bs=1024 count={kib} 2>/dev/null"
    return Run(
        f"mkdir -p {SCRATCH}; mount -t tmpfs -o size=4m tmpfs {SCRATCH}; {fill}", f"umount -l {SCRATCH}", about="file system"
    )


def firmware(section: str) -> tuple:
    begin = "{7}[Hardware Error]:"
    return (Kernel(f"{begin} event severity: recoverable"), Kernel(f"{begin}   section_type: {section}"))


FAULTS = (
    Fault("ib-down", "an InfiniBand port is down", "rdma_ports", "drain", port(0, "1: DOWN", "2: Polling"),
          (Document({"checks": {"rdma_ports": {"infiniband_ports": 7}}}), *port(0, "1: DOWN", "2: Polling")),
          "a kind of node that uses seven of them", IB, says="mlx5_0/1 is DOWN"),
    Fault("ib-slow", "an InfiniBand port trained to one lane", "rdma_ports", "drain", port(2, rate="100 Gb/sec (1X NDR)"),
          (Document({"checks": {"rdma_ports": {"infiniband_rate_gbps": 100.0, "infiniband_width_lanes": 1}}, "settings": {"nccl": {"managed": False}}}), *port(2, rate="100 Gb/sec (1X NDR)")),
          "a site that declared that", IB, says="100 Gb/s"),
    Fault("ib-gone", "an InfiniBand device is not there", "rdma_ports", "drain", (File("/sys/class/infiniband/mlx5_3", None),),
          (Document({"checks": {"rdma_ports": {"infiniband_ports": 7}}, "settings": {"nccl": {"managed": False}}}), File("/sys/class/infiniband/mlx5_3", None)),
          "a kind of node that has seven", IB, says="7 of 8"),
    Fault("ib-flaps", "a port lost its link four times in ten minutes", "rdma_flaps", "drain",
          counted(f"{PORT % 4}/counters/link_downed", 1, 5), counted(f"{PORT % 4}/counters/link_downed", 5, 5),
          "five times, long ago", IB, says="lost its link 4 times"),
    Fault("ib-flaps-log", "three times Link down in the kernel log", "rdma_flaps", "drain",
          tuple(Kernel(f"mlx5_core 0000:5e:00.0 ibp94s0: Link {word}", level=6) for _ in range(3) for word in ("down", "up")),
          (Kernel("mlx5_core 0000:5e:00.0 ibp94s0: Link down", level=6), Kernel("mlx5_core 0000:5e:00.0 ibp94s0: Link up", level=6)),
          "once, as when a cable is changed", "Linux drivers/net/ethernet/mellanox/mlx5", says="lost its link"),
    Fault("ib-symbols", "symbol errors at 6,000 an hour", "rdma_errors", "warn", counted(f"{PORT % 5}/counters/symbol_error", 10, 1010),
          counted(f"{PORT % 5}/counters/symbol_error", 1000, 1005), "as many in all, five new ones", IB, says="symbol_error"),
    Fault("ib-damaged", "packets received damaged", "rdma_errors", "warn", counted(f"{PORT % 7}/counters/port_rcv_errors", 0, 500),
          counted(f"{PORT % 7}/counters/port_rcv_errors", 500, 500), "as many, none lately", IB, says="port_rcv_errors"),
    Fault("edac-uncorrected", "an uncorrected memory error (EDAC)", "memory_errors", "drain",
          (File("/sys/devices/system/edac/mc/mc0/ue_count", "1\n"),), (File("/sys/devices/system/edac/mc/mc0/ce_count", "1\n"),),
          "a corrected one", EDAC, says="uncorrected memory errors"),
    Fault("edac-rate", "corrected memory errors at 1,800 an hour", "memory_errors", "warn",
          counted("/sys/devices/system/edac/mc/mc1/ce_count", 20, 320), counted("/sys/devices/system/edac/mc/mc1/ce_count", 320, 322),
          "as many in all, two new ones", EDAC, says="too fast"),
    Fault("mce", "an uncorrected machine check", "memory_errors", "drain", (Kernel(MACHINE_CHECK % "be00000000800400"),),
          (Kernel(MACHINE_CHECK % "9c00004000010092"),), "a corrected one (bit 61 is clear)", "Intel SDM volume 3, IA32_MCi_STATUS",
          says="machine check"),
    Fault("firmware-memory", "firmware tells of an uncorrected memory error", "memory_errors", "drain", firmware("memory error"),
          firmware("PCIe error"), "of a PCIe link, whose counters say how bad it is", "Linux drivers/firmware/efi/cper.c", says="firmware"),
    Fault("nvme-dead", "an NVMe controller is dead", "disks", "drain", (File("/sys/class/nvme/nvme0/state", "dead\n"),),
          (File("/sys/class/nvme/nvme0/state", "live\n"),), "it is live", "Linux drivers/nvme/host/sysfs.c", says="nvme0 is dead"),
    Fault("disk-errors", "twelve failed requests of a disk", "disks", "drain",
          (Kernel("I/O error, dev nvme0n1, sector 123456 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2", times=12),),
          (Kernel("I/O error, dev nvme0n1, sector 123456 op 0x9:(WRITE_ZEROES) flags 0x80700 phys_seg 1 prio class 2", times=12),),
          "requests to zero that the drive does not know: nothing is lost", "Linux block/blk-mq.c", says="failed requests on nvme0n1"),
    Fault("fs-shut-down", "a file system was shut down for errors", "fs_errors", "drain",
          (Kernel("EXT4-fs (md0): Remounting filesystem read-only", level=2),),
          (Kernel("EXT4-fs (md0): mounted filesystem with ordered data mode. Quota mode: none.", level=6),), "it was mounted",
          "Linux fs/ext4/super.c", says="shut down"),
    Fault("fs-read-only", "a file system became read-only", "fs_errors", "drain",
          (File(MOUNTS, MOUNTINFO.replace("ext4 /dev/md0 rw", "ext4 /dev/md0 ro") + "\n"),),
          (File(MOUNTS, MOUNTINFO.replace("ext4 /dev/md0 rw", "ext4 /dev/md0 ro").replace("/ / rw,relatime", "/ / ro,relatime") + "\n"),),
          "it was mounted read-only on purpose", PROC, says="became read-only"),
    Fault("fs-counted", "ext4 counted errors", "fs_errors", "warn", (File("/sys/fs/ext4/md0/errors_count", "3\n"),),
          (File("/sys/fs/ext4/md0/errors_count", "0\n"),), "it counted none", "Linux Documentation/ABI/testing/sysfs-fs-ext4", says="3 errors"),
    Fault("fs-full", "a file system is full", "fs_space", "drain", (scratch(4096), SPACE), (scratch(2048), SPACE), "half full",
          "statfs(2)", says="0.0 %"),
    Fault("fs-nearly-full", "a file system is nearly full", "fs_space", "warn", (scratch(3800), SPACE), (scratch(3000), SPACE),
          "three quarters full", "statfs(2)", says="of its bytes left"),
    Fault("mount-gone", "a declared mount is not mounted", "hung_mounts", "drain",
          (Document({"checks": {"hung_mounts": {"paths": ["/home"], "deadline_seconds": 600}}}), File(MOUNTS, "".join(f"{line}\n" for line in MOUNTINFO.splitlines() if " /home " not in line))),
          (Document({"checks": {"hung_mounts": {"paths": ["/home"], "deadline_seconds": 600}}}), File(MOUNTS, MOUNTINFO.replace("vers=4.2", "vers=4.1") + "\n")),
          "it is, with another option", PROC, says="/home is not mounted"),
    Fault("tasks-hang", "the kernel tells of a task that hangs", "stuck_tasks", "warn",
          (Kernel("INFO: task python3:4711 blocked for more than 120 seconds."),),
          (Kernel("INFO: task python3:4711 blocked for more than 120 seconds.", facility=1),), "a program wrote that into the log",
          "Linux kernel/hung_task.c", says="tasks that hang"),
    Fault("unit-failed", "a unit that the node needs has failed", "units", "drain",
          (WANTED, File("/etc/fairlead-sim/units", UNITS % "loaded failed failed")),
          (WANTED, File("/etc/fairlead-sim/units", UNITS % "loaded active running")), "it runs", "systemctl(1), list-units", says="munge.service is failed"),
    Fault("unit-restarts", "a unit crashes and is started, again and again", "units", "drain",
          (WANTED, File("/etc/fairlead-sim/units", UNITS % "loaded activating auto-restart")),
          (WANTED, File("/etc/fairlead-sim/units", UNITS % "loaded reloading reload")), "it reloads its configuration", "systemctl(1), list-units",
          says="auto-restart"),
    Fault("clock-unset", "nothing sets the clock", "clock", "warn", (Clock(code=5, maximum=16_000_000),), (Clock(maximum=250_000),),
          "synchronised within 250 ms", "adjtimex(2)", says="nothing sets the clock"),
    Fault("clock-jump", "the clock jumped by 90 seconds", "clock", "warn", (Fast(), Sweeps(8), Clock(step=90.0)), (Fast(), Sweeps(8), Clock(step=0.5)),
          "it was corrected by half a second", "clock_gettime(2)", says="jumped"),
    Fault("memory-lost", "a DIMM is gone", "cpu_memory", "drain", (File("/proc/meminfo", "MemTotal:       922746880 kB\nMemFree:        900000000 kB\nMemAvailable:   910000000 kB\n"),),
          (File("/proc/meminfo", "MemTotal:      2080374784 kB\nMemFree:        4000000 kB\nMemAvailable:   8000000 kB\n"),), "all of it is there, and in use",
          PROC, says="GiB of memory"),
    Fault("cpus-offline", "CPUs are offline", "cpu_memory", "drain",
          (Document({"checks": {"cpu_memory": {"cpus_expected": 2}}}), File("/sys/devices/system/cpu/online", "0\n")),
          (File("/sys/devices/system/cpu/online", "0\n"), Document({"checks": {"cpu_memory": {"cpus_expected": 1}}})),
          "a kind of node with so many", "Linux Documentation/ABI/testing/sysfs-devices-system-cpu", says="1 of 2 CPUs"),
    Fault("site-pattern", "a kernel record that the site declared", "kernel_log", "drain",
          (PATTERN, Kernel("LustreError: 167-0: lustre-MDT0000-mdc: This client was evicted by lustre-MDT0000; in progress operations will fail.")),
          (PATTERN, Kernel("LustreError: 11-0: lustre-MDT0000-mdc: operation ldlm_enqueue to node 10.0.0.1@o2ib failed: rc = -107")),
          "another record of the same program", "the site's own document", says="lustre-evicted"),
)  # fmt: skip
