"""Reads the partitions of a site, ``[partitions.NAME]`` of site.toml. `fairlead slurm-config` writes them for Slurm.

[partitions.gpu]
classes = ["h100", "l40s"]          # the nodes of these classes
nodes = "login1"                    # and these nodes
options = { Default = true, MaxTime = "2-00:00:00" }
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from fairlead.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
#: The keys of a PartitionName line that fairlead writes itself.
_OURS = {"partitionname", "nodes"}
Key = Annotated[str, Meta(pattern=r"^[A-Za-z]{1,40}\Z")]
Value = Annotated[str, Meta(pattern=r"""^[^\s"'#\\]{1,400}\Z""")] | bool | int


class Partition(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Describes a partition of slurm.conf."""

    classes: Annotated[tuple[str, ...], Meta(description="Classes whose nodes are in the partition.")] = ()
    nodes: Annotated[str, Meta(description="More nodes, as a nodelist.")] = ""
    options: Annotated[
        dict[Key, Value],
        Meta(description="Other options of the partition's line in slurm.conf, such as `{ Default = true, MaxTime = 60 }`."),
    ] = {}


def partitions_of(data: Mapping[str, Any], path: str, classes: Collection[str], wrong: list[ConfigError]) -> dict[str, Partition]:
    """Return the partitions by name, in the file's order, without those that are wrong. Each mistake is added to ``wrong``."""
    found = {}
    for name, table in data.items():
        mistakes = [*_mistakes(name, table, path, classes)]
        wrong += mistakes
        if not mistakes:
            found[name] = msgspec.convert(table, Partition)
    return found


def _mistakes(name: str, table: Mapping[str, Any], path: str, classes: Collection[str]) -> Iterator[ConfigError]:
    """Yield what is wrong with a partition."""
    where = f"partitions.{name}"
    if not _NAME.fullmatch(name) or name.upper() == "DEFAULT":
        yield ConfigError(path, where, "not a valid partition name", hint="use letters, digits, . _ -")
    try:
        made = msgspec.convert(table, Partition)
    except msgspec.ValidationError:
        from fairlead.config.mistakes import mistakes

        yield from mistakes(table, Partition, path, where)
        return
    from fairlead.config import schema_keys

    for unknown in (c for c in made.classes if c not in classes):
        hint = f"{schema_keys.meant(unknown, classes)} known: {', '.join(classes) or 'none'}".strip()
        yield ConfigError(path, f"{where}.classes", f"no class {unknown}", hint=hint)
    if not made.classes and not made.nodes:
        yield ConfigError(path, where, "names no nodes", hint='classes = ["NAME"], or nodes = "gpu[001-004]"')
    for key in (key for key in made.options if key.lower() in _OURS):
        yield ConfigError(path, f"{where}.options.{key}", "is written by `fairlead slurm-config` itself", hint="take it out")
