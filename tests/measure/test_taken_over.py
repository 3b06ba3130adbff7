"""One process at a time works on a run: a process that resumed a run is known, and of two that resume it only one goes on."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.config.accept_options import AcceptOptions
from fairlead.errors import HostError, UsageError
from fairlead.measure import fabric_plan, results_store
from fairlead.measure.acceptance_run import alive
from fairlead.measure.fabric_store import FabricStore
from fairlead.measure.pairs.fabric_verdict import PairLimits
from fairlead.measure.pairs.pair_table import unknown_leaves
from fairlead.measure.results_store import ResultStore
from tests.measure.fabric_lab import until

HOST = os.uname().nodename
LONG_AGO = 100_000.0  # the run began before this host did


def fabric_run(path: Path) -> str:
    """Store a run over the fabric that has not ended, and return its name."""
    plan = fabric_plan.make(
        unknown_leaves(["n1", "n2", "n3"]),
        AcceptOptions(),
        gpus=2,
        rails=1,
        limits=PairLimits(),
        sbatch=(),
        time_minutes=0,
        max_wait_seconds=10,
        left_out={},
        switch_ports={},
    )
    with closing(ResultStore(str(path))) as store:
        FabricStore(store).begin(plan, user="root", fairlead="0")
        store.write(("UPDATE fabric_run SET began = ?", [(LONG_AGO,)]))
    return plan.run


def begun(process: subprocess.Popen[bytes]) -> None:
    """Wait until the kernel shows the command line. Popen returns a moment earlier."""
    until(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes(), "it has its command line")


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A process that resumed the run 0123456789ab, long after the run began."""
    command = [sys.executable, "-c", "import time; time.sleep(600)", "accept", "--fabric", "--resume", "0123456789ab"]
    with subprocess.Popen(command) as process:
        begun(process)
        yield process
        process.kill()


def test_the_process_that_resumed_a_run_is_known(other: subprocess.Popen[bytes]) -> None:
    assert alive(other.pid, HOST, LONG_AGO, "0123456789ab"), "it began after the run, because it resumed it"
    assert not alive(other.pid, HOST, LONG_AGO, "ba9876543210"), "another process got this number"
    assert alive(os.getpid(), HOST, time.time(), "ba9876543210") and alive(1, "elsewhere", LONG_AGO, "ba9876543210")
    other.kill()
    stat = Path(f"/proc/{other.pid}/stat")
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", "it has ended, and nobody has asked for its exit status")
    assert not alive(other.pid, HOST, time.time(), "0123456789ab")
    other.wait()
    assert not alive(other.pid, HOST, LONG_AGO, "0123456789ab")


def test_a_run_that_was_resumed_is_not_resumed_by_another_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "accept.sqlite"
    run = fabric_run(path)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "--resume", run]) as process:
        begun(process)
        with closing(ResultStore(str(path))) as store:
            store.write(("UPDATE fabric_run SET pid = ?", [(process.pid,)]))
        assert main(["accept", "--fabric", "--resume", run, "--store", str(path)]) == 64
        process.kill()
    assert f"run {run} is still at work (process {process.pid} on {HOST})" in capsys.readouterr().err


def test_a_run_is_shown_while_another_program_writes_to_the_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To show a run, no table has to be made. So no lock is waited for, and a file on a read-only file system can be read."""
    path = tmp_path / "accept.sqlite"
    run = fabric_run(path)
    monkeypatch.setattr(results_store, "BUSY_SECONDS", 0.1)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert main(["accept", "--fabric", "--show", run, "--store", str(path)]) == 3
    assert f"run {run} of root; it has not ended" in capsys.readouterr().out


def test_of_two_that_resume_a_run_at_once_one_goes_on(tmp_path: Path) -> None:
    """Both have read that the process of the run is gone."""
    path = tmp_path / "accept.sqlite"
    run = fabric_run(path)
    with closing(ResultStore(str(path))) as store:
        fabric = FabricStore(store)
        store.write(("UPDATE fabric_run SET pid = ?", [(999_999_999,)]))
        store.write(("UPDATE fabric_run SET pid = ?", [(1,)]))  # the other process was faster
        with pytest.raises(UsageError, match="another process goes on with it"):
            fabric.taken_over(run, 999_999_999, HOST)
        fabric.taken_over(run, 1, HOST)
        assert fabric.process(run)[0] == os.getpid()
        store.begin("alone", user="root", host=HOST, folder="/", plan=b"", fairlead="0")
        store.write(("UPDATE run SET pid = ?", [(1,)]))
        with pytest.raises(UsageError, match="another process goes on with it"):
            store.taken_over("alone", 2, HOST)
        store.taken_over("alone", 1, HOST)
        assert store.read("SELECT pid FROM run") == [(os.getpid(),)]


def test_a_store_that_stays_locked_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "accept.sqlite"
    run = fabric_run(path)
    monkeypatch.setattr(results_store, "BUSY_SECONDS", 0.1)
    with closing(sqlite3.connect(path, isolation_level=None)) as other, closing(ResultStore(str(path))) as store:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(HostError, match="database is locked") as caught:
            FabricStore(store).ended(run)
        assert "another program has locked it: fuser " in caught.value.hint
