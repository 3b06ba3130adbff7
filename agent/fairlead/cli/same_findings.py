"""Folds findings of one node that say the same, so that several devices or several checks with the same words are printed
once.

Only what is printed is folded. Findings are tables as ``model.finding.as_data`` makes them, and as status.json has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

Table = Mapping[str, Any]
NAMES_SHOWN = 4  # how many checks that say the same are named
_SAID = ("level", "summary", "evidence", "action")


class SameFindings(Struct, frozen=True, kw_only=True):
    """Holds findings that say the same. first: one of them. checks: the checks that say so. devices: their devices, without
    those that the summary names itself."""

    first: Table
    checks: tuple[str, ...]
    devices: tuple[str, ...]

    def subject(self) -> str:
        """Return the checks that say it, and the device where there is exactly one."""
        more = f" and {len(self.checks) - NAMES_SHOWN} more" if len(self.checks) > NAMES_SHOWN else ""
        device = f" {self.devices[0]}" if len(self.devices) == 1 else ""
        return ", ".join(self.checks[:NAMES_SHOWN]) + more + device

    def words(self) -> str:
        """Return what the findings say, with the number of devices where there are several."""
        several = f" ({self.devices[0]} and {len(self.devices) - 1} more)" if len(self.devices) > 1 else ""
        return f"{self.first['summary']}{several}"


def folded(findings: Iterable[Table], also: Iterable[str] = ()) -> list[SameFindings]:
    """Fold findings, in the order in which each was first said.

    Level, summary, evidence, action and the keys ``also`` must be equal. Two checks are folded only where neither names a
    device.
    """
    keys = (*_SAID, *also)
    groups: dict[tuple[str, ...], list[Table]] = {}
    for finding in findings:
        groups.setdefault((finding["check"], *(str(finding.get(key, "")) for key in keys)), []).append(finding)
    found: dict[tuple[str, ...], SameFindings] = {}
    for (check, *said), group in groups.items():
        devices = dict.fromkeys(str(f.get("device", "")) for f in group)
        unnamed = tuple(d for d in devices if d and not re.search(rf"(?<!\w){re.escape(d)}(?!\w)", group[0]["summary"]))
        key = (check if any(devices) else "", *said)
        before = found.get(key)
        first, checks = (before.first, before.checks) if before else (group[0], ())
        found[key] = SameFindings(first=first, checks=(*checks, check), devices=unnamed)
    return list(found.values())
