"""What people say of a node, and what the agent then does in Slurm: ack, clear, hold, drain, resume, and the trail of it.

One Slurm release is enough: nothing here asks slurmctld for more than drain and resume, which every release is tested for.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from fairlead.cli import main
from fairlead.daemon.requests.audit_trail import AuditEntry, Trail
from fairlead.model.verdict import State
from tests.daemon.conftest import PROJECT, XID79, Agent
from tests.lab.cluster import Cluster
from tests.lab.trees import MACHINES
from tests.slurm.conftest import client_of

pytestmark = [pytest.mark.slurm, pytest.mark.parametrize("up", ["trixie"], indirect=True)]

PCI = "0000:1b:00.0"


class Ward:
    """One node with its agent, and the commands of a person on it."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        slurm = {"conf": "/etc/slurm/slurm.conf", "bin_dir": str(cluster.bin), "node_name": "n1", "reconcile_seconds": 1}
        self.policy: dict[str, Any] = {"budget_percent": 100}
        self.slurm = slurm
        self.agent = Agent(folder, MACHINES / "hgx-h100")
        self.configure()
        self.client = client_of(cluster)
        self.trail = Trail(str(self.agent.state_dir), str(self.agent.run_dir))

    def configure(self, **policy: Any) -> None:
        self.agent.write_document(slurm=self.slurm, policy={**self.policy, **policy}, agent={"interval_seconds": 0.2})

    def say(self, *words: str, user: str = "ann", code: int = 0) -> str:
        """Run a command as root for ``user``; what it printed."""
        folders = ["--state-dir", str(self.agent.state_dir), "--run-dir", str(self.agent.run_dir)]
        more = folders if words[0] in ("hold", "audit", "why") else ["--document", str(self.agent.document)]
        more += ["--bin-dir", str(self.cluster.bin)] if words[0] == "why" else []
        said = io.StringIO()
        with patch.dict(os.environ, SUDO_USER=user), redirect_stdout(said), redirect_stderr(said):
            ended = main([*words, *more])
        assert ended == code, (ended, said.getvalue())
        return said.getvalue()

    def xid(self, number: int = 1, *buses: str) -> None:
        """Xid 79 of these GPUs (default: 1b), with numbers from ``number`` on, in one go."""
        now = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)
        lines = enumerate(buses or ("1b",), start=number)
        self.agent.kernel(*(XID79.format(n=n, us=now).replace("1b:00", f"{bus}:00") for n, bus in lines))

    def status(self) -> dict[str, Any]:
        """The agent's account, once there is one."""
        self.agent.until((self.agent.run_dir / "status.json").exists, "status")
        return self.agent.status()

    def drained(self) -> str:
        self.agent.until(lambda: self.agent.verdict().state is State.DRAIN, "verdict drain")
        node = self.client.node("n1")
        assert node.drained
        self.agent.until(lambda: (self.status()["drain"] or {}).get("reason") == node.reason, "the drain in the status")
        return node.reason

    def in_service(self) -> None:
        self.agent.until(lambda: self.status()["drain"] is None, "resume")
        assert not self.client.node("n1").drained

    def more_sweeps(self, count: int = 5) -> None:
        before = self.agent.sequence()
        self.agent.until(lambda: self.agent.sequence() > before + count, "later verdicts")

    def audited(self, who: str = "") -> list[AuditEntry]:
        return [e for e in self.trail.read() if who in ("", e.who)]

    def tells(self, *expected: tuple[str, ...]) -> None:
        """Wait until the trail says who did what, with what outcome where that is named too: the agent notes a thing after
        it has published it."""

        def shown() -> list[tuple[str, ...]]:
            return [(e.who, e.what, e.outcome)[: len(expected[0])] for e in self.audited()]

        try:
            self.agent.until(lambda: shown() == list(expected), "such a trail")
        except AssertionError as e:
            raise AssertionError(f"{shown()}\n{e}") from None


@pytest.fixture
def ward(cluster: Cluster, tmp_path: Path) -> Iterator[Ward]:
    made = Ward(cluster, tmp_path)
    yield made
    if made.agent.process is not None and made.agent.process.poll() is None:
        made.agent.process.kill()
        made.agent.process.wait()


