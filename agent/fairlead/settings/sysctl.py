"""Sets kernel parameters by name: network buffers, zone reclaim, swapping, and any other that a site declares.

Each parameter is checked before anything is written: the key must exist in the running kernel, a number must be in the kernel's
own range, and a word must be one that the kernel offers. If a congestion control does not exist, fairlead reports an error with
the list of those that exist. fairlead reads the effective values from /proc/sys. It persists the values in its own sysctl.d file,
and writes this file only after the kernel has accepted the values. A file that is read later and sets another value would win at
the next boot (sysctl.d(5)). fairlead reports such a file and does not overwrite it. Sources: kernel documentation,
admin-guide/sysctl/{vm,kernel,net,fs}.rst, networking/ip-sysctl.rst.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model.change import AnyChange, File, KernelValue, Layer
from fairlead.model.facts import Missing, Node
from fairlead.model.setting import Setting, Want
from fairlead.model.sysctl_files import GLOBS, later_writers, proc_path, unreadable_file

FILE = "/etc/sysctl.d/90-fairlead-sysctl.conf"
CONGESTION = "/proc/sys/net/ipv4/tcp_available_congestion_control"
NUMA_BALANCING = "kernel.numa_balancing"  # this key has a setting of its own
_INT = 2**31 - 1
#: Holds the lowest and highest value by key, as in the kernel's own tables (mm/ and net/ ``ctl_table`` entries with extra1 and
#: extra2).
RANGES: dict[str, tuple[int, int]] = {
    "vm.zone_reclaim_mode": (0, 7),
    "vm.swappiness": (0, 200),
    "vm.overcommit_memory": (0, 2),
    "vm.dirty_ratio": (0, 100),
    "vm.dirty_background_ratio": (0, 100),
    "vm.max_map_count": (65530, _INT),
    "vm.min_free_kbytes": (1, 2**30),
    "kernel.nmi_watchdog": (0, 1),
    "kernel.panic_on_oops": (0, 1),
    "net.core.rmem_max": (2304, _INT),
    "net.core.wmem_max": (4608, _INT),
    "net.core.rmem_default": (2304, _INT),
    "net.core.wmem_default": (4608, _INT),
    "net.core.netdev_max_backlog": (1, _INT),
    "net.core.somaxconn": (0, 65535),
    "net.ipv4.tcp_timestamps": (0, 2),
    "net.ipv4.tcp_mtu_probing": (0, 2),
    "net.ipv4.conf.all.rp_filter": (0, 2),
    "net.ipv4.conf.all.arp_ignore": (0, 8),
    "net.ipv4.conf.all.arp_announce": (0, 2),
    "net.ipv4.neigh.default.gc_thresh1": (0, _INT),
    "net.ipv4.neigh.default.gc_thresh2": (0, _INT),
    "net.ipv4.neigh.default.gc_thresh3": (0, _INT),
}
TRIPLES = frozenset({"net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"})  # minimum, default, maximum in bytes

Key = Annotated[str, Meta(pattern=r"^[a-z0-9_]+([./][A-Za-z0-9_.-]+)+$", max_length=120)]
Value = Annotated[str, Meta(pattern=r"^[ -~]+$", max_length=200)] | int


class SysctlWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    values: Annotated[dict[Key, Value], Meta(description='Kernel parameters, such as "vm.swappiness" = 10.')] = {}


class Observed(Struct, frozen=True):
    """Holds what was read. ``texts`` has the text of each file of the node that was read, by path. ``file`` is the text of
    fairlead's file."""

    texts: dict[str, str | Missing | None]
    file: str | None


def _wanted(want: SysctlWant) -> dict[str, str]:
    return {key: " ".join(str(value).split()) for key, value in sorted(want.values.items())}


def reads_for(want: SysctlWant) -> tuple[str, ...]:
    more = (CONGESTION,) if "net.ipv4.tcp_congestion_control" in want.values else ()
    return (*(proc_path(key) for key in sorted(want.values)), *more)


