"""Checks that the GPU cards in this node are the known ones: none was swapped, and none was moved to another slot.

The check identifies a card by its serial number (nvmlDeviceGetSerial). If the serial number cannot be read, it uses the UUID. It
compares the card at each PCI address with the card that fairlead first saw at this address (``Past.gpu_cards``). fairlead forgets
that first card only after `fairlead clear` on the device. A swap is no hardware fault. But RMA cases, strikes and error trends
follow the serial number, and an unreported swap assigns them to the wrong card. `gpu_count` reports a card that is missing.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.device import gpu_cards_of, listed_gpus
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Finding, Level, Mode
from fairlead.model.unread import unlisted

CONFIRM = "`fairlead clear` says that it was meant"


class Params(CheckParams, frozen=True, kw_only=True):
    pass


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    yield from unlisted(node)
    here = gpu_cards_of(node)
    if not past.available and here:
        yield Finding(
            level=Level.OK, summary="only the agent's history knows the GPU cards that were here before", needs_history=True
        )
    for gpu in listed_gpus(node):
        known, card = past.gpu_cards.get(gpu.pci), here.get(gpu.pci)
        if card is None and not gpu.lost:
            yield _finding(gpu.pci, Level.UNKNOWN, f"GPU {gpu.pci} says neither its serial nor its UUID")
        if card is None:
            continue
        earlier = next((slot for slot, there in past.gpu_cards.items() if there == card and slot != gpu.pci), "")
        same = card == known or _same(known, gpu.uuid)
        if (known is None or same) and not earlier:
            continue
        if isinstance(gpu.serial, Missing) and known and not known.startswith("GPU-"):
            words = f"the serial of GPU {gpu.pci} cannot be read: whether it is card {known} is not known"
            yield _finding(gpu.pci, Level.UNKNOWN, words, gpu.serial.detail)
            continue
        if earlier:
            words = f"GPU {gpu.pci} is the card that was in slot {earlier}: moved?"
        else:
            words = f"GPU {gpu.pci} is another card than before: swapped?"
        was = "none" if known is None or same else known
        yield _finding(gpu.pci, Level.WARN, words, f"{was} before, {card} now; {CONFIRM}", f"board={card}")


def _same(known: str | None, uuid: str | Missing) -> bool:
    """Return whether the recorded card was recorded by its UUID and has the UUID of this GPU, whose serial can now be read."""
    return known == uuid


def _finding(pci: str, level: Level, summary: str, evidence: str = "", evidence_id: str = "") -> Finding:
    return Finding(
        level=level,
        device=pci,
        summary=summary,
        evidence=(evidence,) if evidence else (),
        evidence_id=evidence_id,
    )


check = Check(
    summary="The GPU cards in this node are the known ones: none swapped, none in another slot",
    params=Params,
    judge=judge,
    mode=Mode.OBSERVE,
    slow=True,
)
