"""Every provisioned setting goes through the same pipe as the checks: what is not as declared is a finding ``setting.NAME``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead import config, settings
from fairlead.cli.machine_tree import recorded_nvml
from fairlead.config import Document
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.judge import judge, policies_of, reads, wanted
from fairlead.model.check_definition import Past
from fairlead.model.facts import Missing, Node, PciDevice, unreadable
from fairlead.model.finding import Finding, Level, Mode
from fairlead.policy import CheckPolicy
from tests import memory as in_memory
from tests.lab.trees import MACHINES
from tests.settings.test_settings import ON_TREES, arranged, want

pytestmark = pytest.mark.trees

TREE = MACHINES / "hgx-h100"


def document() -> Document:
    """The profile's, in which every other setting is declared too (driver: tests/driver/test_plan.py, with packages)."""
    known = config.profile_document("gpu1", "hgx-h100")
    return replace(known, settings={name: want(name) for name in ON_TREES} | dict(known.settings))


def gathered(tree: Path, known: Document) -> Node:
    root = Root(str(tree))
    return gather(root, recorded_nvml(str(tree)), reads=reads(known), unsupported=known.unsupported, wanted=wanted(known))


def of(name: str, known: Document, node: Node) -> list[Finding]:
    return [f for f in judge(known, node, Past(available=True), {f"setting.{name}"}) if f.level is not Level.OK]


@pytest.fixture(scope="module")
def fresh() -> Iterator[Node]:
    with in_memory.folder() as folder:
        tree = Path(shutil.copytree(TREE, folder / "tree", symlinks=True))
        arranged(tree)
        yield gathered(tree, document())


@pytest.mark.parametrize("name", ON_TREES)
def test_each_setting_that_has_drifted_is_a_finding(name: str, fresh: Node) -> None:
    known = document()
    setting, want = settings.load()[name], known.settings[name]
    observed = setting.observe(fresh)
    assert not isinstance(observed, Missing), f"{observed.detail}; `arranged` in test_settings.py writes what no tree has"
    drifted = bool(setting.plan(want, observed))
    found = of(name, known, fresh)
    assert drifted, f"{name} has nothing to do on a node as after power-on: add to WANTS in test_settings.py what it should want"
    assert found and {f.check for f in found} == {f"setting.{name}"}
    enforced = replace(known, settings={**known.settings, name: replace(want, mode=Mode.ENFORCE)})
    assert {f.level for f in of(name, enforced, fresh)} == {Level.DRAIN}
    assert of(name, replace(known, settings={**known.settings, name: replace(want, managed=False)}), fresh) == []


@pytest.mark.parametrize("name", ON_TREES)
def test_a_setting_that_cannot_be_read_is_a_finding_too(name: str, fresh: Node) -> None:
    known = document()
    assert isinstance(policies_of(known)[f"setting.{name}"], CheckPolicy), "it counts like a check"
    blind = replace(fresh, texts={}, gpus=unreadable("no answer"), pci=tuple(_blind(d) for d in fresh.pci))
    found = of(name, known, blind)
    assert found and {f.check for f in found} == {f"setting.{name}"}


def _blind(device: PciDevice) -> PciDevice:
    return replace(device, acs_control=unreadable("config")) if device.acs_control is not None else device
