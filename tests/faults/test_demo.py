"""The demo as a person runs it: to its end, and interrupted; what it leaves behind is nothing."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab import preflight
from tests.lab.ledger import Ledger, own_name
from tests.lab.rack import Rack

PROJECT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.rack, pytest.mark.timeout(400)]


def start(name: str) -> subprocess.Popen[str]:
    reasons = preflight.preflight() or [f"apt-get install {each}" for each in preflight.missing_programs()]
    if reasons:
        pytest.skip(reasons[0])
    env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent")}
    command = [sys.executable, "-m", "tests.lab.demo", "--name", name]
    return subprocess.Popen(
        command, cwd=PROJECT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def left(name: str) -> list[str]:
    """Cgroups, network namespaces, mounts, records, disks and processes that still bear the rack's name."""
    rack = Rack(nodes_wanted=4, name=name)
    found = [str(each) for each in (rack.cgroup, rack.folder, rack.disks, Ledger(name).folder) if each.exists()]
    found += [str(each) for each in Path("/run/netns").glob("*") if name in each.name]
    found += [line for line in Path("/proc/self/mounts").read_text().splitlines() if name in line]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes() + (process / "cgroup").read_bytes()
            ended = (process / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"  # init has yet to reap it
        except OSError:
            continue
        if ended:
            continue
        if name.encode() in words and int(process.name) != os.getpid() and b"pytest" not in words:
            found.append(f"process {process.name}: {words!r}")
    return found


def test_the_whole_demo() -> None:
    name = own_name("test-demo")
    run = start(name)
    try:
        told, _ = run.communicate(timeout=360)
    finally:
        run.send_signal(signal.SIGTERM)
        run.wait(120)
    assert run.returncode == 0, told[-3000:]
    assert "What was shown" in told and "no mount stays" in told
    assert left(name) == []


@pytest.mark.parametrize(
    ("line", "number", "group"),
    [
        # Ctrl-C of a terminal goes to everything in the foreground; kill(1) to the one process
        ("1. Provisioning", signal.SIGINT, True),
        pytest.param("gpu1 is DRAIN in slurmctld", signal.SIGTERM, False, marks=pytest.mark.slow),
    ],
)
def test_interrupted(line: str, number: int, group: bool) -> None:
    name = own_name(f"test-demo-{number:d}")
    run = start(name)
    assert run.stdout is not None
    try:
        told = ""
        deadline = time.monotonic() + 180
        while line not in told:
            assert time.monotonic() < deadline and run.poll() is None, told[-2000:]
            if select.select([run.stdout], [], [], 1)[0]:
                told += os.read(run.stdout.fileno(), 65536).decode(errors="replace")
        if group:
            time.sleep(1.0)  # into the middle of what it announced
            os.killpg(run.pid, number)
        else:
            run.send_signal(number)
        rest, _ = run.communicate(timeout=200)
    finally:
        if run.poll() is None:
            run.send_signal(signal.SIGTERM)
            run.wait(120)
    assert run.returncode == 130, rest[-2000:]
    assert rest.rstrip().endswith("demo: interrupted; taking everything down"), rest
    assert left(name) == []
