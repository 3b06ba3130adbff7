"""A picture of a node whose GPUs are not all known says so, and never that there is nothing to say."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.model.facts import Gpu, Missing, Node, unreadable
from fairlead.model.finding import Level
from fairlead.topology.audit.layout_audit import audit
from fairlead.topology.picture.machine_svg import draw
from tests.topology.build import hgx
from tests.topology.topology_nodes import node as node_of


def gpus(node: Node) -> tuple[Gpu, ...]:
    assert not isinstance(node.gpus, Missing)
    return node.gpus


def test_a_lost_gpu_is_told_and_drawn() -> None:
    node = hgx()
    lost = gpus(node)[3]
    node = replace(node, gpus=tuple(replace(g, lost=g is lost) for g in gpus(node)))
    (found,) = audit(node)
    assert (found.check, found.level, found.device) == ("topology.gpu_lost", Level.WARN, lost.pci)
    assert f"GPU {lost.pci} is lost" in draw(node)


def test_a_gpu_that_the_driver_does_not_list_is_told() -> None:
    node = node_of("hgx-h100")
    gone = gpus(node)[0]
    found = [f.device for f in audit(replace(node, gpus=gpus(node)[1:])) if f.check == "topology.gpu_unlisted"]
    assert found == [gone.pci]
    assert not [f for f in audit(node) if f.check == "topology.gpu_unlisted"]


def test_what_only_nvml_knows_is_said_to_be_missing() -> None:
    found = audit(replace(node_of("hgx-h100"), gpus=unreadable("no NVML library")))
    assert [f.level for f in found if f.check == "topology.no_nvml"] == [Level.OK]
    assert not [f for f in audit(hgx(gpus=0)) if f.check == "topology.no_nvml"]
