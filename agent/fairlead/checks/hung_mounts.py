"""Checks that declared mounts are mounted and answer.

When the server of a network file system does not answer, every process that uses the file system waits in uninterruptible sleep.
So a separate process calls statfs(2) on each declared mount. This call may last several sweeps, and the agent never starts a
second call for the same mount. Mounts that are not declared are not touched, since a user's FUSE mount may hang without any fault
of the node. The check takes the mounted file systems from PID 1's mount table. If a declared path is below an automount, the
statfs call mounts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Finding, Level, Mode
from fairlead.model.host_facts import Host, MountPoint, Wanted
from fairlead.model.unread import host_of, unread

Path = Annotated[str, Meta(pattern=r"^/[^\x00\n]*(?!\n)$")]


class Params(CheckParams, frozen=True, kw_only=True):
    paths: Annotated[tuple[Path, ...], Meta(description="Mount points that have to be mounted and have to answer.")] = ()
    deadline_seconds: Annotated[
        float, Meta(ge=1, le=600, description="A mount that does not answer for this long counts as hung.")
    ] = 10.0


def _finding(level: Level, path: str, summary: str, *evidence: str) -> Finding:
    return Finding(level=level, device=path, summary=summary, evidence=evidence)


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    if not params.paths:
        return
    for host in host_of(node):
        if isinstance(host, Finding):
            yield host
            return
        if isinstance(host.mounts, Missing):
            yield unread("the mount table", host.mounts)
        yield from _judged(host, params)


def _judged(host: Host, params: Params) -> Iterator[Finding]:
    if isinstance(host.spaces, Missing):
        yield unread("the declared mounts", host.spaces)
        return
    table = {} if isinstance(host.mounts, Missing) else {m.path: m for m in host.mounts}
    known = {s.path: s for s in host.spaces}
    for path in params.paths:
        if table and path not in table and not _automounted(path, table):
            yield _finding(Level.DRAIN, path, f"{path} is not mounted")
            continue
        space = known.get(path)
        if space is None:
            yield _finding(Level.UNKNOWN, path, f"{path} was not asked")
        elif space.waiting_seconds >= params.deadline_seconds:
            yield _finding(Level.DRAIN, path, f"{path} does not answer", f"statfs waits for {space.waiting_seconds:.0f} s")
        elif space.failed:
            yield _finding(Level.DRAIN, path, f"{path} cannot be used", space.failed)
        elif isinstance(space.total_bytes, Missing):  # statfs has not returned yet
            yield unread(path, space.total_bytes, path)


def _automounted(path: str, table: dict[str, MountPoint]) -> bool:
    return any(m.kind == "autofs" and path.startswith(m.path.rstrip("/") + "/") for m in table.values())


def wants(params: Params) -> Wanted:
    """Return a ``Wanted`` with the declared mounts."""
    return Wanted(mounts=params.paths)


check = Check(
    summary="Declared mounts are mounted and answer",
    params=Params,
    judge=judge,
    mode=Mode.OBSERVE,
    confirm=2,
    confirm_of=3,
    boot_grace_seconds=300,
    slow=True,
    wants=wants,
)
