"""Adds words to the kernel command line, such as iommu=pt, pci=realloc=on or pcie_aspm=off.

/proc/cmdline has the effective words. The last word of a key wins there (the options of ``pci=`` add up). On Debian and Ubuntu
the words are persisted in a drop-in that GRUB reads last of all (/etc/default/grub.d; cloud images have a
50-cloudimg-settings.cfg there), and they must also be in grub.cfg. On the EL family, grubby persists them in every boot entry
of the Boot Loader Specification. A persisted word becomes effective at a reboot. Sources: kernel documentation,
admin-guide/kernel-parameters.rst; grub-mkconfig(8); grubby(8);
https://uapi-group.org/specifications/specs/boot_loader_specification/.
"""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model.change import AnyChange, BootLoader, Disruption, File, Layer, Reboot
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.setting import Setting, Want

CMDLINE = "/proc/cmdline"
GRUB = "/etc/default/grub"
DROP_INS = "/etc/default/grub.d/*.cfg"
FILE = "/etc/default/grub.d/99-fairlead.cfg"
GRUB_CFG = "/boot/grub/grub.cfg"
ENTRIES = "/boot/loader/entries/*.conf"
ADD_UP = frozenset({"pci", "console", "earlycon", "modprobe.blacklist", "module_blacklist"})
# it allows no blank, quote or $, because the words go into a shell file of GRUB
_WORD = r"^[A-Za-z0-9_.-]+(=[A-Za-z0-9_.,:;@/=+*-]*)?$"
_KEEPS = re.compile(r'(GRUB_CMDLINE_LINUX(?:_DEFAULT)?)="((?:[^"$`\\]* )?)\$\{?\1\}?((?: [^"$`\\]*)?)"')
_ASSIGNED = re.compile(r"^[ \t]*(?:export[ \t]+)?(GRUB_CMDLINE_LINUX\w*)\+?=.*$", re.MULTILINE)
_LINUX = re.compile(r"^\s*linux(?:efi|16)?\s+\S+\s*(.*)$", re.MULTILINE)


class KernelCmdlineWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    words: Annotated[
        tuple[Annotated[str, Meta(pattern=_WORD, max_length=200)], ...],
        Meta(description='Words of the kernel command line, such as "iommu=pt".'),
    ] = ()


class Observed(Struct, frozen=True):
    """Holds what was read. ``running``: the words of /proc/cmdline. ``file``: our drop-in. ``grub``: whether GRUB reads
    drop-ins here. ``menu``: the command lines in grub.cfg, None where there is none. ``entries``: the command line of each
    boot entry, by path. ``later``: the texts of the drop-ins that are read after ours, by path."""

    running: tuple[str, ...]
    file: str | None
    grub: bool
    menu: tuple[str, ...] | None
    entries: dict[str, str]
    later: dict[str, str]


def in_force(words: tuple[str, ...], wanted: str) -> bool:
    """Say whether a command line has ``wanted`` in force. For most keys the last word of the key counts.

    For keys that add up, all options of ``wanted`` must be in force, and of each option the last one wins (``pci=realloc=on``
    before ``pci=realloc=off`` is off).
    """
    key, sign, value = wanted.partition("=")
    same = [w.partition("=")[2] for w in words if w.partition("=")[0] == key]
    if not same:
        return False
    if key in ADD_UP and sign:
        have = {option.partition("=")[0]: option for text in same for option in text.split(",")}
        return all(have.get(option.partition("=")[0]) == option for option in value.split(","))
    return [w for w in words if w.partition("=")[0] == key][-1] == wanted


def observe(node: Node) -> Observed | Missing:
    texts: dict[str, str | None] = {}
    for path in (CMDLINE, FILE, GRUB, GRUB_CFG):
        text = node.text(path)
        if isinstance(text, Missing):
            return text
        texts[path] = text
    running = texts[CMDLINE]
    if running is None:
        return unreadable(f"{CMDLINE}: no such file")
    entries: dict[str, str] = {}
    later: dict[str, str] = {}
    for path, text in sorted(node.texts.items()):
        if path.startswith("/boot/loader/entries/"):
            if isinstance(text, Missing):
                return text
            options = [line.split(None, 1) for line in (text or "").splitlines() if line.startswith("options")]
            entries[path] = " ".join(parts[1] for parts in options if len(parts) == 2)
        elif path.startswith("/etc/default/grub.d/") and path > FILE:
            if isinstance(text, Missing):
                return text
            later[path] = text or ""
    cfg = texts[GRUB_CFG]
    menu = None if cfg is None else tuple(line for line in _LINUX.findall(cfg) if " single" not in f" {line} ")
    return Observed(tuple(running.split()), texts[FILE], texts[GRUB] is not None, menu, entries, later)


