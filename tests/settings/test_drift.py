"""Every provisioned setting goes through the same pipe as the checks: what is not as declared is a finding ``setting.NAME``."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead import config, settings
from fairlead.cli.recorded import recorded_nvml
from fairlead.config import Document
from fairlead.daemon.judge import judge, reads, wanted
from fairlead.daemon.rules import policies_of
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.model.check import Past
from fairlead.model.facts import Missing, Node, PciDevice, unreadable
from fairlead.model.finding import Finding, Level, Mode
from fairlead.policy import CheckPolicy

TREE = Path(__file__).parents[1] / "machines" / "hgx-h100"
NAMES = sorted(config.profile_document("gpu1", "hgx-h100").settings)


def document() -> Document:
    return config.profile_document("gpu1", "hgx-h100")


def look(tree: Path, known: Document) -> Node:
    root = Root(str(tree))
    return gather(root, recorded_nvml(str(tree)), reads=reads(known), unsupported=known.unsupported, wanted=wanted(known))


def of(name: str, known: Document, node: Node) -> list[Finding]:
    return [f for f in judge(known, node, Past(available=True), {f"setting.{name}"}) if f.level is not Level.OK]


@pytest.fixture(scope="module")
def fresh() -> Node:
    return look(TREE, document())


@pytest.mark.parametrize("name", NAMES)
def test_each_setting_of_the_profile_that_has_drifted_is_a_finding(name: str, fresh: Node) -> None:
    known = document()
    setting, want = settings.load()[name], known.settings[name]
    observed = setting.observe(fresh)
    assert not isinstance(observed, Missing)
    drifted = bool(setting.plan(want, observed))
    found = of(name, known, fresh)
    assert drifted, "the tree is as after power-on"
    assert found and {f.check for f in found} == {f"setting.{name}"}
    enforced = replace(known, settings={**known.settings, name: replace(want, mode=Mode.ENFORCE)})
    assert {f.level for f in of(name, enforced, fresh)} == {Level.DRAIN}
    assert of(name, replace(known, settings={**known.settings, name: replace(want, managed=False)}), fresh) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_that_cannot_be_read_is_a_finding_too(name: str, fresh: Node) -> None:
    known = document()
    assert isinstance(policies_of(known)[f"setting.{name}"], CheckPolicy), "it counts like a check"
    blind = replace(fresh, texts={}, gpus=unreadable("no answer"), pci=tuple(_blind(d) for d in fresh.pci))
    found = of(name, known, blind)
    assert found and {f.check for f in found} == {f"setting.{name}"}


def _blind(device: PciDevice) -> PciDevice:
    return replace(device, acs_control=unreadable("config")) if device.acs_control is not None else device
