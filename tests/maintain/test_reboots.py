"""`fairlead maintain` on a rack: real ssh, Ansible, reboots and jobs. The tests share the rack and run in their order."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from fairlead.provision.ansible_lock import lock_owner
from tests.lab.faultytrees import take_out
from tests.lab.pcitree import put
from tests.maintain.maintain_admin import Admin, kill, until

pytestmark = [pytest.mark.rack, pytest.mark.timeout(400)]
REBOOT = ("--reboot", "--reboot-wait", "40s", "--verify-wait", "45s")
PATIENT = ("--reboot", "--verify-wait", "90s")


def runs(pid: int | None) -> bool:
    """Not so one that has ended and waits to be reaped by this machine's init: it has no command line any more."""
    try:
        return b"ansible" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_1_eight_nodes_with_jobs_and_what_goes_wrong_in_the_middle(admin: Admin) -> None:
    """gpu2 does not come back, gpu3 comes back without a GPU, a person takes gpu4 and gpu5, gpu6 is slow; stopped by Ctrl-C
    and killed twice."""
    rack = admin.rack
    jobs = {admin.waiting_job(n): f"gpu{n}" for n in range(1, 9)}
    for job in jobs:
        rack.wait_job(job, "RUNNING", seconds=60)
    jobs |= {admin.job(2): "waits for a node" for _ in range(2)}
    admin.node(2).power("lose")
    admin.node(3).refit(lambda tree: take_out(tree, 7))
    admin.node(6).firmware(8)

    more = ("--batch", "4", "--max-failed", "8", *REBOOT)
    with admin.terminal("gpu[1-8]", "--reason", "kernel 6.12", *more, rows=30, columns=100) as terminal:
        lines = terminal.until("NODE", "gpu4", "8 nodes: 4 queued, 4 in work")
        assert sum(line.startswith("gpu") for line in lines) == 4 and not terminal.cursor()
        until(lambda: [*admin.steps().values()].count("waiting") == 4, lambda: "\n".join(terminal.read()))
        terminal.type(b"\x03")
        terminal.until("stopping: nodes already in progress will be finished.", "Press Ctrl-C again to leave them as they are.")
        terminal.type(b"\x03")
        assert terminal.end() == 130 and terminal.cursor()
        assert "NODE" not in (left := "\n".join(terminal.screen.lines)) and "the run is unfinished; go on with --resume" in left
    assert sorted(admin.steps().values()) == ["queued"] * 4 + ["waiting"] * 4
    run = admin.maintain("--resume")
    rack.scontrol("update", "nodename=gpu[4-5]", "state=drain", "reason=ann: riser swap")
    until(lambda: admin.steps()["gpu4"] == "taken", admin.said)
    admin.let_go(1, 2, 3)
    until(lambda: lock_owner(admin.ansible_lock()), admin.said)
    ansible = lock_owner(admin.ansible_lock())
    kill(run)
    admin.let_go(4, 5, 6, 7, 8)
    run = admin.maintain("--resume")
    until(lambda: admin.steps()["gpu1"] == "rebooting", admin.said)
    assert not runs(ansible), f"{ansible} has outlived its run, and the next one has not waited for it"
    kill(run)
    code = admin.run("--resume", "--json")

    shown, said = admin.shown(), admin.said()
    assert code == 69, said
    assert {name: n.step for name, n in shown.items()} == {
        "gpu1": "done", "gpu2": "failed", "gpu3": "failed", "gpu4": "taken",
        "gpu5": "skipped", "gpu6": "done", "gpu7": "done", "gpu8": "done",
    }, said  # fmt: skip
    for number in (1, 6, 7, 8):
        state = rack.node_state(f"gpu{number}")
        assert "DRAIN" not in state.states and "DOWN" not in state.states, state
        assert admin.boots(admin.node(number)) == 1 and shown[f"gpu{number}"].rebooted
    second, third = rack.node_state("gpu2"), rack.node_state("gpu3")
    for state, why in ((second, "FAILED: did not come back in 40 s"), (third, "FAILED: ")):
        assert "DRAIN" in state.states and state.reason.startswith("fairlead:maintain:") and why in state.reason, state
    assert "gpu_count" in third.reason or "GPU" in third.reason, third
    for name in ("gpu4", "gpu5"):
        state = rack.node_state(name)
        assert "DRAIN" in state.states and (state.reason, state.user) == ("ann: riser swap", "root")
        assert admin.boots(admin.node(int(name[3:]))) == 0
    assert admin.lost(jobs) == []


