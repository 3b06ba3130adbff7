"""What a vendor asks for is beside every finding that says contact_support, and beside no other."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.checks import row_remap
from fairlead.model.check_definition import Past
from fairlead.model.facts import Node, RowRemap, unreadable
from fairlead.model.gpu_details import GpuDetails
from tests.checks.nodes import ADDRESSES, gpu, node

DETAILS = GpuDetails(
    board_part_number="692-2G520-0200-000", vbios_version="96.00.89.00.01", inforom_image_version="G520.0200.00.05"
)
LINE = "for an RMA: serial 1651223002, part 692-2G520-0200-000, VBIOS 96.00.89.00.01, InfoROM G520.0200.00.05"


def evidence(machine: Node) -> tuple[str, ...]:
    (finding,) = row_remap.check.findings(machine, Past(available=True), row_remap.Params())
    assert finding.device == ADDRESSES[2]
    return finding.evidence


def machine(remap: RowRemap, **other: object) -> Node:
    return node(replace(gpu(2, remap=remap), details=replace(DETAILS, **other)))


def test_a_finding_that_asks_for_an_rma_names_the_card() -> None:
    failed = RowRemap(corrected=0, uncorrected=1, pending=False, failed=True, histogram=(640, 0, 0, 0, 0))
    assert evidence(machine(failed))[-1] == LINE
    silent = evidence(machine(failed, board_part_number=unreadable("x"), vbios_version=unreadable("x")))
    assert silent[-1] == "for an RMA: serial 1651223002, InfoROM G520.0200.00.05"


def test_a_finding_that_a_reset_ends_does_not() -> None:
    pending = RowRemap(corrected=0, uncorrected=1, pending=True, failed=False, histogram=(640, 0, 0, 0, 0))
    assert not any("RMA" in line for line in evidence(machine(pending)))
