"""What a job used is read from its control group, in both versions of the hierarchy."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.host.job_cgroup import JobGroup, memory_total_bytes, read
from fairlead.host.job_records import Job
from fairlead.host.root import Root

JOB = Job(id=42, uid=1000, gpus=frozenset(), sluid="s8FXKTA79XAR00")
V2 = {
    "cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
    "cpuset.cpus.effective": "0-7,16\n",
    "memory.peak": "4096\n",
    "memory.current": "1024\n",
    "memory.max": "8192\n",
}


def tree(folder: Path, files: dict[str, str]) -> Root:
    for path, text in files.items():
        file = folder / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Root(str(folder))


def v2(folder: Path, group: str, **changes: str | None) -> Root:
    files = {**V2, **{name.replace("_", "."): text for name, text in changes.items()}}
    top = {"/sys/fs/cgroup/cgroup.controllers": "cpu memory\n"}
    return tree(folder, top | {f"/sys/fs/cgroup/{group}/{name}": text for name, text in files.items() if text is not None})


@pytest.mark.parametrize(
    "group",
    [
        "system.slice/slurmstepd.scope/job_42",
        "system.slice/n1_slurmstepd.scope/job_42",
        "system.slice/slurmstepd.scope/s8FXKTA79XAR00",
        "slurmstepd.scope/job_42",
    ],
)
def test_version_2(tmp_path: Path, group: str) -> None:
    assert read(v2(tmp_path, group), JOB) == JobGroup(2.5, 9, 4096, 8192)


def test_an_older_kernel_has_no_peak_and_a_group_may_have_no_limit(tmp_path: Path) -> None:
    root = v2(tmp_path, "system.slice/slurmstepd.scope/job_42", memory_peak=None, memory_max="max\n")
    assert read(root, JOB) == JobGroup(2.5, 9, 1024, None)


def test_version_1(tmp_path: Path) -> None:
    group = "slurm_n1/uid_1000/job_42"
    files = {
        f"/sys/fs/cgroup/cpuacct/{group}/cpuacct.usage": "1500000000\n",
        f"/sys/fs/cgroup/cpuset/{group}/cpuset.cpus": "0-1\n",
        f"/sys/fs/cgroup/memory/{group}/memory.max_usage_in_bytes": "4096\n",
        f"/sys/fs/cgroup/memory/{group}/memory.limit_in_bytes": "9223372036854771712\n",
    }
    assert read(tree(tmp_path, files), JOB) == JobGroup(1.5, 2, 4096, None)


@pytest.mark.parametrize(
    "group",
    ["system.slice/slurmstepd.scope/job_421", "user.slice/slurmstepd.scope/job_42", "system.slice/slurmstepd.scope/x/job_42"],
)
def test_another_group_is_not_the_jobs(tmp_path: Path, group: str) -> None:
    assert read(v2(tmp_path, group), JOB) == JobGroup()


def test_a_job_without_a_group_has_no_values(tmp_path: Path) -> None:
    assert read(Root(str(tmp_path)), JOB) == JobGroup()


def test_the_nodes_memory(tmp_path: Path) -> None:
    assert memory_total_bytes(tree(tmp_path, {"/proc/meminfo": "MemTotal:       16 kB\nMemFree: 1 kB\n"})) == 16384
    assert memory_total_bytes(Root(str(tmp_path / "none"))) is None


@given(st.text(max_size=40))
def test_no_content_breaks_the_reader(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        group = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_42"
        files = {f"{group}/{name}": text for name in V2} | {"sys/fs/cgroup/cgroup.controllers": "", "proc/meminfo": text}
        for value in (*read(tree(Path(folder), files), JOB), memory_total_bytes(Root(folder))):
            assert value is None or value >= 0
