"""Adds up what one GPU, or one MIG device, did between two readings while a job had it. All functions are pure.

The sums of ``GpuActivity`` are of one agent process. Only the difference of two readings of the same process is added.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from fairlead.jobs.usage_record import BINS, CLOCK_BIN_HERTZ, PERCENT_BIN, POWER_BIN_WATTS, GpuUsage
from fairlead.model.gpu_activity import GpuActivity
from fairlead.model.missing import Missing


class GpuReading(Struct, frozen=True, kw_only=True):
    """Holds what was read of one GPU or MIG device at one time.

    at: seconds of CLOCK_BOOTTIME. The other fields are as in ``GpuUsage``. memory_used_bytes and memory_total_bytes: None if they
    could not be read. throttled_seconds: sums of this agent process by reason. clock_hertz: the SM clock, or None if it is not
    known or the GPU is not loaded. errors: the driver's counters of errors.
    """

    uuid: str
    pci: str
    at: float
    activity: GpuActivity
    gres_index: int | None = None
    minor: int | None = None
    mig: str = ""
    name: str = ""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    throttled_seconds: Mapping[str, float] = field(default_factory=dict)
    clock_hertz: int | None = None
    errors: Mapping[str, int] = field(default_factory=dict)


class LastReading(Struct, frozen=True, kw_only=True):
    """Holds the last reading of a GPU. zero_run: for how many seconds the GPU has not been busy at that time."""

    reading: GpuReading
    zero_run: float = 0.0


def unmeasured(reading: GpuReading, lasted: float) -> GpuUsage:
    """Return the usage of a GPU that a job has had for ``lasted`` seconds, without any measured time."""
    return GpuUsage(
        uuid=reading.uuid,
        pci=reading.pci,
        gres_index=reading.gres_index,
        minor=reading.minor,
        mig=reading.mig,
        name=reading.name,
        gap_seconds=lasted,
        energy_gap_seconds=lasted,
    )


def lasted(usage: GpuUsage, seconds: float, more: float) -> GpuUsage:
    """Return the usage after ``more`` seconds, of which nothing is known. ``seconds``: for how long the job now has the GPU."""
    return replace(usage, gap_seconds=max(0.0, seconds - usage.seen_seconds), energy_gap_seconds=usage.energy_gap_seconds + more)


def cut(usage: GpuUsage, seconds: float, less: float) -> GpuUsage:
    """Return the usage of a job that had the GPU for ``seconds``, which are ``less`` seconds fewer than it was thought.

    If more time was seen, the sums of seen time are reduced by the same ratio. This is about the last two seconds of a job.
    """
    energy_gap = max(0.0, usage.energy_gap_seconds - less)
    usage = replace(usage, gap_seconds=max(0.0, seconds - usage.seen_seconds), energy_gap_seconds=energy_gap)
    if usage.seen_seconds <= seconds:
        return usage
    ratio = seconds / usage.seen_seconds
    zero, longest = usage.zero_seconds, usage.longest_zero_seconds
    return replace(
        usage,
        seen_seconds=seconds,
        busy_seconds=None if usage.busy_seconds is None else min(usage.busy_seconds, seconds),
        spot_seconds=usage.spot_seconds * ratio,
        zero_seconds=None if zero is None else zero * ratio,
        longest_zero_seconds=None if longest is None else longest * ratio,
        histogram_seconds=tuple(each * ratio for each in usage.histogram_seconds),
    )


def added(
    usage: GpuUsage, last: LastReading | None, now: GpuReading, *, begin: float, end: float
) -> tuple[GpuUsage, LastReading]:
    """Return the usage with what the GPU did since the last reading, and the new last reading.

    ``lasted`` must have been called for the time of ``now``. ``begin``: when the job began. ``end``: when the job ended, or else
    the present time. Both are of CLOCK_BOOTTIME. Time after ``end`` is not counted. Joules and bytes of that time are counted,
    because the counters were not read at the end itself. If the sums have not changed since the last reading, NVML was not
    asked, and nothing is added. If they went back, the GPU came back or another process reads it, and the reading is a new start.
    """
    usage = _with_memory(usage, now)
    if last is None or _age(now.activity) < _age(last.reading.activity):
        return usage, LastReading(reading=now)
    if _age(now.activity) == _age(last.reading.activity):
        return usage, last
    inside = max(0.0, min(now.at, end) - last.reading.at)
    before, after = last.reading.activity, now.activity
    measured = min(after.measured_seconds - before.measured_seconds, max(0.0, end - begin - usage.seen_seconds))
    if now.at > end:
        measured = min(measured, inside)
    begins = not usage.seen_seconds
    usage, zero_run = _with_busy(usage, before, after, max(0.0, measured), last.zero_run, at=min(now.at, end) - begin)
    usage = replace(usage, gap_seconds=max(0.0, end - begin - usage.seen_seconds))
    usage = _with_bytes(_with_gpm(usage, before, after), before, after, measured=measured > 0, begins=begins)
    usage = _with_energy(usage, before, after, inside)
    usage = _with_histograms(usage, last.reading, now, inside)
    return _with_time(usage, last.reading, now, inside), LastReading(reading=now, zero_run=zero_run)


def _age(activity: GpuActivity) -> float:
    return activity.measured_seconds + activity.gap_seconds


def _grown(before: float | Missing, after: float | Missing, *, from_zero: bool) -> float | None:
    """Return by how much a sum grew, or None if that is not known. ``from_zero``: a sum that was Missing before was 0 then."""
    if isinstance(after, Missing):
        return None
    if isinstance(before, Missing):
        return after if from_zero else None
    return max(0, after - before)


def _with_busy(
    usage: GpuUsage, before: GpuActivity, after: GpuActivity, measured: float, zero_run: float, *, at: float
) -> tuple[GpuUsage, float]:
    """Return the usage with the utilisation of ``measured`` seconds, and for how long the GPU has not been busy. ``at``: the time
    of the reading, in seconds from the job's begin."""
    busy = _grown(before.busy_seconds, after.busy_seconds, from_zero=before.measured_seconds == 0)
    if busy is None or not measured:
        return usage, 0.0
    busy = min(busy, measured)
    share = min(BINS - 1, math.ceil(busy / measured * (BINS - 1)))
    bins = list(usage.histogram_seconds) or [0.0] * BINS
    bins[share] += measured
    broken = after.gap_seconds > before.gap_seconds
    zero_run = 0.0 if busy else measured + (0.0 if broken else zero_run)
    first = usage.first_busy_seconds
    return replace(
        usage,
        seen_seconds=usage.seen_seconds + measured,
        busy_seconds=(usage.busy_seconds or 0.0) + busy,
        spot_seconds=usage.spot_seconds + min(measured, max(0.0, after.spot_seconds - before.spot_seconds)),
        zero_seconds=(usage.zero_seconds or 0.0) + (0.0 if busy else measured),
        longest_zero_seconds=max(usage.longest_zero_seconds or 0.0, zero_run),
        first_busy_seconds=max(0.0, at) if first is None and busy else first,
        histogram_seconds=tuple(bins),
    ), zero_run


