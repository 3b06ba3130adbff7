"""Which bits a reset took away of those that fairlead had changed. The run: tests/settings/test_on_a_node.py."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from fairlead.apply import apply
from fairlead.config.document import resolve_layers
from fairlead.daemon.loop import reapply
from fairlead.host import change
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.judge import judge, reads
from fairlead.model.change import PciBits
from fairlead.model.check_definition import Past
from fairlead.model.facts import unreadable
from tests.lab.trees import MACHINES

MACHINE = MACHINES / "hgx-h100"
BRIDGE = "0000:15:01.0"


@pytest.fixture
def root(memory: Path) -> Root:
    return Root(str(shutil.copytree(MACHINE, memory / "tree", symlinks=True)))


def lost(root: Root) -> tuple[str, ...]:
    """What the agent would have applied again, after a thorough look."""
    node = gather(root, unreadable("not asked"), reads=reads(DOCUMENT), unsupported=DOCUMENT.unsupported)
    found = judge(DOCUMENT, node, Past(available=True), {f"setting.{name}" for name in DOCUMENT.settings})
    return reapply.made_before(root, reapply.lost(found))


def test_a_device_that_refuses_its_bits_is_not_asked_again_until_it_was_seen_as_declared() -> None:
    refusals = reapply.Refusals()
    drifted = {"pcie_acs": {BRIDGE, "0000:16:01.0"}}
    assert refusals.without(drifted) == drifted
    refusals.add(drifted)  # the run for both has failed, and one of them took its bits
    assert refusals.without({"pcie_acs": {BRIDGE}}) == {}
    assert refusals.without({"pcie_acs": {BRIDGE}}) == {}, "however often it is looked at"
    assert refusals.without(drifted) == {"pcie_acs": {"0000:16:01.0"}}, "another device that a reset took back"
    assert refusals.without({}) == {}
    assert refusals.without({"pcie_acs": {BRIDGE}}) == {"pcie_acs": {BRIDGE}}, "it was as declared: this is a new reset"


@pytest.mark.root
def test_bits_that_a_device_has_never_taken_were_lost_by_no_reset(root: Root) -> None:
    """The device is /dev/zero's: it takes every write and goes on reading 0."""
    config = Path(root.join(f"/sys/bus/pci/devices/{BRIDGE}/config"))
    config.unlink()
    os.mknod(config, 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    bits = PciBits(setting="pcie_acs", why="test", address=BRIDGE, offset=6, mask=3, value=1, before=0)
    (outcome,) = change.execute([bits], root)
    assert not outcome.done and "the device keeps these bits" in outcome.message
    assert reapply.made_before(root, {"pcie_acs": {BRIDGE}}) == ()
    assert change.undo_changes(root) == (), "nothing was changed, so there is nothing to undo"


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
