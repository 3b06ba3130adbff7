"""Stops services that a compute node does not need, and starts those that it must have.

Every service that runs beside a job (indexers, mail, printers, update timers) takes time from one rank, and all other ranks wait
for it. A unit in ``off`` is stopped and disabled, together with the sockets, timers and paths that would start it again. A unit
in ``masked`` is stopped and masked, so that no other unit can start it (systemd.unit(5)). A unit in ``on`` is enabled and
started. A unit in ``off`` or ``masked`` need not be installed. A unit in ``on`` that is not installed is an error. Sources:
systemctl(1), systemd.unit(5).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model.change import AnyChange, File, Layer, Unit
from fairlead.model.facts import Missing, Node
from fairlead.model.setting import Setting, Want
from fairlead.model.unit import UnitSeen, reads_of, unit_seen

FOLDER = "/etc/systemd/system"
#: Without one of these units, Slurm, the administrators or fairlead can no longer reach the node.
NEEDED = ("slurmd", "munge", "ssh", "sshd", "dbus", "systemd-journald", "systemd-logind", "systemd-udevd", "fairlead-agent",
          "fairlead-apply")  # fmt: skip

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9:_.@\\-]{1,200}\.(service|socket|timer|path|target|mount)(?!\n)$")]


class ServicesWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    off: Annotated[tuple[Name, ...], Meta(description='Units that are stopped and disabled, such as "apt-daily.timer".')] = ()
    masked: Annotated[tuple[Name, ...], Meta(description="Units that are stopped and masked.")] = ()
    on: Annotated[tuple[Name, ...], Meta(description="Units that are enabled and run.")] = ()


class Observed(Struct, frozen=True):
    """Holds what was read. ``units`` has the units by name. ``files`` has the text of each unit's file in ``FOLDER``, or None if
    there is no file. ``broken`` has the units that could not be read, with the reason."""

    units: dict[str, UnitSeen]
    files: dict[str, str | None]
    broken: dict[str, Missing]


def reads_for(want: ServicesWant) -> tuple[str, ...]:
    names = (*want.off, *want.masked, *want.on)
    return (*reads_of(names), *(f"{FOLDER}/{name}" for name in want.masked))


def observe(node: Node) -> Observed | Missing:
    units: dict[str, UnitSeen] = {}
    files: dict[str, str | None] = {}
    broken: dict[str, Missing] = {}
    for path, text in node.texts.items():
        if path.startswith("/@unit/"):
            unit = unit_seen(node, path.removeprefix("/@unit/"))
            if isinstance(unit, Missing):
                broken[path.removeprefix("/@unit/")] = unit
            else:
                units[unit.name] = unit
        elif path.startswith(f"{FOLDER}/"):
            name = path.removeprefix(f"{FOLDER}/")
            if isinstance(text, Missing):
                broken[name] = text
            else:
                files[name] = text
    return Observed(units, files, broken)


def _refuse(key: str, name: str, words: str, hint: str) -> ConfigError:
    return ConfigError("node.json", f"settings.services.{key}", f"{name}: {words}", hint=hint)


def plan(want: ServicesWant, observed: Observed) -> tuple[AnyChange, ...]:
    _check(want)
    changes: list[AnyChange] = []
    for key, names in (("off", want.off), ("masked", want.masked), ("on", want.on)):
        for name in names:
            if name in observed.broken:
                raise _refuse(key, name, f"cannot be read: {observed.broken[name].detail}", "is systemd running here?")
            unit = observed.units.get(name, UnitSeen(name, "not-found", "inactive", "", ()))
            if key == "on":
                changes += _on(unit)
            elif key == "off":
                changes += _off(unit)
            else:
                changes += _masked(unit, observed.files.get(name))
    return tuple(changes)


def _check(want: ServicesWant) -> None:
    for key, names in (("off", want.off), ("masked", want.masked)):
        for name in names:
            if name.rpartition(".")[0] in NEEDED:
                raise _refuse(key, name, "a node cannot do without it", "take it off the list")
    twice = sorted(set(want.on) & {*want.off, *want.masked})
    if twice:
        raise _refuse("on", twice[0], "is wanted on and off", "declare it once")


def _on(unit: UnitSeen) -> list[AnyChange]:
    if not unit.installed:
        raise _refuse("on", unit.name, "is not installed", "install its package, or take it off the list")
    if unit.load == "masked":
        raise _refuse("on", unit.name, "is masked", f"`systemctl unmask {unit.name}`")
    static = unit.file in ("static", "indirect", "generated", "alias")
    enabled = None if unit.starts_at_boot or static else True
    if enabled is None and unit.runs:
        return []
    why = f"{unit.name} is {unit.active} and {unit.file or 'not enabled'}, wanted running and enabled"
    return [Unit(setting="services", why=why, name=unit.name, enabled=enabled, active=None if unit.runs else True)]


def _off(unit: UnitSeen) -> list[AnyChange]:
    changes: list[AnyChange] = []
    if unit.load == "masked" and not unit.runs:
        return []
    if unit.runs:
        for trigger in unit.triggers:  # triggers are stopped before the unit, because a socket would start its service again
            why = f"{trigger} starts {unit.name}, which should not run"
            changes.append(Unit(setting="services", why=why, name=trigger, enabled=False, active=False))
    if unit.runs or unit.starts_at_boot:
        why = f"{unit.name} {'runs' if unit.runs else 'starts at boot'}, and should not"
        enabled = False if unit.starts_at_boot else None
        changes.append(Unit(setting="services", why=why, name=unit.name, enabled=enabled, active=False if unit.runs else None))
    return changes


def _masked(unit: UnitSeen, file: str | None) -> list[AnyChange]:
    changes: list[AnyChange] = []
    if unit.runs:
        why = f"{unit.name} runs, and should not"
        changes.append(Unit(setting="services", why=why, name=unit.name, active=False))
    if unit.load == "masked" or not unit.installed:
        return changes
    if file:
        words = f"has a unit file of its own, {FOLDER}/{unit.name}, which a mask would replace"
        raise _refuse("masked", unit.name, words, "remove it, or name the unit in `off`")
    path, why = f"{FOLDER}/{unit.name}", f"{unit.name} is {unit.load}, wanted masked"
    changes.append(File(setting="services", why=why, layer=Layer.PERSISTED, path=path, content="", before=file))
    changes.append(Unit(setting="services", why=why, name=unit.name, daemon_reload=True))
    return changes


setting = Setting(
    summary="Services that do not run, and those that must",
    want=ServicesWant,
    observe=observe,
    plan=plan,
    live=True,
    reads_for=reads_for,
    group="services",
)
