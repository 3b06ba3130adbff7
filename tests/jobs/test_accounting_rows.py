"""sacct's rows give jobs. No text of a user can make a row, and each bad row is named with its line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.jobs.accounting_rows import COLUMNS, NodeEvent, NodeGpus, gpus_of, jobs_of, node_events_of, node_gpus_of

HEAD = "|".join(COLUMNS)
ROW = "7|alice|physics|gpu|normal|CANCELLED by 1001|1790000000|1790003600|60|cpu=8,gres/gpu=4,gres/gpu:h100=4|n[1-2]"


def read(*lines: str) -> tuple[list[object], list[str]]:
    mistakes: list[str] = []
    return list(jobs_of(lines, mistakes)), mistakes


def test_a_row_is_a_job() -> None:
    jobs, mistakes = read(HEAD, ROW, "7.batch|||||COMPLETED|1790000000|1790003600||cpu=8|n1")
    assert not mistakes
    (job,) = jobs
    assert (job.job, job.user, job.state, job.gpus, job.nodes) == (7, "alice", "CANCELLED", 4, ("n1", "n2"))  # type: ignore[attr-defined]
    assert (job.end_unix, job.limit_seconds, job.kind) == (1790003600.0, 3600.0, "batch")  # type: ignore[attr-defined]


def test_a_running_job_has_no_end_and_a_pending_job_is_left_out() -> None:
    running = ROW.replace("1790003600", "Unknown").replace("CANCELLED by 1001", "RUNNING")
    pending = "8|alice|physics|gpu|normal|PENDING|Unknown|Unknown|60||None assigned"
    jobs, mistakes = read(HEAD, running, pending)
    assert not mistakes
    assert [(job.job, job.end_unix) for job in jobs] == [(7, None)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("1790000000", "2026-09-21T10:00:00", "SLURM_TIME_FORMAT=%s"),
        ("1790003600", "1780000000", "End is before Start"),
        ("n[1-2]", "n[2-1", "NodeList"),
        ("n[1-2]", "n1;reboot", "NodeList"),
        ("alice", "al\x1b[2Jice", "User is not a name"),
        ("7|", "7_1|", "JobIDRaw"),
        ("CANCELLED by 1001", "", "State"),
        ("|n[1-2]", "", "10 cells"),
        ("alice", "alice|root", "12 cells"),
    ],
)
def test_a_bad_row_is_named(old: str, new: str, said: str) -> None:
    jobs, mistakes = read(HEAD, ROW.replace(old, new, 1))
    assert not jobs
    assert len(mistakes) == 1
    assert "line 2" in mistakes[0] and said in mistakes[0]


@pytest.mark.parametrize(
    ("lines", "said"), [((), "is empty"), (("JobIDRaw|User",), "no column Account"), (("x" * 70000,), "no column")]
)
def test_a_file_that_is_no_list_of_jobs(lines: tuple[str, ...], said: str) -> None:
    jobs, mistakes = read(*lines)
    assert not jobs
    assert said in mistakes[0]


@given(st.lists(st.text(max_size=80), max_size=5))
def test_no_text_breaks_the_reader(lines: list[str]) -> None:
    read(*lines)
    read(HEAD, *lines)
    mistakes: list[str] = []
    node_gpus_of(lines, mistakes)
    node_events_of(lines, mistakes)


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("cpu=8", 0),
        ("gres/gpu=4,gres/gpu:h100=4", 4),
        ("gres/gpu:a=1,gres/gpu:b=2", 3),
        ("gres/gpumem=4G", 0),
        ("gres/shard=4", 0),
    ],
)
def test_gpus_of_tres(tres: str, gpus: int) -> None:
    assert gpus_of(tres) == gpus


def test_nodes_and_events() -> None:
    mistakes: list[str] = []
    nodes = node_gpus_of(
        ["NODELIST|PARTITION|GRES", "n1|gpu*|gpu:h100:8(S:0-1)", "n1|debug|gpu:h100:8(S:0-1)", "n2|cpu|(null)"], mistakes
    )
    assert nodes == [NodeGpus(node="n1", gpus=8, partitions=("gpu", "debug")), NodeGpus(node="n2", gpus=0, partitions=("cpu",))]
    events = node_events_of(["NodeName|TimeStart|TimeEnd", "|1|2", "n1|100|Unknown"], mistakes)
    assert events == [NodeEvent(node="n1", begin_unix=100.0, end_unix=None)]
    assert not mistakes
