"""NVLink 5 lines decoded: units, layouts, statuses, and what of it drains."""

from __future__ import annotations

import csv
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.finding import Action, Service
from fairlead.xid import parse
from fairlead.xid.meaning import Meaning, meaning
from fairlead.xid.nvlink5 import CODES, FATAL, Registers, fault
from fairlead.xid.nvlink5_rules import ANY, LINK_REASONS, LINK_UNIT, UNITS

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
WHERE = "NVRM: Xid (PCI:0000:3b:00): "
NAMES = [name for unit, _ in (*UNITS, (LINK_UNIT, ())) for name in (unit.v1_name, unit.v2_name)] + ["X", "/", ""]


def means(text: str, driver: str = "") -> Meaning:
    line = parse(WHERE + text)
    assert line is not None
    return meaning(line, driver)


@pytest.mark.parametrize(
    ("text", "driver", "words", "action", "service"),
    [
        # as drivers print them: V1 (before 575) and V2
        ("149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 14 (0x0215c5c6 0x0 0x0)", "", "the peer was disabled", "reset_gpu", "now"),
        ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 14 (0x0215c5c6 0x0)", "570.172.08", "the peer was disabled", "reset_gpu", "now"),
        ("149, NETIR_LINK_DOWN Fatal XC0 i0 Link 14 (0x02100011 0x0)", "580.95.05", "the peer was disabled", "reset_gpu", "now"),
        ("149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x0 0x0)", "", "network interface: interrupt", "reset_gpu", "now"),
        ("145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x8)", "", "tracker, not fatal", "restart_app", "keep"),
        ("145, pid=1, name=a, b, RLW_RXPIPE Nonfatal XC0 i0 Link 12 (0x040980c2 0x8)", "", "pipe, not fatal", "none", "keep"),
        ("144, SAW_MVB Fatal XC0 i0 Link 0 (0x00000001 0x00000010)", "575.51.02", "link wrapper", "reset_gpu", "now"),
        ("150, MSE_WATCHDOG Fatal XC0 i0 Link 00 (0x0 0x0)", "", "watchdog", "reset_gpu", "now"),
        # the status alone decides what is asked for
        ("144, SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000001 0x00000008)", "", "link wrapper, not fatal", "none", "keep"),
        # the other driver's layout: no row, nothing guessed
        ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 14 (0x0215c5c6 0x0)", "580.95.05", "NVLink NETIR error", "check_fabric", "now"),
        ("144, SAW_MVB Fatal XC0 i0 Link 0 (0x00000001 0x00000010)", "570.172.08", "NVLink SAW error", "check_fabric", "now"),
        # a status, a unit, a reason that NVIDIA's table does not have
        ("145, RLW_REMAP Fatal XC0 i0 Link 1 (0x4 0x3)", "", "NVLink RLW error", "check_fabric", "now"),
        ("145, RLW_NEW Nonfatal XC0 i0 Link 1 (0x4 0x1)", "", "NVLink RLW error, not fatal", "check_fabric", "keep"),
        ("149, NETIR_LINK_DOWN Fatal XC0 i0 Link 1 (0x03f00011 0x0)", "", "NVLink NETIR error", "check_fabric", "now"),
        ("145, RLW_REMAP Nonfatal XC0 i0 Link 1 (0x00100004 0x1)", "", "NVLink RLW error, not fatal", "check_fabric", "keep"),
        # cut short, or redacted
        ("149, NETIR Fatal XC0 i0 Link -1 (0x000fe406", "", "NVLink NETIR error", "check_fabric", "now"),
        ("145, RLW_RXPIPE Nonfatal XC0 i0 Link 11 (...)", "", "NVLink RLW error, not fatal", "check_fabric", "keep"),
        # the line's own word wins over the table's
        ("145, RLW_REMAP Nonfatal XC1 i0 Link 10 (0x4 0x40)", "", "address remapping, not fatal", "reset_gpu", "keep"),
        ("145, RLW_CTRL Fatal XC0 i0 Link 10 (0x3 0x80000000)", "", "request layer: control", "check_fabric", "now"),
        # ... but for what NVIDIA says to ignore of a link that somebody reset
        ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x0)", "", "reset without a power cycle", "none", "keep"),
        ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x028001c6 0x0)", "", "forced down by hardware", "none", "keep"),
    ],
)  # fmt: skip
def test_lines(text: str, driver: str, words: str, action: str, service: str) -> None:
    found = means(text, driver)
    assert words in found.words
    assert (found.action.value, found.service.value) == (action, {"now": "drain_now"}.get(service, service))


