"""gres.conf and NodeName lines: Slurm's own core numbers, device files by minor, whole sockets, equal nodes in one line."""

from __future__ import annotations

import itertools
import re

import pytest
from msgspec.structs import replace

from fairlead.errors import DataError
from fairlead.model.facts import Node, NvLink, unreadable
from fairlead.slurm_config.gres_conf import gres_lines, render_gres, render_nodes
from fairlead.slurm_config.running_conf import fewer_gpus, gpu_counts, node_names
from fairlead.slurm_config.slurm_node import KernelGpu, SlurmNode, Socket, gres_type, numbered, of_node, of_published
from fairlead.topology.binding.binding_plan import Core, parse_cpu_set
from fairlead.topology.binding.published_files import render_topology
from tests.topology.topology_nodes import node


def made(facts: Node, socket: Socket = Socket.PACKAGE, kernel: dict[str, KernelGpu] | None = None) -> SlurmNode:
    return of_node(facts, memory_mib=2000, socket=socket, kernel=kernel)


@pytest.mark.parametrize(
    ("tree", "socket", "lines"),
    [
        (
            "hgx-h100",
            Socket.PACKAGE,
            ("Name=gpu Type=h100 File=/dev/nvidia[0-3] Cores=0-55", "Name=gpu Type=h100 File=/dev/nvidia[4-7] Cores=56-111"),
        ),
        # NPS4 with two threads a core: cores, not CPUs, and NUMA node 3 is the fourth socket
        (
            "hgx-a100",
            Socket.NUMA,
            (
                "Name=gpu Type=a100 File=/dev/nvidia[0-1] Cores=48-63",
                "Name=gpu Type=a100 File=/dev/nvidia[2-3] Cores=16-31",
                "Name=gpu Type=a100 File=/dev/nvidia[4-5] Cores=112-127",
                "Name=gpu Type=a100 File=/dev/nvidia[6-7] Cores=80-95",
            ),
        ),
        (
            "hgx-a100",
            Socket.PACKAGE,
            ("Name=gpu Type=a100 File=/dev/nvidia[0-3] Cores=0-63", "Name=gpu Type=a100 File=/dev/nvidia[4-7] Cores=64-127"),
        ),
        (
            "alps-gh200",
            Socket.NUMA,
            tuple(
                f"Name=gpu Type=gh200 File=/dev/nvidia{n} Cores={72 * n}-{72 * n + 71}"
                f" Links={','.join('-1' if m == n else '6' for m in range(4))}"
                for n in range(4)
            ),
        ),
        ("desktop", Socket.PACKAGE, ("Name=gpu Type=rtx_3090 File=/dev/nvidia[0-1]",)),  # every core is near
    ],
)
def test_gres_of_machines(tree: str, socket: Socket, lines: tuple[str, ...]) -> None:
    assert gres_lines(made(node(tree), socket)) == lines


@pytest.mark.parametrize(
    ("socket", "words"),
    [
        (Socket.PACKAGE, "SocketsPerBoard=2 CoresPerSocket=64 ThreadsPerCore=2"),
        (Socket.NUMA, "SocketsPerBoard=8 CoresPerSocket=16 ThreadsPerCore=2"),
        (Socket.L3, "SocketsPerBoard=32 CoresPerSocket=4 ThreadsPerCore=2"),
    ],
)
def test_what_a_socket_is(socket: Socket, words: str) -> None:
    text, notes = render_nodes([made(node("hgx-a100"), socket)])
    assert text == f"NodeName=hgx-a100 CPUs=256 Boards=1 {words} RealMemory=2000 Gres=gpu:a100:8\n"
    assert notes == ()


def test_a_gpu_near_part_of_a_socket_gets_the_whole_one_and_it_is_said() -> None:
    (note,) = made(node("hgx-a100")).notes
    assert "0000:07:00.0" in note and "numa_node_as_socket" in note
    assert made(node("hgx-a100"), Socket.NUMA).notes == ()
    # AutoDetect would find other cores than these: then none are written
    assert gres_lines(made(node("hgx-a100")), "nvml") == ("AutoDetect=nvml Name=gpu Type=a100 File=/dev/nvidia[0-7]",)
    assert gres_lines(made(node("hgx-h100")), "nvml")[0].endswith("File=/dev/nvidia[0-3] Cores=0-55")


