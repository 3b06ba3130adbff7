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
    never had a profile. ``mode`` is auto or manual. ``absent`` is the reason why systemd cannot run tuned's unit, or "".
    ``at_boot`` says whether tuned's unit is enabled or disabled, or is None for another state. In a machine tree and in an image
    ``absent`` is always "", and ``at_boot`` is None."""

    running: bool
    profile: str | None
    mode: str | None
    absent: str = ""
    at_boot: bool | None = None


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
    at_boot = True if unit.starts_at_boot else False if unit.file == "disabled" else None
    texts = (None if profile is None else str(profile), None if mode is None else str(mode))
    return Observed(running is not None, *texts, absent, at_boot)


def plan(want: TunedWant, observed: Observed) -> tuple[AnyChange, ...]:
    now = (observed.profile or "").strip()
    if not want.profile:
        if not observed.running and not observed.at_boot:
            return ()
        why = f"tuned runs with the profile {now or 'it chose itself'} and sets what fairlead declares; it should not run"
        if not observed.running:
            why = "tuned does not run, but it starts at the next boot and sets what fairlead declares"
        return (Unit(setting="tuned", why=why, name=UNIT, enabled=False, active=False if observed.running else None),)
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
    if not changes and observed.running and observed.at_boot is False:
        why = f"tuned runs, but it does not start at the next boot, wanted with the profile {want.profile}"
        changes.append(Unit(setting="tuned", why=why, name=UNIT, enabled=True))
    elif changes or not observed.running:
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
