"""Which bits a reset took away of those that fairlead had changed. The run: tests/settings/test_on_a_node.py."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fairlead.apply import apply
from fairlead.config.document import resolve_layers
from fairlead.daemon import reapply
from fairlead.daemon.judge import judge, reads
from fairlead.host import change
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.model.check import Past
from fairlead.model.facts import unreadable

MACHINE = Path(__file__).parents[1] / "machines" / "hgx-h100"
BRIDGE = "0000:15:01.0"


@pytest.fixture
def root(memory: Path) -> Root:
    return Root(str(shutil.copytree(MACHINE, memory / "tree", symlinks=True)))


def lost(root: Root) -> tuple[str, ...]:
    """What the agent would have applied again, after a thorough look."""
    node = gather(root, unreadable("not asked"), reads=reads(DOCUMENT), unsupported=DOCUMENT.unsupported)
    found = judge(DOCUMENT, node, Past(available=True), {f"setting.{name}" for name in DOCUMENT.settings})
    return reapply.made_before(root, reapply.lost(found))


DOCUMENT = resolve_layers("gpu1", [("test", {"settings": {"pcie_acs": {}, "numa_balancing": {}}})])[0]


def test_only_what_an_apply_has_made_and_nobody_has_undone(root: Root) -> None:
    assert lost(root) == (), "drifted, but nothing has been applied here yet"
    config = Path(root.join(f"/sys/bus/pci/devices/{BRIDGE}/config"))
    power_on = config.read_bytes()
    apply(DOCUMENT, root)
    assert lost(root) == ()
    config.write_bytes(power_on)
    assert lost(root) == ("pcie_acs",)
    Path(root.join("/proc/sys/kernel/numa_balancing")).write_text("1\n")
    assert lost(root) == ("pcie_acs",), "what no reset takes away is left to a person"
    assert all(outcome.done for outcome in change.undo_all(root))
    assert lost(root) == (), "undone on purpose"
