"""What other systems do: every code of every system, and nothing that is not so."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fairlead.xid.catalogue import ENTRIES
from fairlead.xid.elsewhere import SYSTEMS, Reaction, codes, reaction
from fairlead.xid.sxids import MEANS, SXIDS, Weight

FACTS = Path(__file__).resolve().parents[2].parent / "shared" / "reference" / "xid.csv"


def test_rows_name_codes_that_exist_and_no_code_twice() -> None:
    assert codes("1-3,7") == {1, 2, 3, 7}
    for system in SYSTEMS:
        listed = [code for _, text in system.rows for code in codes(text)]
        assert len(listed) == len(set(listed)) and set(listed) <= set(ENTRIES), system.name
        assert system.source and system.rest not in {word for word, _ in system.rows}
    assert len({system.name for system in SYSTEMS}) == len(SYSTEMS) == 10


def test_six_codes_are_not_disputed() -> None:
    """Out of service in all of them but the two that watch few codes."""
    for code in (48, 64, 74, 79):
        assert all(reaction(system, code) is Reaction.FAIL for system in SYSTEMS)
    for code in (119, 120):
        assert [s.name for s in SYSTEMS if reaction(s, code) is not Reaction.FAIL] == ["sichek"]


def test_it_is_what_was_collected() -> None:
    if not FACTS.is_file():
        pytest.skip(f"the collected catalogue is not here: {FACTS}")
    says = {
        "gpud": lambda r: {"Fatal": "fail", "Warning": "warn"}.get(r["gpud"].split(":")[0], "ignore"),
        "gcm": lambda r: {"CRIT": "fail", "WARN": "warn"}[r["gcm"]],
        "AzNHC": lambda r: "fail" if "AzNHC:die" in r["azure"] else "ignore",
        "healthagent": lambda r: "fail" if "healthagent:error" in r["azure"] else "warn",
        "DeepOps": lambda r: "ignore" if r["deepops"] == "ignored" else "fail",
        "oci-hpc": lambda r: "warn" if r["oci"] == "warning" else "fail",
        "k8s-device-plugin": lambda r: "ignore" if r["k8s_device_plugin"] == "ignored" else "fail",
        "sichek": lambda r: "ignore" if r["sichek"] == "not watched" else "fail",
        "NVSentinel": lambda r: "fail" if r["nvsentinel"].endswith(" FATAL") else "not fail",
        "aws": lambda r: "warn" if r["aws"].startswith("MONITOR") and "parse" not in r["aws"] else "fail",
    }
    with FACTS.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            for system in SYSTEMS:
                ours, theirs = reaction(system, int(row["xid"])).value, says[system.name](row)
                assert ours == theirs or (theirs == "not fail" and ours != "fail"), (system.name, row["xid"])


def test_sxids_are_said_once_and_weighed() -> None:
    assert set(MEANS) == set(Weight) and len(SXIDS) == 93
    assert all(10000 <= code <= 99999 and entry.words.isascii() and len(entry.words) <= 50 for code, entry in SXIDS.items())
    assert [code for code, entry in SXIDS.items() if entry.weight is Weight.IGNORE] == [22013]