def test_an_acknowledged_fault_does_not_drain_until_there_is_another(ward: Ward) -> None:
    ward.agent.start()
    ward.xid()
    reason = ward.drained()
    shown = ward.say("why", "n1")
    assert "fairlead's own drain" in shown and "next:     reboot the node" in shown and ", 1 strike: " in shown
    dry = ward.say("ack", f"xid/{PCI}", "--reason", "known", "--dry-run")
    assert dry.startswith(f"would acknowledge xid/{PCI}: Xid 79") and ward.audited("ann") == []
    assert "taken up" in ward.say("ack", "xid/00000000:1B:00.0", "--reason", "known, RMA 4711")
    ward.in_service()
    ward.more_sweeps()
    assert ward.agent.verdict().state is State.WARN and not ward.client.node("n1").drained
    shown = ward.say("why", "n1")
    assert "known:    acknowledged" in shown and "next:     nothing now" in shown and "RMA 4711" in shown
    listed = json.loads(ward.say("ack", "--list", "--json"))["acknowledged"]
    assert [(r["name"], r["who"], r["why"]) for r in listed] == [(f"xid/{PCI}", "ann", "known, RMA 4711")]
    ward.tells(
        ("agent", "drained", "done"), ("ann", "ack", "done"), ("agent", "acknowledged", "done"), ("agent", "resumed", "done")
    )
    ward.xid(2)
    assert ward.drained() != reason
    assert "there is no active finding" in ward.say("ack", "ecc", "--reason", "x", code=66)


def test_an_acknowledgement_taken_back_drains(ward: Ward) -> None:
    ward.agent.start()
    ward.xid()
    ward.drained()
    ward.say("ack", "--all", "--reason", "known")
    ward.in_service()
    assert json.loads(ward.say("ack", "--undo", f"xid/{PCI}", "--reason", "it is not", "--json"))["done"] == "ack --undo"
    ward.drained()
    assert json.loads(ward.say("ack", "--list", "--json"))["acknowledged"] == []


def test_what_is_said_while_the_agent_is_away_counts_at_its_start(ward: Ward) -> None:
    ward.agent.start()
    ward.xid()
    ward.drained()
    ward.agent.end(signal.SIGKILL)
    assert "the agent does not run" in ward.say("ack", "--all", "--reason", "known")
    assert len(list((ward.agent.state_dir / "requests").iterdir())) == 1
    (ward.agent.run_dir / "status.json").unlink()  # as after a reboot: what is on disk says it too
    assert "acknowledge" in ward.say("ack", "--all", "--reason", "known", "--dry-run")
    ward.agent.start()
    ward.in_service()
    ward.more_sweeps()
    assert not ward.client.node("n1").drained and not list((ward.agent.state_dir / "requests").iterdir())


def test_closed_as_repaired_the_agent_resumes_and_old_records_stay_closed(ward: Ward) -> None:
    """It had been drained too often for the agent to resume it by itself; and the record is still in the log of this boot."""
    ward.configure(strikes_max=1)
    ward.agent.start()
    ward.xid(1, "1b", "43")
    ward.drained()
    ward.agent.until(lambda: len(ward.status()["strikes"]) == 2, "both strikes")
    serial = next(g["serial"] for g in ward.status()["gpus"] if g["pci"] == PCI)
    assert f"1 strike of {serial}" in ward.say("clear", serial, "--reason", "x", "--dry-run")
    assert serial in json.loads(ward.say("clear", serial, "--reason", "x", "--dry-run", "--json"))["devices"]
    ward.say("clear", serial, "--reason", "GPU replaced, ticket 4711")
    ward.agent.until(lambda: [r["device"] for r in ward.status()["standing"]] == ["0000:43:00.0"], "one closed, one standing")
    ward.more_sweeps()
    assert [r["device"] for r in ward.status()["standing"]] == ["0000:43:00.0"] and ward.client.node("n1").drained
    ward.say("clear", "0000:43:00.0", "--reason", "reset")
    ward.in_service()
    ward.agent.end()
    ward.agent.start()
    ward.more_sweeps()
    assert ward.agent.verdict().state is State.OK and not ward.client.node("n1").drained
    ward.xid(3)
    ward.drained()
    ward.tells(
        ("agent", "drained"),
        ("ann", "clear"),
        ("agent", "closed as repaired"),
        ("ann", "clear"),
        ("agent", "closed as repaired"),
        ("agent", "resumed"),
        ("agent", "drained"),
    )


