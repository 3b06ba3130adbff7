"""Switches the daemon tuned off, or runs it with one profile.

Like fairlead, tuned sets the CPU governor, huge pages, NUMA balancing and sysctls. If two programs write different values, each
undoes the other's work. By default fairlead therefore stops tuned. Alternatively the site declares one profile for tuned, and
declares no fairlead setting for a value that this profile sets. Source: tuned(8), tuned-adm(8). /etc/tuned/active_profile has the
profile's name, and /etc/tuned/profile_mode says whether a person chose it.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model.change import AnyChange, File, Layer, Unit
from fairlead.model.facts import Missing, Node
from fairlead.model.setting import Setting, Want
from fairlead.model.tuned_profile import COMM, PROFILE
from fairlead.model.unit import PREFIX, unit_seen

UNIT = "tuned.service"
MODE = "/etc/tuned/profile_mode"


class TunedWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    profile: Annotated[
        str, Meta(pattern=r"^[a-z0-9_.-]{0,64}$", description="The profile that tuned runs with. If empty, tuned does not run.")
    ] = ""


class Observed(Struct, frozen=True):
    """Holds what was read. ``running`` says whether a tuned daemon runs. ``profile`` is the active profile, or None if tuned
    never had a profile. ``mode`` is auto or manual. ``absent`` is the reason why systemd cannot run tuned's unit, or "". In a
    machine tree and in an image it is always ""."""

    running: bool
    profile: str | None
    mode: str | None
    absent: str = ""


def observe(node: Node) -> Observed | Missing:
    running, profile, mode = node.text(COMM), node.text(PROFILE), node.text(MODE)
    for value in (running, profile, mode):
        if isinstance(value, Missing):
            return value
    unit = unit_seen(node, UNIT)
    if isinstance(unit, Missing):
        return unit
    known = node.text(f"{PREFIX}{UNIT}") is not None
    absent = "" if not known else "masked" if unit.load == "masked" else "" if unit.installed else "not installed"
    return Observed(running is not None, None if profile is None else str(profile), None if mode is None else str(mode), absent)


def plan(want: TunedWant, observed: Observed) -> tuple[AnyChange, ...]:
    now = (observed.profile or "").strip()
    if not want.profile:
        if not observed.running:
            return ()
        why = f"tuned runs with the profile {now or 'it chose itself'} and sets what fairlead declares; it should not run"
        return (Unit(setting="tuned", why=why, name=UNIT, enabled=False, active=False),)
    if observed.absent:
        hint = "install tuned and unmask its unit, or declare no profile for this node"
        raise ConfigError("node.json", "settings.tuned.profile", f"{UNIT} is {observed.absent} here", hint=hint)
    changes: list[AnyChange] = []
    for path, text, before in ((PROFILE, f"{want.profile}\n", observed.profile), (MODE, "manual\n", observed.mode)):
        if before != text:
            why = f"tuned's profile is {now or 'not chosen'}, wanted {want.profile}"
            if path == MODE:
                why = "tuned may choose another profile by itself"
            changes.append(File(setting="tuned", why=why, layer=Layer.PERSISTED, path=path, content=text, before=before))
    if changes or not observed.running:
        why = changes[0].why if changes else f"tuned does not run, wanted with the profile {want.profile}"
        changes.append(Unit(setting="tuned", why=why, name=UNIT, enabled=True, restart=True))
    return tuple(changes)


setting = Setting(
    summary="tuned: not running, or running with one declared profile",
    group="cpu",
    want=TunedWant,
    observe=observe,
    plan=plan,
    reads=(COMM, PROFILE, MODE, f"{PREFIX}{UNIT}"),
    as_wanted=lambda want: {COMM: "tuned\n"} if want.profile else {},
)
