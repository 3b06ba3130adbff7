"""What the agent remembers comes back, in bounds, and survives a disk that does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.history.memory import EVENTS_SPARE, FIRST_KEPT, LAST_KEPT, History
from fairlead.history.samples import SAMPLE_SECONDS
from fairlead.history.sqlite_file import EVENTS_KEPT
from fairlead.model.check_definition import KernelRecord
from fairlead.policy.policy_state import PolicyState


def record(n: int, text: str) -> KernelRecord:
    return KernelRecord(sequence=n, seconds=float(n), priority=4, text=text, boot_id="b")


def test_history_comes_back_in_the_same_boot_only(tmp_path: Path) -> None:
    history = History(str(tmp_path), "b")
    assert history.add_records([record(1, "NVRM: Xid 1"), record(2, "NVRM: Xid 2")]) == 2
    assert history.add_records([record(1, "NVRM: Xid 1")]) == 0
    history.add_samples(100.0, [("gpu", "x", 1.0)])
    history.add_readable(frozenset({"gpu/x"}))
    state = PolicyState(boot_id="b", acknowledged=("xid/#1",))
    history.save_state(state)
    history.save_cursor(7)
    history.close()
    again = History(str(tmp_path), "b")
    assert [r.text for r in again.past().records] == ["NVRM: Xid 1", "NVRM: Xid 2"]
    assert [s.value for s in again.past().samples] == [1.0]
    assert again.past().readable == {"gpu/x"} and again.load_state() == state and again.cursor() == 7
    again.close()
    other = History(str(tmp_path), "next boot")
    assert other.past().records == () and other.past().samples == () and other.cursor() is None
    assert other.past().readable == {"gpu/x"} and other.load_state() == state
    other.close()


def test_a_flood_of_one_kind_does_not_push_out_another(tmp_path: Path) -> None:
    history = History(str(tmp_path), "b")
    fatal = record(0, "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.")
    history.add_records([fatal])
    flood = [record(n, f"NVRM: Xid (PCI:0000:43:00): 13, pid={n}, Graphics Exception") for n in range(1, 3000)]
    history.add_records(flood)
    kept = history.past().records
    assert fatal in kept and len(kept) == 1 + FIRST_KEPT + LAST_KEPT and flood[-1] in kept
    history.close()
    again = History(str(tmp_path), "b")
    assert set(again.past().records) == set(kept)
    again.close()


def test_samples_are_thinned(tmp_path: Path) -> None:
    history = History(str(tmp_path), "b")
    for second in range(300):
        history.add_samples(float(second), [("gpu", "x", float(second))])
    assert [s.seconds for s in history.past().samples] == [SAMPLE_SECONDS * n for n in range(5)]
    history.close()


@pytest.mark.parametrize("damage", [b"junk" * 2000, b"SQLite format 3\0" + b"\0" * 4080])
def test_damaged_history_begins_anew(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "history.sqlite").write_bytes(damage)
    history = History(str(tmp_path), "b")
    assert history.add_records([record(1, "NVRM: x")]) == 1 and history.trouble == ""
    history.close()
    assert History(str(tmp_path), "b").past().records


def test_history_without_a_disk(tmp_path: Path) -> None:
    history = History(str(tmp_path / "nowhere"), "b")
    assert "memory" in history.trouble
    assert history.add_records([record(1, "NVRM: x")]) == 1
    history.save_state(PolicyState(boot_id="b"))
    assert len(history.past().records) == 1 and history.load_state() == PolicyState()
    history.close()


def test_history_survives_a_disk_that_was_away(tmp_path: Path) -> None:
    history = History(str(tmp_path), "b")
    flood = [record(n, f"NVRM: Xid (PCI:0000:43:00): 13, pid={n}, Graphics Exception") for n in range(1, 11)]
    history.add_records(flood)
    history._store._fail(OSError("disk away"))
    history.add_records([while_away := record(11, "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.")])
    history.add_samples(100.0, [("gpu", "x", 1.0)])
    history._store._retry_at = 0.0
    history.heal()
    assert (history.trouble, set(history.past().records)) == ("", {*flood, while_away})
    history.add_records(record(n, f"NVRM: Xid (PCI:0000:43:00): 13, pid={n}, Graphics Exception") for n in range(12, 60))
    assert len(history.past().records) == 1 + FIRST_KEPT + LAST_KEPT
    history.close()
    again = History(str(tmp_path), "b")
    assert set(again.past().records) == set(history.past().records)
    assert len(again.past().samples) == 1
    again.close()


def test_a_file_damaged_meanwhile_costs_no_evidence_in_memory(tmp_path: Path) -> None:
    history = History(str(tmp_path), "b")
    fault = record(1, "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.")
    history.add_records([fault])
    history.add_readable(frozenset({"gpu/x"}))
    history._store._fail(OSError("disk away"))
    for suffix in ("-wal", "-shm"):
        (tmp_path / f"history.sqlite{suffix}").unlink(missing_ok=True)
    (tmp_path / "history.sqlite").write_bytes(b"junk" * 2000)
    history._store._retry_at = 0.0
    history.event("disk", "back")
    assert history.past().records == (fault,) and history.past().readable == {"gpu/x"}
    history.close()
    again = History(str(tmp_path), "b")
    assert again.past().records == (fault,) and again.past().readable == {"gpu/x"}
    again.close()


@pytest.mark.parametrize(
    ("rare", "flood"),
    [
        (
            "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 28 LTSSM Fault Up",
            "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Non-fatal, Link 28 LTSSM Fault Up {n}",
        ),
        (
            "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 28 LTSSM Fault Up",
            "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20038, Non-fatal, Link 28 other {n}",
        ),
        (
            "NVRM: Xid (PCI:0000:1b:00): 45, pid=7, name=a, Ch 00000008, caused by previous Xid 79",
            "NVRM: Xid (PCI:0000:1b:00): 45, pid={n}, name=a, Ch 00000008",
        ),
    ],
)
def test_a_flood_leaves_what_counts_more(tmp_path: Path, rare: str, flood: str) -> None:
    history = History(str(tmp_path), "b")
    history.add_records([record(n, flood.format(n=n)) for n in range(1, 100)])
    history.add_records([record(100, rare)])
    history.add_records([record(n, flood.format(n=n)) for n in range(101, 200)])
    assert rare in [r.text for r in history.past().records]
    history.close()


def test_records_of_many_forms_are_bounded(tmp_path: Path) -> None:
    history = History(str(tmp_path), "b")
    fault = record(1, "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.")
    history.add_records([fault])
    history.add_records([record(n, f"NVRM: GPU {n:08x} something odd") for n in range(2, 3000)])
    history.add_records([record(n, f"NVRM: Xid (PCI:{n % 256:04x}:1b:00): {n % 90}, x") for n in range(3000, 20000)])
    kept = history.past().records
    assert fault in kept and len(kept) < 10_000
    history.close()


def test_events_are_bounded(tmp_path: Path) -> None:
    history = History(str(tmp_path), "b")
    for n in range(EVENTS_KEPT + 300):
        history.event("verdict warn", str(n))
    assert len(history.events(10 * EVENTS_KEPT)) <= EVENTS_KEPT + EVENTS_SPARE
    assert history.events(1)[0]["text"] == str(EVENTS_KEPT + 299)
    history.close()


def test_the_cursor_is_saved_with_the_records(tmp_path: Path) -> None:
    history = History(str(tmp_path), "b")
    history.add_records([record(4, "NVRM: Xid (PCI:0000:1b:00): 13, x")], 9)
    killed = History(str(tmp_path), "b")  # as after SIGKILL: the first was not closed
    assert killed.cursor() == 9 and len(killed.past().records) == 1
    killed.close()
    history.close()


def test_the_history_is_roots_alone(tmp_path: Path) -> None:
    """A kernel record names the process of whoever ran it; not every site lets users read the kernel log."""
    path = tmp_path / "history.sqlite"
    for mode in (None, 0o644):  # new, and left by an earlier version
        if mode is not None:
            path.chmod(mode)
        history = History(str(tmp_path), "b")
        history.event("drained", "x")
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
        history.close()
        assert modes and set(modes.values()) == {0o600}, modes
