"""`fairlead maintain` on a rack: real ssh, real Ansible, real reboots, real jobs. The tests share a rack and run in their order."""

from __future__ import annotations

import pytest

from tests.lab.faultytrees import take_out
from tests.maintain.admin import Admin, kill, until

pytestmark = [pytest.mark.rack, pytest.mark.timeout(400)]
REBOOT = ("--reboot", "--reboot-wait", "25s", "--verify-wait", "90s")


def test_1_eight_nodes_with_jobs_and_what_goes_wrong_in_the_middle(admin: Admin) -> None:
    """gpu2 does not come back, gpu3 comes back without a GPU, a person takes gpu4 and gpu5, gpu6 is slow; killed twice."""
    rack = admin.rack
    jobs = {admin.job(40 if n == 4 else 4, f"-wgpu{n}"): f"gpu{n}" for n in range(1, 9)}
    for job in jobs:
        rack.wait_job(job, "RUNNING", seconds=60)
    jobs |= {admin.job(2): "waits for a node" for _ in range(2)}
    admin.node(2).power("lose")
    admin.node(3).refit(lambda tree: take_out(tree, 7))
    admin.node(6).firmware(8)

    run = admin.maintain("gpu[1-8]", "--reason", "kernel 6.12", "--batch", "4", "--max-failed", "8", *REBOOT)
    until(lambda: admin.steps().get("gpu4") == "waiting", admin.said)
    rack.scontrol("update", "nodename=gpu[4-5]", "state=drain", "reason=ann: riser swap")
    until(lambda: "applying" in admin.steps().values(), admin.said)
    kill(run)
    run = admin.maintain("--resume")
    until(lambda: admin.steps()["gpu1"] == "rebooting", admin.said)
    kill(run)
    code = admin.run("--resume", "--json")

    shown, said = admin.shown(), admin.said()
    assert code == 69, said
    assert {name: n["step"] for name, n in shown.items()} == {
        "gpu1": "done", "gpu2": "failed", "gpu3": "failed", "gpu4": "taken",
        "gpu5": "skipped", "gpu6": "done", "gpu7": "done", "gpu8": "done",
    }, said  # fmt: skip
    for number in (1, 6, 7, 8):
        state = rack.node_state(f"gpu{number}")
        assert "DRAIN" not in state.states and "DOWN" not in state.states, state
        assert admin.boots(admin.node(number)) == 1 and shown[f"gpu{number}"]["rebooted"]
    second, third = rack.node_state("gpu2"), rack.node_state("gpu3")
    for state, why in ((second, "FAILED: did not come back in 25 s"), (third, "FAILED: ")):
        assert "DRAIN" in state.states and state.reason.startswith("fairlead:maintain:") and why in state.reason, state
    assert "gpu_count" in third.reason or "GPU" in third.reason, third
    for name in ("gpu4", "gpu5"):
        state = rack.node_state(name)
        assert "DRAIN" in state.states and (state.reason, state.user) == ("ann: riser swap", "root")
        assert admin.boots(admin.node(int(name[3:]))) == 0
    assert admin.lost(jobs) == []
