"""Adds words to the kernel command line, such as iommu=pt, pci=realloc=on or pcie_aspm=off.

/proc/cmdline has the effective words. If a key occurs several times, its last word wins, but the options of ``pci=`` add up. On
Debian and Ubuntu, fairlead persists the words in a drop-in in /etc/default/grub.d. GRUB reads this drop-in last, also after
50-cloudimg-settings.cfg of cloud images. The words must also be in grub.cfg. On the EL family, grubby persists the words in every
boot entry of the Boot Loader Specification. On EL8 the entries have the variable $kernelopts, whose value is in grubenv, and
grubby changes it there. A persisted word becomes effective at a reboot.

At each move of the driver, NVIDIA's package nvidia-kmod-common changes all boot entries itself by grubby. It adds words against
nouveau and for nvidia-drm, and removes ``nomodeset``. So fairlead plans this setting again after packages have moved, and the
declared words win. Words that would bring nouveau back are refused. Sources: kernel documentation,
admin-guide/kernel-parameters.rst; grub-mkconfig(8); grubby(8), and ``update_args`` of grubby-bls (a new word replaces all words
with its key); dracut.cmdline(7), rd.driver.blacklist; NVIDIA's yum-packaging-nvidia-driver, %post of nvidia-kmod-common;
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
#: The EL family's names: the menu of GRUB, and the variables that GRUB saves.
GRUB2_CFG, GRUBENV = "/boot/grub2/grub.cfg", "/boot/grub2/grubenv"
ENTRIES = "/boot/loader/entries/*.conf"
#: A file of NVIDIA's package nvidia-kmod-common.
KMOD_COMMON = "/usr/lib/modprobe.d/nvidia.conf"
ADD_UP = frozenset({"pci", "console", "earlycon", "modprobe.blacklist", "module_blacklist", "rd.driver.blacklist"})
# The pattern allows no blank, quote or $, because fairlead writes the words into a shell file of GRUB.
_WORD = r"^[A-Za-z0-9_.-]+(=[A-Za-z0-9_.,:;@/=+*-]*)?$"
_KEEPS = re.compile(r'(GRUB_CMDLINE_LINUX(?:_DEFAULT)?)="((?:[^"$`\\]* )?)\$\{?\1\}?((?: [^"$`\\]*)?)"')
_ASSIGNED = re.compile(r"^[ \t]*(?:export[ \t]+)?(GRUB_CMDLINE_LINUX\w*)\+?=.*$", re.MULTILINE)
_NO_ENTRIES = re.compile(r"^\s*(?:export\s+)?GRUB_ENABLE_BLSCFG=[\"']?false\b", re.MULTILINE)
_LINUX = re.compile(r"^\s*linux(?:efi|16)?\s+\S+\s*(.*)$", re.MULTILINE)


class KernelCmdlineWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    words: Annotated[
        tuple[Annotated[str, Meta(pattern=_WORD, max_length=200)], ...],
        Meta(description='Words of the kernel command line, such as "iommu=pt".'),
    ] = ()


class Observed(Struct, frozen=True):
    """Holds what was read. ``running`` has the words of /proc/cmdline. ``file`` is the text of fairlead's drop-in. ``grub`` says
    whether this node has GRUB's file with defaults. ``menu`` has the command lines in grub.cfg, or is None without a grub.cfg.
    ``entries`` has the command line of each boot entry, by path. ``later`` has the texts of the drop-ins that are read after
    fairlead's, by path. ``grub2`` says whether GRUB's menu is where the EL family has it. ``unused`` says that GRUB is configured
    to use no boot entries. ``kmod_common`` says whether NVIDIA's package of that name is installed."""

    running: tuple[str, ...]
    file: str | None
    grub: bool
    menu: tuple[str, ...] | None
    entries: dict[str, str]
    later: dict[str, str]
    grub2: bool = False
    unused: bool = False
    kmod_common: bool = False


