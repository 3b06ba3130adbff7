"""The NVIDIA modules out and in again, so that the installed driver is the loaded one without a reboot.

Everything that holds a GPU has to let go: the agent is asked to (``nvml_release``), NVIDIA's daemons are stopped for the time;
another program is named, and the reload is left to a reboot. Source: NVIDIA driver README, "Kernel Modules"; modprobe(8).
"""

from __future__ import annotations

import os
import time

from fairlead.errors import HostError
from fairlead.host import installed_packages
from fairlead.host.change import nvml_release
from fairlead.host.change.tools import MODPROBE_SECONDS, run, systemctl
from fairlead.host.root import Root
from fairlead.model.change import ModuleReload

#: Dependents first; those that are not loaded are passed over.
MODULES = ("nvidia_peermem", "gdrdrv", "nvidia_fs", "nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia")
#: What NVIDIA ships to hold the GPUs open; started again in this order.
UNITS = ("nvidia-persistenced.service", "nvidia-fabricmanager.service", "nvidia-imex.service", "nvidia-dcgm.service")
LET_GO_SECONDS = 20.0


class BusyError(HostError):
    """A program holds a GPU: a reboot is what is left."""


def reload(change: ModuleReload, root: Root, run_dir: str = nvml_release.RUN_DIR) -> str:
    """Take the modules out and put them in. Raises HeldError where a program holds a GPU, HostError."""
    release = root.value("/proc/sys/kernel/osrelease")
    if isinstance(release, str) and installed_packages.module_of(root, release) == "none":
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
    """Processes with a /dev/nvidia* open, or with the driver's library mapped: (process id, command name)."""
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
