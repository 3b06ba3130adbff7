"""Reads the facts of the host that checks need, in thorough sweeps.

Some facts are not in files: statfs, units, the clock, sleeping tasks. A machine tree has them in ``host.json``, which
``fairlead snapshot`` writes. A duration (for how long a task has slept or a mount has not answered) is measured from an earlier
sweep on, so it is 0 in the first sweep.
"""

from __future__ import annotations

import os
from typing import Any, TypeVar

import msgspec

from fairlead.host import boot_clock, clock_state, ports, storage
from fairlead.host.probe import Probes, unanswered
from fairlead.host.root import Root
from fairlead.host.tasks import Watch
from fairlead.model.facts import Missing, Nic, unreadable
from fairlead.model.host_facts import Clock, Host, Space, Tasks, UnitState, Wanted
from fairlead.model.json_text import NOT_JSON

FILE = "host.json"
T = TypeVar("T")


class HostReader:
    """Reads one host again and again. ``once``: there is a single sweep, which waits up to five seconds for mounts and units."""

    def __init__(self, root: Root, wanted: Wanted, *, once: bool) -> None:
        self._root = root
        self._wanted = wanted
        self._watch = Watch(root)
        self._once = once
        self._probes = (
            Probes(wanted.mounts, units=wanted.units, first_wait_seconds=5.0 if once else 0.5) if root.is_live else None
        )

    def read(self, nics: tuple[Nic, ...]) -> Host:
        """Return the host as it is now."""
        root = self._root
        if self._probes is not None:
            self._probes.ask()
        files = Host(
            ports=ports.ports(root, nics),
            controllers=storage.memory_controllers(root),
            nvme=storage.nvme(root),
            mounts=storage.mounts(root),
            fs_errors=storage.fs_errors(root),
            devices=storage.devices(root),
            images=storage.images(root),
            memory_bytes=clock_state.memory_bytes(root),
            smt=root.value("/sys/devices/system/cpu/smt/control"),
            cpus_online=clock_state.cpus_online(root),
            hung_task_warnings=root.number("/proc/sys/kernel/hung_task_warnings"),
        )
        if self._probes is None:
            return self._recorded(files)
        tasks = self._watch.sweep(boot_clock.boottime())
        now = clock_state.kernel_clock()
        self._probes.wait_once()
        spaces, units = self._probes.spaces(), self._probes.units()
        if self._once:
            self.end()
        return msgspec.structs.replace(files, tasks=tasks, clock=now, spaces=spaces, units=units)

    def end(self) -> None:
        """End the child processes that still wait for an answer."""
        self._watch.end()
        if self._probes is not None:
            self._probes.end()

    def _recorded(self, files: Host) -> Host:
        recorded = read_recorded(os.path.join(self._root.path, FILE))
        spaces = _part(recorded, "spaces", tuple[Space, ...])
        by_path = {s.path: s for s in spaces} if isinstance(spaces, tuple) else {}
        why = spaces if isinstance(spaces, Missing) else unreadable(f"not in {FILE}")
        return msgspec.structs.replace(
            files,
            tasks=_part(recorded, "tasks", Tasks),
            clock=_part(recorded, "clock", Clock),
            units=_part(recorded, "units", tuple[UnitState, ...]),
            spaces=tuple(by_path.get(path, unanswered(path, why)) for path in self._wanted.mounts),
        )


def read_recorded(path: str) -> dict[str, Any] | Missing:
    """Return the content of a machine tree's ``host.json``: the facts that are not in files."""
    try:
        with open(path, "rb") as f:
            data = msgspec.json.decode(f.read(4 << 20))
    except OSError as e:
        return unreadable(f"{path}: {e.strerror}")
    except NOT_JSON as e:
        return unreadable(f"{path}: not JSON: {e}")
    return data if isinstance(data, dict) else unreadable(f"{path}: not a JSON object")


def recorded_of(host: Host) -> dict[str, Any]:
    """Return the content of ``host.json`` for a host. Values that could not be read are left out."""
    said: dict[str, Any] = {"schema": 1}
    if isinstance(host.spaces, tuple):
        said["spaces"] = [msgspec.to_builtins(s) for s in host.spaces if not isinstance(s.total_bytes, Missing)]
    for key, value in (("clock", host.clock), ("units", host.units), ("tasks", host.tasks)):
        if not isinstance(value, Missing):
            said[key] = msgspec.to_builtins(value)
    return said


def _part(recorded: dict[str, Any] | Missing, key: str, kind: type[T]) -> T | Missing:
    if isinstance(recorded, Missing):
        return recorded
    if key not in recorded:
        return unreadable(f"{FILE}: no {key}")
    try:
        return msgspec.convert(recorded[key], kind, strict=False)
    except msgspec.ValidationError as e:
        return unreadable(f"{FILE}: {key}: {e}")