def in_force(words: tuple[str, ...], wanted: str) -> bool:
    """Return whether ``wanted`` is effective on a command line. For most keys the last word of the key counts.

    For keys whose options add up, all options of ``wanted`` must be effective. If an option occurs several times, its last value
    wins. So ``pci=realloc=on`` before ``pci=realloc=off`` is off.
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
    for path in (CMDLINE, FILE, GRUB, GRUB_CFG, GRUB2_CFG, GRUBENV, KMOD_COMMON):
        text = node.text(path)
        if isinstance(text, Missing):
            return text
        texts[path] = text
    running = texts[CMDLINE]
    if running is None:
        return unreadable(f"{CMDLINE}: no such file")
    rows = (line.partition("=") for line in (texts[GRUBENV] or "").splitlines() if not line.startswith("#"))
    variables = {f"${key}": value for key, sign, value in rows if sign}
    entries: dict[str, str] = {}
    later: dict[str, str] = {}
    for path, text in sorted(node.texts.items()):
        if path.startswith("/boot/loader/entries/"):
            if isinstance(text, Missing):
                return text
            options = [line.split(None, 1) for line in (text or "").splitlines() if line.startswith("options")]
            words = " ".join(parts[1] for parts in options if len(parts) == 2).split()
            entries[path] = " ".join(variables.get(word, word) for word in words)
        elif path.startswith("/etc/default/grub.d/") and path > FILE:
            if isinstance(text, Missing):
                return text
            later[path] = text or ""
    cfg = texts[GRUB_CFG]
    menu = None if cfg is None else tuple(line for line in _LINUX.findall(cfg) if " single" not in f" {line} ")
    return Observed(
        tuple(running.split()),
        texts[FILE],
        texts[GRUB] is not None,
        menu,
        entries,
        later,
        grub2=texts[GRUB2_CFG] is not None,
        unused=_NO_ENTRIES.search(texts[GRUB] or "") is not None,
        kmod_common=texts[KMOD_COMMON] is not None,
    )


def _added(text: str) -> tuple[str, ...] | None:
    """Return the words that a drop-in adds to the words of earlier files, as kdump-tools.cfg does (crashkernel=). Return None for
    a drop-in that may drop the words of earlier files."""
    said = [line.strip() for line in text.splitlines() if "GRUB_CMDLINE_LINUX" in line and not line.lstrip().startswith("#")]
    kept = [_KEEPS.fullmatch(line) for line in said]
    return tuple(word for match in kept if match for word in match[3].split()) if all(kept) else None


def _variable(text: str) -> str:
    """Return the variable that a drop-in assigns in the line that conflicts with fairlead's drop-in. If several lines conflict, a
    line that drops fairlead's words is chosen first."""
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
    if want.words and observed.grub2 and (observed.unused or not observed.entries):
        words = "GRUB uses no boot entries here (GRUB_ENABLE_BLSCFG), and grubby cannot keep words for later kernels"
        raise ConfigError(GRUB, "GRUB_ENABLE_BLSCFG", words, hint="run `grub2-switch-to-blscfg`, or declare managed = false")
    if observed.entries and observed.kmod_common:
        _check_nouveau(want.words)
    if observed.entries and not observed.unused:
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


def _check_nouveau(words: tuple[str, ...]) -> None:
    """Raise ConfigError for a word that contradicts the words of NVIDIA's package, which it sets again at each driver move."""
    for word in words:
        key, _, value = word.partition("=")
        if key == "nomodeset" or (key == "nouveau.modeset" and value != "0"):
            said = f"{word} contradicts the words of NVIDIA's package nvidia-kmod-common, which removes it at each driver move"
            hint = "remove it from settings.kernel_cmdline.words, or declare no driver for this node"
            raise ConfigError("node.json", "settings.kernel_cmdline.words", said, hint=hint)


def _entries(words: tuple[str, ...], entries: dict[str, str]) -> list[AnyChange]:
    lines = [tuple(line.split()) for line in entries.values()]
    lacking = tuple(w for w in words if not all(in_force(line, w) for line in lines))
    if not lacking:
        return []
    # grubby removes all words with the key of a new word, also those that add up, so these are named too
    keys = {w.partition("=")[0] for w in lacking} & ADD_UP
    there = (w for line in lines for w in line if w.partition("=")[0] in keys)
    named = (*dict.fromkeys(w for w in there if w not in lacking), *lacking)
    why = f"{len(entries)} boot entries do not all have {' '.join(lacking)}"
    return [BootLoader(setting="kernel_cmdline", why=why, layer=Layer.PERSISTED, tool="grubby", words=named)]


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
    reads=(CMDLINE, GRUB, FILE, DROP_INS, GRUB_CFG, ENTRIES, GRUB2_CFG, GRUBENV, KMOD_COMMON),
    as_wanted=lambda want: {CMDLINE: " ".join(want.words) + "\n"},
    disruption=Disruption.REBOOT,
)
