"""A write that is late is not sent: whatever holds the agent or scontrol up, the window from reading to sending stays bounded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.drains import node_writer
from fairlead.drains.ledger import Ledger
from fairlead.drains.node_state import STALE_SECONDS, NodeDrainState
from fairlead.drains.outcome import Outcome, finish
from fairlead.drains.protocol import DrainProtocol
from fairlead.errors import SlurmUnavailable
from fairlead.slurm.scontrol import Scontrol
from tests.lab.cluster import Cluster
from tests.slurm import model
from tests.slurm.conftest import PATIENCE_SECONDS, ROOMY, drain_of


def client_with(folder: Path, update: str) -> Scontrol:
    """A client whose scontrol does this in place of an update."""
    tool = folder / "scontrol"
    tool.write_text(f"#!/bin/sh\n{update}\n")
    tool.chmod(0o755)
    return Scontrol(conf="/etc/slurm/slurm.conf", bin_dir=str(folder), deadline_seconds=30)


def slow(folder: Path, then: str) -> str:
    """What a scontrol does that is slow to start: it begins only when there is a file ``go``."""
    return f"echo $$ >>{folder}/pids; until [ -e {folder}/go ]; do sleep 0.05; done >/dev/null 2>&1; {then}"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def running(folder: Path) -> list[str]:
    """The process ids of slow scontrols that have not ended."""
    pids = (folder / "pids").read_text().split() if (folder / "pids").exists() else []
    return [pid for pid in pids if alive(int(pid))]


def until(met: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not met():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def is_sent(folder: Path) -> bool:
    """Whether the write is sent once the slow scontrol may go on, if it has not been ended."""
    (folder / "go").touch()
    until(lambda: not running(folder), "the end of scontrol")
    return (folder / "sent").exists()


def test_a_scontrol_that_is_slow_to_start_sends_nothing_after_the_bound(tmp_path: Path) -> None:
    client = client_with(tmp_path, slow(tmp_path, f": >{tmp_path}/sent"))
    client.not_after(0.5)
    with pytest.raises(SlurmUnavailable, match="too slow"):
        client.resume("n1")
    assert not is_sent(tmp_path)


def test_nothing_is_started_when_the_time_is_over_already(tmp_path: Path) -> None:
    client = client_with(tmp_path, f": >{tmp_path}/sent")
    client.not_after(-0.1)
    with pytest.raises(SlurmUnavailable, match="too slow"):
        client.drain("n1", "fairlead:xid:abcdef gone")
    assert not (tmp_path / "sent").exists()
    client.drain("n1", "fairlead:xid:abcdef gone")  # the bound is of one write
    assert (tmp_path / "sent").exists()


@pytest.mark.parametrize(("hosts", "accepted"), [(1, False), (2, True)])
def test_a_write_may_wait_for_a_silent_primary_as_long_as_the_reading_did(tmp_path: Path, hosts: int, accepted: bool) -> None:
    """Each command waits TCPTimeout for a primary whose host is gone. With one controller there is nothing to wait for."""
    conf = tmp_path / "slurm.conf"
    conf.write_text("".join(f"SlurmctldHost=ctl{i}\n" for i in range(hosts)) + "TCPTimeout=10\n")
    (tmp_path / "sinfo").write_text("#!/bin/sh\nsleep 2 >/dev/null 2>&1\n")
    (tmp_path / "sinfo").chmod(0o755)
    client_with(tmp_path, f"sleep 0.8 >/dev/null 2>&1; : >{tmp_path}/sent")
    client = Scontrol(conf=str(conf), bin_dir=str(tmp_path), deadline_seconds=30)
    assert client.nodes() == ()
    client.not_after(0.6)
    if accepted:
        client.resume("n1")
    else:
        with pytest.raises(SlurmUnavailable, match="too slow"):
            client.resume("n1")
    assert (tmp_path / "sent").exists() is accepted


STOPPED = """
import sys
from fairlead.slurm.scontrol import Scontrol
client = Scontrol(conf="/etc/slurm/slurm.conf", bin_dir=sys.argv[1], deadline_seconds=30)
client.not_after(1.0)
print("begins", flush=True)
client.resume("n1")
"""


def test_an_agent_that_is_stopped_while_scontrol_starts_sends_nothing_late(tmp_path: Path) -> None:
    """The kernel ends scontrol: nobody else is there to do it."""
    client_with(tmp_path, slow(tmp_path, f": >{tmp_path}/sent"))
    agent = Path(__file__).resolve().parents[2] / "agent"
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(agent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None and process.stdout.readline() == b"begins\n"
    until(lambda: bool(running(tmp_path)) or process.poll() is not None, "scontrol")
    process.send_signal(signal.SIGSTOP)
    until(lambda: not running(tmp_path), "the end of scontrol, which waits for ever")
    assert not is_sent(tmp_path)
    process.send_signal(signal.SIGCONT)
    assert process.wait(timeout=60) != 0
    process.stdout.close()


@pytest.mark.slurm
@pytest.mark.parametrize("what", ["drain", "resume"])
def test_an_admin_who_comes_while_scontrol_is_slow_keeps_their_drain(
    cluster: Cluster, client: Scontrol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The slow write is never sent, and the next attempt finds the admin's words. Without a bound it erased or lifted them."""
    drain = drain_of(client, tmp_path, "n1")
    if what == "resume":
        with monkeypatch.context() as patient:  # with the fast scontrol the machine may take its time
            patient.setattr(node_writer, "STALE_SECONDS", PATIENCE_SECONDS)
            assert finish(drain.drain("xid", "gone")).outcome is Outcome.DRAINED
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    (bin_dir / "sinfo").symlink_to(cluster.bin / "sinfo")
    slower = f'[ "$1" = update ] && {{ {slow(bin_dir, "")} }}\nexec {cluster.bin}/scontrol "$@"'
    slow_client = client_with(bin_dir, slower)
    writer = drain.state.writer
    writer.client, writer.not_after = slow_client, slow_client.not_after
    steps = drain.drain("xid", "gone") if what == "drain" else drain.resume()
    while next(steps) != "write":
        pass
    cluster.scontrol("update", "nodename=n1", "state=drain", "reason=ann: riser swap")
    with pytest.raises(SlurmUnavailable, match=r"too slow|went by after the reading"):
        finish(steps)
    assert not is_sent(bin_dir)
    node = client.node("n1")
    assert node.drained and node.reason == "ann: riser swap"
    writer.client, writer.not_after = client, client.not_after
    assert finish(drain.reconcile()).outcome is Outcome.FOREIGN
    assert client.node("n1") == node


