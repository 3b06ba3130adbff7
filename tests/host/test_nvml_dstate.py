"""A worker in true D state, which SIGKILL does not end: reported, killed once, never doubled, replaced when it is gone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.faults import Faults
from tests.simulation.test_dstate import frozen

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a loop mount and fsfreeze"),
    pytest.mark.skipif(not shutil.which("mkfs.ext4"), reason="needs mkfs.ext4 (e2fsprogs)"),
]

AGENT = """
import json, os, sys, time
from fairlead.host.nvml import Worker

def children():
    return [int(p) for t in os.listdir("/proc/self/task") for p in open(f"/proc/self/task/{t}/children").read().split()]

def say(**words):
    print(json.dumps(words), flush=True)

worker = Worker(deadline_seconds=20, kill_after_seconds=60)
worker.sweep()
first = worker.pid
worker.deadline_seconds = 0.2
say(ready=True)
sys.stdin.readline()
end = time.monotonic() + 90
while time.monotonic() < end and ((stuck := worker.sweep().stuck) is None or stuck.process_state != "D"):
    time.sleep(0.05)  # on its way to that call
worker.kill_after_seconds = 0.5
end = time.monotonic() + 3
states = set()
while time.monotonic() < end:
    result = worker.sweep()
    if result.stuck:
        states.add(result.stuck.process_state)
        last = result.stuck
say(children=children(), first=first, pid=worker.pid, states=sorted(states), call=last.call, gpu=last.gpu, seconds=last.seconds)
sys.stdin.readline()
worker.deadline_seconds, worker.kill_after_seconds = 20, 60
end = time.monotonic() + 90
while time.monotonic() < end and not isinstance(worker.sweep().raw, dict):
    time.sleep(0.05)
say(children=children(), pid=worker.pid, well=isinstance(worker.sweep().raw, dict))
worker.close()
"""


def test_worker_in_d_state(faults: Faults, tmp_path: Path) -> None:
    with frozen(tmp_path) as (keeper, path, thaw):
        command = ["nsenter", "--mount", f"--target={keeper}", sys.executable, "-c", AGENT]
        environment = os.environ | {"PYTHONPATH": os.fspath(ROOT / "agent")}
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as agent:
            assert agent.stdin is not None
            assert agent.stdout is not None
            try:
                assert json.loads(agent.stdout.readline()) == {"ready": True}
                faults.dstate("nvmlDeviceGetPowerUsage", path, 5)
                print(file=agent.stdin, flush=True)
                stuck = json.loads(agent.stdout.readline())
                assert stuck["children"] == [stuck["first"]] == [stuck["pid"]]
                assert stuck["states"] == ["D"]
                assert (stuck["call"], stuck["gpu"]) == ("nvmlDeviceGetPowerUsage", "0000:c3:00.0")
                assert stuck["seconds"] > 2
                faults.clear()
                thaw()
                print(file=agent.stdin, flush=True)
                well = json.loads(agent.stdout.readline())
                assert well["well"]
                assert well["children"] == [well["pid"]]
                assert well["pid"] != stuck["first"]
            finally:
                thaw()
                agent.stdin.close()
                agent.wait(90)
