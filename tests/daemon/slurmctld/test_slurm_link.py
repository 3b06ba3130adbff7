"""Looks at a standing drain: at once when slurmctld has spoken to slurmd, seldom otherwise, and never all agents together."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.daemon.slurmctld.courier import Courier
from fairlead.daemon.slurmctld.pace import ASKS_PER_SECOND
from fairlead.daemon.slurmctld.slurm_state import CourierOrder
from fairlead.drains.ledger import Ledger
from fairlead.drains.node_state import NodeDrainState
from fairlead.drains.protocol import DrainProtocol
from fairlead.host.slurmd import FIND_SECONDS, Slurmd
from fairlead.policy.decision_rules import Rules
from tests.slurm import model

XID = CourierOrder(kind="drain", check="xid", summary="gone")
SLEEPS = "{ printf slurmd > /proc/$$/comm; } 2>/dev/null; echo up; while read -r line; do echo woke; done"


def start(proc: Path, program: str = "slurmd", **environment: str) -> subprocess.Popen[str]:
    """A process that executes a program of that name and wakes when it is spoken to, shown below ``proc``."""
    copy = proc.parent / "programs" / program
    if not copy.exists():
        copy.parent.mkdir(exist_ok=True)
        shutil.copy("/bin/dash", copy)
    process = subprocess.Popen(
        [copy, "-c", SLEEPS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    (proc / str(process.pid)).symlink_to(f"/proc/{process.pid}")
    until_asleep(process)
    return process


def until_asleep(process: subprocess.Popen[str]) -> None:
    while Path(f"/proc/{process.pid}/stat").read_text().split()[2] != "S":
        time.sleep(0.01)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc").mkdir()
    return tmp_path / "proc"


@pytest.fixture
def slurmd(proc: Path) -> Iterator[subprocess.Popen[str]]:
    process = start(proc, SLURMD_RECONF="1")
    yield process
    process.communicate("")


def speak(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("register\n")
    process.stdin.flush()
    assert process.stdout.readline() == "woke\n"
    until_asleep(process)


@pytest.mark.root
def test_a_slurmd_that_is_spoken_to_stirs(slurmd: subprocess.Popen[str], proc: Path) -> None:
    watch = Slurmd(str(proc))
    assert not watch.stirred() and watch.watched
    assert not watch.stirred()
    speak(slurmd)
    assert watch.stirred() and not watch.stirred()


@pytest.mark.root
def test_a_slurmd_that_was_started_anew_stirs(slurmd: subprocess.Popen[str], proc: Path) -> None:
    now = [0.0]
    watch = Slurmd(str(proc), clock=lambda: now[0])
    watch.stirred()
    (proc / str(slurmd.pid)).unlink()
    assert not watch.stirred() and not watch.watched
    other = start(proc)
    now[0] += FIND_SECONDS
    assert not watch.stirred() and watch.watched  # what it was doing before is not known
    assert not watch.reconfigured()
    other.communicate("")


@pytest.mark.root
def test_several_slurmds_tell_nothing(slurmd: subprocess.Popen[str], proc: Path) -> None:
    other = start(proc)
    watch = Slurmd(str(proc))
    assert not watch.stirred() and not watch.watched and not watch.reconfigured()
    other.communicate("")


@pytest.mark.root
def test_a_slurmd_that_was_reconfigured_says_so(slurmd: subprocess.Popen[str], proc: Path) -> None:
    assert Slurmd(str(proc)).reconfigured()


@pytest.mark.root
def test_a_process_that_only_calls_itself_slurmd_tells_nothing(slurmd: subprocess.Popen[str], proc: Path) -> None:
    other = start(proc, "sleeper")
    assert Path(f"/proc/{other.pid}/comm").read_text() == "slurmd\n"
    watch = Slurmd(str(proc))
    watch.stirred()
    assert watch.watched, "the true one is still seen"
    speak(other)
    assert not watch.stirred()
    other.communicate("")


class Site:
    """``count`` drained nodes of a slurmctld, each with its courier, on a clock that the test moves."""

    def __init__(self, folder: Path, count: int, *, crowd: int = 0) -> None:
        self.now = 1000.0
        self.ctld = model.Ctld("26", tuple(f"n{i}" for i in range(count)))
        self.asked: list[float] = []
        node = self.ctld.node
        self.ctld.node = lambda name: (self.asked.append(self.now), node(name))[1]  # type: ignore[method-assign]
        self.couriers = []
        for name in self.ctld.records:
            (folder / name).mkdir()
            ledger = Ledger(str(folder / name), str(folder / name), node=name)
            wall, clock = (lambda: self.now + 1_800_000_000), (lambda: self.now)
            rules = Rules(budget_percent=100, common_cause_nodes=0)
            self.couriers.append(
                Courier(DrainProtocol(NodeDrainState(self.ctld, ledger, name, rules, wall=wall, clock=clock)), clock=clock)
            )
        for courier in self.couriers:
            courier.want(XID)
            self.turn(courier)
            assert courier.take().drained
            courier.want(CourierOrder())
            courier._drain.limits.crowd = crowd or count
            courier.stirred(watched=True, stirred=False)
        self.asked.clear()

    def turn(self, courier: Courier) -> None:
        for _ in courier.turn():
            pass

    def run(self, seconds: float, step: float = 0.5) -> None:
        for _ in range(int(seconds / step)):
            self.now += step
            for courier in self.couriers:
                if courier.due() <= self.now:
                    self.turn(courier)


def test_a_resume_is_noticed_at_once_where_slurmd_stirs(memory: Path) -> None:
    site = Site(memory, 1)
    site.run(200)
    site.ctld.update("n0", "UNDRAIN")
    site.couriers[0].stirred(watched=True, stirred=True)
    site.run(1)
    assert site.couriers[0].take().acknowledged == 1


def test_a_standing_drain_asks_once_in_two_minutes(memory: Path) -> None:
    """Two RPCs each; before, it was every 30 s."""
    site = Site(memory, 1)
    site.run(3600)
    assert 25 <= len(site.asked) <= 40, len(site.asked)


def test_a_slurmd_with_much_to_do_asks_no_more_than_once_a_minute(memory: Path) -> None:
    """A draining node whose jobs go on: slurmd is never quiet."""
    site = Site(memory, 1)
    for _ in range(1800):
        site.couriers[0].stirred(watched=True, stirred=True)
        site.run(2)
    assert 30 <= len(site.asked) <= 75, len(site.asked)


MANY = [60, pytest.param(1000, marks=pytest.mark.slow)]


def asks_per_second(site: Site) -> float:
    """In the worst ten seconds, were there 1,000 nodes like these: fewer are too few to tell single seconds from chance."""
    tens = Counter(int(at / 10) for at in site.asked)
    return max(tens.values()) / 10 * 1000 / len(site.couriers)


@pytest.mark.parametrize("nodes", MANY)
def test_a_ping_of_all_nodes_does_not_make_all_agents_ask_at_once(memory: Path, nodes: int) -> None:
    site = Site(memory, nodes, crowd=1000)
    site.run(300)
    site.asked.clear()
    for courier in site.couriers:
        courier.stirred(watched=True, stirred=True)
    site.run(60)
    assert len(set(site.asked)) > 30 and len(site.asked) >= nodes
    assert asks_per_second(site) <= 3 * ASKS_PER_SECOND


@pytest.mark.parametrize("nodes", MANY)
@pytest.mark.parametrize("away", [3, 120])
def test_a_slurmctld_that_is_back_is_not_asked_by_all_at_once(memory: Path, nodes: int, away: int) -> None:
    """All stir when slurmctld has them register."""
    site = Site(memory, nodes, crowd=1000)
    site.run(300)
    site.ctld.away = True
    site.run(away)
    site.asked.clear()
    site.ctld.away = False
    for courier in site.couriers:
        courier.stirred(watched=True, stirred=True)
    site.run(240)
    rate = asks_per_second(site)
    print(f"\n{nodes} nodes, away {away} s: {len(site.asked)} looks in 240 s, {rate:.0f} a second in the worst ten, of 1,000")
    assert rate <= 3 * ASKS_PER_SECOND
    assert {c.take().error for c in site.couriers} == {""}