class Slow(model.Ctld):
    """24.11 without slurmdbd. ``meanwhile`` an admin drains while our resume is on its way."""

    def resume(self, name: str) -> None:
        self.update(name, "DRAIN", "ann: riser swap")
        super().resume(name)


def test_an_admins_drain_that_our_resume_has_lifted_is_put_back_also_by_a_later_look(tmp_path: Path) -> None:
    ctld, now = Slow("24", ("n1",)), [1000.0]
    ledger = Ledger(str(tmp_path), str(tmp_path), node="n1")
    wall = lambda: now[0] + 1_800_000_000  # noqa: E731
    protocol = DrainProtocol(NodeDrainState(ctld, ledger, "n1", ROOMY, wall=wall, clock=lambda: now[0]))
    assert finish(protocol.drain("xid", "gone")).outcome is Outcome.DRAINED
    steps = protocol.resume()
    while next(steps) != "put back":
        pass
    now[0] += STALE_SECONDS + 1  # the machine was busy
    with pytest.raises(SlurmUnavailable):
        finish(steps)
    assert not ctld.node("n1").drained
    assert finish(protocol.reconcile()).outcome is Outcome.FOREIGN
    assert ctld.node("n1").drained and ctld.node("n1").reason == "ann: riser swap"
    ctld.update("n1", "UNDRAIN")
    entry = ledger.load()
    assert entry is not None and not entry.theirs
    assert finish(protocol.reconcile()).outcome is Outcome.ACKNOWLEDGED
    assert not ctld.node("n1").drained