def _added(text: str) -> tuple[str, ...] | None:
    """Return the words that a drop-in adds after those of the files before it, as kdump-tools.cfg does (crashkernel=). Return
    None for a drop-in that may drop those words."""
    said = [line.strip() for line in text.splitlines() if "GRUB_CMDLINE_LINUX" in line and not line.lstrip().startswith("#")]
    kept = [_KEEPS.fullmatch(line) for line in said]
    return tuple(word for match in kept if match for word in match[3].split()) if all(kept) else None


def _variable(text: str) -> str:
    """Return the variable that a drop-in assigns in the line that conflicts with ours. A line that drops our words comes
    first."""
    lines = sorted(_ASSIGNED.finditer(text), key=lambda line: _KEEPS.fullmatch(line[0].strip()) is not None)
    return lines[0][1] if lines else "GRUB_CMDLINE_LINUX_DEFAULT"


def content(words: tuple[str, ...]) -> str:
    return (
        "# Written by fairlead (setting kernel_cmdline); changes made here are put back.\n"
        f'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT {" ".join(words)}"\n'
    )


def plan(want: KernelCmdlineWant, observed: Observed) -> tuple[AnyChange, ...]:
    missing = tuple(w for w in want.words if not in_force(observed.running, w))
    changes: list[AnyChange] = []
    if observed.entries:
        changes += _entries(want.words, observed.entries)
    elif observed.grub or observed.file is not None:
        changes += _grub(want.words, observed)
    elif want.words:
        raise ConfigError(
            "node.json",
            "settings.kernel_cmdline",
            f"neither {GRUB} nor boot entries in /boot/loader/entries: this boot loader is not known here",
            hint=f"add {' '.join(want.words)} where this node gets its command line, or declare managed = false",
        )
    if missing:
        why = f"the running kernel was started without {' '.join(missing)}"
        changes.append(
            Reboot(
                setting="kernel_cmdline",
                why=why,
                layer=Layer.PENDING_REBOOT,
                disruption=Disruption.REBOOT,
                what=" ".join(missing),
            )
        )
    return tuple(changes)


def _entries(words: tuple[str, ...], entries: dict[str, str]) -> list[AnyChange]:
    lacking = tuple(w for w in words if not all(in_force(tuple(line.split()), w) for line in entries.values()))
    if not lacking:
        return []
    why = f"{len(entries)} boot entries do not all have {' '.join(lacking)}"
    return [BootLoader(setting="kernel_cmdline", why=why, layer=Layer.PERSISTED, tool="grubby", words=lacking)]


def _grub(words: tuple[str, ...], observed: Observed) -> list[AnyChange]:
    for path, text in observed.later.items():
        added = _added(text)
        if words and (added is None or not all(in_force((*words, *added), w) for w in words)):
            hint = "rename it so that it is read before ours, or declare its words in settings.kernel_cmdline.words"
            raise ConfigError(path, _variable(text), f"is read after {FILE}, and may drop or override its words", hint=hint)
    changes: list[AnyChange] = []
    wanted = content(words) if words else None
    if observed.file != wanted:
        why = f"{FILE} does not say {' '.join(words)}" if words else f"{FILE} is ours, and nothing is declared any more"
        changes.append(
            File(
                setting="kernel_cmdline",
                why=why,
                layer=Layer.PERSISTED,
                path=FILE,
                content=wanted,
                before=observed.file,
            )
        )
    stale = [w for line in observed.menu or () for w in words if not in_force(tuple(line.split()), w)]
    if observed.menu is not None and (changes or stale):
        why = f"{GRUB_CFG} does not have {' '.join(dict.fromkeys(stale)) or 'what the drop-in says'}"
        changes.append(BootLoader(setting="kernel_cmdline", why=why, layer=Layer.PERSISTED, tool="update-grub", words=words))
    return changes


setting = Setting(
    summary="Words of the kernel command line",
    group="kernel",
    want=KernelCmdlineWant,
    observe=observe,
    plan=plan,
    reads=(CMDLINE, GRUB, FILE, DROP_INS, GRUB_CFG, ENTRIES),
    as_wanted=lambda want: {CMDLINE: " ".join(want.words) + "\n"},
    disruption=Disruption.REBOOT,
)
