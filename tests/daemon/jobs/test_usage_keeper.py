"""One usage record for each job on the node: from prolog to epilog, over kills, reboots, gaps, and jobs with one id."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.host import job_cgroup
from fairlead.host.bounded_disk import Direct
from fairlead.host.job_records import Job
from fairlead.host.root import Root
from fairlead.model.finding import Finding, Level
from tests.checks import nodes
from tests.daemon.jobs.usage_stage import SECOND_BOOT, UNIX, Stage

T = TypeVar("T")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_a_job_has_one_record_with_its_sums(stage: Stage) -> None:
    stage.busy[0] = 0.5
    stage.begin(7)
    stage.run(100)
    stage.end(7)
    record = stage.only()
    (gpu,) = record.gpus
    assert (record.job, record.uid, record.node, record.ended_by, record.clock_steps) == (7, 1000, "gpu01", "epilog", 0)
    assert (record.begin_boot, record.end_boot, record.begin_unix) == (1000, 1100, UNIX + 1000)
    assert (record.alloc_seconds, gpu.seen_seconds, gpu.gap_seconds) == (100, 100, 0)
    assert (gpu.busy_seconds, gpu.energy_joules, gpu.memory_max_bytes) == (50, 10_000, 1 << 30)
    assert (gpu.gres_index, gpu.minor, gpu.pci, gpu.shared) == (0, 0, nodes.ADDRESSES[0], False)
    assert [path.name for path in (stage.state_dir / "usage").glob("*.json")] == [f"7-{UNIX + 1000:.0f}.json"]


def test_the_record_is_there_from_the_first_second_and_written_each_minute(stage: Stage) -> None:
    stage.begin(7)
    assert stage.only().end_unix is None
    stage.run(90)
    record = stage.only()
    assert record.end_unix is None
    assert record.gpus[0].seen_seconds >= 90 - 60 - 14
    assert record.gpus[0].seen_seconds + record.gpus[0].gap_seconds == record.alloc_seconds


def test_a_killed_agent_loses_at_most_a_minute_and_the_record_says_so(stage: Stage) -> None:
    stage.begin(7)
    stage.run(200)
    stage.run(30)  # killed here
    stage.boot += 45
    stage.start()
    stage.tick(close=True)
    stage.run(100)
    stage.end(7)
    record = stage.only()
    assert (record.alloc_seconds, record.ended_by) == (375, "epilog")
    gpu = record.gpus[0]
    assert gpu.seen_seconds + gpu.gap_seconds == 375
    assert 45 <= gpu.gap_seconds <= 45 + 60 + 14 + 2
    assert 45 <= record.gap_seconds <= 45 + 60 + 2
    assert gpu.busy_seconds == gpu.seen_seconds


@pytest.mark.heavy
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kills=st.lists(st.tuples(st.integers(0, 150), st.integers(0, 60)), min_size=1, max_size=4))
def test_killed_at_any_moment(tmp_path_factory: pytest.TempPathFactory, kills: list[tuple[int, int]]) -> None:
    stage = Stage(tmp_path_factory.mktemp("stage"))
    stage.begin(7)
    away = 0
    for ran, down in kills:
        stage.run(ran)
        stage.boot += down
        away += down
        stage.start()
        stage.tick(close=True)
    stage.run(20)
    stage.end(7)
    record = stage.only()
    gpu = record.gpus[0]
    assert gpu.seen_seconds + gpu.gap_seconds == pytest.approx(record.alloc_seconds, abs=1)
    assert gpu.busy_seconds == pytest.approx(gpu.seen_seconds)
    assert away <= record.gap_seconds + 0.01 <= away + 62 * len(kills) + 0.01
    assert gpu.gap_seconds <= away + (60 + 14 + 2) * len(kills) + 0.01


@pytest.mark.parametrize("ended", [False, True])
def test_a_record_of_a_newer_agent_goes_on(stage: Stage, ended: bool) -> None:
    """After a rollback while the job runs, or just after it has ended, there is one record, and it counts all of the job."""
    stage.begin(7)
    stage.run(120)
    if ended:
        stage.end(7)
    (path,) = (stage.state_dir / "usage").glob("7-*.json")
    data = json.loads(path.read_bytes())
    data |= {"colour": "red", "host": {**data.get("host", {}), "colour": 1}}
    data["gpus"][0]["colours"] = {"red": 1.0}
    path.write_bytes(json.dumps(data, separators=(",", ":")).encode() + b"\n")
    before = path.read_bytes()
    stage.start()
    if ended:
        stage.record(7, "ended", "0", 1000.0, 1120.0)
        stage.tick(close=True)
        assert path.read_bytes() == before and len(list(path.parent.glob("7-*.json"))) == 1
        return
    stage.tick(close=True)
    stage.run(100)
    stage.end(7)
    record = stage.only()
    assert (record.alloc_seconds, record.ended_by) == (220, "epilog")
    assert record.gpus[0].seen_seconds > 130 and not (path.parent / "aside").exists()


def test_a_job_of_another_boot_is_lost(stage: Stage) -> None:
    stage.begin(7)
    stage.run(130)
    written = stage.only().alloc_seconds
    stage.boot, stage.boot_id = 20.0, SECOND_BOOT
    (stage.run_dir / "jobs/7").unlink()
    stage.start()
    stage.tick()
    record = stage.only()
    assert (record.ended_by, record.alloc_seconds, record.boot_id) == ("lost", written, str(nodes.BOOT))
    assert record.end_unix == UNIX + 1000 + written


def test_a_job_whose_record_goes_is_lost_and_not_while_its_epilog_writes(stage: Stage) -> None:
    stage.begin(7)
    stage.run(20)
    (stage.run_dir / "jobs/7").write_text("1\tended\t1000")  # the epilog is writing
    stage.tick()
    assert stage.only().end_unix is None
    stage.end(7)
    assert stage.only().ended_by == "epilog"
    stage.begin(8)
    (stage.run_dir / "jobs/8").unlink()
    stage.run(10)
    assert stage.records()[1].ended_by == "lost"


def test_a_job_that_ended_while_no_agent_ran(stage: Stage) -> None:
    stage.begin(7)
    stage.run(130)
    stage.record(7, "ended", "0", 1000.0, 1150.0)
    stage.boot += 60
    stage.start()
    stage.run(4)
    record = stage.only()
    assert (record.ended_by, record.alloc_seconds, record.gpus[0].gap_seconds + record.gpus[0].seen_seconds) == (
        "epilog",
        150,
        150,
    )


def test_an_ended_job_is_recorded_once_also_if_the_agent_is_killed_before_it_forgets_the_job(stage: Stage) -> None:
    stage.begin(7)
    stage.run(30)
    stage.end(7)
    stage.record(7, "ended", "0", 1000.0, 1030.0)  # nobody removed it
    stage.start()
    stage.run(10)
    assert stage.only().gpus[0].seen_seconds == 30


def test_a_job_shorter_than_a_sweep(stage: Stage) -> None:
    stage.record(7, "ended", "0", 1000.5, 1001.5)
    stage.run(2)
    record = stage.only()
    assert (record.alloc_seconds, record.ended_by, record.gpus[0].busy_seconds, record.gpus[0].gap_seconds) == (
        1,
        "epilog",
        None,
        1,
    )


def test_a_job_begins_between_two_close_sweeps_and_gets_nothing_of_the_time_before(stage: Stage) -> None:
    stage.run(13)
    stage.record(7)
    begin = stage.boot
    stage.tick()  # a sweep that was under way: its sums are older than the job
    stage.run(2)
    stage.tick(close=True)
    stage.run(20)
    stage.end(7, start=begin)
    record = stage.only()
    gpu = record.gpus[0]
    assert (gpu.seen_seconds, gpu.gap_seconds, record.alloc_seconds) == (20, 2, 22)


def test_requeue_with_the_same_id_gives_two_records(stage: Stage) -> None:
    stage.begin(7)
    stage.run(30)
    stage.end(7)
    stage.run(4)
    begin = stage.boot
    stage.begin(7)
    stage.run(10)
    stage.end(7, start=begin)
    assert [(r.job, r.alloc_seconds, r.ended_by) for r in stage.records()] == [(7, 30, "epilog"), (7, 10, "epilog")]


def test_requeue_that_was_too_fast_for_the_agent(stage: Stage) -> None:
    """The record of the first start is overwritten before the agent reads that it ended."""
    stage.begin(7)
    stage.run(30)
    stage.boot += 1
    stage.begin(7)
    stage.run(10)
    first, second = stage.records()
    assert (first.ended_by, second.begin_boot, second.gpus[0].shared) == ("lost", 1031, False)


def test_each_job_of_an_array_has_a_record_with_its_own_gpus(stage: Stage) -> None:
    for job in range(8):
        stage.begin(70 + job, gpus=str(job))
    stage.run(20)
    for job in range(8):
        stage.end(70 + job, gpus=str(job))
    records = stage.records()
    assert [r.job for r in records] == list(range(70, 78))
    assert [r.gpus[0].pci for r in records] == list(nodes.ADDRESSES)


def test_a_gpu_that_two_jobs_have_is_shared(stage: Stage) -> None:
    stage.begin(7, gpus="0,1")
    stage.run(20)
    stage.begin(8, gpus="1")
    stage.run(20)
    stage.end(8, gpus="1", start=1020.0)
    stage.run(20)
    stage.end(7, gpus="0,1")
    seven, eight = stage.records()
    assert [gpu.shared for gpu in seven.gpus] == [False, True]
    assert [gpu.shared for gpu in eight.gpus] == [True]


def test_the_next_job_on_a_gpu_is_not_shared_with_the_one_before(stage: Stage) -> None:
    stage.begin(7)
    stage.run(20)
    stage.record(7, "ended", "0", 1000.0, 1020.0)
    stage.begin(8)
    stage.run(20)
    assert [r.gpus[0].shared for r in stage.records()] == [False, False]


def test_a_driver_that_hangs_is_a_gap_and_the_record_still_ends(stage: Stage) -> None:
    stage.begin(7)
    stage.run(28)
    stage.answers = False
    stage.run(60)
    stage.end(7)
    stage.run(12)
    record = stage.only()
    gpu = record.gpus[0]
    assert (record.alloc_seconds, record.ended_by) == (88, "epilog")
    assert (gpu.seen_seconds, gpu.gap_seconds, gpu.busy_seconds) == (28, 60, 28)


def test_a_clock_that_is_set_changes_no_duration(stage: Stage) -> None:
    stage.begin(7)
    stage.run(30)
    stage.step = -7200.0
    stage.run(30)
    stage.end(7)
    record = stage.only()
    assert (record.alloc_seconds, record.clock_steps, record.end_unix) == (60, 1, UNIX + 1060 - 7200)


def test_findings_of_the_node_and_of_the_jobs_gpus(stage: Stage) -> None:
    stage.begin(7)
    stage.run(
        20,
        [
            Finding(check="clock", level=Level.WARN, summary="x"),
            Finding(check="ecc", level=Level.DRAIN, summary="x", device=nodes.ADDRESSES[0]),
            Finding(check="ecc", level=Level.DRAIN, summary="x", device=nodes.ADDRESSES[1]),
            Finding(check="rdma_ports", level=Level.WARN, summary="x", device="mlx5_0"),
        ],
    )
    stage.end(7)
    found = {(f.check, f.level, f.pci) for f in stage.only().findings}
    assert found == {("clock", "warn", ""), ("ecc", "drain", nodes.ADDRESSES[0]), ("rdma_ports", "warn", "")}


def test_a_job_without_gpus_has_a_record(stage: Stage) -> None:
    stage.begin(7, gpus="-")
    stage.run(10)
    stage.end(7, gpus="-")
    assert (stage.only().gpus, stage.only().ended_by, stage.only().alloc_seconds) == ((), "epilog", 10)


def test_gpus_that_no_topology_names_are_not_guessed(stage: Stage) -> None:
    (stage.run_dir / "topology").unlink()
    stage.begin(7)
    stage.run(10)
    stage.end(7)
    stage.run(12)
    assert (stage.only().gpus, stage.only().ended_by) == ((), "epilog")


@pytest.mark.parametrize("line", ["1\trunning\t1000\t0\t-\t-\t-\t.\n", "1\trunning\t-\t0,9-\t1e9\t-\t-\t.\n"])
def test_a_job_record_without_a_begin_gives_no_usage_record(stage: Stage, line: str) -> None:
    (stage.run_dir / "jobs/7").write_text(line)
    stage.run(4)
    assert stage.records() == []


def test_a_job_id_that_is_too_large_gives_no_record(stage: Stage) -> None:
    stage.record(99999999999)
    stage.run(4)
    assert stage.records() == []


def test_the_control_group_is_read_while_the_job_runs(stage: Stage) -> None:
    group = stage.folder / "root/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"
    group.mkdir(parents=True)
    (stage.folder / "root/sys/fs/cgroup/cgroup.controllers").write_text("cpu\n")
    (group / "cpu.stat").write_text("usage_usec 3000000\n")
    (group / "memory.peak").write_text("1000\n")
    stage.begin(7)
    stage.run(6)
    (group / "cpu.stat").write_text("usage_usec 9000000\n")
    stage.run(6)
    (group / "cpu.stat").unlink()
    stage.run(6)
    stage.end(7)
    assert (stage.only().host.cpu_seconds, stage.only().host.memory_max_bytes) == (9, 1000)


def test_where_slurm_makes_no_control_groups_they_are_looked_for_less_often(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    read = job_cgroup.read

    def counted(root: Root, job: Job) -> job_cgroup.JobGroup:
        seen.append(stage.boot)
        return read(root, job)

    monkeypatch.setattr(job_cgroup, "read", counted)
    stage.begin(7)
    stage.run(59)
    assert len(seen) >= 9, "a prolog may take long before the group is made"
    seen.clear()
    stage.run(120)
    assert 4 <= len(seen) <= 5
    group = stage.folder / "root/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"
    group.mkdir(parents=True)
    (stage.folder / "root/sys/fs/cgroup/cgroup.controllers").write_text("cpu\n")
    (group / "cpu.stat").write_text("usage_usec 3000000\n")
    stage.run(31)
    seen.clear()
    stage.run(30)
    assert len(seen) >= 5
    stage.end(7)
    assert stage.only().host.cpu_seconds == 3


def test_a_file_that_is_no_record_is_set_aside(stage: Stage) -> None:
    usage = stage.state_dir / "usage"
    usage.mkdir()
    (usage / "7-5.json").write_bytes(b'{"schema":"job-record/2"}\n')
    (usage / "8-5.json").write_bytes(b'{"schema":"job-record/1","job":8')
    stage.start()
    stage.run(2)
    assert sorted(path.name for path in (usage / "aside").iterdir()) == ["7-5.json", "8-5.json"]
    assert stage.records() == []


class FailingDisk(Direct):
    """A disk that does not answer while ``silent``."""

    silent = False

    def do(self, act: Callable[[], T], late: Callable[[T], object] | None = None, wait_seconds: float = 0.0) -> T:
        if self.silent:
            raise OSError(errno.ETIMEDOUT, "the disk does not answer")
        return act()


def test_a_disk_that_does_not_answer_loses_nothing(stage: Stage) -> None:
    disk = FailingDisk()
    stage.start(disk)
    stage.begin(7)
    stage.run(20)
    disk.silent = True
    stage.run(100)
    assert "the disk does not answer" in stage.keeper.trouble
    stage.end(7)
    stage.run(30)
    disk.silent = False
    stage.run(2)
    assert stage.keeper.trouble == ""
    assert (stage.only().alloc_seconds, stage.only().ended_by, stage.only().gpus[0].seen_seconds) == (120, "epilog", 120)


def test_an_agent_that_ends_writes_what_it_knows(stage: Stage) -> None:
    stage.begin(7)
    stage.run(29)
    stage.keeper.close()
    assert stage.only().gpus[0].seen_seconds == 28


def test_no_records_where_the_site_wants_none(tmp_path: Path) -> None:
    stage = Stage(tmp_path, usage_records=False)
    stage.begin(7)
    stage.run(10)
    assert not (stage.state_dir / "usage").exists()


def files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()} if folder.exists() else {}


def test_other_exporters_find_the_job_of_each_gpu(tmp_path: Path) -> None:
    stat, dcgm = tmp_path / "gpustat", tmp_path / "dcgm"
    stage = Stage(tmp_path, gpustat_dir=str(stat), dcgm_job_dir=str(dcgm))
    stage.begin(7, gpus="0,2")
    own = {"0": "7 1000\n", "GPU-00000000": "7 1000\n", "2": "7 1000\n", "GPU-00000002": "7 1000\n"}
    assert files(stat) == own
    assert files(dcgm) == {"0": "7\n", "2": "7\n"}
    stage.begin(8, gpus="2")  # no single job owns what GPU 2 does now
    assert files(stat) == {"0": "7 1000\n", "GPU-00000000": "7 1000\n"}
    assert files(dcgm) == {"0": "7\n", "2": "7\n8\n"}
    stage.end(8, gpus="2")
    assert files(stat) == own
    stage.end(7, gpus="0,2")
    assert files(stat) == files(dcgm) == {}


def test_a_killed_agents_files_for_exporters_go_with_the_next_agent(tmp_path: Path) -> None:
    stat = tmp_path / "gpustat"
    stage = Stage(tmp_path, gpustat_dir=str(stat))
    stage.begin(7)
    (stage.run_dir / "jobs/7").unlink()
    stage.start()
    stage.tick()
    assert files(stat) == {}


def test_what_the_node_went_through_is_in_the_record(stage: Stage) -> None:
    """Read on the close look; the growth until the first reading is not the job's."""
    files = stage.folder / "root"
    (files / "proc/pressure").mkdir(parents=True)
    (files / "proc/net").mkdir()

    def counters(stalled: float, again: int) -> None:
        (files / "proc/pressure/cpu").write_text(f"some avg10=0.00 avg60=0.00 avg300=0.00 total={stalled * 1e6:.0f}\n")
        (files / "proc/net/snmp").write_text(f"Tcp: RetransSegs\nTcp: {again}\n")

    counters(500.0, 70)
    stage.begin(7)
    counters(507.0, 75)
    stage.run(14)
    stage.end(7)
    record = stage.only()
    assert record.host.pressure_histogram_seconds == {"cpu": {10: 14.0}}, "half of the time"
    assert record.host.event_counts == {"tcp_retransmits": 5} and record.host.node_seconds == 14
    assert record.gpus[0].readings == 1 and record.gpus[0].power_histogram_seconds == {5: 14.0}


def test_a_job_without_gpus_has_no_values_of_the_node(stage: Stage) -> None:
    stage.begin(7, "-")
    stage.run(30)
    stage.end(7, "-")
    assert stage.only().host.node_seconds == 0
