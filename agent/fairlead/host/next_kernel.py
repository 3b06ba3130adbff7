"""Finds the kernel that GRUB boots next.

GRUB_DEFAULT in /etc/default/grub is a number (0 is the first entry of the menu), a title or an id of an entry, or ``saved``.
``saved`` means saved_entry in grubenv. If grubenv has next_entry (grub-reboot), GRUB boots that entry once. On Debian and Ubuntu
the first entry is the newest kernel. On the EL family the menu is made of boot entries (Boot Loader Specification), with one file
for each kernel. The name of the file without ``.conf`` is the id of the entry, and GRUB sorts the names as rpm sorts versions.

Sources: GRUB manual, "Simple configuration handling"; grub-reboot(8); grub2 of the EL family, grub-core/commands/blscfg.c
(``split_cmp``: the newest version is first); kernel-install(8).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from fairlead.host.root import Root
from fairlead.model import rpm_version
from fairlead.model.facts import Missing

DEFAULTS = "/etc/default/grub"
#: Only Debian's and Ubuntu's grub-mkconfig read these.
DROP_INS = "/etc/default/grub.d/*.cfg"
ENTRIES = "/boot/loader/entries/*.conf"
#: The first of these that exists has the variables that GRUB saves. On EL 8 with EFI it is a link to the last one.
GRUBENV = ("/boot/grub/grubenv", "/boot/grub2/grubenv")
GRUBENV_EFI = "/boot/efi/EFI/*/grubenv"
#: The kernels of the EL family's rescue entries are named vmlinuz-0-rescue-MACHINE.
RESCUE = "0-rescue-"
_DEFAULT = re.compile(r"^\s*(?:export\s+)?GRUB_DEFAULT=[\"']?(.*?)[\"']?\s*$", re.MULTILINE)
_NO_ENTRIES = re.compile(r"^\s*(?:export\s+)?GRUB_ENABLE_BLSCFG=[\"']?false\b", re.MULTILINE)
_KERNEL = re.compile(r"^linux\s+\S*/vmlinuz-(\S+)", re.MULTILINE)
_TITLE = re.compile(r"^title\s+(.*?)\s*$", re.MULTILINE)


class Entry(NamedTuple):
    """Describes one boot entry. ``machine`` is what its id has before the release of the kernel."""

    id: str
    title: str
    release: str
    machine: str


def version_key(release: str) -> tuple[tuple[int, str], ...]:
    """Return the sort key of a kernel release: numbers by value and words by letter, as `sort -V` orders them."""
    return tuple((int(n), "") if n else (-1, w) for n, w in re.findall(r"(\d+)|([^\d.+-]+)", release))


def next_kernel(root: Root, releases: Sequence[str]) -> str:
    """Return the release that GRUB boots next, or "" if GRUB's configuration does not show it clearly. ``releases``: the
    installed kernels, oldest first."""
    defaults = [root.read_text(path) for path in (DEFAULTS, *root.glob(DROP_INS))]
    saved = _variables(root)
    texts = [text for text in defaults if isinstance(text, str)]
    if saved is None or any(isinstance(text, Missing) for text in defaults):
        return ""
    chosen = ([found[-1] for text in texts if (found := _DEFAULT.findall(text))] or ["0"])[-1]
    if chosen == "saved":
        chosen = saved.get("saved_entry") or "0"
    chosen = saved.get("next_entry") or chosen
    entries = None if any(_NO_ENTRIES.search(text) for text in texts) else _entries(root)
    if entries is None:
        return _of_menu(chosen, releases)
    if not texts and not saved:
        return ""  # entries without GRUB belong to another boot loader
    release = _of_entries(chosen, entries)
    return release if release in releases else ""


def _of_menu(chosen: str, releases: Sequence[str]) -> str:
    """Return the release that is meant in a menu that grub-mkconfig made."""
    if chosen in ("", "0"):
        return releases[-1] if releases else ""
    named = [r for r in releases if re.search(rf"(?:^|[^\w.]){re.escape(r)}(?:$|[^\w.])", chosen)]
    return max(named, key=len, default="")


def _of_entries(chosen: str, entries: Sequence[Entry]) -> str:
    """Return the release of the chosen entry, or "" if no entry or no single order of the entries shows it."""
    for entry in entries:
        if chosen in (entry.id, entry.title):
            return entry.release
    if not chosen.isdecimal() or len({entry.machine for entry in entries if not entry.release.startswith(RESCUE)}) != 1:
        return ""
    menu = sorted(entries, key=lambda entry: rpm_version.key(entry.release), reverse=True)
    return menu[int(chosen)].release if int(chosen) < len(menu) else ""


def _entries(root: Root) -> tuple[Entry, ...] | None:
    """Return the boot entries of kernels, () if one cannot be read, or None if this machine has none."""
    found = []
    for path in root.glob(ENTRIES):
        text = root.read_text(path)
        name = path.rpartition("/")[2].removesuffix(".conf")
        if not isinstance(text, str):
            return ()
        if not (kernel := _KERNEL.search(text)):
            continue
        title = _TITLE.search(text)
        machine = name.removesuffix(kernel[1]) if name.endswith(kernel[1]) else ""
        found.append(Entry(name, title[1] if title else "", kernel[1], machine))
    return tuple(found) or None


def _variables(root: Root) -> dict[str, str] | None:
    """Return the variables of grubenv, {} where there is none, or None if it cannot be read or several of them disagree."""
    texts = []
    for path in (*GRUBENV, *root.glob(GRUBENV_EFI)):
        text = root.read_text(path)
        if isinstance(text, Missing):
            return None
        if text is not None:
            rows = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
            texts.append({key: value for key, sign, value in rows if sign})
            if path in GRUBENV:
                return texts[0]
    return texts[0] if len({(t.get("saved_entry"), t.get("next_entry")) for t in texts}) == 1 else None if texts else {}
