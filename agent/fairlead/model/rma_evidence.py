"""Adds the details that a vendor asks for when a GPU is returned (RMA) to every finding with the action contact_support."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Action, Finding


def with_rma_details(finding: Finding, node: Node) -> Finding:
    """Return the finding with evidence of its GPU: those of serial, part number, VBIOS and InfoROM version that can be read."""
    if finding.action is not Action.CONTACT_SUPPORT or isinstance(node.gpus, Missing):
        return finding
    for gpu in node.gpus:
        if gpu.pci and gpu.pci == finding.device:
            named = {
                "serial": gpu.serial,
                "part": gpu.details.board_part_number,
                "VBIOS": gpu.details.vbios_version,
                "InfoROM": gpu.details.inforom_image_version,
            }
            words = ", ".join(f"{name} {value}" for name, value in named.items() if isinstance(value, str))
            return replace(finding, evidence=(*finding.evidence, f"for an RMA: {words}")) if words else finding
    return finding