def test_cores_are_numbered_as_hwloc_does() -> None:
    """Interleaved CPU numbers: node 0 holds CPUs 0 4 8 12, node 1 CPUs 1 5 ..; package 1 begins with the lower CPU."""
    cores = [Core(1 - cpu % 2, cpu % 4, -1, 1 << cpu) for cpu in range(16)]
    expected = [0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15]
    for order in itertools.islice(itertools.permutations(cores), 0, 200, 20):
        found = numbered(order, Socket.PACKAGE)
        assert [mask.bit_length() - 1 for _, mask in found] == expected
        assert [at for at, _ in found] == [0] * 8 + [1] * 8
    assert [at for at, _ in numbered(cores, Socket.NUMA)] == [n // 4 for n in range(16)]


def test_files_go_by_minor_not_by_index() -> None:
    facts = node("hgx-h100")
    assert not isinstance(facts.gpus, type(unreadable("")))
    turned = tuple(replace(gpu, minor=7 - gpu.index) for gpu in facts.gpus)
    assert gres_lines(made(replace(facts, gpus=turned))) == (
        "Name=gpu Type=h100 File=/dev/nvidia[0-3] Cores=56-111",
        "Name=gpu Type=h100 File=/dev/nvidia[4-7] Cores=0-55",
    )
    twice = tuple(replace(gpu, minor=0) for gpu in facts.gpus)
    with pytest.raises(DataError, match="/dev/nvidia0 is the device file of two GPUs"):
        made(replace(facts, gpus=twice))
    lost = tuple(replace(gpu, minor=unreadable("lost")) if gpu.index == 3 else gpu for gpu in facts.gpus)
    with pytest.raises(DataError, match="the device file of GPU"):
        made(replace(facts, gpus=lost))
    kernel = {g.pci: KernelGpu(f"/dev/nvidia{g.index}", str(g.name)) for g in facts.gpus}
    by_proc = made(replace(facts, gpus=unreadable("no driver library")), kernel=kernel)
    assert {g.type for g in by_proc.gpus} == {"h100"}
    assert [g.file for g in by_proc.gpus] == [f"/dev/nvidia{n}" for n in range(8)]


def test_links_follow_the_files() -> None:
    facts = node("hgx-h100")
    gpus = list(facts.gpus)  # type: ignore[arg-type]
    bridge = (NvLink(link=0, active=True, remote=gpus[2].pci), NvLink(link=1, active=True, remote=gpus[2].pci))
    gpus[0] = replace(gpus[0], nvlinks=bridge, minor=2)
    gpus[2] = replace(gpus[2], nvlinks=tuple(replace(b, remote=gpus[0].pci) for b in bridge), minor=0)
    lines = gres_lines(made(replace(facts, gpus=tuple(gpus))))
    assert lines[0] == "Name=gpu Type=h100 File=/dev/nvidia0 Cores=0-55 Links=-1,0,2,0,0,0,0,0"
    assert lines[2] == "Name=gpu Type=h100 File=/dev/nvidia2 Cores=0-55 Links=2,0,-1,0,0,0,0,0"


def test_mig_is_left_to_autodetect() -> None:
    facts = node("hgx-h100")
    mig = replace(facts, gpus=tuple(replace(g, mig_current=g.index == 0) for g in facts.gpus))  # type: ignore[union-attr]
    assert render_gres([made(mig)]) == "NodeName=hgx-h100 AutoDetect=nvml\n"
    text, notes = render_nodes([made(mig)])
    assert "Gres" not in text and "slurmd -C" in notes[0]


def test_what_slurm_cannot_say_is_said_as_cpus() -> None:
    facts = node("hgx-h100")
    some = tuple(replace(c, online=c.id != 3) for c in facts.cpus)
    found = made(replace(facts, cpus=some))
    assert render_nodes([found])[0] == "NodeName=hgx-h100 CPUs=111 RealMemory=2000 Gres=gpu:h100:8\n"
    assert "its sockets have 55, 56 cores" in found.notes[0]
    assert gres_lines(found) == ("Name=gpu Type=h100 File=/dev/nvidia[0-7]",)


def test_equal_nodes_share_a_line_with_the_least_memory() -> None:
    one = made(node("hgx-h100"))
    many = [replace(one, name=f"h{n}", memory_mib=2_000_000 + 40 * n) for n in range(1, 11)]
    odd = replace(one, name="h11", memory_mib=1_000_000)
    text, notes = render_nodes([odd, *reversed(many)])
    assert [line.split()[0] for line in text.splitlines()] == ["NodeName=h[1-10]", "NodeName=h11"]
    assert "RealMemory=2000040 " in text and notes == ("h[1-10]: RealMemory is the least of 2000040 to 2000400 MiB",)
    assert render_gres([*many, odd]) == "".join(f"NodeName=h[1-11] {line}\n" for line in gres_lines(one))


@pytest.mark.parametrize("tree", ["hgx-h100", "hgx-a100", "alps-gh200", "dgx-2"])
def test_a_published_topology_file_gives_the_same(tree: str) -> None:
    facts = node(tree)
    for socket in Socket:
        ours = made(facts, socket)
        theirs = of_published(render_topology(facts), socket=socket, kind=ours.gpus[0].type)
        plain = tuple(replace(gpu, links=()) for gpu in ours.gpus)
        assert theirs == replace(ours, memory_mib=None, gpus=plain)
    with pytest.raises(DataError):
        of_published(render_topology(facts)[:-20])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA GeForce RTX 3090", "rtx_3090"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GH200 120GB", "gh200"),
        ("NVIDIA GH200/GB200", "gh200"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx_pro_6000"),
        ("GRID A100X-40C", "a100x"),
        ("AMD MI250X", "mi250x"),
        ("NVIDIA GPU", "gpu"),
    ],
)
def test_types_are_part_of_what_slurm_detects(name: str, kind: str) -> None:
    """gres.conf(5): AutoDetect's type is the product's name in lower case with underscores."""
    assert gres_type(name) == kind
    assert kind in name.lower().replace(" ", "_") and re.fullmatch(r"[a-z0-9_]+", kind)


def test_what_a_running_file_names() -> None:
    text = (
        "NodeName=DEFAULT CPUs=4\nnodename=n[1-3] Name=gpu File=/dev/nvidia[0-3]\nNodeName=n1 Name=gpu File=/dev/nvidia7 # n9\n"
    )
    assert node_names(text) == {"n1", "n2", "n3"}
    assert gpu_counts(text) == {"n1": 5, "n2": 4, "n3": 4}
    after = "NodeName=n[1-2] Name=gpu File=/dev/nvidia[0-3]\nNodeName=n3 AutoDetect=nvml\n"
    assert fewer_gpus(text, after, ()) == "n1 has 4, the running file 5"
    assert fewer_gpus(text, after, {"n1"}) == ""
    assert parse_cpu_set("0-1") == 3
