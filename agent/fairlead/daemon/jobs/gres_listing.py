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
from fairlead.slurm.scontrol import CONF_PATHS
from fairlead.slurm_config import listed_gpus
from fairlead.slurm_config.gres_order import WHOLE, Device
from fairlead.topology.binding.published_files import NOT_LISTED, ListedDevices

READ_SECONDS = 5.0
CLOCK_SECONDS = 0.05  # the clocks of files and processes tick at most so far apart


class UnclearError(Exception):
    """Says in one line why the files do not tell which device an index means."""


class SlurmdsCount:
    """Knows what slurmd counts, as far as its files tell it, and since when. ``listed``: what the last slurmd was known to count.
    All times are in seconds of CLOCK_BOOTTIME."""

    def __init__(self, listed: ListedDevices) -> None:
        self._listed = listed
        self._pid = 0
        self._confirmed = 0.0  # when the last slurmd was last known to count so

    def take(self, uuids: dict[int, str], *, newer: bool, pid: int, started: float, now: float) -> ListedDevices:
        """Return what slurmd counts if the files say ``uuids``. Raise UnclearError if the files were changed after slurmd started
        (``newer``), unless they say the same as before to the same slurmd. ``pid``, ``started``: of slurmd."""
        same = uuids == self._listed.uuids
        if newer and not (same and pid == self._pid):
            raise UnclearError("a file of Slurm's configuration was changed after slurmd started: restart slurmd")
        if not same:
            self._listed = ListedDevices(uuids, round(max(started, self._confirmed), 2))
        self._pid = pid
        self.confirm(now)
        return self._listed

    def confirm(self, now: float) -> None:
        """Take note that slurmd still counts so."""
        self._confirmed = now


class GresListing:
    """Reads Slurm's files on a node with a GPU in MIG mode, at most every READ_SECONDS. The files may be on a file system that
    does not answer."""

    def __init__(self, document: Document, root: Root, disk: Storage | None = None) -> None:
        self._root = Root(root.path)  # Root says which file it reads now, and this one reads in another thread
        self._disk = disk or Disk("slurm-conf")
        self._slurmd = Found()
        self._read_at = float("-inf")
        self._devices: dict[Device, str] = {}
        self._stamps: dict[str, float | None] = {}  # by path: when the file was changed, or None if there is no such file
        self._pid: int | None = None
        self._said = ""
        self._found = NOT_LISTED
        self._count = SlurmdsCount(published(document.agent.run_dir).listed)
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
        if now - self._read_at < READ_SECONDS and devices == self._devices:
            return self._found
        same, self._read_at, self._devices = devices == self._devices, now, devices
        pid = self._slurmd.pid("slurmd", search=True) if self._root.is_live else 0
        try:
            self._found = self._disk.do(lambda: self._read_files(devices, pid if isinstance(pid, int) else None, same=same))
        except (OSError, ValueError, FairleadError, UnclearError) as e:
            self._found = NOT_LISTED
            self._report(str(e))
        return self._found

    def _report(self, why: str) -> None:
        if why != self._said and why:
            log.line(log.NOTICE, "gres.conf does not tell which MIG instance a job has", why=why)
        self._said = why

    def _read_files(self, devices: dict[Device, str], pid: int | None, *, same: bool) -> ListedDevices:
        """Read the files, unless none has changed. ``pid``: of slurmd. ``same``: whether the devices are those of the last time.

        Raise UnclearError if the files were changed after slurmd started, and ValueError if they cannot be understood.
        """
        if same and pid == self._pid and self._stamps and all(self._stamp(p) == at for p, at in self._stamps.items()):
            if self._found.uuids:
                self._count.confirm(both_clocks()[0])
            return self._found
        self._stamps, self._pid = {}, pid
        path = self._conf or next((p for p in CONF_PATHS if self._root.exists(p)), "")
        if not path:
            return NOT_LISTED
        lines = listed_gpus.gpu_lines(slurm_conf.lines_beside(path, "gres.conf", self._text), self._node)
        if not lines or not any(line.multiple for line in lines):
            return NOT_LISTED
        nodes = slurm_conf.parse(path, self._text).nodes
        minors = self._root.read_text(listed_gpus.MINORS)
        caps = listed_gpus.capabilities(minors if isinstance(minors, str) else "")
        files = listed_gpus.files_by_index(lines, listed_gpus.counted_types(nodes, self._node))
        known = {index: listed_gpus.device_of(each, caps) for index, each in enumerate(files)}
        uuids = {index: devices[device] for index, device in known.items() if device is not None and device in devices}
        if not self._root.is_live:
            return ListedDevices(uuids, 0.0)
        if pid is None:
            raise UnclearError("no slurmd runs here")
        boot, unix = both_clocks()
        started = _started(pid)
        changed = max(at for at in self._stamps.values() if at is not None) - (unix - boot)
        newer = changed > started + CLOCK_SECONDS and not slurm_conf.is_slurmds_copy(os.path.realpath(path))
        found = self._count.take(uuids, newer=newer, pid=pid, started=started, now=boot)
        self._report("")
        return found

    def _text(self, path: str) -> str | None:
        """Return the text of a file, and remember when the file was changed."""
        self._stamps[path] = self._stamp(path)
        text = self._root.read_text(path)
        return text if isinstance(text, str) else None

    def _stamp(self, path: str) -> float | None:
        try:
            return os.stat(self._root.join(path)).st_ctime
        except OSError:
            return None


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
