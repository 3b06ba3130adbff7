"""Checks that the systemd units that this node needs are active.

A separate process lists all units with one call (``systemctl list-units``; systemctl(1): LOAD, ACTIVE, SUB). If systemd does not
answer, the check reports this, and the agent does not wait. A wanted unit is healthy when it is active or reloading. A unit that
is starting or stopping counts only after several bad sweeps. A unit that crashes again and again ("auto-restart") is not healthy.
If nothing has loaded a unit, systemd does not list it.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Action, Finding, Level, Mode, Service
from fairlead.model.host_facts import UnitState, Wanted
from fairlead.model.unread import host_of, unread

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9@._:\\-]+\.[a-z]+(?!\n)$")]


class Params(CheckParams, frozen=True, kw_only=True):
    wanted: Annotated[
        tuple[Name, ...], Meta(description="Units that have to be active, such as slurmd.service, nvidia-persistenced.service.")
    ] = ()
    failed: Annotated[bool, Meta(description="The check warns about any unit that failed.")] = False
    failed_ignore: Annotated[
        tuple[str, ...], Meta(description="Names of units (shell patterns) that `failed` does not report.")
    ] = (
        "user@*",
        "run-user-*",
    )


def _finding(level: Level, unit: str, summary: str, evidence: str = "") -> Finding:
    drain = level is Level.DRAIN
    return Finding(
        level=level,
        device=unit,
        summary=summary,
        evidence=(evidence,) if evidence else (),
        action=Action.PROVISION if drain else Action.NONE,
        service=Service.DRAIN_AFTER_JOB if drain else Service.KEEP,
    )


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    if not params.wanted and not params.failed:
        return
    for host in host_of(node):
        if isinstance(host, Finding):
            yield host
        elif isinstance(host.units, Missing):
            yield unread("systemd's units", host.units)
        elif not host.units:
            yield Finding(level=Level.UNKNOWN, summary="systemd lists no units")
        else:
            loaded = {u.name: u for u in host.units}
            for name in params.wanted:
                yield from _wanted(name, loaded.get(name))
            if params.failed:
                yield from _failed(host.units, params)


def _wanted(name: str, unit: UnitState | None) -> Iterator[Finding]:
    if unit is None:
        yield _finding(Level.DRAIN, name, f"{name} does not run", "not loaded")
    elif unit.load != "loaded":
        yield _finding(Level.DRAIN, name, f"{name} is {unit.load}")
    elif unit.active not in ("active", "reloading", "refreshing") or unit.sub == "auto-restart":
        yield _finding(Level.DRAIN, name, f"{name} is {unit.active} ({unit.sub})")


def _failed(units: tuple[UnitState, ...], params: Params) -> Iterator[Finding]:
    for unit in units:
        known = unit.name in params.wanted or any(fnmatch.fnmatchcase(unit.name, p) for p in params.failed_ignore)
        if unit.active == "failed" and not known:
            yield _finding(Level.WARN, unit.name, f"{unit.name} failed ({unit.sub})")


def wants(params: Params) -> Wanted:
    """Return a ``Wanted`` with systemd's list of units if the parameters judge any unit."""
    return Wanted(units=bool(params.wanted or params.failed))


check = Check(
    summary="systemd units that this node needs are active",
    params=Params,
    judge=judge,
    mode=Mode.OBSERVE,
    confirm=2,
    confirm_of=3,
    boot_grace_seconds=300,
    slow=True,
    wants=wants,
)
