"""A change of the MIG geometry on a node where jobs run: which instances stay, what is refused, and what NVML then does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.apply.draining_node import node_jobs
from fairlead.errors import HostError
from fairlead.host.gather import gather
from fairlead.host.job_records import Job, Jobs
from fairlead.host.nvml import Worker
from fairlead.host.root import Root
from fairlead.model import mig_geometry, mig_layout
from fairlead.model.change import AnyChange, Disruption, Nvml
from fairlead.model.gpu_state import MigDevice, MigInstance
from fairlead.model.node_jobs import JobGpus, NodeJobs
from fairlead.settings import mig
from fairlead.slurm_config.gres_order import WHOLE, GresGpu, indices
from tests.host.conftest import library, simulate
from tests.lab.faults import Faults

__all__ = ["library"]  # a fixture

H100 = next(gpu for gpu in mig_geometry.GPUS if "H100 80GB" in gpu.names)
PROFILES = tuple(p.name for p in H100.profiles)
NEW = (24, 11)


def instance(profile: str, start: int, compute: int = 1) -> MigInstance:
    known = H100.profile(profile)
    assert known is not None
    return MigInstance(profile, start, compute, known.memory, mig_layout.gpu_instance_id(H100, start, known.memory))


def state(minor: int, *positions: tuple[str, int]) -> mig.MigState:
    made = tuple(instance(*each) for each in positions)
    devices = tuple(MigDevice(uuid=f"MIG-{minor}-{i.gi}", gi=i.gi, ci=0) for i in made)
    return mig.MigState(True, True, made, PROFILES, devices, minor, f"GPU-{minor}")


WHOLE_GPU = mig.MigState(False, False, (), (), (), 2, "GPU-2")
A, B, C = "0000:1b:00.0", "0000:43:00.0", "0000:52:00.0"
LARGE_SMALL = (("3g.40gb", 4), ("1g.10gb", 0))
NODE = mig.Observed({A: state(0, *LARGE_SMALL), B: state(1, *LARGE_SMALL), C: WHOLE_GPU}, "gpu1")
#: On Slurm 24.11 the whole GPU has Links, so it is index 0. Then GPU A has 1 (id 2) and 2 (id 7), and GPU B has 3 and 4.
ON_A_LARGE = JobGpus(id=12, indices=(1,), names=("MIG-0-2",))
ON_A_SMALL = JobGpus(id=13, indices=(2,), names=("MIG-0-7",))
ON_B = JobGpus(id=14, indices=(3, 4), names=("MIG-1-2", "MIG-1-7"))
MIXED = {A: ("3g.40gb", "2g.20gb"), B: ("3g.40gb", "1g.10gb"), C: ()}


def planned(jobs: Sequence[JobGpus], wanted: dict[str, tuple[str, ...]] = MIXED, release: tuple[int, ...] = NEW,
            observed: mig.Observed = NODE) -> tuple[AnyChange, ...]:  # fmt: skip
    return mig.plan_among_jobs(mig.MigWant(by_gpu=wanted), observed, NodeJobs(jobs=tuple(jobs), release=release))


def test_the_instance_of_a_running_job_stays_and_the_others_change() -> None:
    (change,) = planned([ON_A_LARGE, ON_B])
    assert isinstance(change, Nvml)
    assert (change.value, change.before) == ("2g.20gb@0,3g.40gb@4", "1g.10gb@0,3g.40gb@4")
    assert change.disruption is Disruption.DRAINING
    assert change.disruption.allowed(busy=True, drained=True) and not change.disruption.allowed(busy=True, drained=False)


@pytest.mark.parametrize(
    ("jobs", "wanted", "release", "words"),
    [
        ([ON_A_SMALL], MIXED, NEW, "MIG instance 7 (1g.10gb at memory slice 0) would have to go, and job 13 uses it"),
        # the id of a 4g.40gb is 1, so the job's instance with the id 2 would be the second
        ([ON_A_LARGE], {**MIXED, A: ("4g.40gb", "3g.40gb")}, NEW, "Slurm would count instance 2 of GPU 0000:1b:00.0, which"),
        ([ON_A_LARGE], {**MIXED, A: ("3g.40gb", "4g.40gb", "1g.10gb")}, NEW, None),
        # one instance more on GPU A: those of GPU B would be counted from 4
        ([ON_B], {**MIXED, A: ("3g.40gb", "2g.20gb", "1g.10gb")}, NEW,
         "Slurm would count instance 2 of GPU 0000:43:00.0, which job 14 uses, as another GRES index"),
        ([ON_A_LARGE], {**MIXED, A: ("3g.40gb", "2g.20gb", "1g.10gb")}, NEW, ""),
        ([ON_A_LARGE], {**MIXED, A: ("7g.80gb",)}, NEW, "MIG instance 2 (3g.40gb at memory slice 4) would have to go"),
        ([ON_A_LARGE], {**MIXED, A: ()}, NEW, "a change of the MIG mode waits for the end of all jobs"),
        ([ON_A_LARGE], MIXED, (), "the release of Slurm is not known"),
        ([JobGpus(id=12, indices=(0,), names=("MIG-0-2",))], MIXED, (22, 5), "Slurm 22.05 counts the instances"),
        ([JobGpus(id=12, indices=(2,), names=("MIG-0-2",))], MIXED, NEW, "in another order than expected"),
        ([JobGpus(id=12, indices=(1,))], MIXED, NEW, "job 12 runs, and its record does not say which"),
        ([JobGpus(id=12, indices=(-1,))], MIXED, NEW, "job 12 runs, and its record does not say which"),
        ([JobGpus(id=12, indices=(1,), names=("MIG-9",))], MIXED, NEW, "job 12 runs on MIG-9, which is no UUID"),
        ([JobGpus(id=12, indices=(1,), names=("1",))], MIXED, NEW, "job 12 runs on 1, which is no UUID"),
        ([JobGpus(id=12, indices=(0,), names=("GPU-2",))], MIXED, NEW, ""),
        ([JobGpus(id=12)], MIXED, NEW, ""),  # a job without GPUs
    ],
)  # fmt: skip
def test_what_would_disturb_a_running_job_waits_and_says_for_what(
    jobs: list[JobGpus], wanted: dict[str, tuple[str, ...]], release: tuple[int, ...], words: str | None
) -> None:
    """words: "" if the change is made, None if the geometry is a mistake."""
    if words is None:
        with pytest.raises(mig.ConfigError):
            planned(jobs, wanted, release)
        return
    (change,) = planned(jobs, wanted, release)
    assert change.disruption is (Disruption.DRAIN if words else Disruption.DRAINING), change.why
    assert words in change.why and "\n" not in change.why
    assert not words or change.why.startswith(f"gpu1: GPU {A} stays as it is: ")


def test_geometries_that_do_not_fit_beside_an_instance_in_use_are_refused() -> None:
    """A 4g.40gb begins only at slice 0, and the job's 3g.40gb is there."""
    observed = mig.Observed({A: state(0, ("3g.40gb", 0), ("3g.40gb", 4))}, "gpu1")
    job = JobGpus(id=12, indices=(0,), names=("MIG-0-1",))
    (change,) = planned([job], {A: ("4g.40gb", "3g.40gb")}, observed=observed)
    assert change.disruption is Disruption.DRAIN
    assert "3g.40gb + 4g.40gb does not fit beside instance 1 (3g.40gb, job 12)" in change.why
    (free,) = planned([], {A: ("4g.40gb", "3g.40gb")}, observed=observed)
    assert isinstance(free, Nvml) and free.value == "4g.40gb@0,3g.40gb@4" and free.disruption is Disruption.DRAINING


