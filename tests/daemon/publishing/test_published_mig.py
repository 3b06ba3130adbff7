"""The file topology is written again when a GPU is divided in another way."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.config.document import resolve_layers
from fairlead.daemon.publishing.publisher import Publisher
from fairlead.model.facts import Node
from fairlead.model.gpu_state import MigDevice
from tests.checks import nodes

SMALL = MigDevice(uuid="MIG-1", gi=11, ci=0, profile="1g.10gb")


def divided(*devices: MigDevice) -> Node:
    return nodes.node(nodes.gpu(0, mig_current=True, mig_devices=devices))


@pytest.mark.parametrize(
    "then",
    [
        MigDevice(uuid="MIG-2", gi=11, ci=0, profile="1g.10gb"),
        MigDevice(uuid="MIG-1", gi=5, ci=0, profile="2g.20gb"),  # the simulated driver gives the same UUID again
        replace(SMALL, ci=1),
    ],
)
def test_a_new_layout_is_published(then: MigDevice, tmp_path: Path) -> None:
    publisher = Publisher(resolve_layers("n1", [("test", {"agent": {"run_dir": str(tmp_path)}})])[0])
    publisher.publish_node(divided(SMALL))
    publisher.publish_node(divided(then))
    rows = [line.split("\t") for line in (tmp_path / "topology").read_text().splitlines() if line.startswith("mig")]
    assert [(uuid, gi, ci, profile) for _, uuid, _, gi, ci, profile, *_ in rows] == [
        (then.uuid, str(then.gi), str(then.ci), then.profile)
    ]
