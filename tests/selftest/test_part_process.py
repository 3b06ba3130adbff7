"""A part of the self-test that hangs, crashes or leaves processes: the run goes on, says what happened, and nothing is left."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.selftest import part_process
from fairlead.selftest.part_process import Message, PartResult, all_ended, doing, run_part


def part(work: object, seconds: float = 30.0) -> tuple[PartResult, list[str], list[str]]:
    """Run a part. Return its result, the progress that was shown, and the processes that were left."""
    shown: list[str] = []
    with all_ended() as left:
        result = run_part("a part", seconds, work, shown.append)  # type: ignore[arg-type]
    return result, shown, left


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_part_that_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_process, "_PROGRESS_SECONDS", 30.0)

    def work() -> Iterator[Message]:
        yield doing("one thing")
        yield {"name": "a"}
        print("a library prints this to nowhere")
        yield {"name": "b"}

    result, shown, left = part(work)
    assert (result.rows, result.state, result.reason) == (({"name": "a"}, {"name": "b"}), "done", "")
    assert (shown, left) == ([], [])


def test_a_part_that_hangs_is_killed_and_says_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is shown after a quarter of a second here, and whenever the time has doubled."""
    monkeypatch.setattr(part_process, "_PROGRESS_SECONDS", 0.25)

    def work() -> Iterator[Message]:
        yield {"name": "a"}
        yield doing("read /proc/stuck")
        time.sleep(600)

    began = time.monotonic()
    result, shown, left = part(work, 3.0)
    assert time.monotonic() - began >= 3.0
    assert result.state == "hung" and result.rows == ({"name": "a"},)
    assert result.reason == "it did not end within 3 s while it did this: read /proc/stuck"
    assert 1 <= len(shown) <= 4 and all(re.fullmatch("a part: [0-3] s, at most 3 s", line) for line in shown), shown
    assert left == []


def test_a_part_whose_library_crashes_the_process() -> None:
    def work() -> Iterator[Message]:
        faulthandler.disable()  # pytest's, which would print where
        yield doing("call the library")
        ctypes.string_at(0)

    result, _, left = part(work)
    assert (result.state, result.reason) == ("crashed", "its process ended with SIGSEGV while it did this: call the library")
    assert left == []


def test_a_bug_in_a_part_is_named() -> None:
    def work() -> Iterator[Message]:
        yield from ()
        raise ValueError("three\nlines\x1b[2J")

    result, _, _ = part(work)
    assert result.state == "crashed"
    assert result.rows == ({"failed": "ValueError: three lines [2J"},)


def test_processes_that_a_part_leaves_are_ended(tmp_path: Path) -> None:
    """Also those that left its session and its parent, as a daemon does."""
    pid = tmp_path / "pid"
    script = f"setsid sh -c 'echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 600' & sleep 600 & exit 0"

    def work() -> Iterator[Message]:
        subprocess.run(["sh", "-c", script], check=True)
        while not pid.exists():
            time.sleep(0.01)
        yield {}

    result, _, left = part(work)
    assert (result.state, left) == ("done", [])
    assert not alive(int(pid.read_text()))


def test_children_of_the_caller_stay() -> None:
    with subprocess.Popen(["sleep", "600"]) as mine:
        part(lambda: iter(({},)))
        assert mine.poll() is None
        mine.kill()


def test_output_without_end_is_cut() -> None:
    def work() -> Iterator[Message]:
        while True:
            yield {"text": "x" * 100_000}

    result, _, _ = part(work)
    assert result.state == "hung" and sum(len(str(row)) for row in result.rows) < 8 << 20


def test_the_caller_keeps_its_standard_streams() -> None:
    before = [os.fstat(n) for n in (0, 1, 2)]
    part(lambda: iter(({},)))
    assert [os.fstat(n) for n in (0, 1, 2)] == before