def test_of_two_equal_instances_the_one_in_use_stays() -> None:
    observed = mig.Observed({A: state(0, ("1g.10gb", 0), ("1g.10gb", 1), ("1g.10gb", 2))}, "gpu1")
    job = JobGpus(id=12, indices=(2,), names=("MIG-0-9",))
    wanted = {A: ("3g.40gb", "2g.20gb", "1g.10gb")}
    (change,) = planned([job], wanted, observed=observed)
    assert isinstance(change, Nvml)
    assert change.value == "2g.20gb@0,1g.10gb@2,3g.40gb@4"
    assert change.disruption is Disruption.DRAINING  # ids 2, 3 and 9: the instance in use is still the last


def test_an_unknown_rule_of_ids_is_no_ground_for_a_change() -> None:
    """The driver gave the instance another id than the rule says."""
    strange = MigInstance("3g.40gb", 4, 1, 4, 5)
    device = MigDevice(uuid="MIG-0-5", gi=5, ci=0)
    observed = mig.Observed({A: mig.MigState(True, True, (strange,), PROFILES, (device,), 0, "GPU-0")}, "gpu1")
    (change,) = planned([JobGpus(id=12, indices=(0,), names=("MIG-0-5",))], {A: ("3g.40gb", "1g.10gb")}, observed=observed)
    assert change.disruption is Disruption.DRAIN and "cannot be told" in change.why


