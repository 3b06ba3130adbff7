"""Checks that the declared file systems have bytes and inodes left for users, as statfs(2) counts them.

Only declared file systems are judged, because a job's full tmpfs or a squashfs image (which is always full) is no fault of the
node. A separate process calls statfs. If that call does not return, `hung_mounts` drains. An old number may be wrong now, so a
file system that has not answered for a minute is UNKNOWN. A file system that does not count inodes (btrfs, most network file
systems) reports 0 of 0 inodes. The check then does not judge inodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.finding import Finding, Level, Mode, Service
from fairlead.model.host_facts import Space, Wanted
from fairlead.model.unread import host_of, unread

Percent = Annotated[float, Meta(ge=0, le=100)]
_STALE_SECONDS = 60.0
Path = Annotated[str, Meta(pattern=r"^/[^\x00\n]*(?!\n)$")]


class Params(CheckParams, frozen=True, kw_only=True):
    paths: Annotated[tuple[Path, ...], Meta(description="Directories whose file systems are judged, such as /, /tmp, /var.")] = ()
    free_percent_warn: Annotated[Percent, Meta(description="The check warns below this percentage of free bytes.")] = 10.0
    free_percent_drain: Annotated[
        Percent, Meta(description="The check drains below this percentage of free bytes. 0: never.")
    ] = 1.0
    free_inodes_percent_warn: Annotated[Percent, Meta(description="The check warns below this percentage of free inodes.")] = 10.0
    free_inodes_percent_drain: Annotated[
        Percent, Meta(description="The check drains below this percentage of free inodes. 0: never.")
    ] = 1.0


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    if not params.paths:
        return
    for host in host_of(node):
        if isinstance(host, Finding):
            yield host
        elif isinstance(host.spaces, Missing):
            yield unread("the declared file systems", host.spaces)
        else:
            known = {space.path: space for space in host.spaces}
            for path in params.paths:
                if path not in known:
                    yield Finding(level=Level.UNKNOWN, device=path, summary=f"{path} was not asked for")
                else:
                    yield from _space(known[path], params)


def _space(space: Space, params: Params) -> Iterator[Finding]:
    if space.waiting_seconds >= _STALE_SECONDS:
        silent = unreadable(f"statfs waits for {space.waiting_seconds:.0f} s")
        yield unread(f"the free space of {space.path}", silent, space.path)
        return
    for what, free, total, warn, drain in (
        ("bytes", space.available_bytes, space.total_bytes, params.free_percent_warn, params.free_percent_drain),
        ("inodes", space.free_inodes, space.total_inodes, params.free_inodes_percent_warn, params.free_inodes_percent_drain),
    ):
        if isinstance(free, Missing) or isinstance(total, Missing):
            yield unread(f"the free {what} of {space.path}", free if isinstance(free, Missing) else total, space.path)  # type: ignore[arg-type]
            continue
        if not total:
            continue
        percent = 100 * free / total
        if percent >= warn:
            continue
        bad = percent < drain
        yield Finding(
            level=Level.DRAIN if bad else Level.WARN,
            device=space.path,
            summary=f"{space.path} has {percent:.1f} % of its {what} left",
            evidence=(f"{free} of {total} {what}",),
            service=Service.DRAIN_AFTER_JOB if bad else Service.KEEP,
            fault=what,
        )


def wants(params: Params) -> Wanted:
    """Return a ``Wanted`` with the declared paths."""
    return Wanted(mounts=params.paths)


check = Check(
    summary="Declared file systems have bytes and inodes left",
    params=Params,
    judge=judge,
    mode=Mode.OBSERVE,
    confirm=2,
    confirm_of=3,
    slow=True,
    wants=wants,
)
