"""Every provisioned setting goes through the same pipe as the checks: what is not as declared is a finding ``setting.NAME``."""

from __future__ import annotations

import shutil
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
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Finding, Level, Mode
from fairlead.policy import CheckPolicy

TREE = Path(__file__).parents[1] / "machines" / "hgx-h100"
#: What a site declares that differs from the tree, where a setting by itself wants nothing.
DECLARED = {
    "hugepages": {"pages_2m": 512},
}


def document() -> Document:
    """The profile, and each setting that it leaves out with its defaults."""
    known = config.profile_document("gpu1", "hgx-h100")
    return replace(known, settings={n: known.settings.get(n, s.want()) for n, s in settings.load().items()})


def look(tree: Path, known: Document) -> Node:
    root = Root(str(tree))
    return gather(root, recorded_nvml(str(tree)), reads=reads(known), unsupported=known.unsupported, wanted=wanted(known))


def of(name: str, known: Document, node: Node) -> list[Finding]:
    return [f for f in judge(known, node, Past(available=True), {f"setting.{name}"}) if f.level is not Level.OK]


@pytest.fixture(scope="module")
def fresh() -> Node:
    return look(TREE, document())


@pytest.mark.parametrize("name", sorted(n for n, want in document().settings.items() if n in config.profile_document("x", "hgx-h100").settings))
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


@pytest.mark.parametrize("name", sorted(settings.load()))
def test_each_setting_is_judged_counted_and_unknown_when_it_cannot_be_read(name: str, tmp_path: Path) -> None:
    known = document()
    assert isinstance(policies_of(known)[f"setting.{name}"], CheckPolicy)
    blind = replace(look(Path(shutil.copytree(TREE / "proc", tmp_path / "t" / "proc", symlinks=True)).parent, known), texts={})
    assert settings.load()[name].observe(blind) is not None
    found = of(name, known, blind)
    wants_nothing = known.settings[name] == settings.load()[name].want() and not found
    assert wants_nothing or all(f.check == f"setting.{name}" for f in found)
