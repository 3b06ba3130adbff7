"""An InfoROM that is valid, corrupted, or cannot be validated."""

from __future__ import annotations

from fairlead.checks import inforom
from fairlead.model.check_definition import Past
from fairlead.model.facts import Node
from fairlead.model.finding import Action, Finding, Level, Mode
from tests.checks.nodes import ADDRESSES, NA, UNSUPPORTED, gpu, node

HERE = Past(available=True)


def valid(machine: Node) -> list[Finding]:
    return list(inforom.check.findings(machine, HERE, inforom.Params()))


def test_inforom() -> None:
    assert (
        valid(node()) == valid(node(gpu(2, inforom_valid=UNSUPPORTED))) == valid(node(gpu(2, lost=True, inforom_valid=NA))) == []
    )
    (broken,) = valid(node(gpu(2, inforom_valid=False)))
    assert (broken.level, broken.action, broken.device) == (Level.DRAIN, Action.CONTACT_SUPPORT, ADDRESSES[2])
    (dark,) = valid(node(gpu(2, inforom_valid=NA)))
    assert dark.level is Level.UNKNOWN
    assert inforom.check.mode is Mode.OBSERVE
