"""Adds up for how long a GPU was busy, from the driver's samples of its utilisation. This computation is pure.

Facts about the samples of nvmlDeviceGetSamples (nvml.h): a sample is the utilisation in the time since the sample before, in
percent. Samples are 1/6 to 1 second apart. Some drivers take no samples while a GPU is idle (polarsignals/gpu-metrics-agent,
pull request 37). The same source reports time stamps that count from the boot, while others are Unix times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

Sample = tuple[int, int]  # time stamp in microseconds, percent

APART_NANOSECONDS = 2_000_000_000  # samples that are further apart have a hole between them
LATE_NANOSECONDS = 2_500_000_000  # the driver may give a sample this late
SPOT_NANOSECONDS = 60_000_000_000  # one reading of the utilisation stands for at most this time
_PER_PERCENT = 100
_MICROSECOND = 1000


class BusyTime:
    """Holds the sums of one GPU in nanoseconds, and the time up to which they are complete.

    ``until``: CLOCK_MONOTONIC in nanoseconds. The time up to ``until`` that is not in ``measured`` is not known. ``spot`` is the
    part of ``measured`` without samples. ``lost_samples`` is True after the driver's buffer was too short once.
    """

    def __init__(self, now: int) -> None:
        self.began = self.until = now
        self.measured = self.busy = self.spot = 0
        self.lost_samples = False
        self._most = 0  # the largest number of samples at once
        self._spots: deque[tuple[int, int | None]] = deque([(now, None)], maxlen=128)

    def look(self, now: int, percent: int | None) -> None:
        """Remember the utilisation that nvmlDeviceGetUtilizationRates gives now, or None if it gives none."""
        self._spots.append((now, percent))

    def add(self, samples: Sequence[Sample], now: int, unix_now: int, *, wait: bool) -> None:
        """Add the samples that are new since the last call. Times without samples get the values of ``look``.

        now, unix_now: CLOCK_MONOTONIC and CLOCK_REALTIME in nanoseconds. wait: the driver gives samples, so the time since the
        newest sample may still get one.
        """
        placed = self._placed(samples, now, unix_now)
        first = True
        for end, percent in placed:
            if end - self.until > APART_NANOSECONDS:
                self._bridge(end, lost=first and len(samples) >= self._most > 1)
            else:
                self._count(end, percent * (end - self.until) // _PER_PERCENT, end - self.until)
            first = False
        self._most = max(self._most, len(samples))
        if not wait or now - self.until > LATE_NANOSECONDS:
            self._bridge(now, lost=False)
        while len(self._spots) > 1 and self._spots[1][0] <= self.until:
            self._spots.popleft()

    def restart(self, now: int) -> None:
        """Begin anew at ``now``. The time before, back to ``until``, is not known."""
        self.until = max(self.until, now)
        self._spots = deque([(now, None)], maxlen=128)

    def _placed(self, samples: Sequence[Sample], now: int, unix_now: int) -> list[Sample]:
        """Return the new samples by CLOCK_MONOTONIC. Their clock is the one by which the newest sample is of this reading."""
        valid = sorted(
            (stamp * _MICROSECOND, percent) for stamp, percent in samples if stamp > 0 and 0 <= percent <= _PER_PERCENT
        )
        for offset in (now - unix_now, 0):
            if valid and self.until - APART_NANOSECONDS < valid[-1][0] + offset <= now + APART_NANOSECONDS:
                return [(min(at + offset, now), percent) for at, percent in valid if at + offset > self.until]
        return []

    def _count(self, end: int, busy: int, measured: int) -> None:
        self.busy += busy
        self.measured += measured
        self.until = end

    def _bridge(self, end: int, *, lost: bool) -> None:
        """Count the time up to ``end``, which has no samples, by the values of ``look``. Samples that were lost are a gap."""
        if lost:
            self.lost_samples = True
            self.until = end
            return
        busy = known = 0
        before: int | None = None
        for at, percent in self._spots:
            if before is not None and percent is not None and at - before <= SPOT_NANOSECONDS:
                part = min(at, end) - max(before, self.until)
                if part > 0:
                    known += part
                    busy += percent * part // _PER_PERCENT
            before = at
        self.spot += known
        self._count(end, busy, known)
