"""Rows of sacct and squeue become runs of jobs, no text of a user can make a row, and a row that makes no sense is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.jobs.job_run import SACCT_COLUMNS, SQUEUE_COLUMNS, JobRun, gpus_of, kind_of, sacct_runs, squeue_runs, steps_of
from fairlead.jobs.table_rows import LINE_MAX

ROW = (
    "23|17_3|1001|alice|research|gpu|normal|CANCELLED by 1001|1790000000|1790003600|2880|128|"
    "cpu=128,gres/gpu=16,gres/gpu:h100=16|gpu[001-002]"
)
HEAD = "|".join(SACCT_COLUMNS)
SQUEUE = (
    "23|17|3|1001|alice|research|gpu|normal|COMPLETED|1790000000|1790003600|2-00:00:00|128|"
    "cpu=128,gres/gpu:h100=16|gpu[001-002]|1"
)


def changed(column: str, value: str) -> str:
    cells = ROW.split("|")
    cells[SACCT_COLUMNS.index(column)] = value
    return "|".join(cells)


def read(*lines: str) -> tuple[list[JobRun], list[str]]:
    mistakes: list[str] = []
    return sacct_runs(lines, mistakes), mistakes


def test_a_row_of_sacct() -> None:
    (run,), mistakes = read(HEAD + "\n", ROW + "\n")
    assert not mistakes
    assert (run.job, run.label, run.uid, run.state, run.nodes) == (23, "17_3", 1001, "CANCELLED", ("gpu001", "gpu002"))
    assert (run.begin_unix, run.end_unix, run.limit_seconds, run.gpus, run.cpus) == (1790000000, 1790003600, 172800, 16, 128)
    assert (run.qos, run.kind) == ("normal", "")


def test_a_row_of_squeue() -> None:
    assert len(SQUEUE.split("|")) == len(SQUEUE_COLUMNS)
    (run,) = squeue_runs([SQUEUE.split("|")], mistakes := [])
    assert not mistakes
    assert (run.job, run.label, run.end_unix, run.limit_seconds, run.gpus) == (23, "17_3", 1790003600, 172800, 16)
    assert (run.qos, run.kind) == ("normal", "batch")


def test_squeue_says_when_a_running_job_has_to_end_and_that_is_no_end() -> None:
    for state in ("RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED"):
        (run,) = squeue_runs([SQUEUE.replace("COMPLETED", state).split("|")], [])
        assert run.end_unix is None, state


def test_the_steps_say_what_kind_of_job_it_is() -> None:
    step = "7.{}|7.{}||||||COMPLETED|1790000000|1790003600||8|cpu=8|n1"
    for names, kind in (
        (("batch", "extern"), "batch"),
        (("extern", "0"), "interactive"),
        (("interactive",), "interactive"),
        (("extern",), ""),
    ):
        runs, mistakes = read(HEAD, changed("JobIDRaw", "7"), *(step.format(name, name) for name in names), ROW)
        assert not mistakes
        assert [run.kind for run in runs] == [kind, ""]
        assert kind_of(steps_of("".join(f"7.{name}\n" for name in names))[7]) == kind


def test_a_job_of_a_cluster_without_accounting_has_no_account() -> None:
    row = "23|23|N/A|1001|alice|(null)|gpu|(null)|RUNNING|1790000000|N/A|2:00:00|128|cpu=128,gres/gpu:h100=16|gpu[001-002]|1"
    (run,) = squeue_runs([row.split("|")], mistakes := [])
    assert not mistakes
    assert (run.account, run.nodes, run.gpus) == ("", ("gpu001", "gpu002"), 16)


@pytest.mark.parametrize(
    ("column", "value"), [("Start", "Unknown"), ("Start", "None"), ("NodeList", "None assigned"), ("NodeList", "")]
)
def test_a_job_that_never_had_a_node_is_left_out(column: str, value: str) -> None:
    assert read(HEAD, changed(column, value)) == ([], [])


def test_a_running_job_has_no_end() -> None:
    (run,), _ = read(HEAD, changed("State", "RUNNING").replace("1790003600", "Unknown"))
    assert run.end_unix is None
    assert run.seconds(1790000060.0) == 60


def test_a_run_that_ended_because_the_job_was_resized_has_its_end() -> None:
    (run,), _ = read(HEAD, changed("State", "RESIZING"))
    assert run.end_unix == 1790003600


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("JobIDRaw", "x", "JobIDRaw"),
        ("JobIDRaw", "7_1", "JobIDRaw"),
        ("JobID", "17_[3]", "JobID is not the id of a job"),
        ("User", "al\x1b[2Jice", "User is not a name"),
        ("QOS", "a b", "QOS is not a name"),
        ("State", "", "State"),
        ("Start", "2026-09-21T10:00:00", "SLURM_TIME_FORMAT=%s"),
        ("End", "Unknown", "no time of its end"),
        ("NodeList", "gpu[1-", "NodeList"),
        ("NodeList", "gpu[2-1]", "NodeList"),
        ("NodeList", "$(id)", "NodeList"),
        ("User", "alice|root", "15 cells"),
        ("User", "x" * LINE_MAX, "cells"),
    ],
)
def test_a_row_that_makes_no_sense_is_named(column: str, value: str, said: str) -> None:
    runs, mistakes = read(HEAD, ROW, changed(column, value))
    assert len(runs) == 1
    assert len(mistakes) == 1 and "line 3" in mistakes[0] and said in mistakes[0]


def test_an_end_before_the_start_is_a_run_of_no_time() -> None:
    (run,), _ = read(HEAD, changed("End", "1789999999"))
    assert run.end_unix == run.begin_unix


@given(st.lists(st.text(max_size=80), max_size=5))
def test_no_text_breaks_the_reader(lines: list[str]) -> None:
    runs, mistakes = read(HEAD, *lines)
    assert len(runs) + len(mistakes) <= len(lines)
    read(*lines)
    steps_of("\n".join(lines))


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("cpu=8,gres/gpu=4,gres/gpu:h100=4", 4),
        ("gres/gpu:h100=3,gres/gpu:a100=2", 5),
        ("cpu=8", 0),
        ("", 0),
        ("gres/gpu=0", 0),
        ("gres/gpumem=4G", 0),
        ("gres/shard=4", 0),
    ],
)
def test_gpus(tres: str, gpus: int) -> None:
    assert gpus_of(tres) == gpus


def test_the_columns_may_be_in_any_order_and_some_may_be_missing() -> None:
    row = dict(zip(SACCT_COLUMNS, ROW.split("|"), strict=True))
    names = [name for name in reversed(SACCT_COLUMNS) if name not in ("JobID", "UID", "QOS", "NCPUS")]
    (run,), mistakes = read("|".join(names), "|".join(row[name] for name in names))
    assert not mistakes
    assert (run.job, run.label, run.uid, run.qos, run.cpus, run.gpus) == (23, "23", None, "", 0, 16)


@pytest.mark.parametrize(
    ("lines", "said"),
    [((), "is empty"), ((ROW,), "no column JobIDRaw"), (("JobIDRaw|User",), "no column Account"), (("x" * 70000,), "no column")],
)
def test_a_table_without_the_columns_is_named(lines: tuple[str, ...], said: str) -> None:
    runs, (mistake,) = read(*lines)
    assert runs == [] and said in mistake
