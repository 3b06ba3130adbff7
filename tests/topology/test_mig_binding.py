"""Steps with MIG instances are bound by the location of the instances' GPUs, and by nothing but UUIDs."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.model.facts import Missing, Node, Why
from fairlead.model.gpu_state import MigDevice
from fairlead.topology.binding import binding_plan, published_files, rank_binding
from fairlead.topology.binding.binding_plan import Doubt
from tests.topology.build import hgx

ALL = (1 << 112) - 1
SMALL = ["MIG-0-0", "MIG-0-1", "MIG-7-0", "MIG-7-1"]  # of GPU 0 (socket 0) and GPU 7 (socket 1)
CYCLIC = [0b11, 0b11 << 56, 0b11 << 2, 0b11 << 58]  # two cores for each task, the sockets in turn
NEAR = ["- 2", "2-3 2", "56-57 2", "- 2"]


def divided(node: Node | None = None, at: tuple[int, ...] = (0, 7)) -> Node:
    """A node with two instances on each of these GPUs. The other GPUs are whole."""
    node = hgx() if node is None else node
    assert not isinstance(node.gpus, Missing)
    gpus = list(node.gpus)
    for n in at:
        devices = tuple(MigDevice(uuid=f"MIG-{n}-{i}", gi=7 + i, ci=0, profile="1g.10gb", start=i, size=1) for i in range(2))
        gpus[n] = msgspec.structs.replace(gpus[n], mig_current=True, mig_devices=devices)
    return msgspec.structs.replace(node, gpus=tuple(gpus))


TEXT = published_files.render_topology(divided())


def answer(visible: str, masks: list[int] = CYCLIC, text: str = TEXT) -> list[str]:
    listed = ",".join(f"0x{m:028X}" for m in masks)
    indices = ",".join(map(str, range(len(masks))))
    return binding_plan.answer_lines(text, listed, indices, allowed=ALL, cpus_on_node="112", visible=visible)


def test_each_instance_is_published_with_the_location_of_its_gpu() -> None:
    lines = [line.split("\t") for line in TEXT.splitlines()]
    parents = {line[4]: line for line in lines if line[0] == "gpu"}
    rows = [line for line in lines if line[0] == "mig"]
    assert [row[1] for row in rows] == SMALL
    whole = {
        line[4]: line for line in (x.split("\t") for x in published_files.render_topology(hgx()).splitlines()) if line[0] == "gpu"
    }
    for row in rows:
        _, _, pci, gi, ci, profile, numa, cores, nics = row
        assert (gi, ci, profile) in (("7", "0", "1g.10gb"), ("8", "0", "1g.10gb"))
        assert [numa, cores, nics] == whole[pci][5:8]
        assert parents[pci][6] == parents[pci][8] == "-", "a program uses the instances and not the GPU"
    others = [pci for pci in parents if pci not in {row[2] for row in rows}]
    assert len(others) == 6 and all(parents[pci][6:] == whole[pci][6:] for pci in others)
    assert {line[1] for line in parents.values()} == {"-"}, "an index may be that of an instance"


def test_tasks_are_put_near_the_gpus_of_their_instances() -> None:
    assert answer(",".join(SMALL)) == NEAR
    assert answer(",".join(SMALL[2:] + SMALL[:2])) == ["58-59 2", "- 2", "- 2", "0-1 2"], "the order is that of the variable"


def test_whole_gpus_of_a_mixed_node_are_found_by_uuid() -> None:
    assert answer("GPU-00000001,GPU-00000002,GPU-00000005,GPU-00000006") == NEAR
    assert answer("MIG-0-0,GPU-00000002,GPU-00000005,MIG-7-1") == NEAR


@pytest.mark.parametrize(
    "visible",
    [
        "", "0,1,2,3", "MIG-0-0,MIG-0-1,MIG-7-0", ",".join([*SMALL[:3], SMALL[2]]), ",".join([*SMALL[:3], "MIG-9-9"]),
        ",".join([*SMALL[:3], "3"]), ",".join([*SMALL, ""]), "MIG-0-0, MIG-0-1,MIG-7-0,MIG-7-1",
        "GPU-00000000,GPU-00000001,GPU-00000002,GPU-00000005",
    ],
)  # fmt: skip
def test_any_other_value_leaves_slurms_masks(visible: str) -> None:
    """GPU 0 is in MIG mode, so its own UUID names no instance."""
    with pytest.raises(Doubt):
        answer(visible)


def test_a_node_without_mig_does_not_read_uuids_of_instances() -> None:
    plain = published_files.render_topology(hgx())
    with pytest.raises(Doubt):
        answer(",".join(SMALL), text=plain)
    assert answer("3,2,1,0", text=plain) == answer("", text=plain)


def test_as_many_instances_as_gpus_are_not_the_whole_node() -> None:
    """Eight single cores for eight instances: no task is given more CPUs, as it is with eight whole GPUs."""
    text = published_files.render_topology(divided(at=(0, 1, 6, 7)))
    visible = ",".join(f"MIG-{n}-{i}" for n in (0, 1, 6, 7) for i in range(2))
    masks = [1 << (i // 2) + (i % 2) * 56 for i in range(8)]
    found = answer(visible, masks, text)
    assert [line.split()[1] for line in found] == ["1"] * 8
    assert found == ["- 1", "2 1", "- 1", "3 1", "56 1", "- 1", "57 1", "- 1"]


def test_instances_that_nvml_does_not_list_are_no_plan() -> None:
    node = divided()
    assert not isinstance(node.gpus, Missing)
    unread = tuple(msgspec.structs.replace(g, mig_devices=Missing(Why.UNREADABLE, "NVML UNKNOWN (999)")) for g in node.gpus)
    text = published_files.render_topology(msgspec.structs.replace(node, gpus=unread))
    assert "\nmig\t" not in text
    with pytest.raises(Doubt):
        answer(",".join(SMALL), text=text)
    assert published_files.plan_files(node) == {}


def test_a_rank_of_fairlead_run_is_bound_near_its_instance() -> None:
    machine, uuids = binding_plan.parse_topology(TEXT), rank_binding.pci_by_uuid(TEXT)
    env = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_GPUS": "6,8", "SLURM_CPUS_ON_NODE": "112"}
    gpus = rank_binding.visible_gpus(machine, uuids, {**env, "CUDA_VISIBLE_DEVICES": "MIG-7-1,MIG-0-0"}, published=True)
    ranks = [rank_binding.LocalRank(i, 2, "LOCAL_RANK") for i in range(2)]
    found = [rank_binding.plan_rank(machine, gpus, r, env, own=ALL, cpuset=ALL, per_rank=None) for r in ranks]
    assert [binding_plan.format_cpu_set(b.cpus) for b in found] == ["56-111", "0-55"]
    assert [b.memory for b in found] == [1, 0]
    for visible in ("6,8", "MIG-7-1,0"):
        with pytest.raises(Doubt):
            rank_binding.visible_gpus(machine, uuids, {**env, "CUDA_VISIBLE_DEVICES": visible}, published=True)
    with pytest.raises(Doubt):
        rank_binding.visible_gpus(machine, uuids, env, published=True)


LISTED = published_files.ListedDevices(
    {4: "MIG-0-0", 0: "MIG-0-1", 2: "MIG-7-0", 9: "MIG-7-1", 1: "GPU-00000001", 3: "GPU-gone"}, 12.5
)


def listed_answer(indices: str, visible: str) -> list[str]:
    text = published_files.render_topology(divided(), listed=LISTED)
    masks = ",".join(f"0x{m:028X}" for m in CYCLIC)
    return binding_plan.answer_lines(text, masks, indices, allowed=ALL, cpus_on_node="112", visible=visible)


def test_indices_are_enough_where_gres_conf_lists_the_devices() -> None:
    assert listed_answer("4,0,2,9", "0,1,2,3") == NEAR, "CUDA_VISIBLE_DEVICES counts from 0 if devices are constrained"
    assert listed_answer("2,9,4,0", "2,9,4,0") == answer(",".join(SMALL[2:] + SMALL[:2]))
    assert listed_answer("1,0,2,9", "0,1,2,3") == NEAR, "a whole GPU of the node too"
    assert listed_answer("4,0,2,9", ",".join(SMALL[2:] + SMALL[:2])) == answer(",".join(SMALL[2:] + SMALL[:2])), "UUIDs go first"


@pytest.mark.parametrize(
    ("indices", "visible"),
    [("4,0,2,3", "0,1,2,3"), ("4,0,2,7", "0,1,2,3"), ("4,0,2,9", "0,1,2"), ("4,0,2,9", ""), ("4,0,2,9", "0,1,2,x")],
)
def test_an_index_that_is_not_listed_leaves_slurms_masks(indices: str, visible: str) -> None:
    with pytest.raises(Doubt):
        listed_answer(indices, visible)


def test_a_rank_finds_its_instance_by_the_steps_list() -> None:
    machine = binding_plan.parse_topology(published_files.render_topology(divided(), listed=LISTED))
    env = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_GPUS": "9,4", "CUDA_VISIBLE_DEVICES": "0,1"}
    found = rank_binding.visible_gpus(machine, {}, env, published=True)
    assert found == [machine.by_uuid["MIG-7-1"], machine.by_uuid["MIG-0-0"]]
    with pytest.raises(Doubt):
        rank_binding.visible_gpus(machine, {}, env | {"SLURM_GPUS_PER_TASK": "1", "SLURM_GTIDS": "0,1"}, published=True)
