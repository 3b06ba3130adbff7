"""Lists every source that the agent reads facts from, each with its reader. Together they give all fields of Node and Host."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from msgspec import Struct

from fairlead import checks, config, judge, settings
from fairlead.host import aer, boot_clock, clock_state, cpus, gpu, kernel, kfd, network, pci, ports, process, storage
from fairlead.host.gather import nvidia_gpus
from fairlead.host.kmsg import past_now
from fairlead.host.nvml import Worker
from fairlead.host.probe import Probes
from fairlead.host.root import Root
from fairlead.host.software import software
from fairlead.host.tasks import Watch
from fairlead.model.device import SUMS
from fairlead.model.facts import Missing, Nic, PciDevice, unreadable
from fairlead.model.missing import Why
from fairlead.selftest.part_process import Message, doing

_DEPTH_MAX = 8
_WAIT_SECONDS = 5.0
_SERIAL_MIN = 6  # characters; a shorter serial number is no name of one card


class Reading:
    """Holds what several readers need: the root, the document, the devices of the bus. Each is read when a reader asks for it."""

    def __init__(self, document: config.Document) -> None:
        self.root = Root()
        self.document = document

    @cached_property
    def devices(self) -> tuple[PciDevice, ...]:
        return pci.Tour(self.root).devices(thorough=True)

    @cached_property
    def nics(self) -> tuple[Nic, ...]:
        return network.nics(self.root, self.devices)

    @cached_property
    def patterns(self) -> tuple[str, ...]:
        """The files that the checks read, and that all settings read with the declared or the default wish."""
        wants = {name: self.document.settings.get(name) or setting.want() for name, setting in settings.load().items()}
        of_settings = [path for name, want in wants.items() for path in settings.load()[name].wanted_reads(want)]
        of_checks = [path for check in checks.load().values() for path in check.reads]
        return tuple(dict.fromkeys((*of_checks, *of_settings)))


class FactSource(NamedTuple):
    """Names a source. ``fields``: the fields of Node, or of Host as ``host.NAME``, that come from it."""

    name: str
    fields: tuple[str, ...]
    read: Callable[[Reading], Any]


def _processes(reading: Reading) -> Any:
    return [process.jobs_running(), process.slurmd_names()]


def _tasks(reading: Reading) -> Any:
    watch = Watch(reading.root)
    try:
        return watch.sweep(boot_clock.boottime())
    finally:
        watch.end()


def _spaces(reading: Reading) -> Any:
    """Return the space of the root, and of each mount that a check wants."""
    mounts = tuple(dict.fromkeys(("/", *judge.wanted(reading.document).mounts)))
    return _probed(Probes(mounts, units=False, first_wait_seconds=_WAIT_SECONDS)).spaces()


def _units(reading: Reading) -> Any:
    return _probed(Probes((), units=True, first_wait_seconds=_WAIT_SECONDS)).units()


def _probed(probes: Probes) -> Probes:
    """Return the probes with their first answers. A process that has not answered is ended with the part."""
    probes.ask()
    probes.wait_once()
    return probes


def _kernel_log(reading: Reading) -> Any:
    path = reading.document.agent.kmsg_path
    try:
        if stat.S_ISFIFO(os.stat(path).st_mode):
            return unreadable("the kernel log is a FIFO, and its records would be lost to the agent")
    except OSError as e:
        return unreadable(f"{path}: {e.strerror}")
    past = past_now(path, "")
    return past.log if past.log is not None else past.records


SOURCES = (
    FactSource("kernel", ("boot_id", "uptime_seconds", "virtual"), lambda r: [
        kernel.boot_id(r.root), kernel.uptime_seconds(r.root), kernel.virtual(r.root),
    ]),
    FactSource("numa", ("numa",), lambda r: cpus.numa_nodes(r.root)),
    FactSource("cpus", ("cpus", "host.cpus_online", "host.smt"), lambda r: [
        cpus.cpus(r.root, cpus.numa_nodes(r.root)), clock_state.cpus_online(r.root),
        r.root.value("/sys/devices/system/cpu/smt/control"),
    ]),
    FactSource("pci", ("pci",), lambda r: r.devices),
    FactSource("aer", (), lambda r: aer.of_gpus(r.root, nvidia_gpus(r.devices))),
    FactSource("nics", ("nics",), lambda r: r.nics),
    FactSource("rdma_ports", ("host.ports",), lambda r: ports.ports(r.root, r.nics)),
    FactSource("gpu_links", ("gpu_links",), lambda r: kfd.links(r.root)),
    FactSource("driver_software", ("driver",), lambda r: software(r.root)),
    FactSource("memory_controllers", ("host.controllers",), lambda r: storage.memory_controllers(r.root)),
    FactSource("nvme", ("host.nvme",), lambda r: storage.nvme(r.root)),
    FactSource("mounts", ("host.mounts",), lambda r: storage.mounts(r.root)),
    FactSource("fs_errors", ("host.fs_errors",), lambda r: storage.fs_errors(r.root)),
    FactSource("disks", ("host.devices", "host.images"), lambda r: [storage.devices(r.root), storage.images(r.root)]),
    FactSource("memory", ("host.memory_bytes", "host.hung_task_warnings"), lambda r: [
        clock_state.memory_bytes(r.root), r.root.number("/proc/sys/kernel/hung_task_warnings"),
    ]),
    FactSource("clock", ("host.clock",), lambda r: clock_state.kernel_clock()),
    FactSource("tasks", ("host.tasks",), _tasks),
    FactSource("spaces", ("host.spaces",), _spaces),
    FactSource("units", ("host.units",), _units),
    FactSource("processes", (), _processes),
    FactSource("kernel_log", (), _kernel_log),
)  # fmt: skip
#: Two sources are read in another way: NVML by its worker, and the declared files one by one.
NVML, FILES = FactSource("nvml", ("gpus",), lambda r: None), FactSource("files", ("texts",), lambda r: None)


def read_source(source: FactSource, reading: Reading) -> Iterator[Message]:
    """Yield the row of one source."""
    began = time.monotonic()
    yield row(source.name, source.read(reading), began)


def row(name: str, value: Any, began: float) -> Message:
    """Return the row of what a reader returned: how many values there are, how many are missing, and why."""
    found, missing = count(value)
    reasons = list(dict.fromkeys(missing))
    state = "missing" if missing and not found else "partly" if missing else "read"
    took = (time.monotonic() - began) * 1000
    return {"name": name, "state": state, "count": found, "missing": len(missing), "reasons": reasons, "milliseconds": took}


def count(value: Any, depth: int = 0) -> tuple[int, list[str]]:
    """Return how many values a fact holds, and the reasons of those that could not be read. Of a value that the hardware does not
    have, nothing is counted."""
    if isinstance(value, Missing):
        return 0, [value.detail or "no reason was given"] if value.why is Why.UNREADABLE else []
    if isinstance(value, Struct):
        inner: Collection[Any] = [getattr(value, name) for name in value.__struct_fields__ if name != SUMS]
    elif isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, tuple | list | set | frozenset):
        inner = value
    else:
        return int(value is not None), []
    if depth >= _DEPTH_MAX:
        return 1, []
    parts = [count(entry, depth + 1) for entry in inner]
    return sum(found for found, _ in parts), [reason for _, reasons in parts for reason in reasons]


def read_nvml(deadline_seconds: float) -> Iterator[Message]:
    """Yield the row of NVML, and before it the number of GPUs and their serial numbers, which the report must not contain."""
    began = time.monotonic()
    yield doing("start the NVML worker and ask it")
    worker = Worker(deadline_seconds)
    try:
        result = worker.sweep()
    finally:
        worker.close()
    found = gpu.gpus(result.raw)
    yield {"secrets": serials(result.raw), "gpus": 0 if isinstance(found, Missing) else len(found)}
    said = row("nvml", found, began)
    if (stuck := result.stuck) is not None:
        crashed = stuck.process_state == "X"
        call = f"{stuck.call or 'the worker itself'}{f' of {stuck.gpu}' if stuck.gpu else ''}"
        how = f"the worker died in {call}" if crashed else f"{call} did not return within {deadline_seconds:.0f} s"
        said |= {"state": "crashed" if crashed else "hung", "reasons": [how, *said["reasons"]]}
    yield said


def serials(raw: object) -> list[str]:
    """Return every value of NVML's answers whose key is that of a serial number or a name of one card."""
    if isinstance(raw, Mapping):
        own = [v for k, v in raw.items() if isinstance(v, str) and "serial" in str(k) and len(v) >= _SERIAL_MIN]
        return own + [found for value in raw.values() for found in serials(value)]
    return [found for value in raw for found in serials(value)] if isinstance(raw, list) else []


def read_files(reading: Reading) -> Iterator[Message]:
    """Yield the row of the declared files, and before it a digest of each kernel value and configuration file."""
    import hashlib

    began = time.monotonic()
    values: dict[str, Any] = {}
    digests = {}
    for pattern in reading.patterns:
        yield doing(f"read {pattern}")
        paths = reading.root.glob(pattern) if any(c in pattern for c in "*?[") else (pattern,)
        for path in paths:
            values[path] = text = process.read_text(reading.root, path)
            if isinstance(text, str) and path.startswith(("/sys/", "/proc/sys/", "/etc/")):
                digests[path] = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    yield {"digests": digests}
    yield row("files", {path: text for path, text in values.items() if text is not None}, began)
