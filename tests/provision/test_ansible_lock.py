"""Ansible that has outlived the process that started it: seen by its lock, and waited for by the run that goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fairlead.provision.ansible_lock import lock_owner, locked_command
from fairlead.provision.maintain.maintenance_display import SilentDisplay
from fairlead.provision.maintain.maintenance_steps import MaintenanceStep, NodeWork
from tests.provision.test_maintain_invariants import MINE, World, driver

PARENT = """
import subprocess, sys
from fairlead.provision.ansible_lock import locked_command
child = subprocess.Popen(locked_command(sys.argv[1], ["sleep", "600"]), start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""


def until_locked(lock: Path, pid: int) -> None:
    """The lock is taken a moment before the number is written; until then the file names the holder before."""
    deadline = time.monotonic() + 60
    while lock_owner(str(lock)) != str(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_lock_outlives_the_process_that_had_it_taken(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    assert lock_owner(str(lock)) == ""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(lock)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout as said:
        pid = int(said.readline())
    try:
        until_locked(lock, pid)
        parent.kill()
        parent.wait()
        assert lock_owner(str(lock)) == str(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while lock_owner(str(lock)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Heard(SilentDisplay):
    """Ends the child once it is said to be waited for; each look gives slurmctld a moment."""

    def __init__(self, child: subprocess.Popen[bytes], world: World) -> None:
        self.child, self.world, self.said, self.too_early = child, world, "", False

    def say(self, text: str) -> None:
        self.said += f"{text}\n"
        assert self.child.stdin is not None
        self.child.stdin.close()

    def moved(self, work: NodeWork) -> None:
        self.too_early = self.too_early or self.child.poll() is None

    def show(self, works: Sequence[NodeWork], notice: str, now: float) -> None:
        self.world.event("node comes back", MINE[0])


def test_a_run_that_goes_on_waits_for_the_ansible_of_the_killed_one(tmp_path: Path) -> None:
    with driver("24") as d:
        d.begin(reboot=False, seconds=(60.0, 60.0))
        for stopped in (True, False):
            d.drop()
            d.turn()
            m = d.maintenance
            assert m is not None
            lock = m._journal.ansible_lock(d.name)
            with subprocess.Popen(locked_command(lock, ["cat"]), stdin=subprocess.PIPE) as child:
                until_locked(Path(lock), child.pid)
                m.stop_asked = stopped
                if stopped:  # Ctrl-C meanwhile: nothing is done, and the lock stays
                    assert not m.drive() and lock_owner(lock) == str(child.pid)
                else:
                    m._shown = heard = Heard(child, d.world)
                    assert m.drive() and not heard.too_early
                    assert heard.said.startswith(f"waiting for ansible-playbook (process {child.pid}) of a killed")
        assert {w.node: w.step for w in d.works()} == dict.fromkeys(MINE, MaintenanceStep.DONE)
        assert not os.path.exists(lock)
