"""Describes a change as text: what it changes, and a diff of the state before and after."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from fairlead.model.change import (
    AnyChange,
    BootLoader,
    File,
    KernelValue,
    Module,
    ModuleReload,
    Nvml,
    Packages,
    PciBits,
    Reboot,
    Unit,
)


def target(change: AnyChange) -> str:
    """Return the name of what is changed: a path, a PCI address with a register, a unit, or the like."""
    match change:
        case File(path=path) | KernelValue(path=path):
            return path
        case PciBits(address=address, what=what, offset=offset):
            return f"{address} {what or hex(offset)}"
        case Nvml(pci=pci, what=what):
            return f"{pci} {what}"
        case Unit(name=name) | Module(name=name) | BootLoader(tool=name) | Reboot(what=name):
            return name
        case Packages():
            return "packages"
        case ModuleReload():
            return "NVIDIA modules"


def diff(change: AnyChange) -> str:
    """Return the change as text: a unified diff for a file, ``- before`` and ``+ after`` for everything else."""
    match change:
        case File(path=path, content=content, before=before):
            return "".join(
                difflib.unified_diff(
                    (before or "").splitlines(keepends=True),
                    (content or "").splitlines(keepends=True),
                    path if before is not None else "/dev/null",
                    path if content is not None else "/dev/null",
                )
            )
        case KernelValue(value=value, before=before_text):
            return f"--- {target(change)}\n- {before_text}\n+ {value}\n"
        case PciBits(before=word, mask=mask, value=bits):
            return f"--- {target(change)}\n- {word:#06x}\n+ {word & ~mask | bits:#06x}\n"
        case Nvml(value=new, before=old):
            return f"--- {target(change)}\n- {old}\n+ {new}\n"
        case Unit():
            return f"--- {target(change)}\n+ {', '.join(verbs(change))}\n"
        case Packages():
            return "--- packages\n" + "".join(_moves(change))
        case ModuleReload(version=version):
            return f"--- loaded NVIDIA modules\n+ {version} (unloaded and loaded again)\n"
        case Module():
            return f"--- module {change.name}\n+ loaded\n"
        case BootLoader():
            return f"--- boot loader ({change.tool})\n" + "".join(f"+ {w}\n" for w in change.words or ("made anew",))
        case Reboot():
            return f"--- running kernel\n+ {change.what} (after a reboot)\n"


def _moves(change: Packages) -> Iterator[str]:
    before = dict(change.before)
    for package in change.install:
        if package.name in before:
            yield f"- {package.name} {before[package.name]}\n"
        yield f"+ {package.name} {package.version}\n"
    yield from (f"- {name} {before.get(name, '')}".rstrip() + "\n" for name in change.remove)
    if change.hold:
        yield f"+ on hold: {' '.join(change.hold)}\n"
    if change.unhold:
        yield f"- on hold: {' '.join(change.unhold)}\n"


def verbs(change: Unit) -> list[str]:
    words = ["read unit files again"] if change.daemon_reload else []
    if change.enabled is not None:
        words.append("enable" if change.enabled else "disable")
    if change.restart:
        words.append("restart")
    elif change.active is not None:
        words.append("start" if change.active else "stop")
    return words
