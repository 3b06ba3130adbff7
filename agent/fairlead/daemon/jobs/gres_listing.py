"""Finds out which MIG device each GRES index means on a node whose gres.conf lists the devices and where slurmd detects nothing.

slurmd names no MIG device to such jobs, only indices. slurmd has read gres.conf and slurm.conf when it started, and the files may
have been changed since then. So what they say counts only if they are older than slurmd, or say the same as when they were. With
``configless`` slurmd itself writes them. The file topology keeps the answer, so that the next agent knows since when it holds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from fairlead.config import Document
from fairlead.daemon.jobs.blame import has_mig, published
from fairlead.errors import FairleadError
from fairlead.host import log
from fairlead.host.boot_clock import both_clocks
from fairlead.host.bounded_disk import Disk, Storage
from fairlead.host.process import Found
from fairlead.host.root import Root
from fairlead.model.facts import Gpu, Missing, Node
from fairlead.slurm import slurm_conf
from fairlead.slurm_config import listed_gpus
from fairlead.slurm_config.gres_order import WHOLE, Device
from fairlead.topology.binding.published_files import NOT_LISTED, ListedDevices

LOOK_SECONDS = 5.0
CLOCK_SECONDS = 0.05  # the clocks of files and processes tick at most so far apart
CONFS = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")
CONFIGLESS = ("/run/slurm/", "/var/spool/slurm")  # slurmd writes its own copies there


class _NotTold(Exception):
    """Says in one line why the files do not tell which device an index means."""


class GresListing:
    """Reads Slurm's files on a node with a GPU in MIG mode, at most every LOOK_SECONDS. The files may be on a file system that
    does not answer."""

    def __init__(self, document: Document, root: Root, disk: Storage | None = None) -> None:
        self._root = Root(root.path)  # Root says which file it reads now, and this one reads in another thread
        self._disk = disk or Disk("slurm-conf")
        self._slurmd = Found()
        self._looked = float("-inf")
        self._devices: dict[Device, str] = {}
        self._said = ""
        self._found = NOT_LISTED
        self._trusted = published(document.agent.run_dir).listed  # what the last slurmd was known to count
        self._trusted_pid = 0
        self._confirmed = 0.0  # when that was last known (CLOCK_BOOTTIME)
        self.change(document)

    def change(self, document: Document) -> None:
        """Use another document."""
        self._conf = document.slurm.conf
        self._node = document.slurm_node

    def read(self, node: Node) -> ListedDevices:
        """Return which device each index means. It is empty if Slurm's files do not say so, or if no GPU is in MIG mode."""
        if not has_mig(node):
            self._found = NOT_LISTED
            return NOT_LISTED
        devices = {device: uuid for gpu in _gpus(node) for device, uuid in _devices(gpu)}
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS and devices == self._devices:
            return self._found
        self._looked, self._devices = now, devices
        try:
            found = self._disk.do(lambda: self._look(devices))
        except (OSError, ValueError, FairleadError, _NotTold) as e:
            found = NOT_LISTED
            self._report(str(e))
        else:
            self._report("")
        self._found = found
        return found

    def _report(self, why: str) -> None:
        if why and why != self._said:
            log.line(log.NOTICE, "gres.conf does not tell which MIG instance a job has", why=why)
        self._said = why

    def _look(self, devices: dict[Device, str]) -> ListedDevices:
        """Read the files. Raise _NotTold if they changed after slurmd started, and ValueError if they cannot be understood."""
        stamps: list[float] = []

        def read(path: str) -> str | None:
            text = self._root.read_text(path)
            if isinstance(text, str):
                stamps.append(os.stat(self._root.join(path)).st_ctime)
            return text if isinstance(text, str) else None

        path = self._conf or next((p for p in CONFS if self._root.exists(p)), "")
        if not path:
            return NOT_LISTED
        conf = slurm_conf.parse(path, read)
        lines = listed_gpus.gpu_lines(slurm_conf.lines_beside(path, "gres.conf", read), self._node)
        if not lines or not any(line.multiple for line in lines):
            return NOT_LISTED
        minors = self._root.read_text(listed_gpus.MINORS)
        caps = listed_gpus.capabilities(minors if isinstance(minors, str) else "")
        files = listed_gpus.files_by_index(lines, listed_gpus.counted_types(conf.nodes, self._node))
        known = {index: listed_gpus.device_of(each, caps) for index, each in enumerate(files)}
        uuids = {index: devices[device] for index, device in known.items() if device is not None and device in devices}
        return self._held(uuids, max(stamps), path)

    def _held(self, uuids: dict[int, str], changed: float, path: str) -> ListedDevices:
        """Return what slurmd has in memory, as far as its files tell it. ``changed``: when the newest file was changed."""
        if not self._root.is_live:
            return ListedDevices(uuids, 0.0)
        boot, unix = both_clocks()
        pid = self._slurmd.pid("slurmd", search=True)
        if not isinstance(pid, int):
            raise _NotTold("no slurmd runs here")
        started = _started(pid)
        newer = changed - (unix - boot) > started + CLOCK_SECONDS and not os.path.realpath(path).startswith(CONFIGLESS)
        same = uuids == self._trusted.uuids
        if newer and not (same and pid == self._trusted_pid):
            raise _NotTold(f"a file in {os.path.dirname(path)} was changed after slurmd started: restart slurmd")
        if not same:
            self._trusted = ListedDevices(uuids, round(max(started, self._confirmed), 2))
        self._trusted_pid, self._confirmed = pid, boot
        return self._trusted


def _started(pid: int) -> float:
    """Return when a process started (CLOCK_BOOTTIME seconds; proc_pid_stat(5), starttime)."""
    with open(f"/proc/{pid}/stat", "rb", buffering=0) as f:
        fields = f.read(4096).rpartition(b")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _gpus(node: Node) -> tuple[Gpu, ...]:
    return () if isinstance(node.gpus, Missing) else node.gpus


def _devices(gpu: Gpu) -> Iterator[tuple[Device, str]]:
    """Yield each MIG device of a GPU in MIG mode, or the GPU itself, with its UUID."""
    if isinstance(gpu.minor, Missing):
        return
    if gpu.mig_current is not True:
        if not isinstance(gpu.uuid, Missing):
            yield (gpu.minor, WHOLE), gpu.uuid
    elif not isinstance(gpu.mig_devices, Missing):
        for device in gpu.mig_devices:
            yield (gpu.minor, (device.gi, device.ci)), device.uuid
