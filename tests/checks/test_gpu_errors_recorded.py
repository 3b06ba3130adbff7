"""The checks of GPU errors on what `nvidia-smi -q` said of real machines: the one with a remap pending is named, no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.checks import ecc, gpu_identity, gpu_readings, mig_mode, pcie_errors, retired_pages, row_remap
from fairlead.model.check_definition import Past
from fairlead.model.device import gpu_cards_of, readable_fields
from fairlead.model.facts import Ecc, Gpu, Missing, PcieLink, RowRemap, unreadable
from fairlead.model.finding import Finding, Level
from fairlead.model.gpu_health import RetiredPages
from tests.checks.nodes import UNSUPPORTED, gpu, node
from tests.checks.test_gpu_load_recorded import CAPTURES, sections

MODULES = (ecc, gpu_identity, gpu_readings, mig_mode, pcie_errors, retired_pages, row_remap)
PENDING = "gpud_components-accelerator_nvidia-smi-query.535.129.03.out.0.valid.a10"
MIG = "linux-x86_64__nvidia-h200-mig__590.48.01.txt"
BANKS = ("Max", "High", "Partial", "Low", "None")


def facts(said: dict[str, str]) -> Gpu:
    """A GPU as the capture describes it. N/A is what the profile of a card without ECC would excuse, no other's."""
    absent = UNSUPPORTED if said.get("ECC Mode/Current", "N/A") != "Enabled" else unreadable("NVML NOT_SUPPORTED (3)")

    def number(*keys: str) -> int | Missing:
        values = [re.match(r"\d+", said.get(key, "")) for key in keys]
        return absent if None in values else sum(int(m[0]) for m in values if m)

    def flag(key: str) -> bool | Missing:
        return {"Enabled": True, "Yes": True, "Disabled": False, "No": False}.get(said.get(key, ""), absent)

    def uncorrected(when: str) -> int | Missing:
        whole = number(f"{when}/SRAM Uncorrectable", f"{when}/DRAM Uncorrectable")
        parts = [f"{when}/{name}" for name in ("SRAM Uncorrectable Parity", "SRAM Uncorrectable SEC-DED", "DRAM Uncorrectable")]
        return number(*parts) if isinstance(whole, Missing) else whole

    counts = [number(f"Remapped Rows/{name}") for name in ("Correctable Error", "Uncorrectable Error")]
    histogram = [number(f"Bank Remap Availability Histogram/{name}") for name in BANKS]
    rows: Any = absent
    if all(isinstance(v, int) for v in (*counts, *histogram)):
        pending, failed = (flag(f"Remapped Rows/{name}") is True for name in ("Pending", "Remapping Failure Occurred"))
        rows = RowRemap(corrected=counts[0], uncorrected=counts[1], pending=pending, failed=failed, histogram=tuple(histogram))  # type: ignore[arg-type]
    pages = [number(f"Retired Pages/{name}") for name in ("Single Bit ECC", "Double Bit ECC")]
    retired: Any = absent
    if all(isinstance(v, int) for v in pages):
        retired = RetiredPages(single_bit=pages[0], double_bit=pages[1], pending=flag("Retired Pages/Pending Page Blacklist"))
    link = replace(gpu().pcie, replays=number("PCI/Replays Since Reset")) if isinstance(gpu().pcie, PcieLink) else absent
    serial = said.get("/Serial Number", "N/A")
    return gpu(
        0,
        serial=absent if serial == "N/A" else serial,
        mig_current=flag("MIG Mode/Current"),
        mig_pending=flag("MIG Mode/Pending"),
        ecc=Ecc(
            mode_current=flag("ECC Mode/Current"),
            mode_pending=flag("ECC Mode/Pending"),
            volatile_corrected=number("Volatile/SRAM Correctable", "Volatile/DRAM Correctable"),
            volatile_uncorrected=uncorrected("Volatile"),
            aggregate_corrected=number("Aggregate/SRAM Correctable", "Aggregate/DRAM Correctable"),
            aggregate_uncorrected=uncorrected("Aggregate"),
            sram_threshold_exceeded=flag("Aggregate/SRAM Threshold Exceeded"),
        ),
        remap=rows,
        retired=retired,
        pcie=link,
        utilization_percent=number("Utilization/GPU", "Utilization/GPU"),
    )


def judged(one: Gpu, past: Past | None = None) -> list[Finding]:
    machine = node(gpus=(one,))
    known = past or Past(available=True, gpu_cards=gpu_cards_of(machine), readable=readable_fields(machine))
    found: list[Finding] = []
    for module in MODULES:
        check: Any = module
        params = check.Params(required=False) if module is ecc else check.Params()
        found += check.check.findings(machine, known, params)
    return found


@pytest.mark.parametrize("capture", [p for p in CAPTURES if p.name != PENDING], ids=lambda p: p.name)
def test_recorded_gpus_are_quiet(capture: Path) -> None:
    gpus = [facts(said) for said in sections(capture.read_text(errors="replace"))]
    assert gpus
    assert [f.summary for one in gpus for f in judged(one)] == []


def capture(name: str) -> list[Gpu]:
    found = [p for p in CAPTURES if p.name == name]
    if not found:
        pytest.skip(f"no recorded nvidia-smi output {name}")
    return [facts(said) for said in sections(found[0].read_text(errors="replace"))]


def test_a_recorded_remap_that_is_pending() -> None:
    (one,) = capture(PENDING)
    assert isinstance(one.remap, RowRemap) and one.remap.uncorrected == 4
    found = {(f.check, f.level) for f in judged(one)}
    assert found == {("row_remap", Level.DRAIN), ("ecc", Level.UNKNOWN)}  # r535 knows no SRAM threshold of an A10


def test_a_recorded_gpu_under_mig_has_lost_nothing_since_it_was_not() -> None:
    one = capture(MIG)[0]
    assert one.mig_current is True and isinstance(one.utilization_percent, Missing)
    assert isinstance(one.remap, Missing)
    before = node(gpus=(replace(one, mig_current=False, utilization_percent=3, remap=gpu().remap),))
    past = Past(available=True, readable=readable_fields(before), gpu_cards=gpu_cards_of(before))
    assert judged(one, past) == []
    assert judged(replace(one, mig_current=False), past) != []
