"""Makes the item of one setting in the report of apply."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fairlead.apply.apply_report import AppliedStep, Item
from fairlead.host import change as changing
from fairlead.model import tuned_profile
from fairlead.model.change import AnyChange, Disruption, File, Layer, Packages
from fairlead.model.facts import Node
from fairlead.model.setting import Setting

NEXT_STEP = {
    "idle": "run it again when no job runs here",
    "draining": "drain the node in Slurm, then run `fairlead apply --draining` there; the running jobs keep their GPUs",
    "drain": "drain the node in Slurm, wait for its jobs to end, then run `fairlead apply --drained` there",
    "reboot": "takes effect with a reboot; drain the node in Slurm first",
}


def item(
    name: str,
    setting: Setting,
    *,
    planned: tuple[AnyChange, ...],
    todo: tuple[AnyChange, ...],
    outcomes: tuple[changing.ChangeOutcome, ...],
    rest: tuple[AnyChange, ...] | Item,
    dry_run: bool,
) -> Item:
    """Return the item of one setting after the run.

    planned: all changes of the plan. todo: the changes that could be made now. outcomes: the outcomes of ``todo``. rest: the
    changes of a second plan after the run, or an item with the reason if the second plan could not be made.
    """
    steps = _steps(planned, outcomes)
    if isinstance(rest, Item):
        return msgspec.structs.replace(rest, setting=name, state="failed", steps=steps)
    state, message = _state(planned, todo, outcomes, rest, dry_run=dry_run)
    pending = _pending(rest)
    layers = {c.layer for c in rest}
    unwritten = Layer.PERSISTED in layers or any(isinstance(c, File | Packages) for c in rest)
    hints = [o.hint for o in _failures(outcomes) or _waiting(outcomes) if o.hint]
    return Item(
        setting=name,
        state=state,
        persisted="boot" if setting.volatile else "no" if unwritten else "yes",
        effective="no" if layers & {Layer.EFFECTIVE, Layer.PENDING_REBOOT} else "yes",
        pending=pending,
        message=message,
        hint=hints[0] if hints else NEXT_STEP.get(pending, "") if state == "deferred" else "",
        steps=steps,
    )


def with_second_writer(item: Item, after: Node) -> Item:
    """Add a hint if tuned may overwrite the values of this item."""
    writer = tuned_profile.second_writer(after.texts) if item.steps and not item.hint else ""
    return msgspec.structs.replace(item, hint=f"{writer} and may set it back: declare settings.tuned") if writer else item


def _failures(outcomes: tuple[changing.ChangeOutcome, ...]) -> list[changing.ChangeOutcome]:
    return [o for o in outcomes if not o.done and not o.skipped]


def _waiting(outcomes: tuple[changing.ChangeOutcome, ...]) -> list[changing.ChangeOutcome]:
    return [o for o in outcomes if not o.done and o.skipped]


def _state(
    planned: tuple[AnyChange, ...],
    todo: tuple[AnyChange, ...],
    outcomes: tuple[changing.ChangeOutcome, ...],
    rest: tuple[AnyChange, ...],
    *,
    dry_run: bool,
) -> tuple[str, str]:
    """Return the state and the message of an item."""
    not_now = {changing.target(c) for c in planned if c not in todo}
    without_effect = [c for c in rest if changing.target(c) not in not_now]
    offline = any(o.skipped and o.done for o in outcomes)
    if failures := _failures(outcomes):
        return "failed", _first([o.message for o in failures])
    if waiting := _waiting(outcomes):
        return "deferred", _first([o.message for o in waiting])
    if not planned:
        return "same", ""
    if dry_run:
        return ("would_change" if todo else "deferred"), _first([c.why for c in planned])
    if without_effect and not offline:
        return "failed", "did not take effect: " + _first([c.why for c in without_effect])
    if len(todo) < len(planned):
        return "deferred", _first([c.why for c in planned if c not in todo])
    return "changed", _first([c.why for c in planned])


def _steps(planned: tuple[AnyChange, ...], outcomes: tuple[changing.ChangeOutcome, ...]) -> tuple[AppliedStep, ...]:
    results = {id(o.change): o for o in outcomes}
    return tuple(
        AppliedStep(
            target=changing.target(c),
            why=c.why,
            layer=c.layer,
            disruption=c.disruption,
            diff=changing.diff(c),
            done=results[id(c)].done if id(c) in results else None,
            message=results[id(c)].message if id(c) in results else "",
        )
        for c in planned
    )


def _pending(rest: tuple[AnyChange, ...]) -> str:
    """Return what the most disruptive of the remaining changes waits for, or "" if none waits."""
    waits = [c.disruption.value for c in rest if c.disruption is not Disruption.NONE]
    return max(waits, key=[d.value for d in Disruption].index, default="")


def _first(words: Sequence[str]) -> str:
    """Return the first of these texts, and how many other different texts there are."""
    different = len(set(words))
    return words[0] + (f" (and {different - 1} more)" if different > 1 else "")
