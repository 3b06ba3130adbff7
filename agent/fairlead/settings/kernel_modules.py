"""Loads kernel modules at boot (nvidia_peermem), and keeps others from loading (nouveau).

Sources: modules-load.d(5), modprobe.d(5) (``blacklist`` keeps a module's own aliases from loading it), /proc/modules
(proc_modules(5)). A blacklisted module that is loaded now keeps the device until a reboot. A module that is built into the
kernel is in no list of loaded modules, and this setting does not handle it. A kernel without loadable modules has neither that
file nor /proc/sys/kernel/modprobe (both under CONFIG_MODULES: kernel/module/procfs.c, kernel/module/kmod.c). If only the list
is missing, it is unreadable and nothing is known. For nvidia_peermem see the NVIDIA driver README, chapter "GPUDirect RDMA
Peer Memory Client". It is not needed where the driver and the kernel have dma-buf.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model.change import AnyChange, Disruption, File, Layer, Module, Reboot
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.setting import Setting, Want

LOADED = "/proc/modules"
LOADER = "/proc/sys/kernel/modprobe"
LOAD = "/etc/modules-load.d/90-fairlead.conf"
BLACKLIST = "/etc/modprobe.d/90-fairlead-blacklist.conf"

Name = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,60}$")]


class KernelModulesWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    load: Annotated[tuple[Name, ...], Meta(description="Modules to load, now and at every boot.")] = ()
    blacklist: Annotated[tuple[Name, ...], Meta(description="Modules that must not load automatically.")] = ("nouveau",)


class Observed(Struct, frozen=True):
    """Holds what was read. ``loaded``: names as /proc/modules has them (with underscores); None means a kernel without
    loadable modules. ``load``, ``blacklist``: the texts of our files."""

    loaded: frozenset[str] | None
    load: str | None
    blacklist: str | None


def observe(node: Node) -> Observed | Missing:
    loaded, load, blacklist = node.text(LOADED), node.text(LOAD), node.text(BLACKLIST)
    for value in (loaded, load, blacklist):
        if isinstance(value, Missing):
            return value
    if loaded is None and node.text(LOADER) is not None:
        return unreadable(f"{LOADED}: no such file, though {LOADER} says that this kernel has modules")
    names = None if loaded is None else frozenset(line.split()[0] for line in str(loaded).splitlines() if line.split())
    return Observed(names, None if load is None else str(load), None if blacklist is None else str(blacklist))


def _file(path: str, lines: list[str], before: str | None) -> list[AnyChange]:
    head = "# Written by fairlead (setting kernel_modules); changes made here are put back.\n"
    wanted = head + "".join(f"{line}\n" for line in lines) if lines else None
    if before == wanted:
        return []
    why = f"{path} does not say {', '.join(lines)}" if lines else f"{path} is ours, and nothing is declared any more"
    return [File(setting="kernel_modules", why=why, layer=Layer.PERSISTED, path=path, content=wanted, before=before)]


def plan(want: KernelModulesWant, observed: Observed) -> tuple[AnyChange, ...]:
    changes: list[AnyChange] = []
    if observed.loaded is None and want.load:
        hint = "declare load = [] for this node"
        raise ConfigError("node.json", "settings.kernel_modules.load", f"no loadable modules here (no {LOADED})", hint=hint)
    loaded = observed.loaded or frozenset()
    for name in want.load:
        if name.replace("-", "_") not in loaded:
            changes.append(Module(setting="kernel_modules", why=f"module {name} is not loaded", name=name))
    changes += _file(LOAD, list(want.load), observed.load)
    changes += _file(BLACKLIST, [f"blacklist {name}" for name in want.blacklist], observed.blacklist)
    for name in want.blacklist:
        if name.replace("-", "_") in loaded:
            why = f"module {name} is loaded and must not be"
            changes.append(
                Reboot(
                    setting="kernel_modules",
                    why=why,
                    layer=Layer.PENDING_REBOOT,
                    disruption=Disruption.REBOOT,
                    what=f"{name} not loaded",
                )
            )
    return tuple(changes)


setting = Setting(
    summary="Kernel modules that must be loaded, and those that must not",
    group="kernel",
    want=KernelModulesWant,
    observe=observe,
    plan=plan,
    reads=(LOADED, LOADER, LOAD, BLACKLIST),
    as_wanted=lambda want: {LOADED: "".join(f"{name.replace('-', '_')} 0 0 - Live 0x0\n" for name in want.load)},
    disruption=Disruption.REBOOT,
)
