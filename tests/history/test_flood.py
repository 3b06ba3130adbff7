"""What a flood of kernel records, forged or caused on purpose, can push out of history: nothing of another source."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.history.memory import History
from tests.history.test_memory import record

TRUE = (
    "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.",
    "EXT4-fs (sda1): Remounting filesystem read-only",
    "nvme nvme0: Removing after probe failure status: -19",
    "EDAC MC0: 1 UE memory read error on CPU_SrcID#1_Channel#1_DIMM#1",
    "pcieport 0000:15:01.0: AER: Uncorrected (Fatal) error received: 0000:1b:00.0",
    "LustreError: 167-0: this client was evicted",
)
FLOODS = (
    "INFO: task {n}:{n} blocked for more than 120 seconds.",  # of a file system that the user serves himself
    "NVRM: Xid (PCI:{n:04x}:1b:00): {m}, pid={n}, name=x{n}, Ch 00000008",
    "I/O error, dev sd{m}, sector {n} op 0x0:(READ)",
    "XFS (dm-{m}): Metadata CRC error detected at {n}",
    "Out of memory: Killed process {n} (x{n})",
    "mlx5_core 0000:{m:02x}:00.0 ib{n}: Link down",
)


@pytest.mark.parametrize("flood", FLOODS)
def test_no_flood_pushes_out_what_another_source_said(tmp_path: Path, flood: str) -> None:
    history = History(str(tmp_path), "b")
    early = [record(n, text) for n, text in enumerate(TRUE, 1)]
    history.add_records(early)
    for first in range(10, 8000, 1000):
        history.add_records([record(n, flood.format(n=n, m=n % 199)) for n in range(first, first + 1000)])
    late = [record(n, text.replace("0000:1b", "0000:43").replace("sda1", "sdb1")) for n, text in enumerate(TRUE, 9000)]
    history.add_records(late)
    for first in range(10000, 14000, 1000):
        history.add_records([record(n, flood.format(n=n, m=n % 199)) for n in range(first, first + 1000)])
    kept = set(history.past().records)
    sources = {text[:4] for text in TRUE} - {flood[:4]}
    assert {r.text[:4] for r in (*early, *late) if r in kept} >= sources
    assert [r.text for r in (*early, *late) if r not in kept and r.text[:4] in sources] == []
    assert len(kept) < 3000
    history.close()


def test_a_flood_of_one_pattern_of_the_site_s_pushes_out_no_record_of_another(tmp_path: Path) -> None:
    history = History(str(tmp_path), "b")
    lockup = "NMI watchdog: Watchdog detected hard LOCKUP on cpu 3"
    killed = "Out of memory: Killed process {n} (x{n}) total-vm:1kB"
    history.add_records([record(n, killed.format(n=n)) for n in range(10, 140)])
    history.add_records([record(500, lockup)])
    history.add_records([record(n, killed.format(n=n)) for n in range(1000, 1100)])
    assert lockup in [r.text for r in history.past().records]
    history.close()


def test_a_device_is_remembered_for_this_boot(tmp_path: Path) -> None:
    """Which there was: a disk that died may be gone, and the agent started again since."""
    history = History(str(tmp_path), "b")
    history.add_devices(frozenset({"sda", "sda1"}))
    history.add_devices(frozenset({"sda"}))
    assert history.past().devices == {"sda", "sda1"}
    history.close()
    again = History(str(tmp_path), "b")
    again.add_devices(frozenset({"sdb"}))
    assert again.past().devices == {"sda", "sda1", "sdb"}
    again.close()
    other = History(str(tmp_path), "next boot")
    assert other.past().devices == frozenset()
    other.close()


def test_a_record_that_an_older_agent_took_for_the_kernel_s_is_forgotten(tmp_path: Path) -> None:
    history = History(str(tmp_path), "b")
    history.add_records([record(1, "EDAC MC0: 1 UE [99]: segfault at 0 ip 1 sp 2 error 4 in x[1+2]"), record(2, TRUE[3])])
    history.close()
    again = History(str(tmp_path), "b")
    assert [r.text for r in again.past().records] == [TRUE[3]]
    again.close()
