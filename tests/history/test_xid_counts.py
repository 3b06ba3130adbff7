"""The count of Xids: each record once, over restarts of the agent, in bounded room whatever the log says."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from fairlead.history.memory import History
from fairlead.history.sqlite_file import FILE
from fairlead.history.xid_counts import CODES_MAX, DEVICES_MAX, XidCounts
from fairlead.model.check_definition import KernelRecord

BOOT, NEXT_BOOT = "11111111-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555"
PCI = "0000:1b:00.0"
SPLIT = (
    "NVRM: The NVIDIA GPU 0000:1b:00.0",
    "NVRM: (PCI ID: 10de:2330) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)


def xid(code: int, pci: str = "0000:1b:00") -> str:
    return f"NVRM: Xid (PCI:{pci}): {code}, pid=1234, name=python3, Ch 00000008"


def records(*texts: str, first: int = 100) -> list[KernelRecord]:
    return [
        KernelRecord(sequence=first + n, seconds=50.0 + n, priority=3, text=text, boot_id=BOOT) for n, text in enumerate(texts)
    ]


def counted(*texts: str) -> dict[tuple[str, str, str], int]:
    counts = XidCounts()
    counts.add(texts)
    return counts.counts


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([xid(31)] * 300, {("xid", PCI, "31"): 300}),
        ([xid(31), xid(79)], {("xid", PCI, "31"): 1, ("xid", PCI, "79"): 1}),
        ([xid(31), xid(31, "0000:c3:00")], {("xid", PCI, "31"): 1, ("xid", "0000:c3:00.0", "31"): 1}),
        (["NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus."], {("xid", PCI, "bus_lost"): 1}),
        (SPLIT, {("xid", PCI, "bus_lost"): 1}),
        (
            [
                "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
                "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Severity 0 Engine instance 32 Sub-engine instance 00",
                "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Data {0x00140004, 0x00100000}",
            ],
            {("sxid", "0000:05:00.0", "12028"): 1},
        ),
        (["usb 1-1: new device", "NVRM: loading NVIDIA UNIX x86_64 Kernel Module"], {}),
    ],
)  # fmt: skip
def test_each_record_counts_once(texts: list[str], expected: dict[tuple[str, str, str], int]) -> None:
    assert counted(*texts) == expected


@pytest.mark.parametrize("cut", [1, 2])
def test_a_message_in_three_records_counts_where_its_end_comes_in_a_later_reading(cut: int) -> None:
    counts = XidCounts()
    assert not counts.add(SPLIT[:cut])
    assert counts.add(SPLIT[cut:]) and not counts.add(["usb 1-1: new device"])
    assert counts.counts == {("xid", PCI, "bus_lost"): 1}


def test_a_log_full_of_inventions_makes_a_bounded_number_of_series() -> None:
    counts = XidCounts()
    addresses = [f"{domain:04x}:{bus:02x}:00" for domain, bus in itertools.product(range(4), range(256))]
    counts.add(xid(code, address) for address in addresses for code in (31, 79))
    counts.add(xid(code) for code in range(1, 2000))
    counts.add([xid(79)] * 5)
    assert len({pci for _, pci, _ in counts.counts}) <= DEVICES_MAX + 1
    assert sum(pci == "0000:00:00.0" for _, pci, _ in counts.counts) == 2
    assert len(counts.counts) <= (DEVICES_MAX + 1) * (CODES_MAX + 1)
    assert sum(counts.counts.values()) == 2 * len(addresses) + 1999 + 5, "nothing is left out of the sum"


def test_codes_past_the_bound_count_as_other() -> None:
    codes = counted(*(xid(code) for code in range(1, 1000)))
    assert len(codes) == CODES_MAX + 1 and codes["xid", PCI, "other"] == 999 - CODES_MAX


@pytest.mark.parametrize("killed", [True, False])
def test_the_count_goes_on_after_a_restart_of_the_agent_and_begins_anew_with_a_boot(tmp_path: Path, killed: bool) -> None:
    history = History(str(tmp_path), BOOT)
    history.add_records(records(*[xid(31)] * 60, xid(79)), cursor=161)
    if not killed:
        history.close()
    again = History(str(tmp_path), BOOT)
    assert again.xids.counts == {("xid", PCI, "31"): 60, ("xid", PCI, "79"): 1}
    again.add_records(records(xid(79), first=400), cursor=401)
    assert again.xids.counts["xid", PCI, "79"] == 2
    again.close()
    assert History(str(tmp_path), NEXT_BOOT).xids.counts == {}


def test_a_record_that_is_read_again_does_not_count_again(tmp_path: Path) -> None:
    history = History(str(tmp_path), BOOT)
    for _ in range(2):
        history.add_records(records(xid(79), xid(63)))
    again = History(str(tmp_path), BOOT)
    again.add_records(records(xid(79), xid(63), xid(48)))
    assert again.xids.counts == {("xid", PCI, "79"): 1, ("xid", PCI, "63"): 1, ("xid", PCI, "48"): 1}


def test_a_file_that_comes_late_counts_nothing_twice(tmp_path: Path) -> None:
    """Without its file the agent does not know how far the log is read, and begins at the oldest record."""
    first = History(str(tmp_path), BOOT)
    first.add_records(records(*[xid(31)] * 40))
    first.close()
    os.rename(tmp_path / FILE, tmp_path / "away")
    (tmp_path / FILE).mkdir()
    late = History(str(tmp_path), BOOT)
    assert late.trouble
    late.add_records(records(*[xid(31)] * 40, xid(79)))
    (tmp_path / FILE).rmdir()
    os.rename(tmp_path / "away", tmp_path / FILE)
    late._store._retry_at = 0.0
    late.heal()
    assert not late.trouble and late.xids.counts == {("xid", PCI, "31"): 40, ("xid", PCI, "79"): 1}
    late.close()
    assert History(str(tmp_path), BOOT).xids.counts == late.xids.counts


def test_a_gpus_last_labels_outlive_the_agent_and_the_boot(tmp_path: Path) -> None:
    history = History(str(tmp_path), BOOT)
    history.add_gpu_labels({PCI: ("0", "GPU-a"), "0000:c3:00.0": ("1", "GPU-b")})
    history.add_gpu_labels({PCI: ("0", "GPU-c")})
    history.close()
    assert History(str(tmp_path), NEXT_BOOT).gpu_labels == {PCI: ("0", "GPU-c"), "0000:c3:00.0": ("1", "GPU-b")}
