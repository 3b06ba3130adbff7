"""mig_mode, inforom, gpu_identity: what a GPU is set to, and whether it is still the same board."""

from __future__ import annotations

import pytest

from fairlead.checks import gpu_identity, inforom, mig_mode
from fairlead.model.check import Past
from fairlead.model.device import boards_of
from fairlead.model.facts import Node
from fairlead.model.finding import Action, Finding, Level, Mode, Service
from tests.checks.nodes import ADDRESSES, NA, UNSUPPORTED, gpu, node

HERE = Past(available=True)


def mig(machine: Node, expected: bool | None) -> list[Finding]:
    return list(mig_mode.check.judge(machine, HERE, mig_mode.Params(expected=expected)))


@pytest.mark.parametrize(
    ("now", "then", "expected", "level", "action"),
    [
        (True, True, False, Level.DRAIN, Action.PROVISION),
        (False, False, True, Level.DRAIN, Action.PROVISION),
        (True, False, False, Level.DRAIN, Action.RESET_GPU),
        (False, True, False, Level.WARN, Action.PROVISION),
        (False, True, None, Level.WARN, Action.PROVISION),
        (NA, NA, False, Level.UNKNOWN, Action.NONE),
        (UNSUPPORTED, UNSUPPORTED, True, Level.DRAIN, Action.PROVISION),
    ],
)
def test_mig_drift(now: object, then: object, expected: bool | None, level: Level, action: Action) -> None:
    machine = node(*(gpu(n, mig_current=expected is True, mig_pending=expected is True) for n in range(8) if n != 2),
                   gpu(2, mig_current=now, mig_pending=then))  # fmt: skip
    (finding,) = mig(machine, expected)
    assert (finding.level, finding.action, finding.device) == (level, action, ADDRESSES[2])
    assert finding.service is (Service.DRAIN_AFTER_JOB if level is Level.DRAIN else Service.KEEP)


def test_mig_as_declared_is_quiet() -> None:
    everywhere = node(*(gpu(n, mig_current=True, mig_pending=True) for n in range(8)))
    assert mig(everywhere, True) == mig(everywhere, None) == mig(node(), False) == mig(node(), None) == []
    assert mig(node(gpu(2, mig_current=UNSUPPORTED, mig_pending=UNSUPPORTED)), False) == []
    assert mig(node(gpu(2, lost=True, mig_current=NA)), False) == []
    assert mig_mode.check.mode is Mode.OBSERVE


def valid(machine: Node) -> list[Finding]:
    return list(inforom.check.judge(machine, HERE, inforom.Params()))


def test_inforom() -> None:
    assert (
        valid(node()) == valid(node(gpu(2, inforom_valid=UNSUPPORTED))) == valid(node(gpu(2, lost=True, inforom_valid=NA))) == []
    )
    (broken,) = valid(node(gpu(2, inforom_valid=False)))
    assert (broken.level, broken.action, broken.device) == (Level.DRAIN, Action.CONTACT_SUPPORT, ADDRESSES[2])
    (dark,) = valid(node(gpu(2, inforom_valid=NA)))
    assert dark.level is Level.UNKNOWN
    assert inforom.check.mode is Mode.OBSERVE


def identity(machine: Node, **boards: str) -> list[Finding]:
    known = boards_of(node()) | {ADDRESSES[int(place[1:])]: board for place, board in boards.items()}
    return list(gpu_identity.check.judge(machine, Past(available=True, boards=known), gpu_identity.Params()))


def test_a_swapped_board() -> None:
    (finding,) = identity(node(gpu(2, serial="999", uuid="GPU-999")))
    assert (finding.level, finding.device, finding.service) == (Level.WARN, ADDRESSES[2], Service.KEEP)
    assert "another board" in finding.summary and "1651223002 before, 999 now" in finding.evidence[0]
    (other,) = identity(node(gpu(2, serial="998", uuid="GPU-998")))
    assert other.evidence_id != finding.evidence_id  # an acknowledged swap does not cover the next one


def test_a_moved_board() -> None:
    found = identity(node(gpu(2, serial="1651223003"), gpu(3, serial="1651223002")))
    assert [f.device for f in found] == [ADDRESSES[2], ADDRESSES[3]]
    assert all("was in slot" in f.summary for f in found)


def test_the_same_boards_are_quiet() -> None:
    assert identity(node()) == []
    assert identity(node(gpu(2, lost=True, serial="999"))) == []  # gpu_count says more
    assert identity(node(gpu(2)), _2="GPU-00000002") == []  # it told only its UUID before
    first_look = gpu_identity.check.judge(node(), Past(available=True), gpu_identity.Params())
    assert list(first_look) == []
    (once,) = gpu_identity.check.judge(node(), Past(), gpu_identity.Params())
    assert once.needs_history and once.level is Level.OK


def test_a_board_that_says_nothing_of_itself() -> None:
    (finding,) = identity(node(gpu(2, serial=NA, uuid=NA)))
    assert finding.level is Level.UNKNOWN
    assert identity(node(gpu(2, serial=NA)), _2="GPU-00000002") == []