GEOMETRIES = st.lists(st.sampled_from(PROFILES), max_size=7).filter(lambda names: mig_geometry.fits(H100, names))


@given(GEOMETRIES, GEOMETRIES, st.data())
def test_a_layout_has_the_wanted_instances_and_no_two_in_one_place(
    before: list[str], wanted: list[str], data: st.DataObject
) -> None:
    first = mig_layout.layout(H100, before, ())
    assert first is not None
    have = [instance(p.profile, p.start) for p in first.make]
    used = data.draw(st.sets(st.sampled_from([i.gi for i in have]))) if have else set()
    found = mig_layout.layout(H100, wanted, have, used)
    if found is None:
        assert used
        return
    after = [*found.stay, *(instance(p.profile, p.start) for p in found.make)]
    assert sorted(i.profile for i in after) == sorted(wanted)
    assert used <= {i.gi for i in found.stay} and {*found.stay, *found.go} == set(have)
    ends = sorted((i.start, i.start + i.size) for i in after)
    assert all(one[1] <= other[0] for one, other in pairwise(ends))
    if sorted(before) == sorted(wanted):
        assert not found.go and not found.make


def test_a_gpu_that_the_table_lacks_leaves_the_place_to_the_driver() -> None:
    have = [MigInstance("9g.1gb", 4, 1), MigInstance("1g.1gb", 0, 1)]
    found = mig_layout.layout(None, ["9g.1gb", "2g.2gb"], have)
    assert found is not None and found.value == "2g.2gb,9g.1gb@4" and found.go == (have[1],)


def test_the_order_of_each_release() -> None:
    gpus = [GresGpu(0, ((2, 0), (7, 0))), GresGpu(1, None), GresGpu(2, ((7, 0), (2, 0), (8, 0)))]
    assert list(indices(gpus, NEW)) == [(1, WHOLE), (0, (2, 0)), (0, (7, 0)), (2, (2, 0)), (2, (7, 0)), (2, (8, 0))]
    assert list(indices(gpus, NEW, links=False)) == [(0, (2, 0)), (0, (7, 0)), (1, WHOLE), (2, (2, 0)), (2, (7, 0)), (2, (8, 0))]
    assert list(indices(gpus, (22, 5))) == [(0, (2, 0)), (2, (7, 0)), (0, (7, 0)), (1, WHOLE), (2, (2, 0)), (2, (8, 0))]


