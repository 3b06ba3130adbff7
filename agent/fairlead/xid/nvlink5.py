"""Decodes an NVLink 5 line (Xid 144 to 150): unit, error status, why a link went down, and what NVIDIA asks for.

The line is ``UNIT Fatal|Nonfatal XC0 i0 Link 14 (IntrInfo ErrorStatus ...)``. XC: cross containment. i1: injected on purpose,
for a test. Link -1: all links. The layout of IntrInfo depends on the driver (575: V2). Without a known driver, the layout that
fits the unit's name is used. What fits no row of NVIDIA's table gives None and is not guessed.
"""

from __future__ import annotations

from msgspec import Struct, field

from fairlead.model.finding import Action
from fairlead.xid.nvlink5_rules import ANY, FATAL, LINK_FATAL, LINK_REASONS, LINK_UNIT, NONFATAL, UNITS, NvlinkRule, NvlinkUnit
from fairlead.xid.versions import parse_version

CODES = range(144, 151)
V2_SINCE = (575,)
_REASON = (20, 0x3F)  # bits 25:20
_PROMOTED = {"V1": 1 << 10, "V2": 1 << 7}


class Registers(Struct, frozen=True):
    """Holds what an NVLink line prints besides unit, severity and link. injected: the error was made on purpose."""

    intr_info: int
    error_status: int
    injected: bool = False


class NvlinkFault(Struct, frozen=True):
    """Holds one row of NVIDIA's table that fits a line.

    unit: as in the line. layout: V1 or V2. part: the unit in words. reason: why a link went down, "" for other units. action:
    NVIDIA's immediate one. Where NVIDIA says to follow the 154 beside it, or else to restart the application, this is
    restart_app. severity: "fatal" (the GPU), "link fatal" or "not fatal" by the table; the line's own word counts.
    investigate: what to look into. effect: what else is to be expected.
    """

    unit: str
    layout: str
    part: str
    error_status: int
    reason: str
    action: Action
    severity: str
    investigate: str = field(name="look")
    effect: str
    injected: bool

    @property
    def corrected(self) -> bool:
        """Say whether NVIDIA asks for nothing, neither now nor later."""
        return self.action is Action.NONE and not self.investigate and self.severity == NONFATAL


def fault(code: int, unit: str, registers: Registers, driver: str = "") -> NvlinkFault | None:
    """Return the row of NVIDIA's table for a line; None when there is none."""
    version = parse_version(driver)
    layouts = ("V1", "V2") if version is None else ("V2",) if version >= V2_SINCE else ("V1",)
    names = frozenset(unit.split("/"))
    for layout in layouts:
        for known, rules in (*UNITS, (LINK_UNIT, ())):
            if known.code == code and _is(known, names, registers.intr_info, layout):
                if known is LINK_UNIT:
                    return _by_reason(unit, registers, layout)
                return _by_status(unit, known, rules, registers, layout)
    return None


def _is(unit: NvlinkUnit, names: frozenset[str], intr_info: int, layout: str) -> bool:
    name, bits, mask = (unit.v1_name, unit.v1, 0x3FF) if layout == "V1" else (unit.v2_name, unit.v2, 0x7F)
    return name in names and intr_info & mask == bits


def _why(intr_info: int) -> int:
    shift, mask = _REASON
    return intr_info >> shift & mask


def _by_reason(unit: str, registers: Registers, layout: str) -> NvlinkFault | None:
    row = LINK_REASONS.get(_why(registers.intr_info))
    return None if row is None else _made(unit, LINK_UNIT, row[1], registers, layout, reason=row[0])


def _by_status(
    unit: str, known: NvlinkUnit, rules: tuple[NvlinkRule, ...], registers: Registers, layout: str
) -> NvlinkFault | None:
    if _why(registers.intr_info):
        return None
    for rule in rules:
        if rule.status in (ANY, registers.error_status):
            return _made(unit, known, rule, registers, layout)
    return None


def _made(unit: str, known: NvlinkUnit, rule: NvlinkRule, registers: Registers, layout: str, *, reason: str = "") -> NvlinkFault:
    promoted = rule.promoted is not None and registers.intr_info & _PROMOTED[layout]
    return NvlinkFault(
        unit=unit,
        layout=layout,
        part=known.words,
        error_status=registers.error_status,
        reason=reason,
        action=rule.promoted if promoted and rule.promoted else rule.action,
        severity=rule.severity,
        investigate=rule.investigate,
        effect=rule.effect,
        injected=registers.injected,
    )


__all__ = ["CODES", "FATAL", "LINK_FATAL", "NONFATAL", "NvlinkFault", "Registers", "fault"]
