"""Reads from a node's facts what a vendor asks for about a GPU card, and when which Xid was seen, for the service record."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from fairlead.fleet.service_record import DAY_SECONDS, CardDetails, XidSeen
from fairlead.model.device import listed_gpus
from fairlead.model.facts import Ecc, Gpu, Node, RowRemap
from fairlead.model.gpu_health import RetiredPages

CARDS_MAX, XIDS_MAX = 64, 500
KEEP_DAYS = 400
TEXT_MAX = 128


def details_of(known: tuple[CardDetails, ...], node: Node, slots: Mapping[str, str], unix: float) -> tuple[CardDetails, ...]:
    """Return the details of each address. What was read earlier stays where nothing can be read now: a GPU that is lost gives no
    serial number. ``slots``: the chassis slot by PCI address without the function."""
    found = {each.pci: each for each in known}
    for gpu in listed_gpus(node):
        if gpu.pci and (not gpu.lost or gpu.pci not in found):
            new = _details(gpu, slots, unix)
            if new.serial or new.uuid or gpu.pci not in found:
                found[gpu.pci] = new
    return tuple(found.values())[-CARDS_MAX:]


def _details(gpu: Gpu, slots: Mapping[str, str], unix: float) -> CardDetails:
    remap, retired, details = gpu.remap, gpu.retired, gpu.details
    return CardDetails(
        pci=gpu.pci,
        read_unix=unix,
        position=gpu.index if gpu.index >= 0 else None,
        serial=_text(gpu.serial),
        uuid=_text(gpu.uuid),
        product=_text(gpu.name),
        part_number=_text(details.board_part_number),
        vbios=_text(details.vbios_version),
        inforom=_text(details.inforom_image_version),
        slot=slots.get(gpu.pci.rpartition(".")[0], "")[:TEXT_MAX],
        remapped=(remap.corrected, remap.uncorrected) if isinstance(remap, RowRemap) else None,
        remap_pending=remap.pending if isinstance(remap, RowRemap) else None,
        remap_failed=remap.failed if isinstance(remap, RowRemap) else None,
        retired=_pages(retired) if isinstance(retired, RetiredPages) else None,
        uncorrected_errors=_number(gpu.ecc.aggregate_uncorrected) if isinstance(gpu.ecc, Ecc) else None,
    )


def _pages(retired: RetiredPages) -> tuple[int, int] | None:
    single, double = _number(retired.single_bit), _number(retired.double_bit)
    return None if single is None or double is None else (single, double)


def _text(value: object) -> str:
    return value[:TEXT_MAX] if isinstance(value, str) else ""


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def xids_of(
    known: tuple[XidSeen, ...], counts: Mapping[tuple[str, str, str], int], boot: str, unix: float
) -> tuple[XidSeen, ...]:
    """Return what was seen before with the counts of this boot: by kind, address and code."""
    found = {(x.boot, x.kind, x.pci, x.code): x for x in known if x.last_unix > unix - KEEP_DAYS * DAY_SECONDS}
    for (kind, pci, code), count in counts.items():
        key = (boot, kind, pci, code)
        before = found.pop(key, None)  # the newest come last
        if before is None:
            new = XidSeen(boot=boot, kind=kind, pci=pci, code=code, count=count, first_unix=unix, last_unix=unix)
            found[key] = new
        else:
            found[key] = replace(before, count=count, last_unix=unix) if count > before.count else before
    return tuple(sorted(found.values(), key=lambda x: x.last_unix))[-XIDS_MAX:]
