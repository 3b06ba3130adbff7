"""Boards that were swapped or moved, and boards that cannot say which they are."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.checks import gpu_identity
from fairlead.model.check_definition import Past
from fairlead.model.device import gpu_cards_of, readable_fields
from fairlead.model.facts import Node
from fairlead.model.finding import Finding, Level, Service
from tests.checks.hosts import judged
from tests.checks.nodes import ADDRESSES, NA, gpu, node


def identity(machine: Node, **serials: str) -> list[Finding]:
    known = gpu_cards_of(node()) | {ADDRESSES[int(place[1:])]: board for place, board in serials.items()}
    return list(gpu_identity.check.findings(machine, Past(available=True, gpu_cards=known), gpu_identity.Params()))


def test_a_swapped_board() -> None:
    (finding,) = identity(node(gpu(2, serial="999", uuid="GPU-999")))
    assert (finding.level, finding.device, finding.service) == (Level.WARN, ADDRESSES[2], Service.KEEP)
    assert "another card" in finding.summary and "1651223002 before, 999 now" in finding.evidence[0]
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
    first_look = gpu_identity.check.findings(node(), Past(available=True), gpu_identity.Params())
    assert list(first_look) == []
    (once,) = gpu_identity.check.findings(node(), Past(), gpu_identity.Params())
    assert once.needs_history and once.level is Level.OK


def test_a_board_that_says_nothing_of_itself() -> None:
    (finding,) = identity(node(gpu(2, serial=NA, uuid=NA)))
    assert finding.level is Level.UNKNOWN
    assert identity(node(gpu(2, serial=NA)), _2="GPU-00000002") == []


HERE = ADDRESSES[5]
YESTERDAY = Past(available=True, readable=readable_fields(node()), gpu_cards=gpu_cards_of(node()))


def test_a_serial_that_went_dark_is_no_swapped_board() -> None:
    (found,) = judged("gpu_identity", node(gpu(5, serial=NA)), YESTERDAY)
    assert (found.level, found.device) == (Level.UNKNOWN, HERE) and "swapped" not in found.summary
    (found,) = judged("gpu_identity", node(gpu(5, serial="1999")), YESTERDAY)
    assert found.level is Level.WARN and "swapped" in found.summary
    by_uuid = replace(YESTERDAY, gpu_cards={HERE: "GPU-00000005"})
    assert judged("gpu_identity", node(gpu(5, serial=NA)), by_uuid) == []


def test_a_board_that_moved_to_a_slot_where_none_was() -> None:
    moved = node(gpus=(*node().gpus[:5], gpu(5, pci="0000:e3:00.0"), *node().gpus[6:]))  # type: ignore[index]
    (found,) = judged("gpu_identity", moved, YESTERDAY)
    assert (found.level, found.device) == (Level.WARN, "0000:e3:00.0") and f"was in slot {HERE}" in found.summary
    remembered = replace(YESTERDAY, gpu_cards={**YESTERDAY.gpu_cards, "0000:e3:00.0": "1651223005"})
    assert [f.evidence_id for f in judged("gpu_identity", moved, remembered)] == [found.evidence_id]
    cleared = {slot: board for slot, board in remembered.gpu_cards.items() if board != "1651223005"}
    assert judged("gpu_identity", moved, replace(YESTERDAY, gpu_cards=cleared)) == []
