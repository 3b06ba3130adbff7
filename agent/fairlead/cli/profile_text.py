"""Writes a drafted profile as TOML. A line that begins with "# ? " is a value that a person has to confirm."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.cli.value_text import value_text
from fairlead.model.plain_text import one_line
from fairlead.model.profile_files import Match, Value

if TYPE_CHECKING:
    from fairlead.cli.drafted_profile import DraftedProfile

_HEAD = """\
# `fairlead profile draft` made this hardware profile from the node {node}. Read every line before you use it. Lines that begin
# with "# ? " are not part of the profile: they are values that were found on the node and that nothing justifies. Where a value
# is right for every node of this kind, remove "# ? " and write why and who says it. A node that lacks a part must not become
# the expectation.
# Next: name this file in a class of site.toml (profile = "/path/to/{file}"), then fairlead config check site.toml
"""


def profile_text(draft: DraftedProfile, *, file: str) -> str:
    """Return the text of the profile. ``file``: where it will be written."""
    like = f"; values of fairlead's profile {draft.like} where this node agrees" if draft.like else ""
    top = _rows({"name": draft.name, "summary": f"{draft.summary}{like}"})
    absent = _rows({"unsupported": draft.unsupported, "unsupported_why": "NVML answers NOT_SUPPORTED on every GPU of one node."})
    if draft.unsupported:
        top += absent if draft.known else _in_question(absent)
    parts = [_HEAD.format(node=draft.node, file=one_line(file.rpartition("/")[2])) + top, _match(draft)]
    parts += [_table("values", value) for value in draft.declared]
    parts += [_in_question(_table("values", value)) for value in draft.to_confirm]
    for kind in ("references", "peaks") if draft.known else ():
        parts += [_table(kind, entry) for entry in getattr(draft.known, kind)]
    return "\n".join(parts)


def _match(draft: DraftedProfile) -> str:
    """Return how `fairlead init` recognises such a node. How many GPUs a node carries has to be confirmed, unless it is known."""
    match = draft.known.match if draft.known else None
    source = f"The PCI bus of the node {draft.node}"
    found = match or Match(gpus=draft.gpu_ids, source=source)
    text = "[match]\n" + _rows({"gpus": found.gpus, "source": found.source})
    counts = {"gpu_count": draft.gpu_count, "nvswitches": draft.nvswitches}
    known = {"gpu_count": found.gpu_count, "nvswitches": found.nvswitches}
    return text + (_rows({k: v for k, v in known.items() if v}) if match else _in_question(_rows(counts)))


def _table(kind: str, entry: Value | Any) -> str:
    rows = {k: v for k, v in msgspec.structs.asdict(entry).items() if not (k == "bytes" and not v)}
    return f"[[{kind}]]\n" + _rows(rows)


def _rows(values: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {value_text(value)}\n" for key, value in values.items())


def _in_question(text: str) -> str:
    return textwrap.indent(text, "# ? ")
