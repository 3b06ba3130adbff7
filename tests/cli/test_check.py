"""`fairlead check` and `status`: what counts, what is marked as observed, and that one thing of a node is said once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fairlead import config
from fairlead.cli import main
from fairlead.cli.same_findings import folded
from fairlead.cli.why_text import why_text
from fairlead.judge import decide_at_once
from fairlead.model.finding import Finding, Level
from tests.checks.nodes import node
from tests.lab.trees import MACHINES

NARROW = str(MACHINES / "hgx-h100.width-x8")
UNTUNED = str(MACHINES / "hgx-h100")


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int) -> str:
    assert main(["check", "--profile", "hgx-h100", "--root", *words]) == code
    return capsys.readouterr().out


def document(folder: Path, **checks: dict[str, Any]) -> str:
    data = config.to_data(config.profile_document("n1", "hgx-h100"))
    for name, params in checks.items():
        data["checks"][name] |= params
    del data["hash"]
    path = folder / "node.json"
    path.write_bytes(config.encode_document(config.decode_document(msgspec.json.encode(data), "test")))
    return str(path)


def test_what_a_check_only_observes_is_marked_and_does_not_end_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The agent would not drain for it either."""
    told = said(capsys, NARROW, "--only", "pcie_link", code=1)
    assert told.startswith("hgx-h100.width-x8: warn")
    assert "  warn    pcie_link: PCIe link of GPU 0000:52:00.0 is x8, x16 declared: check_hardware (observed only)\n" in told
    data = json.loads(said(capsys, NARROW, "--only", "pcie_link", "--json", code=1))
    (finding,) = data["findings"]
    assert data["state"] == "warn"
    assert (finding["level"], finding["mode"], finding["counts_as"], finding["why"]) == (
        "drain",
        "observe",
        "warn",
        "observed only",
    )
    path = document(tmp_path, pcie_link={"mode": "enforce"})
    assert main(["check", "--root", NARROW, "--document", path, "--only", "pcie_link"]) == 2
    assert "  drain   pcie_link: " in capsys.readouterr().out


def test_boot_grace_holds_as_it_does_in_the_agent() -> None:
    known = config.profile_document("n1", "hgx-h100")
    params = replace(known.checks["xid"], boot_grace_seconds=300)
    graced = replace(known, checks={**known.checks, "xid": params})
    finding = Finding(check="xid", level=Level.DRAIN, summary="Xid 79")
    early, late = (decide_at_once(graced, replace(node(), uptime_seconds=up), [finding], ["xid"]) for up in (60.0, 600.0))
    assert (early.level, early.why_suppressed) == (Level.WARN, ("boot grace",))
    assert late.level is Level.DRAIN


def test_one_thing_of_a_node_is_said_once_and_the_data_stay_whole(capsys: pytest.CaptureFixture[str]) -> None:
    told = said(capsys, UNTUNED, code=1)
    assert told.count("112 of 112 CPUs") == 1
    assert "wanted performance (/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor and 111 more)\n" in told
    assert told.count("LimitMEMLOCK=infinity") == 1
    assert told.count("reboot_node") == 0
    found = json.loads(said(capsys, UNTUNED, "--json", code=1))["findings"]
    assert sum(f["check"] == "setting.cpu_governor" for f in found) == 112
    assert sum(f["check"] == "setting.memlock" for f in found) == 2, "the file, and what makes systemd read it"


def test_a_finding_whose_words_end_with_what_to_do_does_not_say_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    told = said(capsys, str(MACHINES / "hgx-h100.xid79"), "--only", "gpu_count", code=2)
    assert told.count("reboot_node") == 1
    assert "do: provision" in said(capsys, UNTUNED, "--only", "setting.nccl", code=1)


def of(check: str, device: str = "", **more: Any) -> dict[str, Any]:
    return {"check": check, "summary": "NVML does not answer", "device": device, "level": "unknown", "action": "none", **more}


def test_what_is_folded() -> None:
    assert [s.subject() for s in folded([of("ecc"), of("inforom")])] == ["ecc, inforom"]
    assert folded([of(f"c{n}") for n in range(7)])[0].subject() == "c0, c1, c2, c3 and 3 more"
    assert [s.subject() for s in folded([of("ecc", "a"), of("inforom", "a")])] == ["ecc a", "inforom a"]
    (same,) = folded([of("ecc", "a"), of("ecc", "b"), of("ecc")])
    assert (same.subject(), same.words()) == ("ecc", "NVML does not answer (a and 1 more)")
    assert len(folded([of("ecc", "a", level="warn"), of("ecc", "b")])) == 2
    assert len(folded([of("ecc", "a", evidence=["x"]), of("ecc", "b", evidence=["y"])])) == 2
    assert len(folded([of("ecc", "a", mode="observe"), of("ecc", "b", mode="enforce")], also=("mode",))) == 2


GOVERNOR = [
    {
        "check": "setting.cpu_governor",
        "level": "drain",
        "device": f"/sys/cpu{n}",
        "summary": "governor is powersave on 4 of 4 CPUs, wanted performance",
        "evidence": [],
        "action": "provision",
        "mode": "observe",
        "id": f"setting.cpu_governor//sys/cpu{n}#x",
    }
    for n in range(4)
]
SUPPRESSED = [{"check": f["check"], "summary": f["summary"], "why": "observed only"} for f in GOVERNOR]
GONE = {"check": "xid", "summary": "Xid 79", "why": "acknowledged"}


def test_status_says_the_same_as_check_and_says_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "verdict").write_text("1\twarn\t99999999999\t7\t-\n")
    (tmp_path / "status.json").write_text(json.dumps({"node": "n1", "findings": GOVERNOR, "held": [*SUPPRESSED, GONE]}))
    assert main(["status", "--run-dir", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    line = "  warn    setting.cpu_governor [observe]: governor is powersave on 4 of 4 CPUs, wanted performance"
    assert f"{line} (/sys/cpu0 and 3 more) (observed only)\n" in told
    assert told.count("powersave") == 1
    assert "  held    xid: Xid 79 (acknowledged)\n" in told


def test_why_says_it_once() -> None:
    status = {"findings": GOVERNOR, "held": SUPPRESSED, "acknowledged": []}
    told = "\n".join(why_text("n1", {"state": "warn", "status": status}, None))
    assert told.count("finding:  setting.cpu_governor") == 1 and "and 3 more" in told
    apart = [{**GOVERNOR[0], "level": "warn"}, *GOVERNOR[1:]]
    assert "\n".join(why_text("n1", {"state": "warn", "status": {"findings": apart}}, None)).count("finding:") == 2
