"""From the source to the finding: faults injected into the simulated library at run time, and each source taken away."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead import checks, config
from fairlead.checks import gpu_clocks, gpu_throttle
from fairlead.history.memory import History
from fairlead.host.gather import Gatherer, gather
from fairlead.host.gpu_load_reader import LoadSums
from fairlead.host.nvml import Worker
from fairlead.host.root import Root
from fairlead.judge import reads
from fairlead.model.check_definition import Past
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Finding, Level
from tests.checks.nodes import BOOT
from tests.host.conftest import library, simulate  # noqa: F401  (a fixture)
from tests.lab.faults import Faults
from tests.lab.machines import read_nvml
from tests.lab.software import write_process
from tests.lab.trees import MACHINES

pytestmark = pytest.mark.trees

TREE = MACHINES / "hgx-h100.tuned"
DOCUMENT = config.profile_document("n1", "hgx-h100")
CHECKS = [
    name
    for name in checks.load()
    if (name not in ("gpu_count", "gpu_identity") and name.startswith(("gpu_", "driver_")))
    or name in ("fabric_manager", "imex", "nvml_responsive", "ecc", "nvlink")
]


def software_of(tree: Path, copy: Path) -> Path:
    """The part of a tree that tells of the driver's software; the buses are thousands of files."""
    for part in ("proc", "usr", "sys/module"):
        shutil.copytree(tree / part, copy / part, symlinks=True)
    return copy


class Machine:
    """A simulated node that is looked at again and again."""

    def __init__(self, faults: Faults, tree: Path) -> None:
        self.faults = faults
        self.tree = tree
        self.worker = Worker(30.0)
        self._gatherer = Gatherer(Root(str(tree)), reads=reads(DOCUMENT), slow_seconds=0)

    def sweep(self) -> Node:
        result = self.worker.sweep()
        return self._gatherer.gather(result.raw, stuck=result.stuck)

    def found(self, node: Node | None = None) -> list[tuple[str, Level, str]]:
        """What the checks say: check, level, device."""
        return [(f.check, f.level, f.device) for f in judged(node or self.sweep())]

    def pci(self, index: int) -> str:
        return str(read_nvml(TREE)["gpus"][index]["pci"])


def judged(node: Node) -> list[Finding]:
    past = Past(available=True)
    return [f for name in CHECKS for f in checks.load()[name].findings(node, past, DOCUMENT.checks[name])]


