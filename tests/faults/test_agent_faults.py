"""The agent under SIGKILL, without slurmctld, absent, with a broken document, switched off and on hold, on a real node."""

from __future__ import annotations

import json
import random
import re
import time

import pytest

from tests.faults.conftest import AGENT, Ward

pytestmark = [pytest.mark.rack, pytest.mark.timeout(240)]


def entry(ward: Ward, number: int) -> dict[str, object]:
    """The ledger's entry on disk; {} for none."""
    found: dict[str, object] = json.loads(ward.run(number, "cat /var/lib/fairlead/ledger.json").stdout)["entry"] or {}
    return found


def consistent(ward: Ward, number: int) -> None:
    """Slurm, ledger and verdict say the same: drained, once, by fairlead."""
    node = ward.drained(number)
    ward.wait("the ledger says drained", lambda: entry(ward, number), lambda e: e.get("phase") == "drained")
    assert f":{entry(ward, number)['token']['token']} " in node.reason  # type: ignore[index]
    status = ward.wait(  # it is written after the verdict
        "the status says so", lambda: ward.status(number), lambda s: (s["drain"] or {}).get("reason") == node.reason
    )
    assert not status["slurm"].get("error")


@pytest.mark.parametrize("kills", [10, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_killed_at_any_moment_while_xids_arrive(ward: Ward, kills: int) -> None:
    before = len(ward.reported(2))
    restarts = int(ward.unit(2)["NRestarts"])
    for turn in range(kills):
        ward.xid(2)
        time.sleep(random.uniform(0, 0.8))
        ward.run(2, f"systemctl kill --kill-who=main --signal=KILL {AGENT}", check=False)
        done = ward.prolog(2)
        assert done.returncode == 0 or "Xid 79" in done.stderr, done
        if turn % 5 == 4:  # systemd brings it back by itself
            ward.wait("restarted", lambda: int(ward.unit(2)["NRestarts"]), lambda n, r=restarts: n > r)  # type: ignore[misc]
            restarts = int(ward.unit(2)["NRestarts"])
        else:
            ward.run(2, f"systemctl start --no-block {AGENT}")
    consistent(ward, 2)
    ward.sweeps(2)
    consistent(ward, 2)
    reasons = set(ward.reported(2)[before:])
    assert reasons == {ward.slurm(2).reason}, "one drain, with one token, whatever happened"
    assert ward.unit(2)["ActiveState"] == "active"


def test_slurmctld_away_and_the_drain_is_sent_when_it_is_back(ward: Ward) -> None:
    """The drain that could not be sent is not lost, even with the process that wanted to send it."""
    job = ward.rack.submit("#!/bin/sh\nwhile [ ! -e /tmp/go-on ]; do sleep 0.1; done; echo ran\n", "-N1", "-w", "gpu3")
    ward.rack.wait_job(job, "RUNNING")
    ward.rack.stop_slurmctld()
    try:
        ward.xid(3)
        ward.wait("the verdict says so", lambda: ward.verdict(3), lambda v: "slurmctld does not answer" in v[-1])
        assert ward.verdict(3)[1] == "warn", "drain is said only once slurmctld has accepted it"
        assert ward.prolog(3).returncode == 0
        ward.wait("the status says why", lambda: ward.status(3)["slurm"]["error"], bool)
        ward.run(3, f"systemctl kill --kill-who=main --signal=KILL {AGENT}; systemctl start {AGENT}")
        ward.wait("again", lambda: ward.verdict(3), lambda v: "slurmctld does not answer" in v[-1])
    finally:
        ward.rack.start_slurmctld()
    node = ward.drained(3, seconds=90)
    assert "Xid 79" in node.reason
    ward.run(3, "touch /tmp/go-on")
    assert ward.rack.wait_job(job) == "COMPLETED", "the running job is left alone"
    ward.run(3, "rm /tmp/go-on")
    consistent(ward, 3)


def test_agent_absent(ward: Ward) -> None:
    """Jobs run, and the health check notes it once, and once that it is back."""
    ward.run(1, "/etc/slurm/fairlead/health-check")
    ward.run(1, f"systemctl stop {AGENT}")
    expire(ward, 1)
    assert ward.job(1) == "ran\n"
    assert "expired" in ward.run(1, "cat /run/fairlead/prolog.log").stdout
    said = [ward.run(1, "/etc/slurm/fairlead/health-check").stdout for _ in range(3)]
    assert "is the fairlead agent running?" in said[0] and said[1:] == ["", ""]
    status = ward.fairlead(1, "status")
    assert (status.returncode, "expired" in status.stdout) == (3, True), status
    ward.run(1, f"systemctl start {AGENT}")
    ward.wait("verdict ok", lambda: ward.verdict(1), lambda v: v[1] == "ok")
    assert ward.run(1, "/etc/slurm/fairlead/health-check").stdout == "fairlead: the verdict is fresh again\n"
    assert ward.slurm(1).reason == ""


def expire(ward: Ward, number: int) -> None:
    """Let the verdict of an agent that has stopped be older than it is."""
    fields = ward.verdict(number)
    fields[2] = "1"
    ward.demo.node(number).path("/run/fairlead/verdict").write_text("\t".join(fields) + "\n")


def test_broken_document_after_an_update(ward: Ward) -> None:
    document = ward.demo.node(1).path("/etc/fairlead/node.json")
    kept = document.read_bytes()
    try:
        document.write_text('{"schema": 1, "generation": 2,')
        ward.run(1, f"systemctl reload {AGENT}")
        ward.wait("the agent says that it keeps the old one", lambda: ward.journal(1), lambda log: "document_refused" in log)
        ward.sweeps(1)
        assert (ward.verdict(1)[1], ward.status(1)["document"]["generation"]) == ("ok", 1)
        ward.run(1, f"systemctl restart {AGENT}", check=False)
        unit = ward.wait("it ends", lambda: ward.unit(1), lambda u: u["ActiveState"] == "failed")
        restarts = unit["NRestarts"]
        assert unit["ExecMainStatus"] == "78", unit
        assert "fairlead agent: /etc/fairlead/node.json: not JSON" in ward.journal(1)
        expire(ward, 1)
        assert ward.job(1) == "ran\n"
        time.sleep(3)  # RestartSec is 2 s: it would have been started again by now
        assert (ward.unit(1)["ActiveState"], ward.unit(1)["NRestarts"]) == ("failed", restarts)
        ward.run(1, "systemctl restart slurmd")
        assert ward.job(1) == "ran\n", "slurmd does not need the agent"
    finally:
        document.write_bytes(kept)
        ward.run(1, f"systemctl reset-failed {AGENT}; systemctl start {AGENT}", check=False)
    ward.wait("verdict ok", lambda: ward.verdict(1), lambda v: v[1] == "ok")


def test_disabled_stops_hooks_and_drains(ward: Ward) -> None:
    ward.run(2, "touch /etc/fairlead/disabled")
    ward.xid(2)
    ward.wait("the Xid is seen", lambda: ward.verdict(2), lambda v: "Xid 79" in v[-1])
    ward.sweeps(2)
    assert ward.slurm(2).states == ("IDLE",)
    assert ward.job(2) == "ran\n"
    assert ward.run(2, "ls /run/fairlead/jobs").stdout == "", "the hooks do nothing at all"
    ward.run(2, "rm /etc/fairlead/disabled")
    assert "Xid 79" in ward.drained(2).reason


def test_disabled_lets_jobs_on_a_drained_nodes_prolog(ward: Ward) -> None:
    ward.xid(2)
    ward.drained(2)
    assert ward.prolog(2).returncode == 1
    ward.run(2, "touch /etc/fairlead/disabled")
    assert ward.prolog(2).returncode == 0


def test_hold(ward: Ward) -> None:
    assert ward.fairlead(2, "hold", "--reason", "riser 2; $(touch /tmp/pwned)").returncode == 0
    ward.xid(2)
    ward.wait("the Xid is seen", lambda: ward.verdict(2), lambda v: "Xid 79" in v[-1])
    ward.sweeps(2)
    assert ward.slurm(2).states == ("IDLE",)
    assert "riser 2" in ward.fairlead(2, "hold", "--show").stdout
    ward.wait("status tells of the hold", lambda: ward.status(2), lambda s: "riser 2" in str(s.get("hold")))
    assert ward.job(2) == "ran\n"
    assert ward.fairlead(2, "hold", "--release").returncode == 0
    assert "Xid 79" in ward.drained(2).reason


def test_a_hold_keeps_our_drain_standing_too(ward: Ward) -> None:
    """Under a hold the agent resumes nothing either; a person does."""
    ward.xid(2)
    reason = ward.drained(2).reason
    ward.fairlead(2, "hold", "--reason", "looking")
    ward.sweeps(2)
    assert ward.slurm(2).reason == reason
    done = ward.fairlead(2, "resume")
    assert done.returncode == 0, done
    ward.rack.wait_idle(names=["gpu2"])


def test_ack_and_clear_reach_the_agent_in_its_units_sandbox(ward: Ward) -> None:
    pci = ward.xid(2)
    ward.drained(2)
    done = ward.fairlead(2, "ack", f"xid/{pci}", "--reason", "known, RMA 4711")
    assert done.returncode == 0 and done.stdout.endswith("  taken up\n"), done
    ward.rack.wait_idle(names=["gpu2"])
    ward.xid(2, pci)
    ward.drained(2)
    done = ward.fairlead(2, "clear", pci, "--reason", "reset")
    assert done.returncode == 0 and done.stdout.endswith("  taken up\n"), done
    ward.rack.wait_idle(names=["gpu2"])
    assert ward.run(2, "ls /var/lib/fairlead/requests").stdout == ""
    expected = ["agent", "root", "agent", "agent", "agent", "root", "agent", "agent"]

    def reported() -> list[str]:
        lines = ward.fairlead(2, "audit").stdout.splitlines()
        return [line.partition("  ")[2].partition(" ")[0].rstrip(":") for line in lines][-len(expected) :]

    ward.wait("the trail tells who did what", reported, lambda who: who == expected)


def test_drain_and_resume_by_hand(ward: Ward) -> None:
    done = ward.fairlead(2, "drain", "--reason", "fan 3 rattles")
    assert done.returncode == 0, done
    node = ward.slurm(2)
    assert "DRAIN" in node.states and node.reason.startswith("fairlead:manual:") and node.reason.endswith("fan 3 rattles")
    ward.sweeps(2, 4)
    assert ward.slurm(2).reason == node.reason, "a healthy node's agent does not lift it"
    ward.wait("the verdict tells", lambda: ward.verdict(2), lambda v: "by hand" in v[-1])
    again = ward.fairlead(2, "drain", "--reason", "another")
    assert ward.slurm(2).reason == node.reason, again
    done = ward.fairlead(2, "resume")
    assert done.returncode == 0, done
    ward.rack.wait_idle(names=["gpu2"])
    nothing = ward.fairlead(2, "resume")
    assert nothing.returncode == 0 and "free" in nothing.stdout, nothing


def test_resume_adopt(ward: Ward) -> None:
    """A node whose ledger was lost (a new disk): fairlead leaves the old drain alone until a person says that it is ours."""
    ward.xid(2)
    reason = ward.drained(2).reason
    ward.run(2, f"systemctl stop {AGENT}; rm -rf /var/lib/fairlead/* /run/fairlead/ledger*; systemctl start {AGENT}")
    ward.sweeps(2)
    assert ward.slurm(2).reason == reason
    done = ward.fairlead(2, "resume")
    assert done.returncode == 75 and "orphan" in done.stdout, done
    assert ward.slurm(2).reason == reason
    done = ward.fairlead(2, "resume", "--adopt")
    assert done.returncode == 0, done
    ward.rack.wait_idle(names=["gpu2"])


ADMIN = "lid off, ann"


def drain_by_admin(ward: Ward, number: int) -> None:
    ward.rack.scontrol("update", f"nodename=gpu{number}", "state=drain", f"reason={ADMIN}")


def test_admin_before_the_xid(ward: Ward) -> None:
    drain_by_admin(ward, 3)
    ward.xid(3)
    ward.wait("seen", lambda: ward.verdict(3), lambda v: "somebody else has drained" in v[-1])
    for command in (("resume",), ("resume", "--adopt"), ("drain", "--reason", "mine")):
        done = ward.fairlead(3, *command)
        assert done.returncode == 75 and "foreign" in done.stdout, done
    assert ward.slurm(3).reason == ADMIN
    ward.rack.scontrol("update", "nodename=gpu3", "state=resume")
    assert "Xid 79" in ward.drained(3, seconds=90).reason, "the admin's drain went, the fault did not"


def test_admin_over_our_drain(ward: Ward) -> None:
    ward.xid(3)
    ward.drained(3)
    drain_by_admin(ward, 3)
    ward.wait("the agent sees that it is no longer ours", lambda: entry(ward, 3), lambda e: e.get("phase") == "taken")
    ward.sweeps(3)
    assert ward.slurm(3).reason == ADMIN
    ward.run(3, f"systemctl restart {AGENT}")
    ward.sweeps(3)
    assert ward.slurm(3).reason == ADMIN


def test_admin_resumes_ours_and_only_news_drains_again(ward: Ward) -> None:
    ward.xid(3)
    first = ward.drained(3).reason
    ward.rack.scontrol("update", "nodename=gpu3", "state=resume")
    ward.wait("acknowledged", lambda: ward.verdict(3), lambda v: v[1] == "warn" and "acknowledged" in v[-1])
    ward.run(3, f"systemctl restart {AGENT}")
    ward.sweeps(3)
    assert ward.slurm(3).states == ("IDLE",)
    assert ward.job(3) == "ran\n"
    ward.xid(3)
    assert ward.drained(3).reason != first


@pytest.mark.parametrize("first", ["admin", "xid"])
def test_admin_and_xid_at_once(ward: Ward, first: str) -> None:
    """Whoever writes first or second: the admin's words stand at the end, unless they came within the read-to-write window (see
    docs/explanation/slurm-state-changes.md), which the agent measures and logs."""
    before = len(ward.reasons_at(3))
    if first == "admin":
        drain_by_admin(ward, 3)
        ward.xid(3)
    else:
        ward.xid(3)
        time.sleep(random.uniform(0, 0.2))
        drain_by_admin(ward, 3)
    ward.wait("the Xid is judged", lambda: ward.verdict(3), lambda v: "Xid 79" in v[-1])
    ward.sweeps(3, 4)
    reported = ward.reasons_at(3)[before:]
    if first == "xid" and len(reported) == 2 and reported[0][1] == ADMIN:
        (admin_at, _), (ours_at, ours) = reported
        log = ward.wait("the drain is logged", lambda: ward.journal(3), lambda log: ours.split()[0] in log)
        window = max(float(ms) for ms in re.findall(rf"{re.escape(ours.split()[0])} .*window_ms=([\d.]+)", log))
        assert (ours_at - admin_at) * 1000 <= window + 1, f"the admin's words stood when fairlead read: {reported}"
        assert ward.slurm(3).reason == ours
        return
    assert [reason for _, reason in reported].count(ADMIN) == 1 and reported[-1][1] == ADMIN, reported
    assert ward.slurm(3).reason == ADMIN
