"""squeue's rows give the running jobs with GPUs. A user's comment is read for fairlead's own words and for nothing else."""

from __future__ import annotations

import pytest

from fairlead.controller.running_jobs import gpus_of_tres, jobs_of_rows
from fairlead.errors import SlurmError

ROW = [
    "7",
    "alice",
    "physics",
    "gpu",
    "normal",
    "(null)",
    "1790000000",
    "1",
    "n[1-2]",
    "(null)",
    "cpu=8,gres/gpu=4",
    "N/A",
    "N/A",
    "N/A",
    "N/A",
]


def test_a_row() -> None:
    (job,) = jobs_of_rows([ROW, [*ROW[:10], "cpu=8", *ROW[11:]]])
    assert (job.job, job.user, job.gpus, job.nodes, job.batch, job.reservation) == (7, "alice", 4, ("n1", "n2"), True, "")
    assert not (job.keep or job.serve or job.work or job.requeue)


@pytest.mark.parametrize(
    ("comment", "word"),
    [("fairlead:keep", "keep"), ("x, fairlead:serve ,y", "serve"), ("fairlead:work", "work"), ("fairlead:requeue", "requeue")],
)
def test_words_of_the_owner(comment: str, word: str) -> None:
    (job,) = jobs_of_rows([[*ROW[:9], comment, *ROW[10:]]])
    assert getattr(job, word)


@pytest.mark.parametrize("comment", ["nofairlead:keep", "fairlead:keeper", "fairlead: keep", "\x1b[2J", "keep"])
def test_other_words_say_nothing(comment: str) -> None:
    (job,) = jobs_of_rows([[*ROW[:9], comment, *ROW[10:]]])
    assert not (job.keep or job.serve or job.work or job.requeue)


@pytest.mark.parametrize(("at", "text"), [(0, "x"), (6, "2026-01-01"), (8, "n[2-"), (8, "n1;x")])
def test_what_is_no_row_is_refused(at: int, text: str) -> None:
    with pytest.raises(SlurmError):
        jobs_of_rows([[*ROW[:at], text, *ROW[at + 1 :]]])


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        (("cpu=1", "N/A", "N/A", "N/A", "N/A"), 0),
        (("cpu=1,gres/gpu=6", "N/A", "gres/gpu:2", "N/A", "N/A"), 6),
        (("cpu=1", "gres:gpu:4", "N/A", "N/A", "N/A"), 4),
        (("cpu=1", "N/A", "gres:gpu:2", "N/A", "N/A"), 6),
        (("cpu=1", "N/A", "gres/gpu:h100:2,gres/gpu:a100:1", "N/A", "N/A"), 9),
        (("cpu=1", "N/A", "gres/gpu", "N/A", "N/A"), 3),
        (("cpu=1", "N/A", "N/A", "N/A", "gres/gpu:1"), None),
        (("cpu=1", "N/A", "gres/gpumem:2,gres/shard:1", "N/A", "N/A"), 0),
    ],
)
def test_how_many_gpus_a_job_has(tres: tuple[str, ...], gpus: int | None) -> None:
    assert gpus_of_tres(tres, 3) == gpus
