"""row_remap: pending waits for the job, failed does not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.checks.row_remap import Params, check
from fairlead.model.check import Past
from fairlead.model.device import readable_fields
from fairlead.model.facts import unreadable
from fairlead.model.finding import Action, Finding, Level, Service
from tests.checks.nodes import ADDRESSES, NA, REMAP, UNSUPPORTED, gpu, node


def judged(remap: object, **more: object) -> list[Finding]:
    return list(check.judge(node(gpu(5, remap=remap)), Past(available=True, **more), Params()))


@pytest.mark.parametrize(
    ("changes", "level", "action", "service"),
    [
        ({"pending": True}, Level.DRAIN, Action.RESET_GPU, Service.DRAIN_AFTER_JOB),
        ({"failed": True}, Level.DRAIN, Action.CONTACT_SUPPORT, Service.DRAIN_NOW),
        ({"histogram": (638, 0, 0, 1, 1)}, Level.WARN, Action.NONE, Service.KEEP),
        ({"uncorrected": 512}, Level.WARN, Action.CONTACT_SUPPORT, Service.KEEP),
    ],
)
def test_each_sign(changes: dict[str, object], level: Level, action: Action, service: Service) -> None:
    (finding,) = judged(replace(REMAP, **changes))
    assert (finding.level, finding.action, finding.service, finding.device) == (level, action, service, ADDRESSES[5])


def test_healthy_also_with_rows_remapped_in_the_past() -> None:
    assert judged(REMAP) == []
    assert judged(replace(REMAP, corrected=3, uncorrected=2, histogram=(636, 4, 0, 0, 0))) == []
    assert judged(replace(REMAP, histogram=NA)) == []


def test_unreadable_unsupported_and_gone() -> None:
    assert [f.level for f in judged(NA)] == [Level.UNKNOWN]
    assert judged(UNSUPPORTED) == []
    (gone,) = judged(NA, readable=readable_fields(node()))
    assert (gone.level, gone.service) == (Level.DRAIN, Service.DRAIN_AFTER_JOB)


def test_no_list_of_gpus_is_unknown() -> None:
    assert [f.level for f in check.judge(node(gpus=unreadable("x")), Past(), Params())] == [Level.UNKNOWN]
