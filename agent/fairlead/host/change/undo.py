"""Saves the state of a target below ``UNDO`` before fairlead changes the target for the first time.

A target is what a change changes, such as a file. `fairlead apply --undo` restores the saved states.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from contextlib import suppress
from typing import Any

from fairlead.errors import HostError, next_step
from fairlead.host.atomic_file import write_file
from fairlead.host.change.change_text import target
from fairlead.host.change.values import current_choice
from fairlead.host.root import Root
from fairlead.model import dnf_hold
from fairlead.model.change import AnyChange, Disruption, File, KernelValue, Nvml, Packages, PciBits

UNDO = "/var/lib/fairlead/undo"


def _record(change: AnyChange, root: Root, known: dict[str, Any]) -> dict[str, Any]:
    """Return the present state of the change's target. ``known``: the record that the target has already, or {}."""
    match change:
        case File(path=path, setting=setting, lines=lines) if lines is not None:
            return {"kind": "lines", "setting": setting, "path": path}
        case File(path=path, setting=setting):
            try:
                with open(root.join(path), "rb") as f:
                    content: str | None = base64.b64encode(f.read()).decode()
                    mode = os.fstat(f.fileno()).st_mode & 0o7777
            except FileNotFoundError:
                content, mode = None, 0o644
            return {"kind": "file", "setting": setting, "path": path, "content": content, "mode": mode}
        case KernelValue(path=path, setting=setting):
            with open(root.join(path), encoding="utf-8", errors="replace") as f:
                value = current_choice(f.read(65536))
            return {"kind": "kernel", "setting": setting, "path": path, "value": value, "disruption": change.disruption.value}
        case PciBits():
            return {
                "kind": "pci",
                "setting": change.setting,
                "address": change.address,
                "offset": change.offset,
                "mask": change.mask,
                "value": change.before & change.mask,
                "what": change.what,
                "disruption": change.disruption.value,
            }
        case Nvml():
            return {
                "kind": "nvml",
                "setting": change.setting,
                "pci": change.pci,
                "what": change.what,
                "value": change.before,
                "disruption": _disruption_of_undo(change).value,
            }
        case Packages():  # the earlier packages come back when the earlier set is declared again
            return {"kind": "holds", "setting": change.setting, "names": sorted({*change.hold, *known.get("names", ())})}
        case _:  # NOT_UNDONE
            raise TypeError(f"{target(change)} has no undo record")


def _disruption_of_undo(change: Nvml) -> Disruption:
    """Return what the undo needs. A change beside running jobs left alone what they used then, and later jobs use other parts."""
    return Disruption.DRAIN if change.disruption is Disruption.DRAINING else change.disruption


def _undo_path(change: AnyChange, undo: str) -> str:
    name = hashlib.sha256(f"{change.setting} {target(change)}".encode()).hexdigest()[:16]
    return f"{undo}/{change.setting}.{name}.json"


def remember(change: AnyChange, root: Root, undo: str) -> str:
    """Save the present state of this change's target in an undo record, unless the target has an undo record already.

    The record of packages on hold grows with each package that fairlead puts on hold. Return the path of the new record, or ""
    if there was one already. Raises HostError if the record cannot be written, and OSError if the present state cannot be read.
    """
    path = root.join(_undo_path(change, undo))
    if (known := os.path.exists(path)) and not isinstance(change, Packages):
        return ""
    record = json.dumps(_record(change, root, _read(path) if known else {}), indent=1).encode() + b"\n"
    try:
        write_file(path, record, 0o600)
    except OSError as e:
        words = f"left as it is, since what is there now cannot be saved: {path}: {e.strerror}"
        raise HostError(words, hint=next_step(e)) from None
    return "" if known else path


def _read(path: str) -> dict[str, Any]:
    """Return an undo record. Raises HostError if the file is not one."""
    try:
        with open(path, encoding="utf-8") as f:
            record = json.load(f)
            if isinstance(record, dict):
                return record
        raise ValueError("not an object")
    except (OSError, ValueError) as e:
        raise HostError(f"{path}: not an undo record: {e}", hint="remove it if it is of no use") from None


def undo_changes(root: Root, undo: str = UNDO) -> tuple[tuple[str, AnyChange], ...]:
    """Return (path of the undo record, change that restores its state) for each record. Raises HostError for a bad record."""
    folder = root.join(undo)
    try:
        names = sorted(n for n in os.listdir(folder) if n.endswith(".json") and not n.startswith("."))
    except FileNotFoundError:
        return ()
    found: list[tuple[str, AnyChange]] = []
    for name in names:
        path = os.path.join(folder, name)
        try:
            found.append((path, _from_record(_read(path), root)))
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise HostError(f"{path}: not an undo record: {e}", hint="remove it if it is of no use") from None
    return tuple(found)


def present_text(path: str, root: Root) -> str | None:
    """Return the text of a file there, with each byte that is not UTF-8 as a surrogate, or None if there is no such file."""
    try:
        with open(root.join(path), encoding="utf-8", errors="surrogateescape", newline="") as f:
            return f.read()
    except FileNotFoundError:
        return None


def _from_record(r: dict[str, Any], root: Root) -> AnyChange:
    why = "as it was before fairlead"
    disruption = Disruption(r.get("disruption", "idle" if r["kind"] == "pci" else "none"))
    match r["kind"]:
        case "holds":
            return Packages(setting=r["setting"], why=why, install=(), allowed=(), unhold=tuple(r["names"]))
        case "lines":  # others have written to this file since, so only fairlead's lines go
            before = None
            with suppress(OSError):  # making the change reads the file again, and reports the error
                before = present_text(r["path"], root)
            rest = dnf_hold.with_lines(before, ())
            return File(setting=r["setting"], why=why, path=r["path"], content=rest, before=before, lines=())
        case "file":
            content = None if r["content"] is None else base64.b64decode(r["content"]).decode("utf-8", "surrogateescape")
            return File(setting=r["setting"], why=why, path=r["path"], content=content, mode=r["mode"])
        case "kernel":
            return KernelValue(setting=r["setting"], why=why, path=r["path"], value=r["value"], disruption=disruption)
        case "pci":
            return PciBits(
                setting=r["setting"],
                why=why,
                address=r["address"],
                offset=r["offset"],
                mask=r["mask"],
                value=r["value"],
                before=0,
                what=r["what"],
                disruption=disruption,
            )
        case "nvml":
            return Nvml(
                setting=r["setting"],
                why=why,
                pci=r["pci"],
                what=r["what"],
                value=r["value"],
                before=-1,
                disruption=disruption,
            )
        case kind:
            raise ValueError(f"unknown kind {kind!r}")