@pytest.mark.slow
def test_2_what_failed_is_repaired_and_killed_at_random_moments(admin: Admin) -> None:
    """The drains of the run that has ended are taken over, a person's is not; slurmctld is restarted in the middle."""
    rack, jobs = admin.rack, {admin.job(5, "-wgpu6"): "gpu6"}
    admin.node(2).power("on")
    admin.node(3).refit()
    admin.node(2).wait_ssh()
    before = {n: admin.boots(admin.node(n)) for n in (2, 3, 4, 6)}
    chance = random.Random(seed := os.urandom(4).hex())
    run = admin.begun("gpu[2-4,6]", "--reason", "kernel 6.12, again", "--batch", "3", *PATIENT)
    until(lambda: admin.steps()["gpu2"] != "queued", admin.said)
    for number in range(4):
        time.sleep(chance.uniform(0.3, 4.0))
        if number == 1:
            rack.stop_slurmctld()
            time.sleep(1)
            rack.start_slurmctld()
        kill(run)
        run = admin.maintain("--resume")
    code, said = admin.ended(run), f"seed {seed}\n{admin.said()}"
    assert code in (66, 75), said  # 66: the last kill came after the end
    assert admin.steps() == {"gpu2": "done", "gpu3": "done", "gpu4": "skipped", "gpu6": "done"}, said
    for number in (2, 3, 6):
        state = rack.node_state(f"gpu{number}")
        assert "DRAIN" not in state.states and "DOWN" not in state.states, (state, said)
        assert admin.boots(admin.node(number)) == before[number] + 1, said
    state = rack.node_state("gpu4")
    assert "DRAIN" in state.states and state.reason == "ann: riser swap" and admin.boots(admin.node(4)) == before[4]
    assert admin.lost(jobs) == []


def test_3_a_node_that_is_lost_elsewhere_or_another_after_its_reboot(admin: Admin) -> None:
    """gpu6 has no ssh, gpu7 comes back under another address, gpu8 with another serial number."""
    rack = admin.rack
    admin.node(6).run("systemctl disable --quiet ssh.service ssh.socket", check=False)
    admin.node(7).refit(address="10.77.0.99")
    serial = "sys/class/dmi/id/product_serial"
    admin.node(8).run(f"echo SN-1 > /{serial}")
    admin.node(8).refit(lambda tree: put(tree / serial, "SN-2"))
    more = ("--batch", "3", "--max-failed", "3", "--reboot", "--reboot-wait", "30s", "--verify-wait", "90s")
    code = admin.run("gpu[6-8]", "--reason", "new boards", *more)
    shown, said = admin.shown(), admin.said()
    assert code == 69 and set(admin.steps().values()) == {"failed"}, said
    why = {
        "gpu6": "did not come back in 30 s: ssh: connect to host 10.77.0.16 port 22: Connection refused",
        "gpu7": "did not come back in 30 s: ",
        "gpu8": "not the same machine: it was product_serial SN-1, now product_serial SN-2",
    }
    for name, words in why.items():
        state = rack.node_state(name)
        assert "DRAIN" in state.states and state.reason.startswith("fairlead:maintain:") and words in state.reason, state
        assert words in shown[name].detail and shown[name].condition == "drained, and stays so"
        lines = [line for line in said.splitlines() if line.startswith(f"{name}: failed") and "new boards" not in line]
        assert len(lines) == 1 and words in lines[0], said
    fleet = admin.fleet()
    assert {fleet[name]["drained"]["by"] for name in why} == {"maintain"} and fleet["gpu5"]["drained"]["by"] == "person"
    assert (fleet["gpu6"]["word"], fleet["gpu7"]["word"]) == ("unreachable", "unreachable") and fleet["gpu1"]["word"] == "ok"
    assert fleet["gpu8"]["drained"]["why"].startswith("new boards; FAILED: not the same machine")
