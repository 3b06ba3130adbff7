"""The RMA sheet: found by each name of a card; what is missing is said; a lost GPU keeps what was read; hostile records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.cli import main
from fairlead.fleet.card_details import XIDS_MAX, details_of, xids_of
from fairlead.fleet.service_merge import merged, since
from fairlead.fleet.service_record import ActiveFinding, CardDetails, CardSeen, ServiceEntry, XidSeen, decoded, encoded
from fairlead.host.pci_slots import chassis_slots
from fairlead.host.root import Root
from fairlead.model.facts import unreadable
from tests.checks.nodes import gpu, node
from tests.fleet.made_records import BEGIN, DAY, HOUR, NOW, OTHER_PCI, PCI, drained, record, resumed

T = BEGIN + 10 * DAY
DETAILS = CardDetails(
    pci=PCI, read_unix=NOW, position=3, serial="A1", uuid="GPU-1", product="NVIDIA H100", part_number="692-2G520",
    vbios="96.00.74", inforom="G520", slot="21", remapped=(1, 2), remap_pending=False, remap_failed=True, uncorrected_errors=7,
)  # fmt: skip
XID = XidSeen(boot="b1", pci=PCI, kind="xid", code="79", count=4, first_unix=T, last_unix=T + HOUR)


def repaired(unix: float, why: str, what: str) -> ServiceEntry:
    return ServiceEntry(
        unix=unix, id=f"c{unix}", what="closed as repaired", who="agent", args={"for": "ada"}, why=why, detail=what
    )


def folder(path: Path, *records: object) -> str:
    for number, each in enumerate(records):
        below = path / "nodes" / each.node  # type: ignore[attr-defined]
        below.mkdir(parents=True, exist_ok=True)
        (below / f"{number}.json").write_bytes(encoded(each))  # type: ignore[arg-type]
    return str(path)


@pytest.mark.parametrize("word", [PCI, "1B:00.0", "00000000:1B:00.0", "3", "A1", "GPU-1"])
def test_every_name_of_a_card(tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str) -> None:
    one = record(
        drained(T, serials=f"{PCI}=A1"), resumed(T + HOUR), repaired(T + 2 * HOUR, "replaced GPU", PCI),
        repaired(T + 3 * HOUR, "new riser", "the whole node"), repaired(T + 4 * HOUR, "other", OTHER_PCI),
        details=(DETAILS,), xids=(XID, replace(XID, pci=OTHER_PCI)),
        findings=(ActiveFinding(check="row_remap", device=PCI, serial="A1", since_unix=T),),
    )  # fmt: skip
    assert main(["rma", "n1", word, "--from", folder(tmp_path, one), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["pci"], data["serial"], data["findings"]) == ("rma/1", PCI, "A1", ["row_remap"])
    assert data["identity"]["VBIOS"] == "96.00.74" and data["identity"]["chassis_slot"] == "21"
    assert data["identity"]["retired_pages"] is None, "what was not read is null"
    assert [x["count"] for x in data["xids"]] == [4] and [i["check"] for i in data["incidents"]] == ["xid"]
    assert [r["why"] for r in data["repairs"]] == ["replaced GPU", "new riser"] and data["where"] == [f"n1 {PCI}"]
    assert main(["rma", "n1", word, "--from", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "retired pages" in text and "not readable" in text and "XID 79" in text and "1 corrected, 2 uncorrected" in text


def test_a_node_whose_agent_sends_no_details(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rma", "n1", PCI, "--from", folder(tmp_path, record(drained(T)))]) == 0
    text = capsys.readouterr().out
    assert "never read" in text and text.count("not readable") >= 10 and "A1" in text


def test_an_earlier_card_and_where_it_went(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cards = (CardSeen(pci=PCI, serial="OLD", since_unix=BEGIN), CardSeen(pci=PCI, serial="A1", since_unix=T))
    here = record(drained(T - DAY), drained(T + DAY), cards=cards, details=(DETAILS,))
    there = record(node="n2", machine="m2", cards=(CardSeen(pci=OTHER_PCI, serial="OLD", since_unix=T + DAY),))
    assert main(["rma", "n1", "OLD", "--from", folder(tmp_path, here, there), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["serial"] == "OLD" and data["identity"]["VBIOS"] is None, "the VBIOS that is known is that of the new card"
    assert [i["begin_unix"] for i in data["incidents"]] == [T - DAY] and data["where"] == [f"n1 {PCI}", f"n2 {OTHER_PCI}"]


@pytest.mark.parametrize(("words", "said"), [(("n9", PCI), "no record of the node"), (("n1", "0000:ff:00.0"), "has no GPU"),
                                             (("n1", "77"), "has no GPU")])  # fmt: skip
def test_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, str], said: str) -> None:
    assert main(["rma", *words, "--from", folder(tmp_path, record(details=(DETAILS,)))]) == 66
    assert said in capsys.readouterr().err


def test_hostile_details_are_plain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = replace(DETAILS, vbios="\x1b[2J\u202e", product="x" * 120, slot="\n21")
    assert main(["rma", "n1", PCI, "--from", folder(tmp_path, record(details=(evil,)))]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\u202e" not in out and "\n21" not in out


def test_details_stay_when_a_gpu_is_lost() -> None:
    first = details_of((), node(), {"0000:1b:00": "21"}, T)
    assert {d.pci: d.slot for d in first}[PCI] == "21" and all(d.serial and d.vbios for d in first)
    lost = node(gpu(0, lost=True, serial=unreadable("lost"), uuid=unreadable("lost")))
    kept = details_of(first, lost, {}, T + 60)
    assert {d.pci: d for d in kept}[PCI] == {d.pci: d for d in first}[PCI]
    assert details_of((), lost, {}, T)[0].serial == "", "never read: absent"


def test_xids_by_boot() -> None:
    one = xids_of((), {("xid", PCI, "79"): 1}, "b1", T)
    two = xids_of(one, {("xid", PCI, "79"): 3}, "b1", T + 600)
    same = xids_of(two, {("xid", PCI, "79"): 3}, "b1", T + 1200)
    assert [(x.count, x.first_unix, x.last_unix) for x in same] == [(3, T, T + 600)]
    assert [x.boot for x in xids_of(same, {("xid", PCI, "79"): 1}, "b2", T + DAY)] == ["b1", "b2"]
    assert xids_of(same, {}, "b3", T + 500 * DAY) == ()
    assert len(xids_of((), {("xid", PCI, str(n)): 1 for n in range(2 * XIDS_MAX)}, "b", T)) == XIDS_MAX


def test_records_carry_details_and_xids() -> None:
    old = record(details=(DETAILS,), xids=(XID,), written_unix=T)
    new = record(xids=(replace(XID, count=9), replace(XID, boot="b2", last_unix=NOW)), written_unix=NOW)
    both = merged(new, old, old)
    assert decoded(encoded(both)) == both and both.details == (DETAILS,)
    assert [(x.boot, x.count) for x in both.xids] == [("b1", 9), ("b2", 4)]
    assert [x.boot for x in since(both, T + DAY).xids] == ["b2"]


def test_chassis_slots(tmp_path: Path) -> None:
    for name, address in (("21", "0000:1b:00\n"), ("22", ""), ("3-1", "0000:4E:00\n")):
        (tmp_path / "sys/bus/pci/slots" / name).mkdir(parents=True)
        (tmp_path / "sys/bus/pci/slots" / name / "address").write_text(address)
    assert chassis_slots(Root(str(tmp_path))) == {"0000:1b:00": "21", "0000:4e:00": "3-1"}
    assert chassis_slots(Root(str(tmp_path / "none"))) == {}
