"""Contains the clock of a maintenance run. Nobody can set this clock, and all time limits of a run are counted by it.

It starts with the time of day, and then goes by CLOCK_BOOTTIME, which also counts while the machine sleeps. Only the window of a
run is a time of day. So a window cannot be kept after the clock was set by more than ``STEP_SECONDS``.
"""

from __future__ import annotations

import time

from fairlead.host.boot_clock import boottime

#: munge refuses a credential that is older than 300 s, so no Slurm works with clocks that differ by more (munged(8), --max-ttl).
STEP_SECONDS = 300.0
_UNITS = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"))


class RunClock:
    """Returns Unix seconds. It starts with the time of day, and then nobody can set it."""

    def __init__(self) -> None:
        self._ahead = time.time() - boottime()

    def now(self) -> float:
        return self._ahead + boottime()

    def step_seconds(self) -> float:
        """Return by how much the clock of this machine was set since this object was made. Small differences count as 0."""
        step = time.time() - self.now()
        return step if abs(step) > STEP_SECONDS else 0.0


def set_text(step: float) -> str:
    """Return what to say of a clock that was set while the run goes on, without a next step."""
    return f"the clock was set {'back' if step < 0 else 'forward'} by {span_text(step)}"


def behind_text(seconds: float) -> str:
    """Return what to say of a clock that is behind what the run's journal has, without a next step."""
    return f"the clock is {span_text(seconds)} behind this run's journal"


def span_text(seconds: float) -> str:
    size, unit = next((each for each in _UNITS if abs(seconds) >= 2 * each[0]), _UNITS[-1])
    return f"{abs(seconds) / size:.1f} {unit}"
