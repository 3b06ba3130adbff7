from __future__ import annotations

import pytest

from fairlead.model.facts import Missing, NumaNode, Why
from fairlead.topology.binding import binding_plan, published_files
from tests.topology.build import hgx
from tests.topology.topology_nodes import node as node_of


def test_topology_text_comes_back() -> None:
    node = hgx(threads=2)
    text = published_files.render_topology(node)
    lines = [line.split("\t") for line in text.splitlines()]
    assert all(field for line in lines for field in line)
    assert lines[0] == ["1", "node", "n1", "8", "0-223", "224", "2"]
    assert lines[1] == ["gpu", "0", "0", "GPU-00000000", "0000:13:00.0", "0", "0-55,112-167", "mlx5_0", lines[1][8]]
    assert binding_plan.format_cpu_set(int(lines[1][8], 16)) == "0-55,112-167" and lines[1][8].isupper()
    assert lines[9] == ["core", "0", "0", "0", "0,112"]
    made, read = published_files.planner_machine(node), binding_plan.parse_topology(text)
    assert read.online == made.online
    assert [(c.package, c.numa, c.l3, c.cpus) for c in read.cores] == [(c.package, c.numa, c.l3, c.cpus) for c in made.cores]
    assert [(g.index, g.pci, g.numa, g.near, g.nics) for g in read.gpus] == [
        (g.index, g.pci, g.numa, g.near, g.nics) for g in made.gpus
    ]


def test_what_cpu_numbers_tell_of_cores() -> None:
    assert published_files.thread_numbering(published_files.planner_machine(hgx())) == "1"
    assert published_files.thread_numbering(published_files.planner_machine(hgx(threads=2))) == "2"
    assert published_files.thread_numbering(published_files.planner_machine(hgx(threads=4, cores=8))) == "-"
    neighbours = binding_plan.Machine(0b1111, [binding_plan.Core(0, 0, 0, 0b11), binding_plan.Core(0, 0, 0, 0b1100)], [])
    assert published_files.thread_numbering(neighbours) == "-"
    one_offline = binding_plan.Machine(0b0111, [binding_plan.Core(0, 0, 0, 0b101), binding_plan.Core(0, 0, 0, 0b10)], [])
    assert published_files.thread_numbering(one_offline) == "-"
    over_packages = binding_plan.Machine(
        0b11,
        [binding_plan.Core(0, 0, 0, 1), binding_plan.Core(1, 0, 0, 2)],
        [binding_plan.GpuLocation(0, "0000:01:00.0", 0, 0b11)],
    )
    assert published_files.thread_numbering(over_packages) == "-"


@pytest.mark.parametrize("cut", [1, 5, 30, 200, 400])
def test_a_cut_topology_is_a_doubt(cut: int) -> None:
    text = published_files.render_topology(hgx())
    with pytest.raises(binding_plan.Doubt):
        binding_plan.parse_topology(text[:cut])


def test_gres_index_follows_the_device_files() -> None:
    node = hgx(gpus=2)
    gpus = node.gpus
    assert not isinstance(gpus, Missing)
    import msgspec

    swapped = msgspec.structs.replace(
        node, gpus=tuple(msgspec.structs.replace(g, minor=m) for g, m in zip(gpus, (1, 0), strict=True))
    )
    assert published_files.gres_index_by_pci(swapped) == {gpus[0].pci: 1, gpus[1].pci: 0}
    unknown = Missing(Why.UNREADABLE, "no minor")
    lost = msgspec.structs.replace(node, gpus=tuple(msgspec.structs.replace(g, minor=unknown) for g in gpus))
    assert published_files.gres_index_by_pci(lost) == {gpus[0].pci: 0, gpus[1].pci: 1}
    assert "\t-\tGPU-" in published_files.render_topology(lost)


def test_plans_of_a_whole_node() -> None:
    plans = published_files.render_plans(hgx())
    assert sorted(plans) == list(range(1, 17))
    assert plans[8].splitlines()[4].split("\t") == [
        "4",
        "56-69",
        f"{((1 << 14) - 1) << 56:x}",
        "4",
        "1",
        "mlx5_4",
        "14",
        f"{((1 << 14) - 1) << 56:X}",
        "4",
    ]
    assert plans[2].splitlines()[1].split("\t")[1:4:2] == ["56-111", "4,5,6,7"]
    assert [line.split("\t")[1] for line in plans[16].splitlines()][:3] == ["0-6", "7-13", "14-20"]


