"""Public machines of today's GPUs: healthy under their own profile, and under no other one; what is missing is found.

Each tree is made from other sources than the values of its profile (tests/machines/described).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead import checks, config
from fairlead.apply.refused_profile import refuse_another_gpu
from fairlead.checks import gpu_count
from fairlead.cli import main
from fairlead.cli.machine_tree import recorded_nvml
from fairlead.config import Document, encode_document
from fairlead.errors import WrongProfile
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.judge import judge, reads, wanted
from fairlead.model.check_definition import Past
from fairlead.model.cpulist import parse_cpu_set
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Finding, Level
from fairlead.on_node.other_gpus import other_gpus
from fairlead.settings import pcie_acs
from fairlead.topology.binding.node_binding import plan_binding
from tests.lab.described import document_of, read_description
from tests.lab.faultytrees import take_out
from tests.lab.trees import MACHINES, SOURCES, described
from tests.provision.hardware_ssh import program

pytestmark = pytest.mark.trees

NAMES = described()
#: Settings that keep a value in a file for the next boot. No machine tree has files of /etc, so their drift is there anyway.
PERSISTED = {f"setting.{name}" for name in ("kernel_modules", "memlock", "nccl", "numa_balancing", "sysctl")}
#: NUMA nodes with the memory of GPUs, which have no CPUs.
GPU_MEMORY = {"gb200-nvl72": {2, 10, 18, 26}, "gb300-nvl72": {2, 10, 18, 26}, "gh200": {1}, "gh200-quad": {4, 12, 20, 28}}


def profile_of(name: str) -> str:
    """The tree of a profile has the profile's name, and a word of its own after a point if the profile has a base tree too."""
    return name.partition(".")[0]


def gpus_of(name: str) -> int:
    return len(json.loads((MACHINES / name / "nvml.json").read_text())["gpus"])


@cache
def node_of(name: str) -> Node:
    document = document_of(profile_of(name), gpus_of(name))
    tree = MACHINES / name
    return gather(Root(str(tree)), recorded_nvml(str(tree)), reads=reads(document), unsupported=document.unsupported,
                  wanted=wanted(document))  # fmt: skip


@cache
def layer_document(profile: str) -> Document:
    return config.profile_document("n1", profile)


