"""Pools of huge pages are as large as declared.

/sys/kernel/mm/hugepages/hugepages-NkB/nr_hugepages (Documentation/admin-guide/mm/hugetlbpage.rst): the kernel makes as many
as it finds memory in one piece for, which after boot may be fewer than asked, without an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, field

from fairlead.model.check import Check, CheckParams, Past
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Action, Finding, Level, Mode, Service
from fairlead.model.unread import host_of, unread

Kib = Annotated[str, Meta(pattern=r"^[1-9][0-9]{2,8}(?!\n)$")]


class Params(CheckParams, frozen=True, kw_only=True):
    pages_min_by_kib: Annotated[
        dict[Kib, Annotated[int, Meta(ge=1)]],
        Meta(description='Least number of pages by their size in KiB, such as {"2048": 1024}; empty: not judged.'),
    ] = field(default_factory=dict)


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    if not params.pages_min_by_kib:
        return
    for host in host_of("hugepages", node):
        if isinstance(host, Finding):
            yield host
            return
        if isinstance(host.huge_pages, Missing):
            yield unread("hugepages", "the pools of huge pages", host.huge_pages)
            return
        pools = {pool.size_bytes // 1024: pool for pool in host.huge_pages}
        for size, least in params.pages_min_by_kib.items():
            pool = pools.get(int(size))
            if pool is not None and isinstance(pool.total, Missing):
                yield unread("hugepages", f"the pool of {size} KiB pages", pool.total, f"{size}kB")
            elif pool is None or pool.total < least:  # type: ignore[operator]
                have = 0 if pool is None else pool.total
                yield Finding(
                    check="hugepages",
                    level=Level.DRAIN,
                    device=f"{size}kB",
                    summary=f"{have} of {least} huge pages of {size} KiB: provision",
                    evidence=("the kernel has no such pool",) if pool is None else (f"free: {pool.free}",),
                    action=Action.PROVISION,
                    service=Service.DRAIN_AFTER_JOB,
                )


check = Check(summary="Pools of huge pages are as large as declared", params=Params, judge=judge, mode=Mode.OBSERVE, slow=True)