@pytest.mark.parametrize("node", [hgx(), hgx(threads=2), hgx(numa_per_socket=4), hgx(numa=[1, 1, 1, 1, 0, 0, 0, 0]), hgx(gpus=5)])
def test_every_plan_is_sound(node: object) -> None:
    from fairlead.model.facts import Node

    assert isinstance(node, Node)
    machine = published_files.planner_machine(node)
    for tasks, text in published_files.render_plans(node).items():
        union = 0
        for rank, line in enumerate(text.splitlines()):
            local, cpus, mask, gpus, _, _, cores, upper, _ = line.split("\t")
            assert upper == mask.upper()
            value = int(mask, 16)
            assert (int(local), binding_plan.parse_cpu_set(cpus)) == (rank, value)
            assert value and not union & value
            assert int(cores) == binding_plan.count_cores(machine, value)
            assert gpus
            union |= value
        assert len(text.splitlines()) == tasks
        assert not union & ~machine.online


def test_gpus_on_the_far_socket_come_first() -> None:
    plans = published_files.render_plans(hgx(numa=[1, 1, 1, 1, 0, 0, 0, 0]))
    assert plans[8].splitlines()[0].split("\t")[1] == "56-69"


def test_gpu_memory_numa_nodes_have_no_cpus_and_no_tasks() -> None:
    """GH200: 4 nodes with CPUs, 32 of GPU memory."""
    import msgspec

    node = hgx(sockets=4, cores=72, gpus=4)
    memory = tuple(NumaNode(id=4 + i, cpus=(), memory_bytes=0, distances=()) for i in range(32))
    node = msgspec.structs.replace(node, numa=node.numa + memory)
    plans = published_files.render_plans(node)
    assert [line.split("\t")[1] for line in plans[4].splitlines()] == ["0-71", "72-143", "144-215", "216-287"]


def test_with_mig_no_index_says_where_a_gpu_is() -> None:
    """Slurm counts the instances: index 1 may be the second part of the first GPU."""
    import msgspec

    node = hgx()
    assert not isinstance(node.gpus, Missing)
    split = msgspec.structs.replace(node, gpus=(msgspec.structs.replace(node.gpus[0], mig_current=True), *node.gpus[1:]))
    assert published_files.render_plans(split) == {}
    made = binding_plan.parse_topology(published_files.render_topology(split))
    assert [g.index for g in made.gpus] == [-1] * 8
    with pytest.raises(binding_plan.Doubt):
        binding_plan.answer_lines(
            published_files.render_topology(split), "0x1,0x2", "1,2", allowed=made.online, cpus_on_node="", visible="1,2"
        )


def test_no_driver_no_gpus() -> None:
    import msgspec

    node = msgspec.structs.replace(hgx(), gpus=Missing(Why.UNREADABLE, "NVML does not answer"))
    assert published_files.render_plans(node) == {}
    assert published_files.render_topology(node).startswith("1\tnode\tn1\t0\t0-111\t112\t1\n")


def test_amd_gpus_are_published_by_their_place_on_the_bus() -> None:
    """No NVML knows them; Slurm's AutoDetect=rsmi counts them in the bus's order as well."""
    node = node_of("lumi-g")
    lines = [line.split("\t") for line in published_files.render_topology(node).splitlines()]
    assert [line[4][5:7] for line in lines if line[0] == "gpu"] == ["c1", "c6", "c9", "ce", "d1", "d6", "d9", "de"]
    assert published_files.render_plans(node)[8].splitlines()[0].split("\t")[1] == "48-55,112-119"


def test_no_driver_beside_amd_graphics_publishes_nothing() -> None:
    """NVIDIA GPUs on the bus whose driver is silent: their GRES indices are not known."""
    import msgspec

    node = msgspec.structs.replace(node_of("hgx-h100"), gpus=Missing(Why.UNREADABLE, "NVML does not answer"))
    assert published_files.render_plans(node) == {}
