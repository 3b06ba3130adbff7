"""Keeps the system journal on disk, so that the log of a crashed node survives, and limits the journal's size.

By default the journal uses up to a tenth of the file system. It also drops lines above a rate of 10,000 in 30 s, which a broken
GPU or fabric can reach. Source: journald.conf(5). If several drop-ins set a key, the drop-in whose name sorts last wins. If a
drop-in that is read after fairlead's sets another value, fairlead reports this and does not overwrite the drop-in. fairlead
restarts the journal daemon after a change, which loses no line. The daemon has no interface to read its effective values.
fairlead takes the values of the drop-in as the effective ones.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model.change import AnyChange, File, Layer, Unit
from fairlead.model.facts import Missing, Node
from fairlead.model.setting import Setting, Want

FILE = "/etc/systemd/journald.conf.d/90-fairlead.conf"
FOLDERS = tuple(f"{folder}/systemd/journald.conf.d/" for folder in ("/etc", "/run", "/usr/lib"))
UNIT, FLUSH = "systemd-journald.service", "systemd-journal-flush.service"


class JournaldWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    storage: Annotated[Literal["persistent", "volatile", "auto", "none"], Meta(description="Storage= in journald.conf(5).")] = (
        "persistent"
    )
    max_use_mib: Annotated[int, Meta(ge=16, le=1 << 20, description="The most space that the journal may use, in MiB.")] = 2048
    keep_free_mib: Annotated[
        int, Meta(ge=0, le=1 << 20, description="Space that the journal leaves free on its file system, in MiB.")
    ] = 1024
    burst_lines: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000_000,
            description="A service may log this many lines in 30 s. The journal drops more lines. 0: no limit.",
        ),
    ] = 100_000


class Observed(Struct, frozen=True):
    """Holds what was read. ``file`` is the text of fairlead's drop-in. ``later`` has, for each key, a drop-in that is read after
    fairlead's, and the value that it sets."""

    file: str | None
    later: dict[str, tuple[str, str]] = {}


def observe(node: Node) -> Observed | Missing:
    file = node.text(FILE)
    if isinstance(file, Missing):
        return file
    later: dict[str, tuple[str, str]] = {}
    # A file in /etc hides a file of the same name in /run, and a file in /run hides a file of the same name in /usr/lib.
    named = {path.rpartition("/")[2]: path for folder in reversed(FOLDERS) for path in node.texts if path.startswith(folder)}
    for name, path in sorted(named.items()):
        text = node.texts[path]
        if isinstance(text, Missing):
            return text
        for key, sign, value in (line.partition("=") for line in (text or "").splitlines()):
            if name > FILE.rpartition("/")[2] and sign and not key.lstrip().startswith(("#", ";")):
                later[key.strip()] = (path, value.strip())
    return Observed(file, later)


def content(want: JournaldWant) -> str:
    return (
        "# Written by fairlead (setting journald); changes made here are put back.\n[Journal]\n"
        f"Storage={want.storage}\nSystemMaxUse={want.max_use_mib}M\nSystemKeepFree={want.keep_free_mib}M\n"
        f"RateLimitIntervalSec=30s\nRateLimitBurst={want.burst_lines}\n"
    )


def plan(want: JournaldWant, observed: Observed) -> tuple[AnyChange, ...]:
    ours = dict(line.split("=", 1) for line in content(want).splitlines() if "=" in line)
    for key, (path, value) in observed.later.items():
        if key in ours and value != ours[key]:
            words = f"says {value} and is read after {FILE}; wanted {ours[key]}"
            raise ConfigError(path, key, words, hint="remove that line, or rename the file so that it is read before ours")
    if observed.file == content(want):
        return ()
    why = f"{FILE} does not say what is declared"
    file = File(setting="journald", why=why, layer=Layer.PERSISTED, path=FILE, content=content(want), before=observed.file)
    started = Unit(setting="journald", why=why, name=UNIT, restart=True)
    # If the journal was in memory until now, it stays in memory until a flush (systemd-journald.service(8), SIGUSR1).
    flushed = Unit(setting="journald", why=why, name=FLUSH, restart=True)
    return (file, started, flushed) if want.storage == "persistent" else (file, started)


setting = Setting(
    summary="Bounds of the system journal",
    group="services",
    want=JournaldWant,
    observe=observe,
    plan=plan,
    reads=(FILE, *(f"{folder}*.conf" for folder in FOLDERS)),
)
