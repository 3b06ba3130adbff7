"""Rows of sacct and squeue become runs of jobs, and a row that makes no sense is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.jobs.job_run import SACCT_COLUMNS, SQUEUE_COLUMNS, gpus_of, sacct_runs, squeue_runs

ROW = (
    "23|17_3|1001|alice|research|gpu|CANCELLED by 1001|1790000000|1790003600|2880|128|"
    "cpu=128,gres/gpu=16,gres/gpu:h100=16|gpu[001-002]"
)

HEAD = "|".join(SACCT_COLUMNS)


def changed(column: str, value: str) -> str:
    cells = ROW.split("|")
    cells[SACCT_COLUMNS.index(column)] = value
    return "|".join(cells)


def test_a_row_of_sacct() -> None:
    (run,) = sacct_runs([HEAD + "\n", ROW + "\n"], mistakes := [])
    assert not mistakes
    assert (run.job, run.label, run.uid, run.state, run.nodes) == (23, "17_3", 1001, "CANCELLED", ("gpu001", "gpu002"))
    assert (run.begin_unix, run.end_unix, run.limit_seconds, run.gpus, run.cpus) == (1790000000, 1790003600, 172800, 16, 128)


def test_a_row_of_squeue() -> None:
    row = "23|17|3|1001|alice|research|gpu|COMPLETED|1790000000|1790003600|2-00:00:00|128|cpu=128,gres/gpu:h100=16|gpu[001-002]"
    assert len(row.split("|")) == len(SQUEUE_COLUMNS)
    (run,) = squeue_runs([row.split("|")], mistakes := [])
    assert not mistakes
    assert (run.job, run.label, run.end_unix, run.limit_seconds, run.gpus) == (23, "17_3", 1790003600, 172800, 16)


def test_a_job_of_a_cluster_without_accounting_has_no_account() -> None:
    row = "23|23|N/A|1001|alice|(null)|gpu|RUNNING|1790000000|N/A|2:00:00|128|cpu=128,gres/gpu:h100=16|gpu[001-002]"
    (run,) = squeue_runs([row.split("|")], mistakes := [])
    assert not mistakes
    assert (run.account, run.nodes, run.gpus) == ("", ("gpu001", "gpu002"), 16)


@pytest.mark.parametrize(
    ("column", "value"), [("Start", "Unknown"), ("Start", "None"), ("NodeList", "None assigned"), ("NodeList", "")]
)
def test_a_job_that_never_had_a_node_is_left_out(column: str, value: str) -> None:
    assert sacct_runs([HEAD, changed(column, value)], mistakes := []) == [] == mistakes


def test_a_running_job_has_no_end() -> None:
    (run,) = sacct_runs([HEAD, changed("State", "RUNNING").replace("1790003600", "Unknown")], [])
    assert run.end_unix is None
    assert run.seconds(1790000060.0) == 60


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("JobIDRaw", "x", "id"),
        ("JobID", "17_[3]", "id"),
        ("User", "al\x1bice", "name"),
        ("State", "", "state"),
        ("Start", "2026-01-01", "seconds"),
        ("End", "Unknown", "no time of its end"),
        ("NodeList", "gpu[1-", "nodelist"),
        ("NodeList", "$(id)", "nodelist"),
    ],
)
def test_a_row_that_makes_no_sense_is_named(column: str, value: str, said: str) -> None:
    runs = sacct_runs([HEAD, ROW, changed(column, value)], mistakes := [])
    assert len(runs) == 1
    assert len(mistakes) == 1 and "line 3" in mistakes[0] and said in mistakes[0]


def test_an_end_before_the_start_is_a_run_of_no_time() -> None:
    (run,) = sacct_runs([HEAD, changed("End", "1789999999")], [])
    assert run.end_unix == run.begin_unix


@given(st.lists(st.text(max_size=80), max_size=5))
def test_no_text_breaks_the_reader(lines: list[str]) -> None:
    mistakes: list[str] = []
    assert len(sacct_runs([HEAD, *lines], mistakes)) + len(mistakes) <= len(lines)


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [("cpu=8,gres/gpu=4,gres/gpu:h100=4", 4), ("gres/gpu:h100=3,gres/gpu:a100=2", 5), ("cpu=8", 0), ("", 0), ("gres/gpu=0", 0)],
)
def test_gpus(tres: str, gpus: int) -> None:
    assert gpus_of(tres) == gpus


def test_the_columns_may_be_in_any_order_and_some_may_be_missing() -> None:
    row = dict(zip(SACCT_COLUMNS, ROW.split("|"), strict=True))
    names = [name for name in reversed(SACCT_COLUMNS) if name not in ("JobID", "UID", "NCPUS")]
    (run,) = sacct_runs(["|".join(names), "|".join(row[name] for name in names)], mistakes := [])
    assert not mistakes
    assert (run.job, run.label, run.uid, run.cpus, run.gpus) == (23, "23", None, 0, 16)


def test_steps_are_left_out() -> None:
    assert sacct_runs([HEAD, changed("JobIDRaw", "23.batch")], mistakes := []) == [] == mistakes


def test_a_first_line_without_the_columns_is_named() -> None:
    assert sacct_runs([ROW], mistakes := []) == []
    assert "no column JobIDRaw" in mistakes[0]
