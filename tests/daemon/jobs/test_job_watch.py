"""What is new in the records of jobs, and which of them are removed when."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.daemon.jobs.job_watch import JobNews, JobWatch


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "jobs").mkdir()
    return tmp_path


def write(run_dir: Path, job: int, state: str) -> None:
    end = "9" if state == "ended" else "-"
    (run_dir / "jobs" / str(job)).write_text(f"1\t{state}\t1000\t0\t1\t{end}\t-\t.\n")


def records(run_dir: Path) -> set[str]:
    return {path.name for path in (run_dir / "jobs").iterdir()}


def test_each_change_is_news_once(run_dir: Path) -> None:
    jobs = JobWatch(live=False)
    assert jobs.read(str(run_dir)) == JobNews() and jobs.only_job is None
    write(run_dir, 11, "running")
    assert jobs.read(str(run_dir)) == JobNews(changed=True)
    assert jobs.read(str(run_dir)) == JobNews()
    assert jobs.running == {11} and jobs.only_job == 11
    write(run_dir, 12, "running")
    assert jobs.read(str(run_dir)).changed and jobs.only_job is None
    write(run_dir, 11, "ended")
    assert jobs.read(str(run_dir)) == JobNews(ended=True, changed=True) and jobs.only_job == 12


def test_the_record_of_an_ended_job_goes_at_once(run_dir: Path) -> None:
    jobs = JobWatch(live=False)
    write(run_dir, 11, "running")
    write(run_dir, 12, "ended")
    jobs.read(str(run_dir))
    jobs.forget(str(run_dir), refusal_pending=False)
    assert records(run_dir) == {"11"}


def test_the_record_of_a_refusal_stays_while_slurms_mark_may_come(run_dir: Path) -> None:
    jobs = JobWatch(live=False)
    write(run_dir, 13, "refused")
    assert jobs.read(str(run_dir)).refused == {13}
    jobs.forget(str(run_dir), refusal_pending=False)
    assert records(run_dir) == {"13"}, "the courier has only just heard of it"
    assert jobs.read(str(run_dir)).refused == frozenset()
    jobs.forget(str(run_dir), refusal_pending=True)
    assert records(run_dir) == {"13"}
    jobs.forget(str(run_dir), refusal_pending=False)
    assert records(run_dir) == set()