def _with_gpm(usage: GpuUsage, before: GpuActivity, after: GpuActivity) -> GpuUsage:
    names = ("sm_active_seconds", "tensor_active_seconds", "dram_active_seconds")
    covered = max(0.0, after.gpm_seconds - before.gpm_seconds)
    if not covered:
        return usage
    grown = {n: _grown(getattr(before, n), getattr(after, n), from_zero=before.gpm_seconds == 0) for n in names}
    return replace(usage, gpm_seconds=usage.gpm_seconds + covered, **_sums(usage, grown))


def _with_bytes(usage: GpuUsage, before: GpuActivity, after: GpuActivity, *, measured: bool, begins: bool) -> GpuUsage:
    """Return the usage with the grown counters of bytes. ``begins``: nothing was measured before.

    There is no gap of bytes alone. So a counter that is missing while the GPU is measured, now or at the beginning, makes the
    sum of the whole job absent. Else a job would look as if it had moved no byte.
    """
    names = ("pcie_transmit_bytes", "pcie_receive_bytes", "nvlink_transmit_bytes", "nvlink_receive_bytes")
    values: dict[str, float | None] = {}
    for name in names:
        known, now = getattr(usage, name), getattr(after, name)
        grown = _grown(getattr(before, name), now, from_zero=_age(before) == 0)
        if isinstance(now, Missing):
            values[name] = None if measured else known
        elif grown is not None and (known is not None or begins):
            values[name] = (known or 0) + grown
    return replace(usage, **values)


