"""Removes from a report what names the machine, its site or its users. It begins with what `fairlead snapshot --redact` replaces.

The rules go from the sure to the careful: the values that this machine knows to be its own (names, serial numbers, users), then
everything that has the form of an address or a number of identity, then every path that is not one of the kernel's, the
distribution's or fairlead's.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from fairlead.host.redact import Redactor
from fairlead.host.root import Root
from fairlead.model.plain_text import one_line
from fairlead.selftest.selftest_report import REASON_MAX, REASONS_MAX

_SUBSTRING_MIN = 5  # a shorter name is replaced only as a whole word, because it may be a part of many words
_NAMES_MAX = 20_000
_DMI = ("product_serial", "board_serial", "chassis_serial", "product_uuid", "chassis_asset_tag", "board_asset_tag")
_GENERIC = frozenset({
    "localhost", "localdomain", "ip6-localhost", "ip6-loopback", "ip6-allnodes", "ip6-allrouters", "broadcasthost", "none",
    "not specified", "default string", "to be filled by o.e.m.", "system serial number", "0", "root", "nobody",
})  # fmt: skip
_HEX = re.compile(r"(?<![0-9a-zA-Z])(?:0x)?[0-9a-fA-F]{12,}(?![0-9a-zA-Z])")
_SERIAL = re.compile(r"(?<![0-9A-Za-z_])(?=(?:[A-Za-z]*\d){4})(?=\d*[A-Za-z])[0-9A-Za-z]{8,}(?![0-9A-Za-z_])")
_DIGITS = re.compile(r"(?<![0-9a-zA-Z.])\d{9,}(?![0-9a-zA-Z.])")
_IPV4 = re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])")
_IPV6 = re.compile(r"(?<![0-9A-Za-z:])[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*")
_SERVER = re.compile(r"[A-Za-z0-9_.\[\]-]+:/[^\s'\"]*|//[A-Za-z0-9_.-]+/[^\s'\"]*|[a-z]+://[^\s'\"]+")
_MAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_QUALIFIED = re.compile(
    r"(?i)\b(?:[a-z0-9-]+\.)+(?:edu|com|org|net|gov|mil|int|io|ai|eu|local|lan|internal|cluster|hpc|site|[a-z]{2})\b(?![/.])"
)
_PATH = re.compile(r"(?<![\w.<>@*-])/[^\s'\",;:()<>]+")
#: Paths of the kernel, of the distribution and of fairlead. Below /etc only these files have names that no site chose.
_PUBLIC = re.compile(
    r"/proc/(?:(?:@|sys/|driver/|irq/)[^ ]*|mounts|modules|cmdline|cpuinfo|meminfo|uptime|version)"
    r"|/proc/(?:(?:\d+|self)/[a-z]+|net/[a-z0-9_]+)"
    r"|/sys(?:/[^ ]*)?"
    r"|/dev/(?:kmsg|nvidia[^ ]*|infiniband[^ ]*|null)|/@[^ ]*"
    r"|/(?:run|var/lib|opt)/fairlead(?:/[^ ]*)?|/etc/(?:[a-z.-]+/)*[0-9a-z-]*fairlead[^ ]*"
    r"|/etc/(?:nccl\.conf|os-release|tuned/active_profile|default/grub|default/irqbalance|chrony/chrony\.conf|chrony\.conf)"
    r"|/(?:usr/)?(?:s?bin|lib)/[^ ]*|/boot/(?:grub2?|loader)/[^ ]*|/run/systemd/[^ ]*"
)
_PERSONAL = re.compile(r"user[-@.]|session-|/home|/root|/media|run/user|\.automount|\.mount")
#: Two-letter words of the kernel and of programs that end a file's name, not a host's.
_FILE_ENDS = re.compile(r"(?i)\.(?:so|py|sh|ko|js|gz|xz|md|rs|cc|pl|id)$")


class ReportRedactor:
    """Redacts the texts of one report. ``secrets``: values that must not appear (names, serial numbers)."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {s.strip().lower() for s in secrets}
        names = sorted((s for s in known if len(s) >= 2 and s not in _GENERIC), key=lambda s: (-len(s), s))[:_NAMES_MAX]
        long = [re.escape(s) for s in names if len(s) >= _SUBSTRING_MIN]
        short = [rf"(?<![0-9A-Za-z]){re.escape(s)}(?![0-9A-Za-z])" for s in names if len(s) < _SUBSTRING_MIN]
        self._names = re.compile("|".join([*long, *short]), re.IGNORECASE) if names else None
        self._redactor = Redactor()

    def text(self, text: str, limit: int = REASON_MAX) -> str:
        """Return a text as one redacted line of at most ``limit`` characters."""
        said = one_line(text[: 8 * REASON_MAX])  # cut before, so that a pattern has little to search in
        said = _MAIL.sub("<user>", _SERVER.sub("<server>", said))
        said = _PATH.sub(_path, said)
        if self._names is not None:
            said = self._names.sub("<name>", said)
        said = self._redactor.text(said)
        said = _IPV6.sub(_address, _IPV4.sub("<address>", said))
        said = _QUALIFIED.sub(lambda m: m[0] if _FILE_ENDS.search(m[0]) else "<name>", said)
        for pattern in (_HEX, _SERIAL, _DIGITS):
            said = pattern.sub("<number>", said)
        return said if len(said) <= limit else said[: limit - 3] + "..."

    def row(self, row: dict[str, Any]) -> dict[str, Any]:
        """Redact the reasons of a row, the only text in it that is not fairlead's own, and cut their number."""
        reasons = [self.text(str(reason)) for reason in row.get("reasons", ())]
        if len(reasons) > REASONS_MAX:
            reasons = [*reasons[: REASONS_MAX - 1], f"and {len(reasons) - REASONS_MAX + 1} more"]
        return {**row, "reasons": reasons}


