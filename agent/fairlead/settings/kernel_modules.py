"""Loads kernel modules at boot (nvidia_peermem), and prevents other modules from loading (nouveau).

Sources: modules-load.d(5), modprobe.d(5) (with ``blacklist``, modprobe ignores a module's own aliases), /proc/modules
(proc_modules(5)). If a blacklisted module is loaded now, it uses the device until a reboot. An initramfs that was made before
may load it again; on the EL family ``rd.driver.blacklist=nouveau`` on the kernel command line prevents this
(dracut.cmdline(7)). This setting does not handle modules that are built into the kernel, because /proc/modules does not list
them. A kernel without loadable modules has neither /proc/modules nor /proc/sys/kernel/modprobe (both under CONFIG_MODULES:
kernel/module/procfs.c, kernel/module/kmod.c). If only /proc/modules is missing, the loaded modules are unknown, and the setting
is reported as unreadable. For nvidia_peermem see the NVIDIA driver README, chapter "GPUDirect RDMA Peer Memory Client". If the
driver and the kernel have DMA-BUF, nvidia_peermem is not needed.
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

#: The initramfs has copies of modules and of modprobe.d from the time when it was made.
INITRAMFS = "`update-initramfs -u` on Debian and Ubuntu or `dracut --force` on the EL family makes it anew"

Name = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,60}$")]


class KernelModulesWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    load: Annotated[tuple[Name, ...], Meta(description="Modules to load, now and at every boot.")] = ()
    blacklist: Annotated[tuple[Name, ...], Meta(description="Modules that must not load automatically.")] = ("nouveau",)


class Observed(Struct, frozen=True):
    """Holds what was read. ``loaded`` has the names in /proc/modules (with underscores), or is None for a kernel without loadable
    modules. ``load`` and ``blacklist`` are the texts of fairlead's two files."""

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
            if f"blacklist {name}\n" in (observed.blacklist or ""):
                why += f"; if a reboot does not help, the initramfs loads it: {INITRAMFS}"
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
