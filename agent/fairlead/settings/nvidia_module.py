"""Sets parameters of the NVIDIA kernel module (NVreg_...), after a check against the installed module.

The kernel silently ignores an unknown module parameter. Public advice names parameters that do not exist, such as
NVreg_SetPCIERelaxedOrdering instead of NVreg_EnablePCIERelaxedOrderingMode. So each name must be in ``modinfo``. fairlead
persists the values in a modprobe.d file that is read last. It reads the effective values of the loaded module from
/proc/driver/nvidia/params. New values become effective when the driver is loaded again. During a reload no program may use the
GPUs, so fairlead asks for a reboot instead. Sources: NVIDIA open-gpu-kernel-modules, kernel-open/nvidia/nv-reg.h; modprobe.d(5);
NVIDIA driver README, chapter "Module Parameters" (an initramfs that has nvidia.conf must be rebuilt with it).
"""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model.change import AnyChange, Disruption, File, Layer, Reboot
from fairlead.model.facts import Missing, Node
from fairlead.model.setting import Setting, Want

PREFIX = "NVreg_"
FILE = "/etc/modprobe.d/zz-fairlead-nvidia.conf"
OTHERS = "/etc/modprobe.d/*.conf"
PARAMS = "/proc/driver/nvidia/params"
MODINFO = "/@modinfo/nvidia"
_OPTIONS = re.compile(r"^\s*options\s+nvidia\s+(.*)$", re.MULTILINE)
_UNSET = 4294967295  # -1 (not set), which /proc/driver/nvidia/params prints as an unsigned number

Key = Annotated[str, Meta(pattern="^NVreg_[A-Za-z0-9_]{1,80}$")]
Value = int | Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.,:;=/+-]{0,200}$")]


class NvidiaModuleWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    parameters: Annotated[
        dict[Key, Value], Meta(description="Module parameters, such as NVreg_EnablePCIERelaxedOrderingMode = 1.")
    ] = {}


class Observed(Struct, frozen=True):
    """Holds what was read. ``known`` has the parameter names of the installed module, or is None if it is not installed.
    ``running`` has the values of the loaded module by name, or is None if it is not loaded. ``file`` is the text of fairlead's
    file. ``others`` has (path, name, value) for each parameter in every other file."""

    known: frozenset[str] | None
    running: dict[str, str] | None
    file: str | None
    others: tuple[tuple[str, str, str], ...]


def observe(node: Node) -> Observed | Missing:
    known, params, file = node.text(MODINFO), node.text(PARAMS), node.text(FILE)
    for value in (known, params, file):
        if isinstance(value, Missing):
            return value
    others: list[tuple[str, str, str]] = []
    for path, text in sorted(node.texts.items()):
        if path.startswith("/etc/modprobe.d/") and path != FILE:
            if isinstance(text, Missing):
                return text
            for words in _OPTIONS.findall(text or ""):
                others += [(path, w.partition("=")[0], w.partition("=")[2].strip('"')) for w in words.split() if "=" in w]
    running: dict[str, str] | None = None
    if isinstance(params, str):
        running = {}
        for line in params.splitlines():
            name, sign, value = line.partition(":")
            if sign:
                running[PREFIX + name.strip()] = value.strip().strip('"')
    names = frozenset(line.partition(":")[0].strip() for line in known.splitlines()) if isinstance(known, str) else None
    return Observed(names, running, None if file is None else str(file), tuple(others))


def content(parameters: dict[str, str]) -> str:
    lines = "".join(f"options nvidia {name}={value}\n" for name, value in parameters.items())
    return f"# Written by fairlead (setting nvidia_module); changes made here are put back.\n{lines}"


def _same(have: str, want: str) -> bool:
    if have == want:
        return True
    try:
        return int(have, 0) % (_UNSET + 1) == int(want, 0) % (_UNSET + 1)
    except ValueError:
        return False


def plan(want: NvidiaModuleWant, observed: Observed) -> tuple[AnyChange, ...]:
    parameters = {name: str(value) for name, value in sorted(want.parameters.items())}
    known = observed.known if observed.known is not None else observed.running
    for name in parameters:
        if known is not None and name not in known:
            near = sorted(k for k in known if name.removeprefix(PREFIX)[:6].lower() in k.lower())[:3]
            raise ConfigError(
                "node.json",
                f"settings.nvidia_module.parameters.{name}",
                "the NVIDIA module has no such parameter, and the kernel would ignore it silently",
                hint=f"it has {', '.join(near)}" if near else "`modinfo -F parm nvidia` lists those it has",
            )
    for path, name, value in observed.others:
        if name in parameters and path > FILE and not _same(value, parameters[name]):
            words = f"sets {value} and is read after {FILE}; wanted {parameters[name]}"
            raise ConfigError(path, name, words, hint="remove that line")
    changes: list[AnyChange] = []
    wanted = content(parameters) if parameters else None
    if observed.file != wanted:
        why = f"{FILE} does not say what is declared" if wanted else f"{FILE} is ours, and nothing is declared any more"
        changes.append(
            File(
                setting="nvidia_module",
                why=why,
                layer=Layer.PERSISTED,
                path=FILE,
                content=wanted,
                before=observed.file,
            )
        )
    for name, value in parameters.items() if observed.running is not None else ():
        now = observed.running.get(name) if observed.running else None
        if now is None or not _same(now, value):
            changes.append(
                Reboot(
                    setting="nvidia_module",
                    why=f"the loaded NVIDIA module has {name}={now if now is not None else '(not there)'}, wanted {value}",
                    layer=Layer.PENDING_REBOOT,
                    disruption=Disruption.REBOOT,
                    what=f"{name}={value}",
                )
            )
    return tuple(changes)


setting = Setting(
    summary="Parameters of the NVIDIA kernel module",
    group="driver",
    want=NvidiaModuleWant,
    observe=observe,
    plan=plan,
    reads=(MODINFO, PARAMS, FILE, OTHERS),
    disruption=Disruption.REBOOT,
)
