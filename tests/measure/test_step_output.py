"""Many commands at once: deadlines, endless output, and more pipes than a process may open by default."""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

import pytest

from fairlead.measure import step_output
from fairlead.measure.step_output import OUT_MAX, StepOutput, run_all

ENV = {"PATH": "/usr/bin:/bin"}


def sh(text: str) -> list[str]:
    return ["/bin/sh", "-c", text]


def run(commands: Mapping[str, Sequence[str]], seconds: float = 60.0) -> dict[str, StepOutput]:
    return run_all(commands, seconds=seconds, environment=ENV)


def test_each_command_has_its_own_output_and_status() -> None:
    found = run({"a": sh("echo out; echo err >&2; exit 3"), "b": sh("echo b"), "c": ["/no/such/program"]})
    assert (found["a"].out, found["a"].err, found["a"].status, found["a"].late) == (b"out\n", b"err\n", 3, False)
    assert found["b"].out == b"b\n" and found["b"].status == 0
    assert found["c"].status is None and b"No such file" in found["c"].err


def test_one_that_hangs_is_ended_and_the_others_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_output, "KILL_SECONDS", 1.0)
    began = time.monotonic()
    found = run(
        {"deaf": sh("trap '' TERM; echo here; sleep 300 & wait; sleep 300"), "hangs": sh("sleep 300"), "good": sh("echo x")}, 1.0
    )
    assert time.monotonic() - began < 60
    assert found["deaf"].late and found["deaf"].out == b"here\n" and found["hangs"].late and not found["good"].late


def test_an_endless_output_is_cut_and_does_not_block() -> None:
    found = run({"endless": sh("head -c 40000000 /dev/zero; echo end >&2"), "good": sh("echo x")})
    assert found["endless"].cut and len(found["endless"].out) == OUT_MAX and found["endless"].status == 0
    assert found["endless"].err == b"end\n" and not found["good"].cut


def test_a_child_that_keeps_the_pipe_open_does_not_hold_up_the_round() -> None:
    began = time.monotonic()
    found = run({"leaves": sh("echo x; sleep 120 & exit 0")}, 110.0)
    assert found["leaves"].out == b"x\n" and time.monotonic() - began < 100


@pytest.fixture
def few_files() -> Iterator[None]:
    gc.collect()  # what earlier tests have left open is closed now, and not during the test
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 110, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("few_files")
def test_more_pipes_than_the_soft_limit_of_open_files() -> None:
    with ExitStack() as others:  # a caller may have many files open
        for _ in range(100):
            others.enter_context(open(os.devnull))
        before = set(os.listdir("/proc/self/fd"))
        found = run({str(k): ["/bin/sleep", "0.2"] if k else ["/bin/echo", "0"] for k in range(150)})
        assert [found[str(k)].status for k in range(150)] == [0] * 150 and found["0"].out == b"0\n"
        assert set(os.listdir("/proc/self/fd")) <= before, "every pipe is closed"


def test_a_stop_ends_all_of_them() -> None:
    began = time.monotonic()
    found = run_all(
        {str(k): sh("sleep 300") for k in range(3)},
        seconds=300,
        environment=ENV,
        stopped=lambda: time.monotonic() - began > 0.5,
    )
    assert all(each.late for each in found.values()) and time.monotonic() - began < 60