@pytest.fixture
def machine(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:  # noqa: F811
    tree = software_of(TREE, tmp_path / "tree")
    made = Machine(simulate("hgx-h100.tuned", library, tmp_path, monkeypatch), tree)
    yield made
    made.worker.close()


def test_faults_at_run_time_and_after_them_quiet(machine: Machine) -> None:
    assert machine.found() == []
    faults, pci = machine.faults, machine.pci
    faults.set(0, "temperature.gpu_celsius", 91)
    faults.set(1, "power.limit_milliwatts", 500_000)
    faults.set(3, "memory.used_bytes", 20 << 30)
    faults.set(4, "processes.count", 1)
    faults.set(4, "processes.0.pid", 700)
    faults.set(4, "processes.0.used_bytes", 1 << 30)
    faults.set(5, "processes.count", 1)
    faults.set(5, "processes.0.pid", 701)
    faults.set(5, "processes.0.used_bytes", 1 << 30)
    write_process(machine.tree, 700, "/user.slice/user-1000.slice/session-2.scope")
    write_process(machine.tree, 701, "/system.slice/slurmstepd.scope/job_9/step_0/user/task_0")
    assert sorted(machine.found()) == [
        ("gpu_leftovers", Level.DRAIN, pci(3)),
        ("gpu_leftovers", Level.DRAIN, pci(4)),
        ("gpu_power_limit", Level.DRAIN, pci(1)),
        ("gpu_temperature", Level.DRAIN, pci(0)),
    ]
    faults.clear()
    assert machine.found() == []


def test_a_fabric_that_falls_apart(machine: Machine) -> None:
    machine.faults.set(2, "fabric.health_mask", 0x1)
    machine.faults.set(6, "fabric.state", 2)
    machine.faults.set(7, "fabric.clique_id", 5)
    assert sorted(machine.found()) == [("gpu_fabric", Level.DRAIN, machine.pci(i)) for i in (2, 6, 7)]


def test_a_library_that_does_not_fit_is_said_once(machine: Machine) -> None:
    """nvmlInit refuses: not that NVML is mute, but why."""
    machine.faults.error(None, "nvmlInit", 18)
    said = machine.found()
    assert ("driver_library", Level.DRAIN, "") in said
    assert not [each for each in said if each[0] == "nvml_responsive"]
    assert {level for check, level, _ in said if check != "driver_library"} == {Level.UNKNOWN}


def test_an_upgrade_on_disk_and_a_dead_fabric_manager(machine: Machine) -> None:
    folder = machine.tree / "usr/lib/x86_64-linux-gnu"
    (folder / "libnvidia-ml.so.575.57.08").touch()
    (folder / "libnvidia-ml.so.1").unlink()
    (folder / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.575.57.08")
    shutil.rmtree(machine.tree / "proc/@nv-fabricmanage")
    assert sorted(machine.found()) == [("driver_library", Level.DRAIN, ""), ("fabric_manager", Level.DRAIN, "")]


@pytest.mark.parametrize(
    ("module", "mask", "megahertz"), [(gpu_throttle, 0x48, 900), (gpu_clocks, 0x0, 345)], ids=["throttle", "clocks"]
)
def test_what_is_held_back_under_load(machine: Machine, module: Any, mask: int, megahertz: int) -> None:
    """The reasons and clocks that the library gives, over half an hour of looks."""
    faults = machine.faults
    faults.set(3, "utilization.gpu_percent", 98)
    faults.set(3, "throttle_reasons", mask)
    faults.set(3, "clocks.sm_hertz", megahertz * 10**6)
    node = machine.sweep()
    assert not isinstance(node.gpus, Missing)
    seen, history = LoadSums(), History("", BOOT)
    for number in range(120):
        now = 15.0 * number
        node = replace(node, gpus=seen.add(node.gpus, now), uptime_seconds=10000.0 + now)  # type: ignore[arg-type]
        history.add_samples(10000.0 + now, module.samples(node))
    (finding,) = module.check.findings(node, history.past(), module.Params())
    assert (finding.level, finding.device) == (Level.DRAIN, machine.pci(3))


# -- each source taken away: never silence ---------------------------------------------------------


@pytest.mark.parametrize("tree", ["hgx-h100", "hgx-a100", "l40s-pcie"])
@pytest.mark.parametrize(
    ("parts", "check"),
    [
        (("throttle_reasons",), "gpu_throttle"),
        (("throttle_reasons",), "gpu_power_brake"),
        (("utilization",), "gpu_clocks"),
        (("clocks",), "gpu_clocks"),
        (("temperature",), "gpu_temperature"),
        (("power",), "gpu_power_limit"),
        (("processes",), "gpu_leftovers"),
        (("memory",), "gpu_leftovers"),
    ],
)
def test_a_value_that_is_gone_is_said(tree: str, parts: tuple[str, ...], check: str) -> None:
    document = config.profile_document("n1", tree)
    raw = read_nvml(MACHINES / tree)
    for part in parts:
        raw["gpus"][5][part] = {"error": 999}
    node = gather(Root(str(MACHINES / tree)), raw, unsupported=document.unsupported)
    found = list(checks.load()[check].findings(node, Past(available=True), document.checks[check]))
    assert [(f.level, f.device) for f in found] == [(Level.UNKNOWN, raw["gpus"][5]["pci"])]


@pytest.mark.parametrize(
    ("tree", "path", "check", "level"),
    [
        ("hgx-h100", "proc/@nv-fabricmanage/stat", "fabric_manager", Level.DRAIN),
        ("hgx-a100", "proc/@nv-fabricmanage/stat", "fabric_manager", Level.DRAIN),
        ("l40s-pcie", "proc/driver/nvidia/version", "gpu_direct_rdma", Level.UNKNOWN),
        ("l40s-pcie", "proc/version", "gpu_direct_rdma", Level.UNKNOWN),
    ],
)
def test_a_file_that_is_gone_is_said(tmp_path: Path, tree: str, path: str, check: str, level: Level) -> None:
    document = config.profile_document("n1", tree)
    copy = software_of(MACHINES / tree, tmp_path / tree)
    (copy / path).unlink()
    node = gather(Root(str(copy)), read_nvml(MACHINES / tree), reads=reads(document), unsupported=document.unsupported)
    found = list(checks.load()[check].findings(node, Past(available=True), document.checks[check]))
    assert [f.level for f in found] == [level]
