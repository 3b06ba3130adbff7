"""Describes a systemd unit for settings. The data come from the text ``/@unit/NAME``, the output of ``systemctl show``."""

from __future__ import annotations

from msgspec import Struct

from fairlead.model.facts import Missing, Node, unreadable

PREFIX = "/@unit/"


class UnitSeen(Struct, frozen=True):
    """Holds the state of a unit. load: loaded, masked, not-found, ... (LoadState). active: ActiveState. file: UnitFileState, or
    "" if there is none. triggers: the sockets, timers and paths that start the unit (TriggeredBy)."""

    name: str
    load: str
    active: str
    file: str
    triggers: tuple[str, ...]

    @property
    def installed(self) -> bool:
        return self.load not in ("not-found", "")

    @property
    def runs(self) -> bool:
        return self.active in ("active", "activating", "reloading")

    @property
    def starts_at_boot(self) -> bool:
        return self.file in ("enabled", "enabled-runtime", "linked", "linked-runtime")


def reads_of(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{PREFIX}{name}" for name in names)


def unit_seen(node: Node, name: str) -> UnitSeen | Missing:
    """Return the unit called ``name``. A unit for which there is no text counts as not installed."""
    text = node.text(f"{PREFIX}{name}")
    if isinstance(text, Missing):
        return text
    if text is None:
        return UnitSeen(name, "not-found", "inactive", "", ())
    values = dict(line.partition("=")[::2] for line in text.splitlines())
    if "LoadState" not in values:
        return unreadable(f"{name}: systemctl show says nothing of it")
    words = tuple(values.get("TriggeredBy", "").split())
    return UnitSeen(name, values["LoadState"], values.get("ActiveState", ""), values.get("UnitFileState", ""), words)
