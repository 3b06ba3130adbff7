"""What the NVML worker reads of clocks, heat, fabric and processes, from the simulated library; and the files beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlead.checks import gpu_leftovers
from fairlead.host.gather import Gatherer, gather
from fairlead.host.gpu import gpus
from fairlead.host.nvml import Worker
from fairlead.host.nvml_load import branch_of, event_fields
from fairlead.host.owners import owner_of
from fairlead.host.root import Root
from fairlead.host.software import software
from fairlead.model.check_definition import Past
from fairlead.model.facts import Gpu, Missing
from fairlead.model.gpu_load import ProcessOwner
from tests.lab.faults import Faults
from tests.lab.machines import read_nvml, write_nvml
from tests.lab.software import write_process
from tests.lab.trees import MACHINES

SECOND = 1_000_000_000


def swept(worker: Worker) -> list[Gpu]:
    raw = worker.sweep().raw
    assert isinstance(raw, dict), raw
    found = gpus(raw)
    assert isinstance(found, tuple), found
    return list(found)


@pytest.fixture
def worker(faults: Faults) -> Any:
    made = Worker(30.0)
    yield made
    made.close()


def test_a_healthy_gpu(worker: Worker) -> None:
    load = swept(worker)[2].load
    assert (load.margin_celsius, load.slowdown_celsius, load.shutdown_celsius, load.memory_celsius) == (55, 89, 92, 40)
    assert isinstance(load.memory_max_celsius, Missing)
    assert (load.clock_sm_max_hertz, load.power_default_watts) == (1_980_000_000, 700.0)
    assert (load.fabric.state, load.fabric.status, load.fabric.health) == (3, 0, 0)  # type: ignore[union-attr]
    assert load.events.sw_power_cap_seconds == 0.0
    assert isinstance(load.events.hw_thermal_slowdown_seconds, Missing)  # came with r575


def test_what_is_set_at_run_time_is_seen(worker: Worker, faults: Faults) -> None:
    assert swept(worker)[4].load.margin_celsius == 55
    faults.set(4, "temperature.gpu_celsius", 91)
    faults.set(5, "temperature.margin_celsius", 3)
    faults.set(6, "processes.count", 1)
    faults.set(6, "processes.0.pid", 4711)
    faults.set(6, "processes.0.used_bytes", 1 << 30)
    found = swept(worker)
    assert (found[4].load.margin_celsius, found[5].load.margin_celsius, found[3].load.margin_celsius) == (-2, 3, 55)
    (process,) = found[6].processes  # type: ignore[misc]
    assert (process.pid, process.used_bytes) == (4711, 1 << 30)


@pytest.mark.parametrize(
    ("version", "thermal", "brake"), [("570.172.08", None, None), ("580.65.06", 252, 253), ("590.48.01", 270, 271)]
)
def test_counters_by_the_drivers_branch(faults: Faults, version: str, thermal: int | None, brake: int | None) -> None:
    """The ids moved between branches, where others mean power smoothing."""
    faults.system("driver_version", version)
    faults.set(1, "clock_events.hw_thermal_slowdown_nanoseconds", 3 * SECOND)
    faults.set(1, "clock_events.hw_power_brake_slowdown_nanoseconds", 5 * SECOND)
    faults.set(1, "clock_events.sw_power_cap_nanoseconds", 7 * SECOND)
    worker = Worker(30.0)
    try:
        events = swept(worker)[1].load.events
    finally:
        worker.close()
    assert events.sw_power_cap_seconds == 7.0
    known = event_fields(branch_of(version))
    assert {known.get(i) for i in (thermal, brake) if i} == (
        {"hw_thermal_slowdown", "hw_power_brake_slowdown"} if thermal else set()
    )
    if thermal is None:
        assert isinstance(events.hw_power_brake_slowdown_seconds, Missing)
    else:
        assert (events.hw_thermal_slowdown_seconds, events.hw_power_brake_slowdown_seconds) == (3.0, 5.0)


def test_fabric_health_and_an_older_driver(faults: Faults) -> None:
    """r535 has no nvmlDeviceGetGpuFabricInfoV that answers: the GPU is not taken for healthy then."""
    faults.set(0, "fabric.health_mask", 0x1)
    faults.set(1, "fabric.state", 2)
    faults.error(2, "nvmlDeviceGetGpuFabricInfoV", 13)
    worker = Worker(30.0)
    try:
        found = swept(worker)
    finally:
        worker.close()
    assert found[0].load.fabric.health == 1  # type: ignore[union-attr]
    assert found[1].load.fabric.state == 2  # type: ignore[union-attr]
    assert isinstance(found[2].load.fabric, Missing)


def test_a_lost_gpu_says_nothing_of_its_load(worker: Worker, faults: Faults) -> None:
    swept(worker)
    faults.lost(3)
    load = swept(worker)[3].load
    assert all(isinstance(v, Missing) for v in (load.margin_celsius, load.fabric, load.power_default_watts))
    assert isinstance(load.events.sw_power_cap_seconds, Missing)
    faults.clear()
    worker.sweep()
    assert swept(worker)[3].load.events.sw_power_cap_seconds == 0.0


@pytest.mark.parametrize("version", ["", "575", "error", None, 7])
def test_a_version_that_is_none(version: object) -> None:
    assert branch_of(version) == (575 if version == "575" else 0)


# -- whose a process is ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        ("0::/system.slice/slurmstepd.scope/job_812/step_0/user/task_0", ProcessOwner(job=812)),
        ("0::/system.slice/gpu1_slurmstepd.scope/job_812/step_batch/user/task_special", ProcessOwner(job=812)),
        ("9:devices:/slurm/uid_1000/job_812/step_0\n1:name=systemd:/system.slice/slurmd.service", ProcessOwner(job=812)),
        ("4:cpuset:/slurm_gpu1/uid_1000/job_812/step_extern", ProcessOwner(job=812)),
        ("0::/system.slice/nvidia-persistenced.service", ProcessOwner(unit="nvidia-persistenced.service")),
        ("0::/system.slice/system-inference.slice/inference@7.service", ProcessOwner(unit="inference@7.service")),
        ("0::/user.slice/user-1000.slice/session-4.scope", ProcessOwner(uid=1000)),
        # Slurm 26.05 names a job's group by its SLUID; of one without a record it is known that it is some job's
        ("0::/system.slice/gpu1_slurmstepd.scope/s3JXM823B87S00/step_0/user/task_0", ProcessOwner(job=812)),
        ("0::/slurmstepd.scope/s3JXM823B87S00/step_batch/slurm", ProcessOwner(job=812)),
        ("0::/system.slice/gpu1_slurmstepd.scope/s3JXM823B87S01/step_0/user/task_0", ProcessOwner(job=0)),
        ("0::/system.slice/gpu1_slurmstepd.scope/system", ProcessOwner(unit="gpu1_slurmstepd.scope")),
        ("0::/system.slice/gpu1_slurmstepd.scope/job_812x/step_0", ProcessOwner(unit="gpu1_slurmstepd.scope")),
        ("0::/system.slice/cron.service/s3JXM823B87S00/step_0/user", ProcessOwner(unit="cron.service")),
        ("0::/system.slice/cron.service/slurmstepd.scope/s3JXM823B87S00/step_0", ProcessOwner(unit="cron.service")),
        ("0::/user.slice/user-1000.slice/user@1000.service/gpu1_slurmstepd.scope/s3JXM823B87S00/step_0", ProcessOwner(uid=1000)),
        # a user's own groups do not make a job or a service of it
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/slurmstepd.scope/job_1", ProcessOwner(uid=1000)),
        ("0::/user.slice/user-1000.slice/user@1000.service/system.slice/nvidia-dcgm.service", ProcessOwner(uid=1000)),
        ("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-1.scope", ProcessOwner(unit="kubepods.slice")),
        ("0::/docker/0123456789abcdef", ProcessOwner(unit="docker")),
        ("0::/", ProcessOwner()),
        ("", ProcessOwner()),
        ("nonsense", ProcessOwner()),
        ("0::/system.slice/evil\tname;x.service", ProcessOwner(unit="evil_name_x.service")),
    ],
)
def test_owner_by_control_group(text: str, owner: ProcessOwner) -> None:
    assert owner_of(text, lambda: {"s3JXM823B87S00": 812}) == owner


def test_owners_of_a_tree(tmp_path: Path) -> None:
    """A job's process, a session's, and one that is not there any more."""
    tree = tmp_path
    (tree / "sys").mkdir()
    nvml = read_nvml(MACHINES / "hgx-h100.tuned")
    nvml["gpus"][0]["processes"] = [{"pid": pid, "used_bytes": 1} for pid in (100, 101, 102)]
    write_nvml(tree, nvml)
    write_process(tree, 100, "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0")
    write_process(tree, 101, "/user.slice/user-1000.slice/session-4.scope")
    node = gather(Root(str(tree)), nvml)
    assert [p.owner for p in node.gpus[0].processes] == [ProcessOwner(job=7), ProcessOwner(uid=1000), ProcessOwner(gone=True)]  # type: ignore


def test_a_running_jobs_own_process_is_no_leftover_on_slurm_26(tmp_path: Path) -> None:
    """By the record of its prolog; and where that is lost a process of slurmstepd's scope is still some job's."""
    (tmp_path / "sys").mkdir()
    (tmp_path / "run/fairlead/jobs").mkdir(parents=True)
    record = tmp_path / "run/fairlead/jobs/42"
    record.write_text("1\trunning\t1000\t0\t12.34\t-\t-\t.\ts3JXM823B87S00\t.\n")
    nvml = read_nvml(MACHINES / "hgx-h100.tuned")
    nvml["gpus"][0]["processes"] = [{"pid": 100, "used_bytes": 1}]
    write_nvml(tmp_path, nvml)
    write_process(tmp_path, 100, "/system.slice/gpu1_slurmstepd.scope/s3JXM823B87S00/step_0/user/task_0")
    looks = Gatherer(Root(str(tmp_path)), slow_seconds=0)
    owners = []
    for text in (record.read_text(), record.read_text().replace("S00", "S01"), "", "1\trunning\t1000\t0\t12.34\t-\t-\t.\n"):
        record.write_text(text)
        node = looks.gather(nvml)
        owners.append(node.gpus[0].processes[0].owner)  # type: ignore[union-attr, index]
        assert not list(gpu_leftovers.check.findings(node, Past(), gpu_leftovers.Params()))
    assert owners == [ProcessOwner(job=42), ProcessOwner(job=0), ProcessOwner(job=0), ProcessOwner(job=0)]


def test_an_owner_is_looked_up_once_between_thorough_looks(tmp_path: Path) -> None:
    nvml = read_nvml(MACHINES / "hgx-h100.tuned")
    nvml["gpus"][0]["processes"] = [{"pid": 100, "used_bytes": 1}]
    write_process(tmp_path, 100, "/system.slice/slurmstepd.scope/job_7/step_0")
    gatherer = Gatherer(Root(str(tmp_path)), slow_seconds=3600)
    first = gatherer.gather(nvml)
    (tmp_path / "proc/100/cgroup").write_text("0::/user.slice/user-1.slice\n")
    assert gatherer.gather(nvml).gpus[0].processes == first.gpus[0].processes  # type: ignore
    nvml["gpus"][0]["processes"] = []
    gatherer.gather(nvml)
    nvml["gpus"][0]["processes"] = [{"pid": 100, "used_bytes": 1}]  # another process with that number
    assert gatherer.gather(nvml).gpus[0].processes[0].owner == ProcessOwner(uid=1)  # type: ignore


# -- the driver's software -------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "peermem"), [("hgx-h100", True), ("hgx-a100", True), ("l40s-pcie", False)])
def test_software_of_the_trees(name: str, peermem: bool) -> None:
    found = software(Root(str(MACHINES / name)))
    assert (found.library_file, found.open_module, found.kernel) == ("570.172.08", True, (6, 1))
    assert (found.peermem, found.imex_channels) == (peermem, 0)


def test_software_of_an_empty_machine(tree: Path) -> None:
    found = software(Root(str(tree)))
    assert isinstance(found.library_file, Missing)
    assert isinstance(found.open_module, Missing) and isinstance(found.kernel, Missing)
    assert found.peermem is False


def test_channels_and_a_library_elsewhere(tree: Path) -> None:
    (tree / "dev").mkdir()
    (tree / "dev/nodes").write_text("nvidia0 c 195 0 0666\nnvidia-caps-imex-channels/channel0 c 234 0 0666\n")
    folder = tree / "usr/lib64"
    folder.mkdir(parents=True)
    (folder / "libnvidia-ml.so.575.57.08").touch()
    (folder / "libnvidia-ml.so.1").symlink_to("/usr/lib64/libnvidia-ml.so.575.57.08")
    found = software(Root(str(tree)))
    assert (found.imex_channels, found.library_file) == (1, "575.57.08")
    (folder / "libnvidia-ml.so.1").unlink()
    (folder / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.1")  # a circle
    assert software(Root(str(tree))).library_file is None
