"""The host's side of a simulated machine: EDAC, NVMe, mounts, threads, and host.json for what is no file.

Layouts: Documentation/ABI/testing/sysfs-devices-edac, drivers/nvme/host/sysfs.c, proc(5) mountinfo. Values are written by hand.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.lab.models import Model
from tests.lab.pcitree import link_to, put

MOUNTINFO = """\
22 1 9:0 / / rw,relatime shared:1 - ext4 /dev/md0 rw,errors=remount-ro
23 22 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw
24 22 0:22 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw
25 22 0:24 / /run rw,nosuid,nodev shared:5 - tmpfs tmpfs rw,size=26424112k,mode=755
26 22 0:44 / /home rw,relatime shared:60 - nfs4 filer:/home rw,vers=4.2,hard,proto=tcp
27 22 7:0 / /opt/image ro,nodev,relatime shared:61 - squashfs /dev/loop0 ro,errors=continue"""
UNITS = (
    ("slurmd.service", "running"),
    ("munge.service", "running"),
    ("nvidia-persistenced.service", "running"),
    ("fairlead-agent.service", "running"),
    ("chrony.service", "running"),
    ("systemd-journald.service", "running"),
)


def write_host(tree: Path, model: Model, nvme: list[Path]) -> None:
    """Add to the tree of ``model`` what the host's checks read; ``nvme``: the directories of its NVMe PCI functions."""
    sys = tree / "sys"
    for number in range(model.controllers):
        here = sys / f"devices/system/edac/mc/mc{number}"
        put(here / "mc_name", "Intel_10nm Socket" if model.cpu_vendor == "GenuineIntel" else "F17h_M30h")
        for counter in ("ce_count", "ue_count", "ce_noinfo_count", "ue_noinfo_count"):
            put(here / counter, 0)
        for dimm in range(2):
            put(here / f"dimm{dimm}/dimm_label", f"CPU_SrcID#{number // 4}_MC#{number % 4}_Chan#{dimm}_DIMM#0")
            put(here / f"dimm{dimm}/dimm_ce_count", 0)
            put(here / f"dimm{dimm}/dimm_ue_count", 0)
    for number, function in enumerate(nvme):
        here = function / f"nvme/nvme{number}"
        put(here / "state", "live")
        put(here / "model", "SAMSUNG MZWLJ3T8HBLS-00007")
        link_to(here / "device", function)
        link_to(sys / f"class/nvme/nvme{number}", here)
    put(sys / "fs/ext4/md0/errors_count", 0)
    threads = "on" if model.threads > 1 else "notsupported"
    put(sys / "devices/system/cpu/smt/control", threads)
    put(sys / "devices/system/cpu/smt/active", int(threads == "on"))
    put(tree / "proc/1/mountinfo", MOUNTINFO)
    gib = 1 << 30
    facts = {
        "schema": 1,
        "clock": {
            "synchronised": True,
            "maximum_error_seconds": 0.021,
            "estimated_error_seconds": 0.000112,
            "offset_seconds": 1763640000.25,
        },
        "spaces": [
            {"path": path, "total_bytes": size * gib, "available_bytes": size * gib * 3 // 4, "total_inodes": inodes,
             "free_inodes": inodes * 9 // 10}
            for path, size, inodes in (("/", 1760, 117440512), ("/home", 40960, 0), ("/run", 25, 6606028))
        ],
        "tasks": {"total": 2312, "seen": 2312, "stuck": []},
        "units": [{"name": name, "load": "loaded", "active": "active", "sub": sub} for name, sub in UNITS],
    }  # fmt: skip
    put(tree / "host.json", json.dumps(facts, indent=1))
