"""A disk that does not answer: whoever asks waits once, for a bound, and it is well again when it answers."""

from __future__ import annotations

import errno
import os
import threading
import time

import pytest

from fairlead.host import log
from fairlead.host.bounded_disk import Direct, Disk


def until(met: object) -> None:
    deadline = time.monotonic() + 60
    while not met():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize("storage", [Direct(), Disk()])
def test_results_and_errors_come_back(storage: Direct | Disk) -> None:
    assert storage.do(lambda: 7) == 7
    with pytest.raises(FileNotFoundError):
        storage.do(lambda: os.stat("/nowhere/at/all"))
    assert storage.do(lambda: 8) == 8


def silent(disk: Disk) -> bool:
    """Whether the disk has not answered an act in time, and still has not."""
    return disk._late is not None


def test_silent_disk() -> None:
    disk, answer, late = Disk(), threading.Event(), []

    def act() -> str:
        assert answer.wait(60)
        return "late"

    with pytest.raises(TimeoutError) as told:
        disk.do(act, late.append, wait_seconds=0.01)
    assert (told.value.errno, told.value.strerror) == (errno.ETIMEDOUT, "the disk does not answer")
    assert silent(disk)
    with pytest.raises(TimeoutError):  # nothing is queued behind it: what nobody waits for is not done
        disk.do(lambda: late.append("never"), wait_seconds=60)
    answer.set()
    until(lambda: not silent(disk))
    assert late == ["late"]
    assert disk.do(lambda: 9) == 9


def test_every_result_is_taken_or_given_to_late() -> None:
    """Acts that end just as the wait for them ends."""
    disk, taken, late = Disk(), [], []
    for turn in range(200):
        try:
            taken.append(disk.do(lambda n=turn: (time.sleep(0.0005), n)[1], late.append, wait_seconds=0.0005))  # type: ignore[misc]
        except TimeoutError:
            until(lambda: not silent(disk))
    assert sorted(taken + late) == list(range(200))


def test_a_log_that_nobody_reads_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe that is full, as journald's socket is when its disk does not answer."""
    reader, writer = os.pipe()
    with open(writer, "w") as full, open(reader, "rb", buffering=0) as end:
        monkeypatch.setattr("sys.stderr", full)
        for n in range(3000):
            log.line(log.NOTICE, "x" * 100, n=n)
        os.set_blocking(reader, False)
        said = b""
        while data := end.read(1 << 20):
            said += data
        kept = said.count(b"\n")
        assert 0 < kept < 3000
        log.line(log.NOTICE, "again")
        assert end.read(1 << 20) == f"<4>log_lines_lost count={3000 - kept}\n<5>again\n".encode()