@pytest.mark.parametrize(("driver", "plain", "promoted"), [("570.86.15", 0x0C2, 0x4C2), ("575.51.02", 0x06, 0x86)])
def test_a_promoted_error_wants_a_reset(driver: str, plain: int, promoted: int) -> None:
    for status in (1, 2, 4):
        for info, action in ((plain, Action.NONE), (promoted, Action.RESET_GPU)):
            row = fault(145, "RLW_RXPIPE", Registers(info, status), driver)
            assert row is not None and row.action is action
    other = fault(145, "RLW_RXPIPE", Registers(promoted, 8), driver)
    assert other is not None and other.action is Action.NONE  # this one is not promoted


def test_corrected_errors_raise_nothing_and_others_do() -> None:
    assert means("145, RLW_REMAP Nonfatal XC0 i0 Link 1 (0x4 0x100)").harmless
    assert not means("145, RLW_REMAP Fatal XC0 i0 Link 1 (0x4 0x100)").harmless
    assert not means("149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 1 (0x13 0x1)").harmless


def test_an_injected_error_is_said_to_be_one() -> None:
    found = means("144, SAW_MVB Fatal XC0 i1 Link 0 (0x1 0x10)")
    assert found.nvlink is not None and found.nvlink.injected


def test_the_table_is_whole() -> None:
    """NVIDIA's sheet: rows per code (those of 149 with its 21 reasons; both statuses of the watchdog)."""
    rows = dict.fromkeys(CODES, 0)
    for unit, rules in UNITS:
        rows[unit.code] += len(rules)
        statuses = [rule.status for rule in rules]
        assert len(set(statuses)) == len(statuses) and (ANY not in statuses or len(statuses) == 1)
        assert all((rule.severity == FATAL) <= (rule.action is Action.RESET_GPU) for rule in rules)
        assert 0 <= unit.v1 < 1 << 10 and 0 <= unit.v2 < 1 << 7
    assert rows == {144: 6, 145: 33, 146: 20, 147: 2, 148: 1, 149: 10, 150: 2} and len(LINK_REASONS) == 21


def test_every_row_is_found_in_its_layout_and_nowhere_else() -> None:
    for unit, rules in (*UNITS, *((LINK_UNIT, (row,)) for _, row in LINK_REASONS.values())):
        for rule in rules:
            status = 5 if rule.status == ANY else rule.status
            for driver, layout, name, info in (("574.9", "V1", unit.v1_name, unit.v1), ("575", "V2", unit.v2_name, unit.v2)):
                found = fault(unit.code, name, Registers(info | 0xFC000000, status), driver)
                assert found is not None and found.layout == layout and found.part == unit.words
                free = fault(unit.code, name, Registers(info | 0xFC000000, status))
                assert free is not None and (free.part, free.severity, free.action) == (found.part, found.severity, found.action)
                for code in set(CODES) - {unit.code}:
                    assert fault(code, name, Registers(info, status), driver) is None


@given(
    st.integers(140, 155),
    st.sampled_from(
        [u.v1_name for u, _ in UNITS] + [u.v2_name for u, _ in UNITS] + ["NETIR_LINK_EVT", "NETIR_LINK_DOWN", "X", "/", ""]
    ),
    st.integers(0, 0xFFFFFFFF),
    st.integers(0, 0xFFFFFFFF) | st.sampled_from([0, 1, 2, 4, 8, 0x80000000]),
    st.sampled_from(["", "570.1", "575", "nonsense"]),
)
def test_any_registers(code: int, unit: str, info: int, status: int, driver: str) -> None:
    found = fault(code, unit, Registers(info, status), driver)
    assert found is None or (code in CODES and found.error_status == status)
    for word, services in (("Fatal", {Service.DRAIN_NOW, Service.KEEP}), ("Nonfatal", {Service.KEEP})):
        text = f"{code}, {unit or 'U'} {word} XC0 i0 Link 1 (0x{info:08x} 0x{status:08x})"
        if code in CODES:
            assert means(text, driver).service in services


def test_recorded_nvlink_lines_decode() -> None:
    path = DATA / "kmsg" / "kmsg.csv"
    if not path.is_file():
        pytest.skip(f"recorded kernel lines are not here: {path}")
    decoded = whole = 0
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            line = parse(row["line"])
            if line is None or line.code not in CODES:
                continue
            found = meaning(line)
            whole += line.registers is not None
            decoded += found.nvlink is not None
            assert line.fatal is not False or found.service is Service.KEEP, row["line"]
    assert decoded == whole >= 30


def test_a_row_is_shown_with_the_keys_of_the_first_release() -> None:
    """``fairlead xid --json`` prints them."""
    row = means("149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 14 (0x0215c5c6 0x0 0x0)").nvlink
    assert row is not None and list(msgspec.to_builtins(row)) == [
        "unit", "layout", "part", "error_status", "reason", "action", "severity", "look", "effect", "injected",
    ]  # fmt: skip
