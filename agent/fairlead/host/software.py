"""Reads, in thorough sweeps, which driver software is installed on the disk and which is loaded into the kernel."""

from __future__ import annotations

import re

from fairlead.host.root import Root
from fairlead.model.gpu_load import Software
from fairlead.model.missing import Missing, unreadable

#: Distributions and NVIDIA's installer put the library into these folders (ld.so.conf of Debian, Ubuntu, RHEL, SLES).
FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib",
           "/usr/lib/x86_64-linux-gnu/nvidia/current")  # fmt: skip
LIBRARY = "libnvidia-ml.so.1"
#: The files of the driver's module nvidia_peermem and of its predecessor nv_mem. NCCL tests for the same files
#: (src/transport/net_ib.cc).
PEERMEM = ("/sys/module/nvidia_peermem/version", "/sys/kernel/mm/memory_peers/nv_mem/version",
           "/sys/kernel/mm/memory_peers/nv_mem_nc/version")  # fmt: skip
VERSION = "/proc/driver/nvidia/version"
CHANNELS = "/dev/nvidia-caps-imex-channels"
_LIBRARY = re.compile(r"^libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)?)$")
_KERNEL = re.compile(r"^Linux version (\d+)\.(\d+)")
_LINKS_MAX = 8


def software(root: Root) -> Software:
    return Software(
        library_file=_library(root),
        open_module=_open(root),
        kernel=_kernel(root),
        peermem=any(root.exists(path) for path in PEERMEM),
        imex_channels=_channels(root),
    )


def _library(root: Root) -> str | Missing | None:
    """Return the version of the installed library, from the name of the file that its link leads to: libnvidia-ml.so.1 is a
    link to libnvidia-ml.so.VERSION (NVIDIA driver README, "Installed Components")."""
    for folder in FOLDERS:
        path = f"{folder}/{LIBRARY}"
        for _ in range(_LINKS_MAX):
            target = root.readlink(path)
            if not isinstance(target, str):
                break
            path = target if target.startswith("/") else f"{path.rpartition('/')[0]}/{target}"
        if root.exists(path):
            match = _LIBRARY.match(path.rpartition("/")[2])
            return match[1] if match else None
    return unreadable(f"{LIBRARY} is in none of the usual folders")


def _open(root: Root) -> bool | Missing:
    text = root.value(VERSION)
    return text if isinstance(text, Missing) else "Open Kernel Module" in text


def _kernel(root: Root) -> tuple[int, int] | Missing:
    text = root.value("/proc/version")
    if isinstance(text, Missing):
        return text
    match = _KERNEL.match(text)
    return (int(match[1]), int(match[2])) if match else unreadable("/proc/version: no kernel version")


def _channels(root: Root) -> int | Missing:
    """Return the number of IMEX channel devices. In a machine tree they are counted in its list of device nodes."""
    recorded = root.read_text("/dev/nodes") if not root.is_live else None
    if isinstance(recorded, str):
        prefix = CHANNELS.removeprefix("/dev/") + "/channel"
        return sum(line.startswith(prefix) for line in recorded.splitlines())
    found = root.list(CHANNELS)
    return found if isinstance(found, Missing) else len([n for n in found or () if n.startswith("channel")])
