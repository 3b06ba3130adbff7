"""Lists what differs between driver versions: the first driver with each code, and codes that had another meaning earlier.

Facts: src/common/sdk/nvidia/inc/nverror.h, kernel_rc.c and gpu.c of NVIDIA/open-gpu-kernel-modules, every tag from 515.43.04 to
595.45.04 compared. An Xid line does not name the driver branch. A code may be added to an old branch later than to a newer
branch.
"""

from __future__ import annotations

import re
from functools import lru_cache

from msgspec import Struct

from fairlead.model.finding import Action, Service

Version = tuple[int, ...]
_VERSION = re.compile(r"[rR]?(\d{3,4})(?:\.(\d{1,4}))?(?:\.(\d{1,4}))?")
_LOADS = re.compile(r"NVRM: loading NVIDIA UNIX (?:Open )?(?:\S+ )?Kernel Module(?: for \S+)? +(\d{3,4}\.[\d.]{1,11})")


@lru_cache(maxsize=16)
def parse_version(text: str) -> Version | None:
    """Return a driver version (``570.172.08``, ``570`` or ``r570``) as a tuple of numbers, or None for any other text."""
    match = _VERSION.fullmatch(text.strip())
    return tuple(int(part) for part in match.groups() if part is not None) if match and text.isascii() else None


def loaded(text: str) -> str:
    """Return the version in the record that the driver prints when it loads (kernel-open/nvidia/nv.c). Return "" for other
    records."""
    match = _LOADS.match(text)
    return match[1].rstrip(".") if match else ""


class VersionChange(Struct, frozen=True):
    """Describes the meaning of a code for drivers from ``first`` to below ``before``, if the catalogue has another meaning. ()
    means no limit."""

    code: int
    first: Version
    before: Version
    name: str
    description: str
    action: Action
    service: Service
    blames: str
    why: str
    source: str


def _header(version: str) -> str:
    return f"nverror.h, driver {version}"


_KEY_ROTATION = "Confidential computing: this code was moved to 151 with driver 555. NVIDIA says of 151: restart the VM."

CHANGES: tuple[VersionChange, ...] = (
    VersionChange(
        51,
        (600,),
        (),
        "BAD_TSG",
        "bad channel group on a run list",
        Action.CONTACT_SUPPORT,
        Service.KEEP,
        "driver",
        "The driver's scheduler met a broken channel group. The 154 that follows says whether the GPU needs a reset.",
        "line of a 6xx driver, public note of 2026; not in nverror.h to 595",
    ),
    VersionChange(
        139,
        (535, 43, 9),
        (550,),
        "ROBUST_CHANNEL_FAST_PATH_ERROR",
        "CUDA fast path error",
        Action.NONE,
        Service.KEEP,
        "driver",
        "The code of the CUDA fast path error in branch 535; it became 141 with driver 550, where NVIDIA says: ignore.",
        _header("535.104.05"),
    ),
    VersionChange(
        144,
        (550, 40, 63),
        (555,),
        "ROBUST_CHANNEL_KEY_ROTATION_ERROR",
        "key rotation failed",
        Action.REBOOT_NODE,
        Service.DRAIN_NOW,
        "driver",
        _KEY_ROTATION,
        _header("550.90.07"),
    ),
)

#: The first driver whose header names a code. If an older branch got the code later, there is one driver for each branch. Codes
#: that are not listed are older than 515.43.04, or in no header (display and other codes that only the closed parts print).
SINCE: dict[int, str] = {
    **dict.fromkeys(range(96, 106), "525.60.11"),
    108: "550.40.07",
    110: "520.56.06",
    **dict.fromkeys(range(126, 136), "560.28.03"),
    136: "525.60.11",
    137: "530.30.02",
    138: "535.54.03",
    139: "560.28.03",
    140: "525.147.05, 535.104.12, 545.23.06",
    141: "550.40.07",
    142: "570.86.15",
    143: "525.147.05, 535.129.03, 550.40.07",
    **dict.fromkeys(range(144, 151), "560.28.03"),
    151: "555.42.02",
    154: "565.57.01",
    155: "570.86.15",
    156: "535.247.01, 550.163.01, 570.123.07",
    157: "535.247.01, 550.163.01, 570.123.07",
    158: "575.51.02",
    159: "575.51.02",
    160: "570.123.07",
    161: "570.123.07",
    **dict.fromkeys(range(162, 170), "580.65.06"),
    170: "590.44.01",
    171: "570.158.01, 580.65.06",
    172: "570.158.01, 580.65.06",
    173: "580.94.10",
    174: "590.44.01",
    175: "595.44.02",
    176: "595.44.02",
}

#: Changes of a code's line between driver versions that do not change the action.
NOTES: dict[int, str] = {
    45: "Drivers from 570.123.01 and 575.51.02 on print the cause: 'caused by previous Xid N' (kernel_rc.c).",
    48: "Drivers from 570.158.01 and 580.65.06 on add 171 (DRAM) or 172 (SRAM).",
    63: "Called page retirement before Ampere and in headers from 555 on; the same event.",
    64: "Called page retirement before Ampere and in headers from 555 on; the same event.",
    119: "The time-out was 6 s, later 45 s; only the number in the line differs.",
    154: "The words changed with 610 ('GPU Reset Required' became 'PF FLR', 'Node Reboot Required' 'OS Reboot'): "
    "fairlead reads the number.",
    **dict.fromkeys(
        range(144, 151), "The layout of IntrInfo changed with 575 (V1 before, V2 since): decoded by the driver's version."
    ),
    **dict.fromkeys((162, 163, 164, 165), "ISINK in headers 580 to 595, PSHC in NVIDIA's catalogue: the same thing."),
    174: "Known from 590.44.01 on; no older driver can print it.",
}


def change_of(code: int, driver: str) -> VersionChange | None:
    """Return the meaning of ``code`` for this driver if it differs from the catalogue's. Return None if it does not differ, or if
    the driver is unknown."""
    version = parse_version(driver) if driver else None
    if version is None:
        return None
    for change in CHANGES:
        if change.code == code and change.first <= version and (not change.before or version < change.before):
            return change
    return None
