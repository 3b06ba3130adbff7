"""Folds findings of one node that have the same words, so that these words are printed once for several devices or checks.

Only the printed text is folded. A finding is here a table as ``model.finding.as_data`` makes it, and as status.json has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

Table = Mapping[str, Any]
NAMES_SHOWN = 4  # the largest number of check names in one folded finding
_SAID = ("level", "summary", "evidence", "action")


class SameFindings(Struct, frozen=True, kw_only=True):
    """Holds findings with the same words. first: the first of these findings. checks: the names of their checks. devices: their
    devices, without devices that the summary already names."""

    first: Table
    checks: tuple[str, ...]
    devices: tuple[str, ...]

    def subject(self) -> str:
        """Return the names of the checks, and the device if there is exactly one."""
        more = f" and {len(self.checks) - NAMES_SHOWN} more" if len(self.checks) > NAMES_SHOWN else ""
        device = f" {self.devices[0]}" if len(self.devices) == 1 else ""
        return ", ".join(self.checks[:NAMES_SHOWN]) + more + device

    def words(self) -> str:
        """Return the summary of the findings, with the number of devices if there are several."""
        several = f" ({self.devices[0]} and {len(self.devices) - 1} more)" if len(self.devices) > 1 else ""
        return f"{self.first['summary']}{several}"


def folded(findings: Iterable[Table], also: Iterable[str] = ()) -> list[SameFindings]:
    """Return the folded findings, in the order in which their words first occur.

    Findings are folded if level, summary, evidence, action and the keys ``also`` are equal. Findings of different checks are
    folded only if none of them has a device.
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
