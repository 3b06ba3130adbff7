"""Each writer on a full disk, a tmpfs without a free byte: one line, no half of anything, and all of it when there is room again.

The running agent on a full disk is tested by tests/alive/test_disk.py, with real Slurm by tests/faults/test_disk_faults.py, the
journal of maintenance by tests/provision/test_maintain_journal.py, the queue of events by test_events.py.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fairlead.controller.fleet_collection import FleetCollection
from fairlead.controller.fleet_store import FleetStore
from fairlead.controller.idle_journal import MONTHS, IdleJournal
from fairlead.controller.idle_readings import IdleReadings
from fairlead.controller.job_store import JobStore
from fairlead.daemon.requests.audit_trail import Trail
from fairlead.drains.ledger import Ledger, LedgerEntry, Phase
from fairlead.errors import HostError
from fairlead.history.memory import History
from fairlead.host.bounded_disk import Direct
from fairlead.host.usage_files import UsageFiles
from fairlead.jobs.idle_rule import IdleOptions
from fairlead.jobs.idle_stages import IdleEvent
from fairlead.jobs.usage_record import encoded as usage_encoded
from fairlead.measure.results_store import ResultStore
from fairlead.model.check_definition import KernelRecord
from fairlead.policy.ownership import build
from fairlead.policy.policy_state import PolicyState
from tests.controller.test_fleet_store import Nodes, Slurm
from tests.fleet.made_records import BEGIN, DAY, NOW, drained, record
from tests.jobs.job_reports import record_of, run_of

pytestmark = pytest.mark.root
Write = Callable[[str, int], None]
XID = "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus."


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid():
        pytest.skip("needs root: mounts a file system")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    fd = os.open(folder / "filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with suppress(OSError):
        while os.write(fd, b"x" * 4096):
            pass
    os.close(fd)


def jobs(folder: str, number: int) -> None:
    runs = [run_of(job=1000 * number + n, begin_unix=1_790_000_000 + n) for n in range(40)]
    with JobStore(folder, write=True) as store:
        store.add_runs(runs, 100)
        for run in runs:
            store.put_records(run, [record_of("gpu001", job=run.job, begin_unix=run.begin_unix)], [])


def fleet(folder: str, number: int) -> None:
    with FleetStore(folder, write=True) as store:
        names = [f"n{number}-{n}" for n in range(200)]
        store.add([record(drained(BEGIN + DAY), node=name, machine=name) for name in names], 0.0)


def readings(folder: str, number: int) -> None:
    IdleReadings(folder).add([record_of("gpu001", job=n) for n in range(1, 9)], 1_790_000_000.0 + number, IdleOptions())


def journal(folder: str, number: int) -> None:
    for n in range(40):
        IdleJournal(folder).append(
            IdleEvent(kind="observed", at_unix=1_790_000_000.0 + number, case=f"{n}", user="ada", detail="x" * 200)
        )


def results(folder: str, number: int) -> None:
    store = ResultStore(os.path.join(folder, "accept.sqlite"))
    try:
        store.begin(f"run{number}", user="ada", host="h", folder="f", plan=b"x" * 60_000, fairlead="0")
    finally:
        store.close()


def count(folder: Path, write: Write) -> int:
    """Return how many whole things the writer has kept."""
    if write is jobs:
        with JobStore(str(folder), write=False) as store:
            return store.counts()["runs"]
    if write is fleet:
        with FleetStore(str(folder), write=False) as fleet_store:
            return len(list(fleet_store.records()))
    if write is readings:
        return len(IdleReadings(str(folder)).records())
    if write is journal:
        return len(IdleJournal(str(folder)).read())
    result_store = ResultStore(str(folder / "accept.sqlite"), make=False)
    try:
        return int(result_store.read("SELECT count(*) FROM run")[0][0])
    finally:
        result_store.close()


@pytest.mark.parametrize(("write", "each"), [(jobs, 40), (fleet, 200), (readings, 8), (journal, 40), (results, 1)])
def test_the_writers_of_the_controller(small: Path, write: Write, each: int) -> None:
    write(str(small), 1)
    assert count(small, write) == each
    fill(small)
    with pytest.raises(HostError) as raised:
        for number in range(2, 30):
            write(str(small), number)
            fill(small)
    assert len(str(raised.value).splitlines()) == 1 and str(small) in str(raised.value)
    assert "make room" in raised.value.hint
    (small / "filler").unlink()
    before = count(small, write)
    assert before >= each and before % each == 0 if write is not journal else before >= each, "whole transactions"
    write(str(small), 31)
    assert count(small, write) == before + each


def test_a_round_on_a_full_disk_is_made_up_for(small: Path) -> None:
    """The nodes keep their records, so the next round has them."""
    slurm, nodes, said = Slurm(), Nodes(), list[str]()

    def go_round() -> None:
        with FleetStore(str(small), write=True) as store:
            FleetCollection(store, slurm, nodes, say=said.append, clock=lambda: NOW).round()  # type: ignore[arg-type]

    with FleetStore(str(small), write=True):
        pass
    fill(small)
    with pytest.raises(HostError):
        for number in range(20):
            go_round()
            fill(small)
            slurm.states["n1"] = ("DRAIN", f"something new {number}")
    (small / "filler").unlink()
    go_round()
    with FleetStore(str(small), write=False) as store:
        assert [each.node for each in store.records()] == ["n1"]


def test_the_ledger_goes_to_memory_and_comes_back(small: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    ledger = Ledger(str(small), str(run_dir), node="n1", machine="m1")
    token = build("xid", "abcdef012345", "GPU gone")
    entry = LedgerEntry(node="n1", phase=Phase.DRAINED, token=token, since=NOW, machine="m1")
    fill(small)
    ledger.save(entry)
    assert "No space left" in ledger.trouble
    again = Ledger(str(small), str(run_dir), node="n1", machine="m1")
    assert again.load() == entry, "from the other folder"
    (small / "filler").unlink()
    again.save(entry)
    assert again.trouble == "" and (small / "ledger.json").is_file()


def test_the_history_stays_in_memory_and_is_written_later(small: Path) -> None:
    history = History(str(small), "boot")
    fill(small)
    for n in range(200):
        history.add_records([KernelRecord(sequence=n, seconds=float(n), priority=3, text=XID)])
    assert history.trouble and len(history.trouble.splitlines()) == 1
    assert history.xids.counts == {("xid", "0000:1b:00.0", "79"): 200} and len(history.past().records) == 25
    history.save_state(PolicyState(strikes={"A1": (NOW,)}))
    (small / "filler").unlink()
    end = time.monotonic() + 30
    while not history.on_disk and time.monotonic() < end:
        history.heal()
        time.sleep(0.05)
    assert history.on_disk and history.trouble == ""
    history.save_state(PolicyState(strikes={"A1": (NOW,)}))  # as the agent does after each sweep
    history.close()
    again = History(str(small), "boot")
    assert again.load_state().strikes == {"A1": (NOW,)} and len(again.past().records) == 25
    assert again.xids.counts == {("xid", "0000:1b:00.0", "79"): 200}
    again.close()


def test_the_audit_trail_and_usage_files(small: Path, tmp_path: Path) -> None:
    trail = Trail(str(small), str(tmp_path))
    fill(small)
    trail.agent("drained", args={"reason": "x"})
    assert "No space left" in trail.trouble and [e.what for e in trail.read()] == ["drained"]
    files = UsageFiles(str(small), Direct())
    files.open_files()
    assert not files.write({"17-1.json": usage_encoded(record_of("gpu001"))}, readers={}, sync=True)
    assert "No space left" in files.trouble and len(files.trouble.splitlines()) == 1
    (small / "filler").unlink()
    trail.agent("resumed")
    assert trail.trouble == "" and [e.what for e in trail.read()] == ["drained", "resumed"]
    files.open_files()
    assert files.write({"17-1.json": usage_encoded(record_of("gpu001"))}, readers={}, sync=True) and files.trouble == ""


def test_old_months_of_the_journal_go(tmp_path: Path) -> None:
    for month in range(30):
        IdleJournal(str(tmp_path)).append(
            IdleEvent(kind="observed", at_unix=1_600_000_000.0 + month * 31 * DAY, case="1", user="ada")
        )
    names = sorted(os.listdir(tmp_path))
    assert len(names) == MONTHS and names[-1] > "idle-2022"
