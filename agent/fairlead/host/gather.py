"""Reads a machine or a machine tree, and returns a Node. A value that cannot be read is Missing in the Node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import is_
from typing import Any, TypeVar

from msgspec.structs import replace

from fairlead.host import aer, cpus, gpu, kernel, kfd, network, pci, process
from fairlead.host.activity_sums import ActivitySums
from fairlead.host.gpu_load_reader import LoadSums
from fairlead.host.host_facts_reader import HostReader
from fairlead.host.owners import Owners
from fairlead.host.root import Root
from fairlead.host.software import software
from fairlead.model.facts import Cpu, Gpu, GpuLink, Missing, Nic, Node, NumaNode, PciDevice, StuckCall, unreadable
from fairlead.model.gpu_load import Software
from fairlead.model.host_facts import Host, Wanted

T = TypeVar("T")
_TICK_NANOSECONDS = 2_000_000_000
_UNREAD = unreadable("not read")
SLOW_SECONDS = 14.0  # just under the default sweep interval of 15 s, so that every sweep is thorough
# A sweep that begins this much earlier is thorough too. NVML is asked before the sweep knows when its answer comes.
EARLY_SECONDS = 0.5
CPU_SECONDS = 600.0
_NVIDIA, _AMD = 0x10DE, 0x1002
_GLOB_MAX = 8  # a glob with more matches (one file per CPU or IOMMU group) is read in thorough sweeps only


class Gatherer:
    """Reads the same machine again and again. A thorough sweep comes every ``slow_seconds``; 0 makes every sweep thorough.

    Between thorough sweeps it reads only what changes from one second to the next. Of the files in ``reads`` it then reads
    those that are also in ``quick_reads`` (by default all).
    """

    def __init__(
        self,
        root: Root,
        *,
        reads: Sequence[str] = (),
        quick_reads: Sequence[str] | None = None,
        unsupported: Sequence[str] = (),
        wanted: Wanted | None = None,
        slow_seconds: float = SLOW_SECONDS,
    ) -> None:
        self._root = root
        self._reads = tuple(dict.fromkeys(reads))
        self._quick_reads = self._reads if quick_reads is None else tuple(p for p in self._reads if p in quick_reads)
        self._converter = gpu.Converter(unsupported)
        self._slow_seconds = slow_seconds
        self._tour = pci.Tour(root)
        self._next_thorough = 0.0
        self._next_cpus = 0.0
        self._cpu_signature: tuple[object, ...] = ()
        self._numa: tuple[NumaNode, ...] = ()
        self._cpus: tuple[Cpu, ...] = ()
        self._nics: tuple[Nic, ...] = ()
        self._links: tuple[GpuLink, ...] = ()
        self._aer: dict[str, tuple[aer.Counts, aer.Counts]] = {}
        self._virtual: bool | Missing | None = None
        self._name = kernel.node_name(root)
        self._module: str | Missing = ""
        self._boot_id: str | Missing = _UNREAD  # read only once, because it cannot change while this process lives
        self._texts: dict[str, str | Missing | None] = {}
        self._globs: dict[str, tuple[str, ...]] = {}
        self._stamps: dict[str, tuple[int, ...] | None] = {}
        self._processes = process.Found()
        self._host_reader = HostReader(root, wanted, once=not slow_seconds) if wanted is not None else None
        self._host: Host | Missing = unreadable("not read")
        self._load_sums = LoadSums()
        self._activity_sums = ActivitySums()
        self._devices: tuple[PciDevice, ...] = ()
        self._most = 0  # the largest number of devices that were on the bus at once
        self._there: tuple[tuple[str, bool], ...] = ()  # the GPUs that the driver listed when the bus was last read
        # the GPUs of NVML's last answer, and these GPUs with AER counters and owners
        self._gpus_said: tuple[tuple[Gpu, ...], tuple[Gpu, ...]] = (), ()
        self._owners = Owners(root)
        self._software = Software()

    def read_thoroughly(self) -> None:
        """Make the next sweep thorough."""
        self._next_thorough = 0.0

    def is_due(self) -> bool:
        """Return whether a sweep that begins now is thorough, if NVML is asked for everything."""
        return time.monotonic() + EARLY_SECONDS >= self._next_thorough

    def gather(self, nvml: Mapping[str, Any] | Missing | None, *, closely: bool = True, stuck: StuckCall | None = None) -> Node:
        """Return the node as it is now.

        ``nvml``: NVML's answers in nvml.json form, or Missing with the reason why there are none, or None when NVML was not
        asked. ``closely``: all of these answers were read in this sweep. If False, some answers are older, and the sweep is
        not thorough unless ``read_thoroughly`` was called. ``stuck``: an NVML call that has not returned.
        """
        now = time.monotonic()
        thorough = self.is_due() and (closely or not self._next_thorough)
        root = self._root
        gpus = self._converter.gpus(nvml)
        there = () if isinstance(gpus, Missing) else tuple((g.pci, g.lost) for g in gpus)
        # The bus is read again when the driver lists other GPUs, and in every sweep while a device is gone from it.
        if thorough or there != self._there or len(self._devices) < self._most:
            self._there, self._devices = there, self._tour.devices(thorough=thorough)
            self._most = max(self._most, len(self._devices))
        devices = self._devices
        if thorough:
            self._software = software(root)
            self._next_thorough = now + self._slow_seconds
            self._read_cpus(now)
            self._aer = aer.of_gpus(root, nvidia_gpus(devices))
            self._links = kfd.links(root) if any(d.vendor == _AMD for d in devices) else ()
            if self._virtual is None or isinstance(self._virtual, Missing):
                self._virtual = kernel.virtual(root)
        if thorough or not self._nics:
            self._nics = network.nics(root, devices)
        if thorough and self._host_reader is not None:
            self._host = self._host_reader.read(self._nics)
        self._module = kernel.module_version(root)
        if isinstance(self._boot_id, Missing):
            self._boot_id = kernel.boot_id(root)
        self._read_texts(thorough)
        return Node(
            name=self._name,
            boot_id=self._boot_id,
            uptime_seconds=kernel.uptime_seconds(root),
            virtual=self._virtual if self._virtual is not None else kernel.virtual(root),
            cpus=self._cpus,
            numa=self._numa,
            pci=devices,
            nics=self._nics,
            driver=replace(gpu.driver(nvml, self._module), software=self._software),
            gpus=gpus if isinstance(gpus, Missing) else self._gpus(gpus, nvml, now, thorough=thorough),
            stuck=stuck,
            gpu_links=self._links,
            thorough=thorough,
            host=self._host,
            texts=dict(self._texts),
        )

    def end(self) -> None:
        """End the child processes that still read something."""
        if self._host_reader is not None:
            self._host_reader.end()

    def _gpus(self, gpus: tuple[Gpu, ...], nvml: Any, now: float, *, thorough: bool) -> tuple[Gpu, ...]:
        said, whole = self._gpus_said
        if thorough or len(gpus) != len(said) or not all(map(is_, gpus, said)):
            whole = self._owners.attribute(aer.on_gpus(name_the_lost(gpus, self._devices), self._aer), again=thorough)
            self._gpus_said = gpus, whole
        return self._load_sums.add(self._activity_sums.add(whole, nvml, now), now)

    def _read_cpus(self, now: float) -> None:
        """Read the CPUs and NUMA nodes when CPUs or memory went online or offline, and every CPU_SECONDS. These are some
        thousand files."""
        signature = cpus.signature(self._root)
        if signature != self._cpu_signature or now >= self._next_cpus:
            self._cpu_signature = signature
            self._next_cpus = now + CPU_SECONDS if self._slow_seconds else 0.0
            self._numa = cpus.numa_nodes(self._root)
            self._cpus = cpus.cpus(self._root, self._numa)

    def _read_texts(self, thorough: bool) -> None:
        before = self._texts
        if thorough:
            self._texts = {}
            self._globs = {p: self._root.glob(p) for p in self._reads if any(c in p for c in "*?[")}
        for pattern in self._reads if thorough else self._quick_reads:
            paths = self._globs.get(pattern, (pattern,))
            if thorough or len(paths) <= _GLOB_MAX:
                for path in paths:
                    self._read(path, before, thorough)

    def _read(self, path: str, before: Mapping[str, str | Missing | None], thorough: bool) -> None:
        """Read one file of ``reads``. /proc and /sys are read each time. A file on a disk is read again
        only if it was written meanwhile, or if it could not be read the last time. A path ``/@...`` is not a file, and
        is read in thorough sweeps."""
        if path.startswith("/@"):
            if not thorough and path in before:
                return
        elif not path.startswith(("/proc/", "/sys/")):
            stamp = self._root.stamp(path)
            same = stamp is not None and self._stamps.get(path) == stamp
            if same and not isinstance(said := before.get(path, _UNREAD), Missing):
                self._texts[path] = said
                return
            # A file that was written just now may be written again within the same tick of the file system's clock.
            fresh = stamp is not None and time.time_ns() - max(stamp[2:], default=0) < _TICK_NANOSECONDS
            self._stamps[path] = None if fresh else stamp
        self._texts[path] = process.read_text(self._root, path, self._processes, search=thorough)


def gather(
    root: Root,
    nvml: Mapping[str, Any] | Missing | None,
    *,
    reads: Sequence[str] = (),
    unsupported: Sequence[str] = (),
    wanted: Wanted | None = None,
    stuck: StuckCall | None = None,
) -> Node:
    """Return the node as one thorough sweep reads it.

    reads: the files for ``Node.texts``; each match of a glob gets its own key. unsupported: dotted fields of Gpu that the
    hardware profile lists as unsupported. wanted: which facts of the host to read, or None to read none of them. stuck: an
    NVML call that has not returned.
    """
    return Gatherer(root, reads=reads, unsupported=unsupported, wanted=wanted, slow_seconds=0).gather(nvml, stuck=stuck)


def nvidia_gpus(devices: Iterable[PciDevice]) -> tuple[PciDevice, ...]:
    """Return the NVIDIA GPUs on the PCI bus: vendor 10de, class VGA (0300) or 3D controller (0302), without virtual functions."""
    return tuple(d for d in devices if d.vendor == _NVIDIA and d.class_code >> 8 in (0x0300, 0x0302) and not d.virtual_function)


def name_the_lost(gpus: tuple[Gpu, ...], devices: tuple[PciDevice, ...]) -> tuple[Gpu, ...]:
    """Return the GPUs. GPUs without an address (lost before NVML reported it) get the free GPU addresses of the bus, if there are
    as many free addresses as GPUs without an address."""
    nameless = [g for g in gpus if not g.pci]
    free = [d.address for d in nvidia_gpus(devices) if all(g.pci != d.address for g in gpus)]
    if not nameless or len(nameless) != len(free):
        return gpus
    pick: Callable[[], str] = iter(free).__next__  # NVML lists the GPUs in the order of the bus
    return tuple(g if g.pci else replace(g, pci=pick()) for g in gpus)
