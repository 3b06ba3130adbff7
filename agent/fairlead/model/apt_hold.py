"""Writes and reads the two files that keep packages at their version on Debian and Ubuntu.

The pin file makes apt prefer exactly these versions. The other file excludes the packages from unattended-upgrades. Sources:
apt_preferences(5), unattended-upgrades README (Unattended-Upgrade::Package-Blacklist, Python regular expressions).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from fairlead.model.change import Package

PIN = "/etc/apt/preferences.d/fairlead-driver.pref"
UNATTENDED = "/etc/apt/apt.conf.d/52fairlead-driver"
#: Above 1000, apt also installs an older version. Others pin NVIDIA's newest at 1001 (azhpc-images, 00-nvidia-prefer).
PRIORITY = 2000
_HEAD = "Written by fairlead (setting driver); changes made here are put back."
_PINNED = re.compile(r"^Package: (\S+)\nPin: version (\S+)$", re.MULTILINE)


def pin_text(packages: Iterable[Package]) -> str:
    """Return the pin file for these packages."""
    head = f"Explanation: {_HEAD}\n"
    return "\n".join(f"{head}Package: {p.name}\nPin: version {p.version}\nPin-Priority: {PRIORITY}\n" for p in packages)


def unattended_text(packages: Iterable[Package]) -> str:
    """Return the file that excludes these packages from unattended-upgrades."""
    names = (re.sub("[.+]", "[\\g<0>]", p.name) for p in packages)
    lines = "".join(f'  "^{name}$";\n' for name in names)
    return f"// {_HEAD}\nUnattended-Upgrade::Package-Blacklist {{\n{lines}}};\n"


def ours(pin: str | None) -> dict[str, str]:
    """Return the versions in the pin file, by package name."""
    return dict(_PINNED.findall(pin or ""))