def _with_energy(usage: GpuUsage, before: GpuActivity, after: GpuActivity, inside: float) -> GpuUsage:
    """Return the usage with the grown counter of joules. ``inside``: the seconds between the readings."""
    grown = _grown(before.energy_joules, after.energy_joules, from_zero=_age(before) == 0)
    if grown is None:
        return usage
    known = inside - max(0.0, after.energy_gap_seconds - before.energy_gap_seconds)
    gap = max(0.0, usage.energy_gap_seconds - max(0.0, known))
    return replace(usage, energy_joules=(usage.energy_joules or 0) + grown, energy_gap_seconds=gap)


def _with_histograms(usage: GpuUsage, last: GpuReading, now: GpuReading, inside: float) -> GpuUsage:
    """Return the usage with the ``inside`` seconds between two readings in its histograms, and with the new errors."""
    before, after = last.activity, now.activity
    clocks, active, power = usage.clock_histogram_seconds, usage.sm_histogram_seconds, usage.power_histogram_seconds
    if now.clock_hertz is not None:
        clocks = with_bin(clocks, now.clock_hertz / CLOCK_BIN_HERTZ, inside)
    covered = after.gpm_seconds - before.gpm_seconds
    sm = _grown(before.sm_active_seconds, after.sm_active_seconds, from_zero=before.gpm_seconds == 0)
    if sm is not None and covered > 0:
        active = with_bin(active, min(1.0, sm / covered) * 100 / PERCENT_BIN, min(covered, inside))
    joules = _grown(before.energy_joules, after.energy_joules, from_zero=False)
    between = now.at - last.at
    if joules is not None and between > 0 and after.energy_gap_seconds == before.energy_gap_seconds:
        power = with_bin(power, joules / between / POWER_BIN_WATTS, inside)
    return replace(
        usage,
        readings=usage.readings + 1,
        clock_histogram_seconds=clocks,
        sm_histogram_seconds=active,
        power_histogram_seconds=power,
        error_counts=with_counts(usage.error_counts, last.errors, now.errors),
    )


def with_bin(histogram: dict[int, float], bins: float, seconds: float) -> dict[int, float]:
    """Return the histogram with ``seconds`` more in one bin. ``bins``: the value in widths of a bin."""
    bin_ = min(1023, max(0, int(bins + 0.5)))
    if seconds <= 0 or (bin_ not in histogram and len(histogram) >= 256):
        return histogram
    return {**histogram, bin_: round(histogram.get(bin_, 0.0) + seconds, 3)}


def with_counts(counts: dict[str, int], before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the counts with the growth of those counters that both readings know. A counter that went back adds nothing."""
    grown = {name: counts.get(name, 0) + max(0, value - before[name]) for name, value in after.items() if name in before}
    return {**counts, **grown} if grown else counts


def _sums(usage: GpuUsage, grown: Mapping[str, float | None]) -> dict[str, float]:
    """Return the new sums of those fields whose growth is known."""
    return {name: (getattr(usage, name) or 0) + more for name, more in grown.items() if more is not None}


def _with_memory(usage: GpuUsage, now: GpuReading) -> GpuUsage:
    used, total = now.memory_used_bytes, now.memory_total_bytes
    highest = usage.memory_max_bytes if used is None else max(used, usage.memory_max_bytes or 0)
    return replace(usage, memory_max_bytes=highest, memory_total_bytes=usage.memory_total_bytes if total is None else total)


def _with_time(usage: GpuUsage, last: GpuReading, now: GpuReading, inside: float) -> GpuUsage:
    """Return the usage with the products of memory and time, and the throttled time, of the ``inside`` seconds between two
    readings."""
    if now.memory_used_bytes is not None and inside:
        usage = replace(
            usage,
            memory_byte_seconds=(usage.memory_byte_seconds or 0.0) + now.memory_used_bytes * inside,
            memory_seconds=usage.memory_seconds + inside,
        )
    slowed = dict(usage.throttled_seconds)
    for reason, seconds in now.throttled_seconds.items():
        more = min(inside, seconds - last.throttled_seconds.get(reason, 0.0))
        if more > 0:
            slowed[reason] = slowed.get(reason, 0.0) + more
    return usage if slowed == usage.throttled_seconds else replace(usage, throttled_seconds=slowed)