def test_clear_all(ward: Ward) -> None:
    ward.agent.start()
    ward.xid()
    ward.drained()
    ward.say("clear", "--all", "--reason", "new board")
    ward.in_service()
    known = ("standing", "strikes", "acknowledged")
    ward.agent.until(lambda: not any(ward.status()[each] for each in known), "nothing that is known")
    assert "knows no such device" in ward.say("clear", "0000:99:00.0", "--reason", "x", code=66)


def test_held_it_does_not_drain_and_released_it_does(ward: Ward) -> None:
    ward.agent.start()
    assert "on hold" in ward.say("hold", "--reason", "replacing riser 2", "--until", "2h")
    ward.xid()
    ward.agent.until(lambda: "79" in ward.agent.verdict().text, "word of the Xid")
    ward.more_sweeps()
    assert not ward.client.node("n1").drained
    ward.agent.until(lambda: "hold:     ann" in ward.say("why", "n1"), "word of the hold")  # the agent looks every 2 s
    shown = ward.say("why", "n1")
    assert "riser 2" in shown and "`fairlead hold --release`" in shown
    ward.say("hold", "--release")
    ward.drained()
    assert [(e.what, e.outcome) for e in ward.audited("ann")] == [("hold", "held"), ("hold --release", "released")]


def test_a_hold_ends_by_itself(ward: Ward) -> None:
    ward.agent.start()
    ward.say("hold", "--reason", "a minute", "--until", "2s")
    ward.xid()
    ward.drained()


def test_drained_by_an_admin(ward: Ward) -> None:
    ward.agent.start()
    ward.cluster.scontrol("update", "nodename=n1", "state=drain", "reason=riser swap by bob")
    ward.xid()
    ward.agent.until(lambda: "somebody else has drained" in ward.agent.verdict().text, "word of the other drain")
    ward.agent.until(lambda: "a resume before that does not last" in ward.say("why", "n1"), "the drain in the status")
    shown = ward.say("why", "n1")
    assert "riser swap by bob" in shown and "not fairlead" in shown and "next:     ask whoever drained it (root)" in shown
    ward.tells(("agent", "left alone"))
    assert "riser swap by bob" in ward.audited()[0].detail


def test_new_evidence_after_an_admins_resume_drains_whatever_happened_before(ward: Ward) -> None:
    """The fault is drained for, an admin puts their own words over it, closes it as repaired, and resumes the node under an
    agent that was restarted meanwhile. What came before the resume is known; another GPU that falls off the bus just after it
    is not, and it does not wait for the next look."""
    ward.slurm["reconcile_seconds"] = 600
    ward.configure()
    ward.agent.start()
    ward.xid()
    ward.drained()
    ward.cluster.scontrol("update", "nodename=n1", "state=drain", "reason=riser swap by bob")
    ward.agent.process.send_signal(signal.SIGUSR1)  # type: ignore[union-attr]  # a look now, not in ten minutes
    ward.agent.until(lambda: any(e.what == "drain given up" for e in ward.audited()), "word that the drain is somebody else's")
    assert not any(e.what == "resumed" for e in ward.audited()), "nobody has resumed the node"
    ward.say("clear", "--all", "--reason", "reseated")
    ward.agent.end()
    ward.agent.start()
    ward.more_sweeps()
    ward.cluster.scontrol("update", "nodename=n1", "state=resume")
    time.sleep(1.5)
    ward.xid(2, "43")
    ward.agent.until(lambda: ward.client.node("n1").drained, "a drain for the other GPU before the next look")
    assert "0000:43:00.0" in ward.client.node("n1").reason
    assert "43:00" not in " ".join(ward.status()["acknowledged"])


def test_a_new_fault_does_not_wait_after_an_admin_has_lifted_their_own_drain(ward: Ward) -> None:
    """The order of the first fault waits for five minutes and more, since the node was somebody else's."""
    ward.slurm["reconcile_seconds"] = 600
    ward.configure()
    ward.agent.start()
    ward.cluster.scontrol("update", "nodename=n1", "state=drain", "reason=riser swap by bob")
    ward.xid()
    ward.agent.until(lambda: "somebody else has drained" in ward.agent.verdict().text, "word of the other drain")
    ward.cluster.scontrol("update", "nodename=n1", "state=resume")
    ward.xid(2, "43")
    ward.agent.until(lambda: ward.client.node("n1").drained, "our drain before the order's time")


