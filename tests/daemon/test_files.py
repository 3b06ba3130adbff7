"""Ledger, history, job records, notices: what is on disk and what happens when it is not as it should be."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.daemon import log
from fairlead.daemon.history import EVENTS_SPARE, FIRST_KEPT, LAST_KEPT, History
from fairlead.daemon.ledger import Entry, Ledger, Phase
from fairlead.daemon.notify import Notify
from fairlead.daemon.publish import write_atomic, write_if_changed
from fairlead.daemon.rules import applying, hold_of
from fairlead.daemon.series import SAMPLE_SECONDS
from fairlead.daemon.store import EVENTS_KEPT
from fairlead.errors import SlurmUnavailable
from fairlead.host import job_records
from fairlead.host.process import slurmd_names
from fairlead.model.check import KernelRecord
from fairlead.policy.ownership import build
from fairlead.policy.policy_state import PolicyState
from fairlead.slurm.client import NodeState
from fairlead.slurm.identity import disagreement
from fairlead.slurm.leftovers import Leftovers, in_log

ENTRY = Entry(node="n1", phase=Phase.DRAINED, token=build("xid", "abcdef012345", "GPU gone"), since=1.0, machine="m")


def ledger_of(folder: Path, **changes: str) -> Ledger:
    for sub in ("state", "run"):
        (folder / sub).mkdir(exist_ok=True)
    return Ledger(str(folder / "state"), str(folder / "run"), node=changes.get("node", "n1"), machine=changes.get("machine", "m"))


def test_ledger_comes_back(tmp_path: Path) -> None:
    ledger_of(tmp_path).save(ENTRY)
    assert ledger_of(tmp_path).load() == ENTRY
    ledger_of(tmp_path).save(None)
    assert ledger_of(tmp_path).load() is None or ledger_of(tmp_path).load() == ENTRY


def test_a_lock_that_a_stopped_command_holds_is_waited_for_in_bounds(tmp_path: Path) -> None:
    ledger, other = ledger_of(tmp_path), ledger_of(tmp_path)
    with other.locked(), pytest.raises(SlurmUnavailable, match="another fairlead command has held"), ledger.locked(0.05):
        pass
    with ledger.locked(0.05):
        pass


def test_ledger_forgets_what_was_cleared(tmp_path: Path) -> None:
    first = ledger_of(tmp_path)
    first.save(ENTRY)
    first.save(None)
    assert ledger_of(tmp_path).load() is None


@pytest.mark.parametrize("changes", [{"node": "n2"}, {"machine": "other"}])
def test_ledger_of_another_node_or_machine(tmp_path: Path, changes: dict[str, str]) -> None:
    ledger_of(tmp_path).save(ENTRY)
    other = ledger_of(tmp_path, **changes)
    assert other.load() is None and "not ours" in other.trouble


@pytest.mark.parametrize("damage", [b"", b"{", b'{"entry": {"node": 3}}', b"\xff\xfe", b"[]"])
def test_damaged_ledger_is_moved_aside(tmp_path: Path, damage: bytes) -> None:
    ledger = ledger_of(tmp_path)
    (tmp_path / "state/ledger.json").write_bytes(damage)
    assert ledger.load() is None and "moved aside" in ledger.trouble
    assert (tmp_path / "state/ledger.json.bad").exists()
    ledger.save(ENTRY)
    assert ledger_of(tmp_path).load() == ENTRY


def test_ledger_on_a_full_disk_goes_to_the_run_directory(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path)
    ledger.save(None)
    os.rename(tmp_path / "state", tmp_path / "gone")
    (tmp_path / "state").write_text("not a folder")
    ledger.save(ENTRY)
    assert ledger.trouble == "" or "state" in ledger.trouble
    again = Ledger(str(tmp_path / "state"), str(tmp_path / "run"), node="n1", machine="m")
    assert again.load() == ENTRY


def test_ledger_newest_wins_when_the_disk_is_back(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path)
    ledger.save(ENTRY)
    os.rename(tmp_path / "state", tmp_path / "gone")
    ledger.save(None)
    os.rename(tmp_path / "gone", tmp_path / "state")
    assert ledger_of(tmp_path).load() is None


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


def test_job_records(tmp_path: Path) -> None:
    lines = {
        "1": "1\trunning\t5\t0,1\t7\t-\t-\t.\n",
        "2": "1\tended\t5\t-\t7\t9\toff\t.\n",
        "3": "1\trefused\t5\t-\t7\t-\t-\t.\n",
        "4": "1\trunning\t5\t0",
        "5": "",
        "x": "1\trunning\t5\t0,1\t7\t-\t-\t.\n",
        "6": "2\trunning\t5\t0,1\t7\t-\t-\t.\n",
    }
    for name, text in lines.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "7").symlink_to(tmp_path / "1")
    os.mkfifo(tmp_path / "8")
    found = job_records.scan(str(tmp_path))
    assert (found.running, found.ended, found.refused) == ({1}, {2}, {3})
    job_records.forget(str(tmp_path), found.ended | {99})
    assert not (tmp_path / "2").exists()
    assert job_records.scan(str(tmp_path / "nowhere")) == job_records.Jobs()


@given(st.binary(max_size=300))
def test_any_job_record(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "9").write_bytes(data)
        assert job_records.scan(folder).ended <= {9}


def test_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "verdict"
    write_atomic(str(path), b"one\n", mode=0o600, sync=True)
    assert path.read_bytes() == b"one\n" and path.stat().st_mode & 0o777 == 0o600
    assert not write_if_changed(str(path), b"one\n") and write_if_changed(str(path), b"two\n")
    with pytest.raises(OSError):
        write_atomic(str(tmp_path / "no" / "x"), b"")
    assert [p.name for p in tmp_path.iterdir()] == ["verdict"]


def test_notices_reach_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "10000000")
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
        notify = Notify()
        notify.send("READY=1")
        assert server.recv(100) == b"READY=1" and notify.watchdog_seconds == 5.0
    notify.send("READY=1")  # nobody listens any more
    monkeypatch.delenv("NOTIFY_SOCKET")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert Notify().watchdog_seconds == 0.0


def test_log_lines(capsys: pytest.CaptureFixture[str]) -> None:
    log.line(4, "drain requested", node="n1", text='two "words"\nand=more', empty="", none=None, zero=0)
    assert capsys.readouterr().err == '<4>drain_requested node=n1 text="two \\"words\\" and=more" zero=0\n'


def test_hold_and_apply(tmp_path: Path) -> None:
    assert hold_of(str(tmp_path), str(tmp_path / "run")) is None and not applying(str(tmp_path))
    (tmp_path / "hold").write_text("damaged")
    assert hold_of(str(tmp_path), str(tmp_path / "run")) == {"reason": "unreadable"}
    soon = int(time.clock_gettime(time.CLOCK_BOOTTIME)) + 60
    (tmp_path / "applying").write_text(f"1\t{os.getpid()}\t{soon}\n")
    assert applying(str(tmp_path))
    gone = subprocess.Popen(["true"])
    gone.wait()
    (tmp_path / "applying").write_text(f"1\t{gone.pid}\t{soon}\n")
    assert not applying(str(tmp_path)), "it was killed"
    (tmp_path / "applying").write_text("1\t7\t0\n")
    assert not applying(str(tmp_path))


def test_what_slurmds_log_hides(tmp_path: Path) -> None:
    path = tmp_path / "slurmd.n1.log"
    path.write_text(
        "[2020-01-01T00:00:00.000] error: [job 4] epilog failed status=1:0\n"
        "[2031-01-01T00:00:00.000] epilog for job 5 ran for 0 seconds\n"
        "[2031-01-02T00:00:00.000] error: [job 6] epilog failed status=1:0\n"
    )
    assert in_log(str(path), 1.8e9) == "slurmd's log says: epilog failed at 2031-01-02T00:00:00"
    assert in_log(str(path), 2.0e9) == "" and in_log(str(tmp_path / "none"), 0.0) == ""
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"ClusterName=x\nSlurmdLogFile={tmp_path}/slurmd.%n.log\n")
    assert Leftovers(str(conf), "n1").log_path() == str(path)
    assert "epilog failed" in Leftovers(str(conf), "n1").since(1.8e9)
    assert Leftovers(str(tmp_path / "none"), "n1").since(0.0) == ""


@pytest.mark.parametrize(
    ("cmdlines", "name", "host", "refused"),
    [
        ([], "n1", "other", ""),
        (["/usr/sbin/slurmd -N n1 -D"], "n1", "other", ""),
        (["/usr/sbin/slurmd -Nn2"], "n1", "here", "slurmd here is node n2, the document says n1"),
        (["/usr/sbin/slurmd -D"], "n1", "here", ""),
        (["/usr/sbin/slurmd -D"], "n1", "other", "slurmctld has n1 on host other, this is here"),
        (["/usr/sbin/slurmd -N n2", "/usr/sbin/slurmd -N n3"], "n1", "other", ""),
    ],
)
def test_another_machines_node(tmp_path: Path, cmdlines: list[str], name: str, host: str, refused: str) -> None:
    for pid, line in enumerate(cmdlines, 100):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text("slurmd\n")
        (tmp_path / str(pid) / "status").write_text("Name:\tslurmd\nUid:\t0\t0\t0\t0\n")
        (tmp_path / str(pid) / "exe").symlink_to("/usr/sbin/slurmd")
        (tmp_path / str(pid) / "cmdline").write_text(line.replace(" ", "\0") + "\0")
    mine = NodeState(name=name, states=frozenset({"IDLE"}), hostname=host)
    assert disagreement(mine, slurmd_names(str(tmp_path)), "here.example.org") == refused


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
