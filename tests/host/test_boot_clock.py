"""Both clocks are read at one moment: an interruption of the process is no step of the system clock."""

from __future__ import annotations

import itertools

import pytest

from fairlead.host import boot_clock


class Interrupted:
    """Clocks of a process that the kernel stops for ``seconds`` at each of these readings."""

    CLOCK_BOOTTIME = 7

    def __init__(self, seconds: float, *readings: int) -> None:
        self.seconds, self.readings, self.count, self.stopped = seconds, readings, itertools.count(), 0.0

    def clock_gettime(self, _clock: int) -> float:
        return 1000.0 + self._passed()

    def time(self) -> float:
        return 1_790_000_000.0 + self._passed()

    def _passed(self) -> float:
        number = next(self.count)
        self.stopped += self.seconds if number in self.readings else 0.0
        return self.stopped + number * 1e-6


@pytest.mark.parametrize("readings", [(), (1,), (2,), (1, 4), (2, 3, 4, 5)])
def test_an_interruption_between_the_clocks_is_not_seen(monkeypatch: pytest.MonkeyPatch, readings: tuple[int, ...]) -> None:
    monkeypatch.setattr(boot_clock, "time", Interrupted(3.0, *readings))
    boot, unix = boot_clock.both_clocks()
    assert unix - boot == pytest.approx(1_790_000_000.0 - 1000.0, abs=0.001)


def test_a_process_that_is_always_interrupted_gets_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot_clock, "time", Interrupted(3.0, *range(1000)))
    boot, unix = boot_clock.both_clocks()
    assert unix - boot == pytest.approx(1_790_000_000.0 - 1000.0, abs=3.1)