def test_the_agent_is_down(ward: Ward) -> None:
    ward.agent.start()
    ward.agent.end(signal.SIGKILL)
    left = ward.agent.verdict()
    assert "next:     the agent is down" in ward.say("why", "n1")  # though its verdict still counts
    (ward.agent.run_dir / "verdict").write_text(replace(left, expires=1).to_line())  # some minutes later
    shown = ward.say("why", "n1")
    assert "next:     the agent is down" in shown and "journalctl -u fairlead-agent" in shown
    (ward.agent.run_dir / "verdict").unlink()
    assert "next:     the agent is down" in ward.say("why", "n1")


def test_drain_and_resume_by_hand_are_noted(ward: Ward) -> None:
    assert "would drain" in ward.say("drain", "--reason", "x", "--dry-run") and ward.audited() == []
    assert json.loads(ward.say("drain", "--reason", "x", "--dry-run", "--json"))["node"] == "n1"
    ward.say("drain", "--reason", "new PSU", user="bob")
    assert ward.client.node("n1").drained
    shown = ward.say("why", "n1")
    assert "drained by hand with `fairlead drain`" in shown and "`fairlead resume`" in shown
    ward.say("resume")
    assert not ward.client.node("n1").drained
    audited = [(e.who, e.what, e.why, e.outcome) for e in ward.audited()]
    assert audited == [("bob", "drain", "new PSU", "drained"), ("ann", "resume", "", "resumed")]
    ward.cluster.scontrol("update", "nodename=n1", "state=drain", "reason=riser swap by bob")
    ward.say("resume", "--reason", "mine?", code=75)
    assert ward.audited()[-1].outcome == "foreign" and "riser swap" in ward.audited()[-1].detail
    assert "it would be refused: foreign" in ward.say("drain", "--reason", "x", "--dry-run")
    assert json.loads(ward.say("resume", "--dry-run", "--json"))["refused"].startswith("foreign: ")


@pytest.fixture
def full(ward: Ward) -> Iterator[Path]:
    """The state directory on a disk that takes nothing more."""
    folder = ward.agent.state_dir
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "full", folder], check=True)
    try:
        with pytest.raises(OSError, match="No space"), open(folder / "filler", "wb", buffering=0) as out:
            while True:
                out.write(b"x" * 4096)
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_stops_neither_a_hold_nor_a_resume(ward: Ward, full: Path) -> None:
    ward.agent.start()
    said = ward.say("hold", "--reason", "replacing riser 2")
    assert "audit: " in said and "No space left on device" in said and "on hold: the agent reports" in said
    ward.xid()
    ward.agent.until(lambda: "79" in ward.agent.verdict().text, "word of the Xid")
    ward.more_sweeps()
    assert not ward.client.node("n1").drained
    ward.agent.until(lambda: (ward.status()["hold"] or {}).get("who") == "ann", "the hold in the status")  # looked for every 2 s
    ward.say("hold", "--release")
    ward.drained()
    ward.say("ack", "--all", "--reason", "known")  # through the spool in the run directory
    ward.in_service()
    ward.agent.end()
    assert "drained" in ward.say("drain", "--reason", "psu")
    assert "resumed" in ward.say("resume", "--reason", "done")
    assert not ward.client.node("n1").drained
    (full / "filler").unlink()
    assert "audit" not in ward.say("hold", "--reason", "again")
    whats = [e.what for e in ward.audited("ann")]
    assert whats == ["hold", "hold --release", "ack", "drain", "resume", "hold"]
    assert not (ward.agent.run_dir / "audit.jsonl").exists()  # moved over, in the order of time


def test_many_say_things_at_once(ward: Ward) -> None:
    ward.agent.start()
    ward.xid(1, "1b", "43", "52")
    ward.drained()
    ward.agent.until(lambda: len(ward.status()["standing"]) == 3, "three faults")
    env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent")}
    command = [sys.executable, "-m", "fairlead", "ack", "--reason", "known", "--document", str(ward.agent.document)]
    people = [
        subprocess.Popen([*command, f"xid/0000:{bus}:00.0"], cwd=PROJECT, env=env, stdout=subprocess.DEVNULL)
        for bus in ("1b", "43", "52")
    ]
    assert [p.wait(timeout=150) for p in people] == [0, 0, 0]
    ward.in_service()
    assert sorted(e.what for e in ward.audited()).count("ack") == 3