def checked(tree: Path, document: Document, capsys: pytest.CaptureFixture[str], folder: Path) -> list[dict[str, Any]]:
    """What `fairlead check` finds in a tree now, without what only history can judge."""
    file = folder / "node.json"
    file.write_bytes(encode_document(document))
    capsys.readouterr()
    main(["check", "--root", str(tree), "--document", str(file), "--json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    return [f for f in found if not f["needs_history"] and f["check"] not in PERSISTED]


def bad(findings: Iterator[Finding] | tuple[Finding, ...]) -> list[Finding]:
    return [f for f in findings if f.level is not Level.OK and f.check not in PERSISTED]


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory for thousands of small files."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path) as folder:
        yield Path(folder)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_machine_is_healthy_under_its_profile(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert checked(MACHINES / name, document_of(profile_of(name), gpus_of(name)), capsys, tmp_path) == []


@pytest.mark.parametrize("name", NAMES)
def test_the_tree_and_the_profile_have_no_source_in_common(name: str) -> None:
    sources = read_description(SOURCES / f"described/{name}.toml").sources
    assert len(sources) > 0
    works = {source.partition(",")[0].partition(" (")[0] for source in sources}
    of_values = [value.source for value in config.load_profile(profile_of(name)).values]
    assert not [(work, source) for work in works for source in of_values if work in source]


def test_every_profile_has_a_tree() -> None:
    assert set(config.profile_names()) == {p.name for p in MACHINES.iterdir() if p.is_dir() and "." not in p.name}


def test_init_recognises_every_machine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names = [*config.profile_names(), *(name for name in NAMES if name != profile_of(name))]
    ssh = program(tmp_path, {f"n{number}": name for number, name in enumerate(names)})
    capsys.readouterr()
    assert main(["init", f"n[0-{len(names) - 1}]", "--ssh", str(ssh), "-n", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    profiles = {f"n{number}": profile_of(name) for number, name in enumerate(names)}
    assert {c["nodes"]: c["profile"] for c in said["classes"]} == profiles
    assert said["without"] == {}


@pytest.mark.parametrize("name", NAMES)
def test_no_other_profile_finds_the_machine_healthy(name: str) -> None:
    """A profile for the same GPU notices another number of GPUs or NVLinks. A profile for another GPU says so in one line."""
    own = config.load_profile(profile_of(name)).match
    assert own is not None
    for other in config.profile_names():
        profile = config.load_profile(other)
        if other == profile_of(name) or profile.match is None:
            continue
        found = bad(judge(document_of(other, gpus_of(name)), node_of(name), Past(available=True)))
        assert found, f"{name} is healthy under {other}"
        if not set(own.gpus) & set(profile.match.gpus):
            (line,) = [f.summary for f in found if "the profile is for" in f.summary]
            assert own.gpus[0] in line or any(gpu in line for gpu in own.gpus)
            assert not [f for f in found if f.level is Level.DRAIN], "the values of another GPU drain nothing"


@pytest.mark.parametrize("name", [*NAMES, "hgx-a100", "hgx-h100", "l40s-pcie"])
def test_every_profile_for_another_gpu_is_refused(name: str) -> None:
    """The rule of apply and that of the program on a node agree about every machine and every profile, and name the right one."""
    own = config.load_profile(profile_of(name)).match
    assert own is not None
    foreign, refused = [], []
    for other in config.profile_names():
        match = config.load_profile(other).match
        assert match is not None
        document = layer_document(other)
        foreign += [] if set(match.gpus) & set(own.gpus) else [other]
        try:
            refuse_another_gpu(document, node_of(name))
        except WrongProfile as e:
            refused.append(other)
            assert str(e).endswith(f" and the profile {other} is for {', '.join(match.gpus)}; nothing was changed")
            assert "\n" not in str(e) and profile_of(name) in e.hint.partition(":")[0].split()
        assert bool(other_gpus(document.gpu_pci_ids, str(MACHINES / name))) is (other in foreign)
    assert refused == foreign != []


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_gpu_is_found(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, memory: Path) -> None:
    tree = Path(shutil.copytree(MACHINES / name, memory / name, symlinks=True))
    take_out(tree, 0)
    found = checked(tree, document_of(profile_of(name), gpus_of(name)), capsys, tmp_path)
    assert [f["check"] for f in found if f["level"] == "drain"][:1] == ["gpu_count"]


@pytest.mark.parametrize("name", ["hgx-h200", "gb200-nvl72"])
def test_a_missing_adapter_is_found(name: str) -> None:
    node = node_of(name)
    gone = next(nic for nic in node.nics if nic.rdma and nic.link_layer == "InfiniBand")
    less = replace(node, nics=tuple(nic for nic in node.nics if nic is not gone))
    document = document_of(profile_of(name), gpus_of(name))
    assert {f.check for f in bad(judge(document, less, Past(available=True)))} == {"rdma_ports"}


def as_the_kernel_sets_acs(name: str) -> Node:
    """The machine with request and completion redirect on in every bridge, as Linux sets them with an IOMMU."""
    node = node_of(name)
    return replace(node, pci=tuple(replace(d, acs_control=0x1D) if isinstance(d.acs_control, int) else d for d in node.pci))


@pytest.mark.parametrize(
    ("name", "changes"),
    [("hgx-b200", True), ("hgx-h200", True), ("gb300-nvl72", False), ("gb200-nvl72", False), ("gh200-quad", False)],
)
def test_acs_changes_only_where_nothing_needs_it(name: str, changes: bool) -> None:
    document = document_of(profile_of(name), gpus_of(name))
    observed = pcie_acs.observe(as_the_kernel_sets_acs(name))
    assert not isinstance(observed, Missing) and observed.bridges
    want = document.settings["pcie_acs"]
    assert isinstance(want, pcie_acs.PcieAcsWant)
    assert bool(pcie_acs.plan(want, observed)) is changes


def test_no_acs_value_is_declared_where_none_is_public() -> None:
    assert "pcie_acs" not in document_of("hgx-b300", 8).settings


@pytest.mark.parametrize("name", GPU_MEMORY)
def test_gpus_are_bound_to_the_cores_of_their_socket(name: str) -> None:
    node = node_of(name)
    assert isinstance(node.gpus, tuple)
    without_cpus = {n.id for n in node.numa if not n.cpus}
    assert {n.id for n in node.numa if not n.cpus and n.memory_bytes} == GPU_MEMORY[name] <= without_cpus
    home = {d.address: d.numa for d in node.pci}
    cores = {n.id: sum(1 << cpu for cpu in n.cpus) for n in node.numa}
    sockets = {home[gpu.pci] for gpu in node.gpus}
    for task in plan_binding(node, len(node.gpus)).tasks:
        (gpu,) = task.gpus
        cpus = parse_cpu_set(task.cpus)
        assert not cpus & ~cores[home[gpu]] and cpus.bit_count() == 72 * len(sockets) // len(node.gpus)
        assert task.memory == f"preferred:{home[gpu]}"


@pytest.mark.parametrize(("profile", "warns"), [("hgx-h200", False), ("hgx-h100", True)])
def test_a_profile_for_another_gpu_is_one_line(
    profile: str, warns: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = checked(MACHINES / "hgx-h200", document_of(profile, 8), capsys, tmp_path)
    words = "every GPU is 10de:2335, and the profile is for 10de:2330: choose another hardware profile"
    assert [f["summary"] for f in found if f["check"] == "gpu_count"] == ([words] if warns else [])


def test_a_fault_drains_under_the_profile_of_another_gpu_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for tree, check in (("row-remap-failed", "row_remap"), ("xid79", "gpu_count")):
        found = checked(MACHINES / f"hgx-h100.{tree}", document_of("hgx-h200", 8), capsys, tmp_path)
        assert check in {f["check"] for f in found if f["level"] == "drain"}, tree


def test_one_gpu_of_another_kind_leaves_the_profile_in_force() -> None:
    """A card that was swapped is no wrong profile."""
    document = document_of("hgx-h200", 8)
    node = node_of("hgx-h200")
    first = gpu_count.gpus_on_bus(node)[0]
    swapped = tuple(replace(d, device=0x2330) if d is first else d for d in node.pci)
    less = replace(node.host, memory_bytes=64 << 30) if not isinstance(node.host, Missing) else node.host
    found = bad(judge(document, replace(node, pci=swapped, host=less), Past(available=True)))
    assert {(f.check, f.level) for f in found} == {("gpu_count", Level.WARN), ("cpu_memory", Level.DRAIN)}


def test_a_display_card_that_is_left_alone_is_no_other_profile() -> None:
    node = node_of("hgx-h200")
    card = replace(gpu_count.gpus_on_bus(node)[0], device=0x1FB6, class_code=gpu_count.DISPLAY_CLASS << 8)
    rest = [d for d in node.pci if d not in gpu_count.gpus_on_bus(node)]
    found = bad(judge(document_of("hgx-h200", 8), replace(node, pci=(card, *rest), gpus=()), Past(available=True)))
    assert ("gpu_count", Level.DRAIN) in {(f.check, f.level) for f in found}


def test_every_value_of_a_profile_has_a_value_for_another_gpu() -> None:
    """Otherwise it would still be judged on a machine that the profile is not for."""
    others = {("ecc", "required"), ("pcie_switch", "enabled")}  # they hold for every GPU, or judge nothing
    keys = {value.key for name in config.profile_names() for value in config.load_profile(name).values}
    for _, check, parameter in (key.split(".") for key in keys if key.startswith("checks.")):
        assert parameter in checks.load()[check].another_gpu or (check, parameter) in others, f"checks.{check}.{parameter}"
