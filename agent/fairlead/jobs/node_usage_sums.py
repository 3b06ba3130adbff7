"""Adds up what the whole node went through while a job ran: pressure, network bytes, errors. All functions are pure.

The values are counters of the kernel. Only the difference of two readings is added. What happened before the first reading of
this agent process, or while no agent ran, is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from fairlead.jobs.gpu_usage_sums import with_bin, with_counts
from fairlead.jobs.usage_record import NICS_MAX, PERCENT_BIN, HostUsage, NicUsage


class NicReading(Struct, frozen=True, kw_only=True):
    """Holds the counters of one interface or RDMA port. A counter that could not be read is None, or not in ``errors``."""

    name: str
    receive_bytes: int | None = None
    transmit_bytes: int | None = None
    errors: Mapping[str, int] = field(default_factory=dict)


class NodeCountersReading(Struct, frozen=True, kw_only=True):
    """Holds the node's counters at one time. at: CLOCK_BOOTTIME. stalled_microseconds: for "cpu", "io" and "memory", for how long
    some task has waited since the boot (PSI). events: other counters. What could not be read is not there."""

    at: float
    stalled_microseconds: Mapping[str, int] = field(default_factory=dict)
    events: Mapping[str, int] = field(default_factory=dict)
    nics: tuple[NicReading, ...] = ()


def added(host: HostUsage, last: NodeCountersReading, now: NodeCountersReading, *, end: float) -> HostUsage:
    """Return the usage with what has changed since the last reading. ``end``: of the job, on CLOCK_BOOTTIME."""
    between, inside = now.at - last.at, min(now.at, end) - last.at
    if inside <= 0:
        return host
    pressure = dict(host.pressure_histogram_seconds)
    for name, total in now.stalled_microseconds.items():
        if (before := last.stalled_microseconds.get(name)) is not None and total >= before:
            part = min(1.0, (total - before) / 1e6 / between)
            pressure[name] = with_bin(pressure.get(name, {}), part * 100 / PERCENT_BIN, inside)
    earlier = {nic.name: nic for nic in last.nics}
    nics = {nic.name: nic for nic in host.nics}
    for nic in now.nics:
        if nic.name in earlier and (nic.name in nics or len(nics) < NICS_MAX):
            nics[nic.name] = _added(nics.get(nic.name, NicUsage(name=nic.name)), earlier[nic.name], nic)
    return replace(
        host,
        node_seconds=host.node_seconds + inside,
        pressure_histogram_seconds=pressure,
        event_counts=with_counts(host.event_counts, last.events, now.events),
        nics=tuple(nics.values()),
    )


def _added(usage: NicUsage, last: NicReading, now: NicReading) -> NicUsage:
    return replace(
        usage,
        receive_bytes=_grown(usage.receive_bytes, last.receive_bytes, now.receive_bytes),
        transmit_bytes=_grown(usage.transmit_bytes, last.transmit_bytes, now.transmit_bytes),
        error_counts=with_counts(usage.error_counts, last.errors, now.errors),
    )


def _grown(total: int | None, before: int | None, after: int | None) -> int | None:
    if before is None or after is None:
        return total
    return (total or 0) + max(0, after - before)
