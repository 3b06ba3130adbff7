"""Defines what one run of apply reports: a step for each change, an item for each setting, and the exit code."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from fairlead.errors import ExitCode
from fairlead.model.change import Disruption, Layer
from fairlead.nccl.compute_ports import Port

Phase = Literal["all", "boot"]


class AppliedStep(Struct, frozen=True, kw_only=True):
    """Describes one change of the plan. ``done`` is None if the change was not tried (a dry run, or the node is busy)."""

    target: str
    why: str
    layer: Layer
    disruption: Disruption
    diff: str
    done: bool | None = None
    message: str = ""


class Item(Struct, frozen=True, kw_only=True):
    """Describes one declared setting after the run.

    state: same, changed, would_change, deferred (a busy node, or a reboot is needed), failed, refused (the node cannot have the
    wanted value), absent (the node has no hardware or folder for the setting), not_applicable (the node has no hardware for it,
    and the profile allows this), unreadable, unmanaged, left (an image leaves the setting for the boot of the node).

    persisted: yes, no, boot (applied again at every boot), unknown. effective: yes, no, unknown (an image). pending: what the
    setting waits for: "" (nothing), idle or drain (an idle or a drained node), reboot, boot (the boot of an image).
    """

    setting: str
    state: str
    persisted: str = "unknown"
    effective: str = "unknown"
    pending: str = ""
    message: str = ""
    hint: str = ""
    steps: tuple[AppliedStep, ...] = ()


class ApplyReport(Struct, frozen=True, kw_only=True):
    """Holds what one run found and did. ``changed``: how many changes were made; in a dry run, how many would be made."""

    schema: int = 1
    node: str
    generation: int
    hash: str
    phase: Phase
    dry_run: bool
    busy: bool
    drained: bool = False
    changed: int
    failed: int
    items: tuple[Item, ...]
    ports: tuple[Port, ...] = ()  # NCCL's ports, for the comparison of all nodes of a class

    @property
    def exit_code(self) -> ExitCode:
        states = {i.state for i in self.items}
        if states & {"failed", "unreadable"}:
            return ExitCode.UNAVAILABLE
        if "refused" in states:
            return ExitCode.CONFIG
        if "deferred" in states and not self.dry_run:
            return ExitCode.TRY_AGAIN
        return ExitCode.WARN if "absent" in states else ExitCode.OK
