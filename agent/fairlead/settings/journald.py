"""Bounds of the system journal: kept on disk, so that what a crashed node said survives, and never filling it.

The default takes a tenth of the file system and drops what comes faster than 10,000 lines in 30 s, which is when a broken
GPU or fabric speaks. Source: journald.conf(5). Persisted in a drop-in; the journal daemon is started anew, which loses no
line. Effective cannot be read back from the daemon: the file is what it was started with.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from fairlead.model.change import AnyChange, File, Layer, Unit
from fairlead.model.facts import Missing, Node
from fairlead.model.setting import Setting, Want

FILE = "/etc/systemd/journald.conf.d/90-fairlead.conf"
UNIT = "systemd-journald.service"


class JournaldWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    storage: Annotated[Literal["persistent", "volatile", "auto", "none"], Meta(description="Where the journal is kept.")] = (
        "persistent"
    )
    max_use_mib: Annotated[int, Meta(ge=16, le=1 << 20, description="The most that it takes of its file system, in MiB.")] = 2048
    keep_free_mib: Annotated[int, Meta(ge=0, le=1 << 20, description="What it leaves free there, in MiB.")] = 1024
    burst_lines: Annotated[
        int, Meta(ge=0, le=10_000_000, description="Lines of one service in 30 s before it drops; 0: never.")
    ] = 100_000


class Observed(Struct, frozen=True):
    file: str | None


def observe(node: Node) -> Observed | Missing:
    file = node.text(FILE)
    return file if isinstance(file, Missing) else Observed(file)


def content(want: JournaldWant) -> str:
    return (
        "# Written by fairlead (setting journald); changes made here are put back.\n[Journal]\n"
        f"Storage={want.storage}\nSystemMaxUse={want.max_use_mib}M\nSystemKeepFree={want.keep_free_mib}M\n"
        f"RateLimitIntervalSec=30s\nRateLimitBurst={want.burst_lines}\n"
    )


def plan(want: JournaldWant, observed: Observed) -> tuple[AnyChange, ...]:
    if observed.file == content(want):
        return ()
    why = f"{FILE} does not say what is declared"
    return (
        File(setting="journald", why=why, layer=Layer.PERSISTED, path=FILE, content=content(want), before=observed.file),
        Unit(setting="journald", why=why, name=UNIT, restart=True),
    )


setting = Setting(
    summary="Bounds of the system journal",
    group="services",
    want=JournaldWant,
    observe=observe,
    plan=plan,
    reads=(FILE,),
)
