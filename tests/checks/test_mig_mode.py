"""MIG mode against what is declared, now and after the next reset."""

from __future__ import annotations

import pytest

from fairlead.checks import mig_mode
from fairlead.model.check_definition import Past
from fairlead.model.facts import Node
from fairlead.model.finding import Action, Finding, Level, Mode, Service
from tests.checks.nodes import ADDRESSES, NA, UNSUPPORTED, gpu, node

HERE = Past(available=True)


def mig(machine: Node, expected: bool | None) -> list[Finding]:
    return list(mig_mode.check.findings(machine, HERE, mig_mode.Params(expected=expected)))


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