def observe(node: Node) -> Observed | Missing:
    file = node.text(FILE)
    if isinstance(file, Missing):
        return file
    return unreadable_file(node.texts) or Observed(dict(node.texts), file)


def content(want: SysctlWant) -> str:
    lines = [f"{key} = {value}\n" for key, value in _wanted(want).items()]
    return "# Written by fairlead (setting sysctl); changes made here are put back.\n" + "".join(lines)


def _refuse(key: str, words: str, hint: str) -> ConfigError:
    return ConfigError("node.json", f"settings.sysctl.values.{key}", words, hint=hint)


def check(key: str, value: str, observed: Observed) -> None:
    """Raise ConfigError if it is known before the write that this kernel will not accept the value."""
    if key == NUMA_BALANCING:
        raise _refuse(key, "has a setting of its own", "declare settings.numa_balancing.value")
    text = observed.texts.get(proc_path(key))
    if text is None:
        raise _refuse(key, "this kernel has no such parameter", "look for the spelling with `sysctl -a`")
    words = value.split()
    if key in RANGES:
        low, high = RANGES[key]
        if not value.lstrip("-").isdecimal() or not low <= int(value) <= high:
            raise _refuse(key, f"{value!r} is not a number from {low} to {high}", "see the kernel's admin-guide/sysctl")
    elif key in TRIPLES:
        if len(words) != 3 or not all(w.isdecimal() for w in words) or sorted(map(int, words)) != [int(w) for w in words]:
            raise _refuse(key, f"{value!r} is not a minimum, default and maximum in bytes", "three rising numbers")
    elif key == "net.ipv4.tcp_congestion_control":
        offered = observed.texts.get(CONGESTION)
        if isinstance(offered, str) and value not in offered.split():
            hint = f"it has {' '.join(offered.split())}; others are kernel modules (tcp_{value})"
            raise _refuse(key, f"this kernel has no congestion control {value!r}", hint)
    elif isinstance(text, str) and text.strip().lstrip("-").isdecimal() and not value.lstrip("-").isdecimal():
        raise _refuse(key, f"{value!r} is not a number, and this parameter holds one ({text.strip()})", "give a number")


def plan(want: SysctlWant, observed: Observed) -> tuple[AnyChange, ...]:
    wanted = _wanted(want)
    for key, value in wanted.items():
        check(key, value, observed)
    for key, (path, value) in later_writers(observed.texts, FILE, wanted).items():
        if value != wanted[key]:
            words = f"sets {value} and is read after {FILE}; wanted {wanted[key]}"
            raise ConfigError(path, key, words, hint=f"remove that line, or declare its value in settings.sysctl.values.{key}")
    changes: list[AnyChange] = []
    for key, value in wanted.items():
        text = observed.texts[proc_path(key)]
        now = " ".join(text.split()) if isinstance(text, str) else ""
        if now != value:
            seen = f"is {now}" if isinstance(text, str) else f"cannot be read ({text.detail if text else 'gone'})"
            changes.append(
                KernelValue(setting="sysctl", why=f"{key} {seen}, wanted {value}", path=proc_path(key), value=value, before=now)
            )
    if wanted and observed.file != content(want):
        why = f"{FILE} does not say what is declared"
        changes.append(
            File(setting="sysctl", why=why, layer=Layer.PERSISTED, path=FILE, content=content(want), before=observed.file)
        )
    elif not wanted and observed.file is not None:
        why = f"{FILE} is ours, and nothing is declared any more"
        changes.append(File(setting="sysctl", why=why, layer=Layer.PERSISTED, path=FILE, content=None, before=observed.file))
    return tuple(changes)


setting = Setting(
    summary="Kernel parameters (sysctl), checked before they are written",
    group="kernel",
    want=SysctlWant,
    observe=observe,
    plan=plan,
    tuned_too=True,
    reads=(FILE, *GLOBS),
    reads_for=reads_for,
    as_wanted=lambda want: {proc_path(key): f"{value}\n" for key, value in _wanted(want).items()},
)
