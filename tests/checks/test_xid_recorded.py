"""The xid check on recorded kernel logs: what is harmless raises nothing, what is not comes to what NVIDIA says."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fairlead.checks.xid import Params, check
from fairlead.model.finding import Action, Finding, Level, Service
from fairlead.xid import XidKind, parse
from fairlead.xid.catalogue import look_up
from fairlead.xid.log_file import message
from tests.checks.nodes import endpoint, log, node


def judged(*texts: str) -> list[Finding]:
    """On a node that has a GPU wherever the lines name one."""
    named = sorted({line.pci for line in map(parse, texts) if line is not None and line.pci})
    there = node(pci=(*node().pci, *(endpoint(address) for address in named)))
    return list(check.findings(there, log(*texts), Params()))


def _recorded() -> list[dict[str, str]]:
    path = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "kmsg" / "kmsg.csv"
    if not path.is_file():
        pytest.skip(f"recorded kernel lines are not here: {path}")
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_recorded_lines_that_are_no_fault_raise_nothing() -> None:
    """Alone and all together: other NVRM messages, PCIe, network, disk, memory, container and hung-task lines."""
    quiet = [r["line"] for r in _recorded() if not r["xid"] and not r["sxid"] and r["class"] != "fallen-off"]
    assert len(quiet) > 50 and judged(*quiet) == []
    for line in quiet:
        assert judged(line) == [], line


def test_recorded_faults_come_to_what_nvidia_says() -> None:
    """Each line alone: what drains is Fatal in the line, or a code or number that asks for more than the application."""
    for row in _recorded():
        line = parse(row["line"])
        if line is None:
            continue
        found = judged(row["line"])
        drains = [f for f in found if f.level is Level.DRAIN]
        assert len(found) <= 1
        if line.fatal is not None:
            assert bool(drains) == (line.fatal and "reset without a power cycle" not in str(found)), row["line"]
        elif line.kind is XidKind.XID and line.code not in (45, 154):
            entry = look_up(line.code)
            assert bool(drains) == (entry.service is not Service.KEEP and line.code not in range(144, 151)), row["line"]
            wanted = Action.RESET_GPU if line.code in (63, 94) else entry.action
            assert all(f.action is wanted for f in found), row["line"]
        if line.code == 45 and line.caused_by is None:
            assert not found


def test_the_recorded_storms_are_one_fault_each() -> None:
    folder = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "dmesg"
    if not folder.is_dir():
        pytest.skip(f"recorded kernel logs are not here: {folder}")
    for name, expected in (
        ("components-accelerator_dmesg-with-xid-119.log", {("Xid 119", Level.DRAIN)}),
        ("components-query_dmesg.0.log", set()),
        ("pkg-kmsg_kmsg.1.log", set()),
        ("0flap_syslog", set()),
    ):
        texts = [message(line) for line in (folder / name).read_text(encoding="utf-8", errors="replace").splitlines()]
        found = judged(*texts)
        assert {(f.summary[:7], f.level) for f in found} == expected, name
        assert len(found) == len({f.device for f in found})
