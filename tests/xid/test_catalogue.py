"""The catalogue: complete, in NVIDIA's sense, and fit for a reason."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fairlead.model.finding import Action, Service
from fairlead.xid import parse
from fairlead.xid.catalogue import ENTRIES, RECOVERY, look_up, recovery
from fairlead.xid.meaning import meaning

FACTS = Path(__file__).resolve().parents[2].parent / "shared" / "reference" / "xid.csv"
WORDS = {
    "IGNORE": Action.NONE,
    "RESTART_APP": Action.RESTART_APP,
    "RESET_GPU": Action.RESET_GPU,
    "RESTART_VM": Action.REBOOT_NODE,
    "RESTART_BM": Action.REBOOT_NODE,
    "CHECK_MECHANICALS": Action.CHECK_HARDWARE,
    "UPDATE_SWFW": Action.UPDATE_SOFTWARE,
    "CONTACT_SUPPORT": Action.CONTACT_SUPPORT,
    "WORKFLOW_XID_45": Action.FOLLOW_CAUSE,
    "WORKFLOW_XID_48": Action.RESET_GPU,
    "WORKFLOW_NVLINK_ERR": Action.CHECK_FABRIC,
    "WORKFLOW_NVLINK5_ERR": Action.CHECK_FABRIC,
    "XID_154": Action.FOLLOW_CAUSE,
    "CHECK_UVM": Action.FOLLOW_CAUSE,
}


def test_every_code_has_one_complete_row() -> None:
    assert list(ENTRIES) == list(range(1, 177))
    for entry in ENTRIES.values():
        assert entry.name and entry.description and entry.why and entry.source
        assert entry.blames in {"application", "gpu", "node", "fabric", "driver"}
        assert len(entry.description) <= 50 and entry.description.isascii()


def test_what_costs_money() -> None:
    """Out of service in all eight policies compared; the job's own in NVIDIA's words; after the job."""
    for code in (48, 64, 74, 79, 95, 119, 120):
        assert look_up(code).service is Service.DRAIN_NOW
    for code in (13, 31, 43, 45):
        assert look_up(code).blames == "application" and look_up(code).service is Service.KEEP
    for code in (63, 94):
        assert look_up(code).service is Service.DRAIN_AFTER_JOB
    assert look_up(162).harmless and look_up(174).harmless and not look_up(92).harmless


def test_an_application_is_never_a_reason_to_drain() -> None:
    for entry in ENTRIES.values():
        if entry.blames == "application" or entry.action is Action.RESTART_APP:
            assert entry.service is not Service.DRAIN_NOW


def test_the_line_itself_wins_over_its_code() -> None:
    where = "NVRM: Xid (PCI:0000:3b:00): "
    for text, service in (
        ("149, NETIR Fatal XC0 i0 Link -1 (0x0)", Service.DRAIN_NOW),
        ("149, NETIR Nonfatal XC0 i0 Link 1 (0x0)", Service.KEEP),
        ("149, Placeholder message", Service.KEEP),
        ("154, GPU recovery action changed from 0x0 (None) to 0x1 (PF FLR)", Service.DRAIN_NOW),
        ("154, GPU recovery action changed from 0x1 (PF FLR) to 0x0 (None)", Service.KEEP),
        ("154, words of a driver to come", Service.KEEP),
        ("63, Row Remapper", Service.DRAIN_AFTER_JOB),
    ):
        line = parse(where + text)
        assert line is not None and meaning(line).service is service
    remap = parse(where + "63, Row Remapper")
    assert remap is not None and meaning(remap).action is Action.NONE  # NVIDIA's word; the check asks for the reset


def test_new_codes_and_numbers_are_not_taken_for_harmless() -> None:
    assert look_up(999).action is Action.CONTACT_SUPPORT and not look_up(999).harmless
    assert recovery(0)[1] is Action.NONE and recovery(2)[1] is Action.REBOOT_NODE
    assert recovery(99)[2] is Service.DRAIN_NOW and set(RECOVERY) == set(range(8))


def test_the_action_is_nvidia_s_where_nvidia_has_one() -> None:
    if not FACTS.is_file():
        pytest.skip(f"the collected catalogue is not here: {FACTS}")
    with FACTS.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            word = row["nvidia_action"].split(" / ")[0]
            entry = look_up(int(row["xid"]))
            assert entry.name == row["name"].split(" / ")[0]
            if word in WORDS:
                assert entry.action is WORDS[word], row["xid"]
            else:
                assert word.startswith("(none"), word
