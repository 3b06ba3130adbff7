"""Makes exactly one program set the clock, from the declared servers.

Two programs would set the clock to different times in turn. Without any program the clock drifts. munge refuses a credential
whose time differs from the clock by more than five minutes. fairlead writes the servers to its own drop-in and does not change
the program's own file. The check ``clock`` reads from the kernel whether the clock is synchronised (adjtimex(2)). The program
needs minutes to synchronise the clock. Sources: chrony.conf(5) (confdir, sourcedir), timesyncd.conf(5), ntp.conf(5), which has no
drop-ins.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model.change import AnyChange, File, Layer, Unit
from fairlead.model.facts import Missing, Node
from fairlead.model.setting import Setting, Want
from fairlead.model.unit import UnitSeen, reads_of, unit_seen

#: Holds the unit names of each program. Debian's names come first, then the names of the EL family.
UNITS = {
    "chrony": ("chrony.service", "chronyd.service"),
    "systemd-timesyncd": ("systemd-timesyncd.service",),
    "ntp": ("ntpsec.service", "ntp.service", "ntpd.service"),
}
CHRONY = "/etc/chrony/conf.d/90-fairlead.conf"  # chrony.conf of Debian and Ubuntu has "confdir /etc/chrony/conf.d"
TIMESYNCD = "/etc/systemd/timesyncd.conf.d/90-fairlead.conf"
CHRONY_CONF, CHRONY_CONF_EL = "/etc/chrony/chrony.conf", "/etc/chrony.conf"
_HEAD = "# Written by fairlead (setting time_sync); changes made here are put back.\n"

Server = Annotated[str, Meta(pattern=r"^[A-Za-z0-9.:_-]{1,253}(?!\n)$")]


class TimeSyncWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    service: Annotated[Literal["chrony", "systemd-timesyncd", "ntp"], Meta(description="The program that sets the clock.")] = (
        "chrony"
    )
    servers: Annotated[
        tuple[Server, ...],
        Meta(max_length=16, description="Time servers of that program. If empty, those of its own configuration."),
    ] = ()


class Observed(Struct, frozen=True):
    """Holds what was read. ``units`` has the units by name. ``files`` has the texts of fairlead's drop-ins and of chrony's own
    file, by path, with None for a file that does not exist."""

    units: dict[str, UnitSeen]
    files: dict[str, str | None]


def observe(node: Node) -> Observed | Missing:
    units: dict[str, UnitSeen] = {}
    for name in (n for names in UNITS.values() for n in names):
        unit = unit_seen(node, name)
        if isinstance(unit, Missing):
            return unit
        units[name] = unit
    files: dict[str, str | None] = {}
    for path in (CHRONY, TIMESYNCD, CHRONY_CONF, CHRONY_CONF_EL):
        text = node.text(path)
        if isinstance(text, Missing):
            return text
        files[path] = text
    return Observed(units, files)


def _refuse(key: str, words: str, hint: str) -> ConfigError:
    return ConfigError("node.json", f"settings.time_sync.{key}", words, hint=hint)


def plan(want: TimeSyncWant, observed: Observed) -> tuple[AnyChange, ...]:
    own = next((u for n in UNITS[want.service] if (u := observed.units[n]).installed and u.load != "masked"), None)
    if own is None:
        raise _refuse("service", f"{want.service} is not installed, or is masked", f"install {want.service}, or declare another")
    changes: list[AnyChange] = []
    for service, names in UNITS.items():
        for unit in (observed.units[n] for n in names):
            if service != want.service and (unit.runs or unit.starts_at_boot):
                why = f"{unit.name} sets the clock too; {want.service} is the one that should"
                stop = False if unit.runs else None
                changes.append(Unit(setting="time_sync", why=why, name=unit.name, enabled=False, active=stop))
    files = _files(want, observed)
    changes += files
    if files:
        changes.append(Unit(setting="time_sync", why=files[0].why, name=own.name, enabled=True, restart=True))
    elif not own.runs or not own.starts_at_boot:
        why = f"{own.name} is {own.active} and {own.file or 'not enabled'}, wanted running and enabled"
        changes.append(Unit(setting="time_sync", why=why, name=own.name, enabled=True, active=True))
    return tuple(changes)


def _files(want: TimeSyncWant, observed: Observed) -> list[File]:
    wanted: dict[str, str | None] = {CHRONY: None, TIMESYNCD: None}
    if want.servers and want.service == "systemd-timesyncd":
        wanted[TIMESYNCD] = f"{_HEAD}[Time]\nNTP={' '.join(want.servers)}\n"
    elif want.servers and want.service == "chrony":
        conf = observed.files[CHRONY_CONF]
        if conf is None or "confdir /etc/chrony/conf.d" not in [" ".join(line.split()) for line in conf.splitlines()]:
            words = f"{CHRONY_CONF if conf is not None else CHRONY_CONF_EL} does not read /etc/chrony/conf.d"
            raise _refuse("servers", words, 'add the line "confdir /etc/chrony/conf.d", or leave the servers to that file')
        wanted[CHRONY] = _HEAD + "".join(f"server {s} iburst\n" for s in want.servers)
    elif want.servers:
        raise _refuse("servers", "ntp has no drop-in files", "leave the servers to /etc/ntpsec/ntp.conf, or declare chrony")
    changes = []
    for path, content in wanted.items():
        if observed.files[path] != content:
            why = f"{path} does not name the declared servers" if content else f"{path} is ours, and not wanted any more"
            changes.append(
                File(setting="time_sync", why=why, layer=Layer.PERSISTED, path=path, content=content, before=observed.files[path])
            )
    return changes


setting = Setting(
    summary="Time synchronisation: one program, its servers",
    want=TimeSyncWant,
    observe=observe,
    plan=plan,
    live=True,
    reads=(*reads_of(tuple(n for names in UNITS.values() for n in names)), CHRONY, TIMESYNCD, CHRONY_CONF, CHRONY_CONF_EL),
    group="services",
)
