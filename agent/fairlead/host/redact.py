"""Removes from a machine tree the values that identify the machine, its site or its users. Equal values are replaced by the same
invented value everywhere in the tree."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE)
_MAC = re.compile(r"\b[0-9a-f]{2}(?::[0-9a-f]{2}){5,19}\b", re.IGNORECASE)
_GUID = re.compile(r"\b[0-9a-f]{4}(?::[0-9a-f]{4}){3}\b", re.IGNORECASE)
_ROUTE = re.compile(r"(?<=\t)[0-9A-F]{8}(?=\t)")
_SERVER = re.compile(r"^(?://\S+|[^\s/]\S*:/\S*)(?= )", re.MULTILINE)
_PERSONAL_MOUNT = re.compile(r"^\S+ (?:/home|/run/user|/root|/media)\S* .*\n|^\S+ \S+ fuse\S* .*\n", re.MULTILINE)
_PERSONAL_FOLDERS = ("/home", "/run/user", "/root", "/media")
_PERSONAL_UNIT = re.compile(r"user[@-]|session-|run-user|run-media|home-|media-|root-|app-|dev-disk")
_HARDWARE = re.compile(r"NVRM|nvidia|nvswitch|SXid|pcieport|AER|mlx5|EDAC|mce|nvme|ACPI|DMAR|pci |Linux version")


class Redactor:
    """Replaces each serial, UUID, MAC address and GUID by an invented one. Equal values stay equal, and zero stays zero."""

    def __init__(self, nvml: Any = None) -> None:
        self._new: dict[str, str] = {}
        serials = [g.get("serial") for g in _gpus(nvml)]
        self._serials = sorted({s for s in serials if isinstance(s, str) and len(s) >= 6})

    def text(self, text: str) -> str:
        """Redact any text of the tree."""
        for serial in self._serials:
            if serial in text:
                text = text.replace(serial, self._invent(serial, lambda n, old: str(10 ** (len(old) - 1) + n)))
        text = _UUID.sub(lambda m: self._invent(m[0], lambda n, _: f"00000000-0000-4000-8000-{n:012x}"), text)
        text = _MAC.sub(lambda m: self._invent(m[0], lambda n, old: _grouped(n, old, 2)), text)
        return _GUID.sub(lambda m: self._invent(m[0], lambda n, old: _grouped(n, old, 4)), text)

    def route(self, text: str) -> str:
        """Redact /proc/net/route. Addresses are replaced, except the zero of the default route and the netmasks."""
        return _ROUTE.sub(lambda m: m[0] if set(m[0]) <= set("0F") else self._invent(m[0], lambda n, _: f"{n:06X}0A"), text)

    def gid(self, text: str) -> str:
        """Redact an entry of a GID table. The kind of the address is kept, and equal addresses stay equal."""
        prefix, own = text.strip()[:20], text.strip()[20:]
        if prefix.startswith("fe80:"):
            return f"{prefix}{self._invent(own, lambda n, old: _grouped(n, old, 4))}\n"
        if own.startswith("0000:ffff:") and not prefix.strip("0:"):
            return f"{prefix}0000:ffff:{self._invent(own, lambda n, _: f'0a00:{n:04x}')}\n"
        return f"fd00:0000:0000:0000:{self._invent(text.strip(), lambda n, _: f'0000:0000:0000:{n:04x}')}\n"

    def mounts(self, text: str) -> str:
        """Redact /proc/mounts: rename the servers, and remove the mounts of users."""
        return self.text(_SERVER.sub("server:/export", _PERSONAL_MOUNT.sub("", text)))

    def mountinfo(self, text: str) -> str:
        """Redact /proc/1/mountinfo like /proc/mounts. The path is the fifth field, and the source the second field after the
        separator."""
        kept = []
        for line in text.splitlines():
            fields, _, after = line.partition(" - ")
            path, rest = fields.split(" ")[4:5], after.split(" ")
            if len(rest) < 3 or not path or path[0].startswith(_PERSONAL_FOLDERS) or rest[0].startswith("fuse"):
                continue
            rest[1] = "server:/export" if ":/" in rest[1] or rest[1].startswith("//") else rest[1]
            rest[2] = ",".join(o for o in rest[2].split(",") if "=" not in o or o.startswith(("errors=", "vers=")))
            kept.append(f"{fields} - {' '.join(rest)}\n")
        return self.text("".join(kept))

    def host(self, value: Any) -> Any:
        """Redact host.json. The units of users' sessions are removed."""
        if isinstance(value, dict) and isinstance(value.get("units"), list):
            units = [u for u in value["units"] if isinstance(u, dict) and not _PERSONAL_UNIT.match(str(u.get("name", "")))]
            value = {**value, "units": units}
        return self.value(value)

    def kmsg(self, text: str) -> str:
        """Keep the kernel records about hardware. Other records may name processes and paths of users."""
        return self.text("".join(line + "\n" for line in text.splitlines() if _HARDWARE.search(line)))

    def value(self, value: Any) -> Any:
        """Redact every string in nvml.json."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(v) for v in value]
        return {k: self.value(v) for k, v in value.items()} if isinstance(value, dict) else value

    def _invent(self, old: str, make: Any) -> str:
        if not set(old) & set("123456789abcdefABCDEF"):
            return old
        key = old.lower()
        if key not in self._new:
            self._new[key] = make(len(self._new) + 1, old)
        return self._new[key]


def _grouped(number: int, old: str, digits: int) -> str:
    """Return a locally administered address of the same form as ``old``."""
    size = old.count(":") + 1
    text = f"{number:0{size * digits}x}"
    text = "02" + text[2:]
    return ":".join(text[i : i + digits] for i in range(0, len(text), digits))


def _gpus(nvml: Any) -> list[Mapping[str, Any]]:
    entries = nvml.get("gpus") if isinstance(nvml, Mapping) else None
    return [g for g in entries if isinstance(g, Mapping)] if isinstance(entries, list) else []