def test_jobs_of_slurm_without_a_record_may_have_any_gpu() -> None:
    job = Job(12, 1000, frozenset({3, 1}), 5.0, names=("MIG-a", "MIG-b"))
    allocated = {13: frozenset[int](), 12: frozenset({1, 3})}
    found = node_jobs(allocated, Jobs(running=frozenset({12}), known=(job,)), "24.11")
    assert found.release == (24, 11)
    assert found.jobs == (JobGpus(id=12, indices=(1, 3), names=("MIG-a", "MIG-b")), JobGpus(id=13, indices=(-1,)))


@pytest.mark.parametrize("slurms", [frozenset({1, 2, 3}), frozenset({1}), frozenset[int](), None])
def test_a_job_with_other_gpus_than_its_record_has_may_have_any_gpu(slurms: frozenset[int] | None) -> None:
    """If a job has GPUs of several types, slurmd shows the prolog only those of one type (seen on 22.05, 24.11 and 26.05)."""
    job = Job(12, 1000, frozenset({3, 1}), 5.0, names=("MIG-a", "MIG-b"))
    (found,) = node_jobs({12: slurms}, Jobs(running=frozenset({12}), known=(job,)), "24.11").jobs
    assert found == JobGpus(id=12, indices=(-1,))


# -- through the worker, to the simulated library


@pytest.fixture
def faults(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    return simulate("hgx-a100", library, tmp_path, monkeypatch)


@pytest.fixture
def worker(faults: Faults) -> Iterator[Worker]:
    made = Worker(20.0)
    yield made
    made.close()


FIRST = "0000:07:00.0"


def devices(worker: Worker, folder: Path) -> dict[str, tuple[int, int, str]]:
    (folder / "root").mkdir(exist_ok=True)
    node = gather(Root(str(folder / "root")), worker.sweep().raw)
    assert isinstance(node.gpus, tuple)
    return {d.uuid: (d.gi, d.start, d.profile) for d in node.gpus[0].mig_devices}  # type: ignore[union-attr, misc]


def test_instances_that_stay_keep_their_uuid_and_their_process(worker: Worker, faults: Faults, tmp_path: Path) -> None:
    worker.set(FIRST, "mig", "1g.10gb@0,3g.40gb@4")
    before = devices(worker, tmp_path)
    assert sorted(before.values()) == [(2, 4, "3g.40gb"), (7, 0, "1g.10gb")]
    for key, value in (("count", 1), ("0.pid", 1), ("0.used_bytes", 1 << 20), ("0.gi", 2), ("0.ci", 0)):
        faults.set(0, f"processes.{key}", value)
    worker.sweep()  # the library looks at its control file once a millisecond
    worker.set(FIRST, "mig", "2g.20gb@2,1g.10gb@1,3g.40gb@4")
    after = devices(worker, tmp_path)
    assert sorted(after.values()) == [(2, 4, "3g.40gb"), (4, 2, "2g.20gb"), (8, 1, "1g.10gb")]
    assert {uuid for uuid, where in after.items() if where[0] == 2} == {u for u, where in before.items() if where[0] == 2}
    with pytest.raises(HostError, match=r"IN_USE \(19\)"):
        worker.set(FIRST, "mig", "7g.80gb@0")
    with pytest.raises(HostError, match=r"IN_USE \(19\)"):
        worker.set(FIRST, "mig", "off")
    assert devices(worker, tmp_path) == after, "nothing was destroyed"


@pytest.mark.parametrize(
    "value", ["3g.40gb@2", "4g.40gb@4", "1g.10gb@7", "3g.40gb@99999999999999999999", "3g.40gb@-1", "3g.40gb@x"]
)
def test_a_place_that_the_gpu_does_not_have_changes_nothing(value: str, worker: Worker, tmp_path: Path) -> None:
    worker.set(FIRST, "mig", "1g.10gb@6")
    before = devices(worker, tmp_path)
    with pytest.raises(HostError, match=r"INVALID_ARGUMENT \(2\)"):
        worker.set(FIRST, "mig", value)
    assert devices(worker, tmp_path) == before
