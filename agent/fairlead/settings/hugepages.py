"""Reserves huge pages (hugetlbfs) for programs that use them explicitly: DPDK, some MPI and storage stacks.

No other program can use the reserved memory, and Slurm's RealMemory has to be lowered by its size. So reserve huge pages only if
a program uses them. The kernel reserves only as many pages as it finds contiguous free memory for. So fairlead reads the number
again after writing it. Source: kernel documentation, admin-guide/mm/hugetlbpage.rst. The reservation is lost at reboot.
fairlead's boot unit applies it again early in the boot, while memory is not yet fragmented.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model.change import Disruption, KernelValue
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.setting import Setting, Want

FOLDER = "/sys/kernel/mm/hugepages"
PATTERN = f"{FOLDER}/hugepages-*kB/nr_hugepages"

Pages = Annotated[int, Meta(ge=0, le=1 << 24)]


class HugepagesWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pages_2_mib: Annotated[
        Pages | None, Meta(description="Reserved pages of 2 MiB on the whole node. If unset, fairlead does not change them.")
    ] = None
    pages_1_gib: Annotated[
        Pages | None, Meta(description="Reserved pages of 1 GiB on the whole node. If unset, fairlead does not change them.")
    ] = None


class Observed(Struct, frozen=True):
    """Holds the number of reserved pages by page size in KiB."""

    reserved: dict[int, int]


def observe(node: Node) -> Observed | Missing:
    reserved: dict[int, int] = {}
    for path, text in node.texts.items():
        if not path.startswith(f"{FOLDER}/hugepages-"):
            continue
        size = path.removeprefix(f"{FOLDER}/hugepages-").partition("kB/")[0]
        if isinstance(text, Missing):
            return text
        if not size.isdecimal() or text is None or not text.strip().isdecimal():
            return unreadable(f"{path}: not a number: {(text or '').strip()[:20]!r}")
        reserved[int(size)] = int(text)
    return Observed(reserved)


def plan(want: HugepagesWant, observed: Observed) -> tuple[KernelValue, ...]:
    changes: list[KernelValue] = []
    for key, size, pages in (("pages_2_mib", 2048, want.pages_2_mib), ("pages_1_gib", 1 << 20, want.pages_1_gib)):
        if pages is None:
            continue
        if size not in observed.reserved:
            seen = ", ".join(f"{s} KiB" for s in sorted(observed.reserved)) or "none"
            raise ConfigError(
                "node.json",
                f"settings.hugepages.{key}",
                f"this kernel has no huge pages of {size} KiB (it has: {seen})",
                hint="pages of 1 GiB need the CPU flag pdpe1gb",
            )
        now = observed.reserved[size]
        if now != pages:
            changes.append(
                KernelValue(
                    setting="hugepages",
                    why=f"{now} huge pages of {size} KiB are reserved, wanted {pages}",
                    disruption=Disruption.IDLE,
                    path=f"{FOLDER}/hugepages-{size}kB/nr_hugepages",
                    value=str(pages),
                    before=str(now),
                )
            )
    return tuple(changes)


setting = Setting(
    summary="Reserved huge pages",
    group="kernel",
    want=HugepagesWant,
    observe=observe,
    plan=plan,
    reads=(PATTERN,),
    disruption=Disruption.IDLE,
    volatile=True,
)
