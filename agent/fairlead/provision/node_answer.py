"""Checks the answer of a node to `fairlead provision`. Only known keys with known types are passed on.

A node's root may be hostile, so no part of its answer is passed on unchecked. Unknown keys are left out. If a value has a wrong
type or an impossible size, or names another node, the whole answer is refused (``NotAnAnswerError``). The node has then failed,
and the run goes on with the other nodes. Every text is cut, made printable and put on one line. Only a diff keeps its lines. A
report has room for a limited number of changes and steps. Further ones are dropped, and ``left_out`` has their number.

This module imports the standard library and model/plain_text.py only. The bundle has a copy of both for Ansible's action
plugin, because the Python that runs Ansible need not have fairlead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from fairlead.model.plain_text import one_line, page

LINE_MAX = 8 << 20  # characters of one answer
TEXT_MAX = 2000  # characters of a message
PAGE_MAX = 1 << 20  # characters of one file's content, or of a diff
CHANGES_MAX, STEPS_MAX = 1000, 5000  # limits for one node, over all its settings; a first run has some hundreds
GPU_KINDS_MAX = 16
SAID = "answered with something that is not an answer"
HINT = "look at that node: is its root, or the fairlead there, somebody else's? nothing of its answer was used"

Shape = Callable[[Any, str], Any]


class NotAnAnswerError(ValueError):
    """Says what is wrong with the answer. ``str()`` has only words of fairlead, and none of the node."""


def _wrong(where: str, what: str) -> NotAnAnswerError:
    return NotAnAnswerError(f"{SAID}: {where or 'it'} {what}")


def flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(where, "is not true or false")
    return value


def number(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
        raise _wrong(where, "is not a number in its range")
    return value


def rate(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise _wrong(where, "is not a number in its range")
    return float(value)


def words(value: Any, where: str) -> str:
    """Return one line of text. Raises NotAnAnswerError."""
    if not isinstance(value, str):
        raise _wrong(where, "is not text")
    return one_line(value, TEXT_MAX)


def lines(value: Any, where: str) -> str:
    """Return text of several lines. Raises NotAnAnswerError."""
    if not isinstance(value, str):
        raise _wrong(where, "is not text")
    return page(value, PAGE_MAX)


def one_of(*known: str) -> Shape:
    def fit(value: Any, where: str) -> str:
        if not isinstance(value, str) or value not in known:
            raise _wrong(where, f"is none of {', '.join(w or 'nothing' for w in known)}")
        return value

    return fit


def like(pattern: str) -> Shape:
    """Return the shape of a name whose whole text matches ``pattern``."""

    def fit(value: Any, where: str) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value, re.ASCII):
            raise _wrong(where, "does not have the right form")
        return value

    return fit


def each(shape: Shape, most: int = 100_000) -> Shape:
    def fit(value: Any, where: str) -> list[Any]:
        if not isinstance(value, list) or len(value) > most:
            raise _wrong(where, f"is not a list of at most {most}")
        return [shape(entry, f"{where}[{at}]") for at, entry in enumerate(value)]

    return fit


def table(needed: dict[str, Shape], also: dict[str, Shape] | None = None) -> Shape:
    """Return the shape of a table. It must have the keys of ``needed`` and may have the keys of ``also``. All other keys are
    left out."""

    def fit(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong(where, "is not a table")
        inside = f"{where}." if where else ""
        for key in needed:
            if key not in value:
                raise _wrong(f"{inside}{key}", "is missing")
        return {key: shape(value[key], f"{inside}{key}") for key, shape in {**needed, **(also or {})}.items() if key in value}

    return fit


_STEP = table(
    {
        "target": words,
        "why": words,
        "layer": one_of("persisted", "effective", "pending_reboot"),
        "disruption": one_of("none", "idle", "draining", "drain", "reboot"),
        "diff": lines,
        "done": lambda value, where: None if value is None else flag(value, where),
        "message": words,
    }
)
_ITEM = table(
    {
        "setting": like("[a-z][a-z0-9_]{0,63}"),
        "state": one_of(
            *("same", "changed", "would_change", "deferred", "failed", "refused", "unreadable", "unmanaged", "left"),
            *("absent", "not_applicable"),
        ),
        "persisted": one_of("yes", "no", "boot", "unknown"),
        "effective": one_of("yes", "no", "unknown"),
        "pending": one_of("", "idle", "drain", "reboot", "boot"),
        "message": words,
        "hint": words,
        "steps": each(_STEP),
    }
)
_PORT = table(
    {
        "name": like("[A-Za-z0-9_.:-]{1,64}"),
        "up": flag,
        "link_layer": like("[A-Za-z0-9_-]{0,32}"),
        "rate_gbps": rate,
        "mtu_bytes": number,
    },
    {"gpus": each(number, 256), "network": like("[0-9./]{0,32}")},
)
_APPLY = table(
    {"node": words, "changed": number, "failed": number, "items": each(_ITEM, 200)},
    {
        "schema": number,
        "generation": number,
        "hash": like("[0-9A-Za-z:-]{0,128}"),
        "phase": one_of("all", "boot"),
        "dry_run": flag,
        "busy": flag,
        "drained": flag,
        "ports": each(_PORT, 256),
    },
)
_CHANGE = table({"what": words, "why": words}, {"before": lines, "after": lines})
_FAILED = table({"failed": flag, "msg": words}, {"hint": words})
_NEED = table(
    {
        "need": each(one_of("name", "wheels", "files", "packages"), 4),
        "packages": each(words),
        "hostname": words,
        "python": like(r"3\.[0-9]{1,2}"),
        "machine": like("[a-z0-9_]{1,32}"),
        "libc": each(like(r"[a-z]{0,16}|[0-9]{1,3}(\.[0-9]{1,3}){1,2}"), 2),
    }
)
_NO_PYTHON = table(
    {
        "id": like(r"[A-Za-z0-9._-]{0,32}"),
        "version": like(r"[A-Za-z0-9._-]{0,32}"),
        "like": like(r"[A-Za-z0-9 ._-]{0,128}"),
        "has": like(r"([23]\.[0-9]{1,2})?"),
        "other": like(r"(/usr/bin/python3(\.[0-9]{1,2})?)?"),
    }
)
_DONE = table({"changed": flag, "changes": each(_CHANGE)}, {"apply": lambda v, w: None if v is None else _APPLY(v, w)})


def _other_gpus(value: Any, where: str) -> dict[str, int]:
    """Return how many GPUs have each PCI ID. Raises NotAnAnswerError."""
    if not isinstance(value, dict) or not 0 < len(value) <= GPU_KINDS_MAX:
        raise _wrong(where, f"is not a table of at most {GPU_KINDS_MAX} kinds of GPUs")
    return {like("[0-9a-f]{4}:[0-9a-f]{4}")(pci_id, where): number(count, where) for pci_id, count in value.items()}


def read(
    text: str, documents: Iterable[dict[str, Any]], *, package_files: Iterable[str] = (), may_need: bool = True
) -> dict[str, Any]:
    """Check an answer, which is one line of JSON, and return it. documents, package_files: the documents and package files of
    the node that answers. may_need: whether the node may still request files that it lacks. Raises NotAnAnswerError."""
    if len(text) > LINE_MAX:
        raise _wrong("", f"is longer than {LINE_MAX >> 20} MiB")
    try:
        said = json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        raise _wrong("", "is no JSON that can be read") from None
    if isinstance(said, dict) and said.get("failed"):
        return {**_FAILED(said, ""), "of_node": True}  # its hint is the node's text, and not fairlead's advice
    if isinstance(said, dict) and "no_python" in said:
        return {"no_python": _NO_PYTHON(said["no_python"], "no_python")}
    if isinstance(said, dict) and "other_gpus" in said:
        return {"other_gpus": _other_gpus(said["other_gpus"], "other_gpus")}
    document = _document(documents)
    if isinstance(said, dict) and "need" in said:
        if not may_need:
            raise _wrong("need", "asks again for what was sent")
        wanted = dict(_NEED(said, ""))
        if len(wanted["libc"]) != 2 or (wanted["libc"][0] == "glibc" and not wanted["libc"][1][:1].isdigit()):
            raise _wrong("libc", "does not have the right form")
        if len(set(wanted["packages"])) < len(wanted["packages"]):
            raise _wrong("packages", "names a file twice")
        if not set(wanted["packages"]) <= set(package_files):
            raise _wrong("packages", "names a file that its document does not")
        return wanted
    done = dict(_DONE(said, ""))
    if (applied := done.get("apply")) and applied["node"] != document.get("node"):
        raise _wrong("apply.node", "is another node's name")
    _shorten(done)
    return done


def _shorten(done: dict[str, Any]) -> None:
    """Cut each list to the length that a report has room for, and record how many entries were left out."""
    if len(done["changes"]) > CHANGES_MAX:
        done["left_out"] = len(done["changes"]) - CHANGES_MAX
        del done["changes"][CHANGES_MAX:]
    room = STEPS_MAX
    for item in (done.get("apply") or {"items": ()})["items"]:
        if len(item["steps"]) > room:
            item["left_out"] = len(item["steps"]) - room
            del item["steps"][room:]
        room -= len(item["steps"])


def _refused(word: str) -> float:
    raise ValueError(word)  # NaN and Infinity


def _document(documents: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return dict(json.loads(next(d["content"] for d in documents if d["path"].endswith("/node.json"))))
