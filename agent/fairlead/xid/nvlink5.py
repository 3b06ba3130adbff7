"""Decodes an NVLink 5 line (Xid 144 to 150): the unit, the error status, why a link went down, and NVIDIA's action.  The line is
``UNIT Fatal|Nonfatal XC0 i0 Link 14 (IntrInfo ErrorStatus ...)``. XC is the cross containment. i1 means that the error was
injected on purpose, for a test. Link -1 means all links. The layout of the register IntrInfo depends on the driver: V2 from 575
on, V1 before. If the driver is unknown, the layout that fits the unit's name is used. A line that fits no row of NVIDIA's table
gives None.
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
    """Holds the registers in an NVLink line. ``injected`` says that the error was injected on purpose."""

    intr_info: int
    error_status: int
    injected: bool = False


class NvlinkFault(Struct, frozen=True):
    """Holds the row of NVIDIA's table that fits a line.

    unit: the unit's name in the line. layout: V1 or V2. part: the unit in words. reason: why a link went down, or "" for other
    units. action: NVIDIA's immediate action. If NVIDIA says to follow the Xid 154 beside the line, or else to restart the
    application, it is restart_app. severity: "fatal" (for the GPU), "link fatal" or "not fatal" in the table. The severity in
    the line itself overrides it. investigate: what to investigate. effect: which further effects to expect.
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
        """Return whether NVIDIA's table asks for no action, neither now nor later."""
        return self.action is Action.NONE and not self.investigate and self.severity == NONFATAL


def fault(code: int, unit: str, registers: Registers, driver: str = "") -> NvlinkFault | None:
    """Return the row of NVIDIA's table for a line, or None if no row fits."""
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
