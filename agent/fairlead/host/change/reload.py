"""Unloads the NVIDIA modules and loads them again, so that the installed driver is loaded without a reboot.

No process may have a GPU open meanwhile. So the agent is asked to release NVML (``nvml_release``), and NVIDIA's daemons are
stopped until the modules are loaded. If another program has a GPU open, the error names that program, and the installed driver
is loaded at the next reboot. Source: NVIDIA driver README, "Kernel Modules"; modprobe(8).
"""

from __future__ import annotations

import os
import time

from fairlead.errors import HostError
from fairlead.host import installed_kernels
from fairlead.host.change import nvml_release
from fairlead.host.change.tools import MODPROBE_SECONDS, run, systemctl
from fairlead.host.root import Root
from fairlead.model.change import ModuleReload

#: The modules in the order of unloading: each comes before the modules that it needs. A module that is not loaded is skipped.
MODULES = ("nvidia_peermem", "gdrdrv", "nvidia_fs", "nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia")
#: NVIDIA's services that have GPUs open. They are started again in this order.
UNITS = ("nvidia-persistenced.service", "nvidia-fabricmanager.service", "nvidia-imex.service", "nvidia-dcgm.service")
LET_GO_SECONDS = 20.0


class BusyError(HostError):
    """The modules can only be loaded by a reboot: a program has a GPU open, or the running kernel has no NVIDIA module."""


def reload(change: ModuleReload, root: Root, run_dir: str = nvml_release.RUN_DIR) -> str:
    """Unload the modules and load them again. Raises BusyError (see there), or HostError if a command fails."""
    release = root.value("/proc/sys/kernel/osrelease")
    if isinstance(release, str) and installed_kernels.module_of(root, release) == "none":
        raise BusyError(f"the running kernel {release} has no NVIDIA module", hint="reboot: what is installed is loaded then")
    loaded = [m for m in MODULES if root.exists(f"/sys/module/{m}")]
    stopped: list[str] = []
    with nvml_release.asked(run_dir):
        try:
            for unit in UNITS if loaded else ():
                if _active(unit):
                    systemctl(["stop", unit])
                    stopped.append(unit)
            _wait_free(root)
            for module in loaded:
                run(["modprobe", "-r", "--", module], MODPROBE_SECONDS, "install kmod")
            run(["modprobe", "--", "nvidia"], MODPROBE_SECONDS, "install kmod")
            for module in reversed(loaded):
                run(["modprobe", "--", module], MODPROBE_SECONDS, "install kmod")
        finally:
            for unit in stopped:
                systemctl(["start", unit])
    return f"the NVIDIA modules of {change.version} are loaded"


def _active(unit: str) -> bool:
    try:
        systemctl(["is-active", "--quiet", unit])
    except HostError:
        return False
    return True


def _wait_free(root: Root, seconds: float = LET_GO_SECONDS) -> None:
    end = time.monotonic() + seconds
    while users := users_of_gpus(root):
        if time.monotonic() > end:
            words = ", ".join(f"{name} ({pid})" for pid, name in users[:4])
            raise BusyError(f"GPUs are held by {words}", hint="end it, or reboot: what is installed is loaded then")
        time.sleep(0.25)


def users_of_gpus(root: Root) -> list[tuple[int, str]]:
    """Return (process id, command name) of each process that has a /dev/nvidia* open or has the driver's library mapped."""
    found = []
    for name in root.names("/proc"):
        if name.isascii() and name.isdecimal() and int(name) != os.getpid() and _uses(root, name):
            comm = root.read_text(f"/proc/{name}/comm")
            found.append((int(name), comm.strip() if isinstance(comm, str) else "?"))
    return found


def _uses(root: Root, pid: str) -> bool:
    for fd in root.names(f"/proc/{pid}/fd"):
        target = root.readlink(f"/proc/{pid}/fd/{fd}")
        if isinstance(target, str) and target.startswith("/dev/nvidia"):
            return True
    maps = root.read_text(f"/proc/{pid}/maps", 16 << 20)
    return isinstance(maps, str) and ("/libnvidia-ml.so" in maps or "/libcuda.so" in maps)
