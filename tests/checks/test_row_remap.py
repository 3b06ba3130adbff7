"""row_remap: pending waits for the job, failed does not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.checks.row_remap import Params, check
from fairlead.model.check_definition import Daily, Past
from fairlead.model.device import gpu_cards_of, readable_fields
from fairlead.model.facts import unreadable
from fairlead.model.finding import Action, Finding, Level, Service
from fairlead.model.gpu_health import RetiredPages
from tests.checks.hosts import judged as judged_node
from tests.checks.nodes import ADDRESSES, NA, REMAP, UNSUPPORTED, gpu, node


def judged(remap: object, **more: object) -> list[Finding]:
    return list(check.findings(node(gpu(5, remap=remap)), Past(available=True, **more), Params()))


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
    assert [f.level for f in check.findings(node(gpus=unreadable("x")), Past(), Params())] == [Level.UNKNOWN]


def since(*points: tuple[int, float], name: str = "remap.uncorrected", device: str = "1651223002") -> Past:
    return Past(available=True, daily=tuple(Daily(device=device, name=name, days_ago=d, value=v) for d, v in points))


@pytest.mark.parametrize(
    ("points", "rows", "warns"),
    [
        (((29, 0.0),), 8, True),
        (((29, 0.0),), 7, False),
        (((31, 0.0), (10, 3.0)), 8, True),
        (((300, 0.0), (29, 8.0)), 8, False),  # when they came is not known: only what is sure counts
        (((300, 0.0), (29, 0.0)), 8, True),
        (((300, 8.0), (200, 8.0)), 8, False),  # long ago
        (((5, 20.0),), 8, False),  # fewer than before: another count
        ((), 400, False),
    ],
)
def test_rows_that_are_remapped_fast(points: tuple[tuple[int, float], ...], rows: int, warns: bool) -> None:
    sick = node(gpu(2, remap=replace(REMAP, uncorrected=rows)))
    found = list(check.findings(sick, since(*points), Params()))
    assert [f.level for f in found] == ([Level.WARN] if warns else [])
    assert not warns or (found[0].device == ADDRESSES[2] and "within" in found[0].summary)
    assert list(check.findings(sick, since(*points), Params(rows_per_month=0))) == []
    assert list(check.findings(sick, since(*points, device="another"), Params())) == []


def test_banks_that_wear_out() -> None:
    past = since((29, 0.0), name="remap.worn_banks")
    used = node(gpu(2, remap=replace(REMAP, histogram=(630, 4, 4, 0, 0))))
    (finding,) = check.findings(used, past, Params())
    assert finding.level is Level.WARN and "begun to run out" in finding.summary
    fresh = node(gpu(2, remap=replace(REMAP, histogram=(630, 10, 0, 0, 0))))
    assert list(check.findings(fresh, past, Params())) == []
    assert check.daily is not None
    assert {("1651223002", "remap.worn_banks", 4.0), ("1651223002", "remap.uncorrected", 0.0)} <= set(check.daily(used))


YESTERDAY = Past(available=True, readable=readable_fields(node()), gpu_cards=gpu_cards_of(node()))
NO_PAGES = RetiredPages(single_bit=0, double_bit=0, pending=False)


def test_row_remapping_that_went_dark_on_a_gpu_that_answers_for_retired_pages() -> None:
    dark = node(gpu(5, remap=NA, retired=NO_PAGES))
    assert [f.level for f in judged_node("row_remap", dark, YESTERDAY)] == [Level.DRAIN]
    assert judged_node("row_remap", dark, Past(available=True)) == []  # before Ampere it never remapped
