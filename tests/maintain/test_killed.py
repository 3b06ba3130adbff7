"""The long loops: twenty SIGKILLs at random moments of maintenance with real reboots, and sixteen nodes above a floor."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.bench import maintain
from tests.maintain.maintain_admin import kill, provisioned

pytestmark = [pytest.mark.rack, pytest.mark.slow, pytest.mark.timeout(1800)]
KILLS = 20
NODES = 4


def test_twenty_kills_and_every_node_is_done_once(tmp_path: Path) -> None:
    seed = os.urandom(4).hex()
    chance = random.Random(seed)
    with provisioned(NODES, tmp_path) as admin:
        kills = runs = 0
        while kills < KILLS:
            jobs = {admin.job(chance.uniform(1, 6), f"-wgpu{n}"): f"gpu{n}" for n in range(1, NODES + 1)}
            before = [admin.boots(host) for host in admin.rack.nodes]
            more = ("--batch", "2", "--reboot", "--verify-wait", "120s")
            runs += 1
            run = admin.begun(f"gpu[1-{NODES}]", "--reason", f"run {runs}", *more)
            while run.poll() is None and kills < KILLS:
                time.sleep(chance.uniform(0.0, 20.0))
                if run.poll() is None:
                    kills += 1
                    kill(run)
                    run = admin.maintain("--resume")
            code, said = admin.ended(run), f"seed {seed}, {kills} kills\n{admin.said()}"
            assert code in (0, 66), said  # 66: the last kill came after the end, there was nothing to go on with
            assert set(admin.steps().values()) == {"done"} and len(admin.steps()) == NODES, said
            admin.rack.wait_idle(60)
            assert [admin.boots(host) for host in admin.rack.nodes] == [count + 1 for count in before], said
            assert admin.lost(jobs) == [], said
    print(f"{kills} kills in {runs} runs, seed {seed}")


def test_sixteen_nodes_in_fours_above_a_floor() -> None:
    """`python -m tests.bench maintain` prints the figures."""
    found = maintain.measure()
    assert found.usable >= maintain.FLOOR and len(found.node_seconds) == maintain.NODES
    print(f"16 nodes in {found.wall_seconds:.0f} s")