def _path(match: re.Match[str]) -> str:
    return match[0] if _PUBLIC.fullmatch(match[0].rstrip(".")) and not _PERSONAL.search(match[0]) else "<path>"


def _address(match: re.Match[str]) -> str:
    text = match[0].rstrip(".")
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return match[0]
    return match[0] if text in ("::", "::1") else "<address>"


def own_names(root: Root) -> Iterator[list[str]]:
    """Yield the values that identify this machine, its site and its users: host names, user names, serial numbers, ids. The
    names of homes come last, because /home may be a file system of a server that does not answer."""
    found = [os.uname().nodename, os.uname().nodename.partition(".")[0], os.uname().nodename.partition(".")[2]]
    found += [os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER", "HOSTNAME")]
    for path in (*(f"/sys/class/dmi/id/{name}" for name in _DMI), "/etc/hostname", "/etc/machine-id", "/etc/mailname"):
        text = root.read_text(path)
        found += [text.strip(), text.strip().partition(".")[0]] if isinstance(text, str) else []
    yield [name for name in (*found, *_hosts(root), *_users(root), *_interfaces(root)) if name]
    yield list(root.names("/home"))


def _hosts(root: Root) -> Iterator[str]:
    for path, skipped in (("/etc/hosts", 1), ("/etc/resolv.conf", 1)):
        text = root.read_text(path)
        for line in text.splitlines() if isinstance(text, str) else ():
            words = line.partition("#")[0].split()
            yield from words[skipped:]
            yield from (w.partition(".")[0] for w in words[skipped:] if path == "/etc/hosts")


def _users(root: Root) -> Iterator[str]:
    """Yield the names of persons: accounts from uid 1000 on (login.defs(5), UID_MIN), and their real names."""
    text = root.read_text("/etc/passwd")
    for line in text.splitlines() if isinstance(text, str) else ():
        fields = line.split(":")
        if len(fields) >= 5 and fields[2].isdigit() and 1000 <= int(fields[2]) < 65534:
            yield fields[0]
            yield fields[4].partition(",")[0]


def _interfaces(root: Root) -> Iterator[str]:
    """Yield the hardware addresses of the network interfaces."""
    for name in root.names("/sys/class/net"):
        address = root.value(f"/sys/class/net/{name}/address")
        if isinstance(address, str) and set(address) - set("0:"):
            yield address
