"""What is new in the records of jobs, and which of them are removed when."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.daemon.jobs.job_watch import JobNews, JobWatch
from fairlead.model.node_jobs import GpuOfJob
from tests.checks.nodes import ADDRESSES, gpu, node


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


def test_the_gpus_of_running_jobs_are_those_of_their_gres_indices(run_dir: Path) -> None:
    """Slurm counts the GPUs in another order than NVML; the topology file has the order."""
    rows = [f"gpu\t{i}\t{7 - i}\tGPU-{i}\t{pci}\t0\t0-7\t-" for i, pci in enumerate(reversed(ADDRESSES))]
    (run_dir / "topology").write_text("1\tnode\tn1\t8\t0-7\t8\n" + "\n".join(rows) + "\n")
    for job, state, gpus in ((11, "running", "0,2-3"), (12, "ended", "1"), (13, "running", "-"), (14, "running", "900")):
        (run_dir / "jobs" / str(job)).write_text(f"1\t{state}\t1000\t{gpus}\t1\t{9 if state == 'ended' else '-'}\t-\t.\n")
    jobs = JobWatch(live=False)
    jobs.read(str(run_dir))
    assert jobs.gpus(str(run_dir), node()) == tuple(GpuOfJob(11, ADDRESSES[-1 - index]) for index in (0, 2, 3))
    assert jobs.gpus(str(run_dir), node(gpu(0, mig_current=True))) == (), "with MIG, the indices name instances"
    (run_dir / "topology").unlink()
    assert jobs.gpus(str(run_dir), node()) == ()


def test_the_mig_instances_of_running_jobs_are_those_of_their_uuids(run_dir: Path) -> None:
    """Two jobs on instances of one GPU. A third job has a whole GPU, and a fourth one no UUID."""
    rows = [f"gpu\t-\t{i}\tGPU-{i}\t{pci}\t0\t0-7\t-" for i, pci in enumerate(ADDRESSES)]
    rows += [f"mig\tMIG-{gi}\t{ADDRESSES[0]}\t{gi}\t0\t3g.40gb\t0\t0-7\t-" for gi in (1, 2)]
    (run_dir / "topology").write_text("1\tnode\tn1\t8\t0-7\t8\n" + "\n".join(rows) + "\n")
    for job, gpus, names in ((11, "7", "-\tMIG-2\t."), (12, "8", "-\tMIG-1\t."), (13, "0", "-\tGPU-1\t."), (14, "9", "")):
        (run_dir / "jobs" / str(job)).write_text(f"1\trunning\t1000\t{gpus}\t1\t-\t-\t.\t{names}\n".replace("\t\n", "\n"))
    jobs = JobWatch(live=False)
    jobs.read(str(run_dir))
    assert jobs.gpus(str(run_dir), node(gpu(0, mig_current=True))) == (
        GpuOfJob(11, ADDRESSES[0], "MIG-2"),
        GpuOfJob(12, ADDRESSES[0], "MIG-1"),
        GpuOfJob(13, ADDRESSES[1]),
    )


LISTED = (
    "1\tnode\tn1\t1\t0-7\t8\t1\ngpu\t-\t0\tGPU-0\t{pci}\t0\t-\t-\t-\nmig\tMIG-1\t{pci}\t1\t0\t3g.40gb\t0\t-\t-\n"
    "mig\tMIG-2\t{pci}\t11\t0\t1g.10gb\t0\t-\t-\ngres\t0\t{first}\t{since}\ngres\t1\t{second}\t{since}\n"
)


def listed(run_dir: Path, first: str = "MIG-1", second: str = "MIG-2", since: str = "5.00") -> None:
    (run_dir / "topology").write_text(LISTED.format(pci=ADDRESSES[0], first=first, second=second, since=since))


def started(run_dir: Path, job: int, gpus: str, at: str) -> None:
    (run_dir / "jobs" / str(job)).write_text(f"1\trunning\t1000\t{gpus}\t{at}\t-\t-\t.\n")


def test_an_index_names_an_instance_where_gres_conf_lists_them(run_dir: Path) -> None:
    watch, split = JobWatch(live=False), node(gpu(0, mig_current=True))
    listed(run_dir)
    started(run_dir, 11, "1", "7.5")
    started(run_dir, 12, "0", "4.99")  # slurmd may have counted otherwise then
    started(run_dir, 13, "0-2", "8")  # nothing is known of index 2
    watch.read(str(run_dir))
    assert watch.gpus(str(run_dir), split) == (GpuOfJob(11, ADDRESSES[0], "MIG-2"),)
    assert {job.id: job.names for job in watch.jobs.known} == {11: ("MIG-2",), 12: (), 13: ()}


@pytest.mark.parametrize("change", ["other order", "not told any more"])
def test_a_running_job_keeps_its_instance_when_gres_conf_changes(run_dir: Path, change: str) -> None:
    watch = JobWatch(live=False)
    listed(run_dir)
    started(run_dir, 11, "1", "7.5")
    watch.read(str(run_dir))
    listed(run_dir, "MIG-2", "MIG-1", since="20.00")
    if change == "not told any more":
        (run_dir / "topology").write_text("1\tnode\tn1\t1\t0-7\t8\t1\n")
    started(run_dir, 12, "1", "21")
    watch.read(str(run_dir))
    names = {job.id: job.names for job in watch.jobs.known}
    assert names == {11: ("MIG-2",), 12: ("MIG-1",) if change == "other order" else ()}
    started(run_dir, 11, "1", "22")  # a new start of the job
    watch.read(str(run_dir))
    assert watch.jobs.known[0].names == names[12]


def test_what_slurmd_said_goes_before_gres_conf(run_dir: Path) -> None:
    watch = JobWatch(live=False)
    listed(run_dir)
    (run_dir / "jobs/11").write_text("1\trunning\t1000\t1\t7.5\t-\t-\t.\t-\tMIG-1\t.\n")
    watch.read(str(run_dir))
    assert watch.jobs.known[0].names == ("MIG-1",)
