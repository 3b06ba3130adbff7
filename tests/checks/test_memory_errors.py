"""Errors of the host's memory, counted by EDAC and told by the kernel log."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import checks
from fairlead.model.check_definition import Past
from fairlead.model.facts import Node
from fairlead.model.finding import Level, Service
from fairlead.model.host_facts import MemoryController
from tests.checks.hosts import host_node, judged, past, samples
from tests.checks.nodes import BOOT, NA, log


def controllers(corrected: Any = 0, uncorrected: Any = 0) -> Node:
    return host_node(
        controllers=(MemoryController(name="mc0", corrected=corrected, uncorrected=uncorrected, worst_dimm="DIMM_A1"),)
    )


@pytest.mark.parametrize(
    ("node", "history", "level"),
    [
        (controllers(uncorrected=1), past(), Level.DRAIN),
        (controllers(corrected=500), past(samples("mc0", "corrected", 0)), Level.WARN),
        (controllers(corrected=500), past(samples("mc0", "corrected", 499, 499)), None),  # an old count
        (controllers(corrected=10), past(samples("mc0", "corrected", 500)), None),  # the driver was loaded anew
        (controllers(corrected=500), Past(), Level.OK),  # needs history
        (controllers(corrected=NA), past(), Level.UNKNOWN),
        (controllers(uncorrected=NA), past(), Level.UNKNOWN),
        (host_node(controllers=NA), past(), Level.UNKNOWN),
        (host_node(), past(log=NA), Level.UNKNOWN),
    ],
)
def test_memory_counters(node: Node, history: Past, level: Level | None) -> None:
    assert [f.level for f in judged("memory_errors", node, history)] == ([level] if level is not None else [])


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#1_Channel#1_DIMM#1", True),
        ("EDAC MC1: 128 CE memory read error on CPU_SrcID#1_Ha#0_Chan#1_DIMM#1", False),
        ("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: be00000000800400", True),
        ("mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 7: fe00000000800400", True),
        ("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: 8c00004000010090", False),  # corrected: bit 61 is clear
        ("mce: [Hardware Error]: Machine check events logged", False),
        ("{1}[Hardware Error]: event severity: recoverable", True),
        ("{1}[Hardware Error]: event severity: corrected", False),
        ("[Hardware Error]: Uncorrected, software restartable error.", True),
        ("[Hardware Error]: Corrected error, no action required.", False),
        ("Memory failure: 0x12345: recovery action for dirty LRU page: Recovered", True),
        ("my EDAC MC0: 1 UE memory read error", False),  # not at the start
    ],
)
def test_memory_records(text: str, bad: bool) -> None:
    found = judged("memory_errors", host_node(), log(text))
    assert [(f.level, f.service) for f in found] == [(Level.DRAIN, Service.DRAIN_AFTER_JOB)] * bad
    assert checks.load()["memory_errors"].heeds(text) is bad  # type: ignore[misc]
    assert all(f.evidence_id == f"{BOOT}:100" for f in found)


def test_controllers_that_nobody_watches() -> None:
    (found,) = judged("memory_errors", host_node(), controllers_expected=4)
    assert (found.level, found.summary) == (Level.UNKNOWN, "1 of 4 memory controllers are watched by EDAC")
    assert judged("memory_errors", host_node(controllers=())) == []


def firmware(number: int, severity: str, *sections: str) -> tuple[str, ...]:
    """A record of the firmware's as drivers/firmware/efi/cper.c prints it."""
    begin = f"{{{number}}}[Hardware Error]:"
    told = (f"{begin} event severity: {severity}", *(f"{begin}   section_type: {s}" for s in sections))
    return (f"{begin} Hardware error from APEI Generic Hardware Error Source: 4", *told)


@pytest.mark.parametrize(
    ("texts", "bad"),
    [
        (firmware(1, "recoverable", "PCIe error"), False),  # of the link, whose counters pcie_errors judges
        (firmware(1, "recoverable", "memory error"), True),
        (firmware(1, "recoverable"), True),  # of what is not known: it is told
        (firmware(1, "recoverable", "PCIe error", "memory error"), True),
        ((*firmware(1, "corrected", "PCIe error"), *firmware(2, "recoverable", "memory error")), True),
        ((*firmware(1, "recoverable", "PCIe error"), *firmware(2, "corrected", "memory error")), False),
    ],
)
def test_errors_that_firmware_tells(texts: tuple[str, ...], bad: bool) -> None:
    assert [f.level for f in judged("memory_errors", host_node(), log(*texts))] == [Level.DRAIN] * bad
    heeds = checks.load()["memory_errors"].heeds
    assert [heeds(t) for t in texts[:1]] == [False] and all(heeds(t) for t in texts if "section" in t)


def test_firmware_says_what_it_was_some_lines_later() -> None:
    first = firmware(1, "recoverable")
    assert judged("memory_errors", host_node(), log(*first, seconds=9999.0)) == []
    told = judged("memory_errors", host_node(), log(*firmware(1, "recoverable", "memory error"), seconds=9999.0))
    assert [f.level for f in told] == [Level.DRAIN]
