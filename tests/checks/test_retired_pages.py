"""retired_pages: GPUs before Ampere; and row_remap leaves those alone."""

from __future__ import annotations

import pytest

from fairlead.checks import row_remap
from fairlead.checks.retired_pages import Params, check
from fairlead.model.check_definition import Past
from fairlead.model.device import readable_fields
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.finding import Action, Finding, Level, Mode, Service
from fairlead.model.gpu_health import RetiredPages
from tests.checks.nodes import ADDRESSES, NA, UNSUPPORTED, gpu, node


def judged(machine: Node, **params: object) -> list[Finding]:
    return list(check.findings(machine, Past(available=True), Params(**params)))


def volta(single: int | Missing = 0, double: int | Missing = 0, pending: bool | Missing = False, remap: Missing = NA) -> Node:
    """GPU 2 retires pages and cannot remap rows."""
    return node(gpu(2, remap=remap, retired=RetiredPages(single_bit=single, double_bit=double, pending=pending)))


@pytest.mark.parametrize(
    ("machine", "level", "action", "service"),
    [
        (volta(pending=True), Level.DRAIN, Action.RESET_GPU, Service.DRAIN_AFTER_JOB),
        (volta(60, 4), Level.DRAIN, Action.CONTACT_SUPPORT, Service.DRAIN_NOW),
        (volta(0, 15), Level.WARN, Action.CONTACT_SUPPORT, Service.KEEP),
        (volta(double=NA), Level.UNKNOWN, Action.NONE, Service.KEEP),
        (node(gpu(2, remap=UNSUPPORTED, retired=NA)), Level.UNKNOWN, Action.NONE, Service.KEEP),
    ],
)
def test_faults(machine: Node, level: Level, action: Action, service: Service) -> None:
    (finding,) = judged(machine)
    assert (finding.level, finding.action, finding.service, finding.device) == (level, action, service, ADDRESSES[2])


def test_quiet() -> None:
    assert judged(node()) == []  # rows are remapped here: NVML answers NOT_SUPPORTED about pages
    assert judged(volta(59, 4)) == judged(volta(40, 14)) == []
    assert judged(volta(double=UNSUPPORTED)) == []
    assert judged(node(gpu(2, lost=True, remap=NA))) == []


def test_limits_are_the_site_s() -> None:
    assert judged(volta(9, 1), pages_max=9) and not judged(volta(0, 40), double_bit_pages=0)


def test_row_remap_leaves_such_a_gpu_alone() -> None:
    found = list(row_remap.check.findings(volta(), Past(available=True), row_remap.Params()))
    assert found == []
    dark = node(gpu(2, remap=NA, retired=NA))
    assert [f.level for f in row_remap.check.findings(dark, Past(available=True), row_remap.Params())] == [Level.UNKNOWN]


def test_row_remap_is_silent_under_mig_where_nvml_has_no_answer() -> None:
    def judged_by_row_remap(on: bool, why: str) -> list[Level]:
        machine = node(gpu(2, mig_current=on, mig_pending=on, remap=unreadable(why)))
        past = Past(available=True, readable=readable_fields(node()))
        return [f.level for f in row_remap.check.findings(machine, past, row_remap.Params())]

    assert judged_by_row_remap(True, "NVML NOT_SUPPORTED (3)") == []
    assert judged_by_row_remap(False, "NVML NOT_SUPPORTED (3)") == [Level.DRAIN]
    assert judged_by_row_remap(True, "NVML UNKNOWN (999)") == [Level.DRAIN]


def test_mode() -> None:
    assert check.mode is Mode.ENFORCE
    assert [f.level for f in judged(node(gpus=NA))] == [Level.UNKNOWN]
