"""A run of real dnf that is killed at any stage, as in a power cut: the next `fairlead apply` completes it.

strace kills dnf (or rpm, in the repair) at its Nth rename, unlink or write, and then everything on the node is killed. After
that rpm's database often has packages twice, and dnf itself would leave them so.
"""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.driver.dnf_node import DnfNode
from tests.driver.el_repository import driver_set
from tests.driver.test_dnf import BEFORE_RENAME, NEWER, OLDER, declare, have, move, serve

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]
TRACE = "srv/trace"
#: Up, back, over the rename to the older names, and over the rename again.
WAY = (NEWER, OLDER, BEFORE_RENAME, OLDER)


@pytest.fixture(params=["bookworm", "trixie"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DnfNode]:
    with DnfNode(tmp_path / "node", request.param) as made:
        yield made


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DnfNode]:
    with DnfNode(tmp_path / "node") as made:
        yield made


def cut(node: DnfNode, words: Sequence[str], is_time: Callable[[], bool]) -> bool:
    """Begin a command on the node, and kill everything there as soon as ``is_time`` says so. False: the command had ended
    before."""
    with subprocess.Popen(node.words(*words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        end = time.monotonic() + 90
        seen = False
        while not seen and run.poll() is None and time.monotonic() < end:
            seen = is_time()
            time.sleep(0.005)
        node.reset()
        run.wait(120)
    return seen or is_time()


def killed_at(node: DnfNode, call: str, number: int) -> bool:
    """Run `fairlead apply`, of which one process is killed when it makes this system call for the Nth time. False: none did."""
    node.run("rm", "-f", f"/{TRACE}")
    words = ["strace", "-f", "-qq", "-o", f"/{TRACE}", "-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={number}"]
    trace = Path(f"/proc/{node.pid}/root/{TRACE}")

    def is_killed() -> bool:
        return trace.exists() and "killed by SIGKILL" in trace.read_text(errors="replace")

    return cut(node, [*words, *node.apply_words()], is_killed)


def doubled(node: DnfNode) -> int:
    return sum(" " in version for version in node.versions().values())


def complete(node: DnfNode, version: str) -> None:
    """The next apply makes it whole; the one after it has nothing to do, and dnf finds nothing wrong."""
    after = node.apply(code=None)
    assert after["state"] in ("changed", "same"), (after["message"], after["hint"], node.versions())
    have(node, driver_set(node.suite, version))
    assert node.apply()["changed"] == 0
    assert not [line for line in node.run("dnf", "check").splitlines() if "nvidia" in line]


def through(node: DnfNode, stages: Iterable[tuple[str, int]]) -> tuple[int, int]:
    """Go the WAY round and round, each run killed at its stage. Return how many runs were killed, and after how many of these
    the database had packages twice."""
    move(node, driver_set(node.suite, OLDER))
    killed = twice = 0
    for version, (call, number) in zip(itertools.cycle(WAY), stages, strict=False):
        serve(node, driver_set(node.suite, version))
        declare(node, driver_set(node.suite, version))
        if killed_at(node, call, number):
            killed += 1
            twice += bool(doubled(node))
        complete(node, version)
    return killed, twice


def test_killed_in_the_middle_the_next_run_completes(node: DnfNode) -> None:
    """Files going in on the way up, and the old ones going out."""
    assert through(node, (("renameat", 7), ("unlinkat", 2))) == (2, 2)


@pytest.mark.slow
def test_killed_on_the_way_up_and_on_the_way_back_the_next_run_completes(node: DnfNode) -> None:
    """Files going in on the way up and on the way back, and the old ones going out, each over other names once."""
    killed, twice = through(node, (("renameat", 7), ("renameat", 12), ("renameat", 9), ("unlinkat", 2)))
    assert killed == 4 and twice >= 2, (killed, twice)


@pytest.mark.slow
def test_what_dnf_does_alone_after_a_kill(node: DnfNode) -> None:
    """The reason for the repair: the same dnf command ends with 0 and leaves packages twice. If this fails, dnf has learnt it."""
    newer = driver_set("bookworm", NEWER)
    move(node, driver_set("bookworm", OLDER))
    serve(node, newer)
    declare(node, newer)
    assert killed_at(node, "renameat", 10) and doubled(node)
    time.sleep(1.5)
    files = [f"/var/cache/fairlead/packages/{p.file}" for p in newer]
    node.run("dnf", "-y", "--disablerepo=*", "--disableexcludes=all", "--allowerasing", "install", *files)
    assert doubled(node)
    complete(node, NEWER)


def test_the_repair_itself_is_killed(node: DnfNode) -> None:
    newer = driver_set("bookworm", NEWER)
    move(node, driver_set("bookworm", OLDER))
    serve(node, newer)
    declare(node, newer)
    assert killed_at(node, "renameat", 12) and doubled(node)
    assert killed_at(node, "unlinkat", 1)
    complete(node, NEWER)


@pytest.mark.slow
def test_killed_and_another_version_is_declared_then(node: DnfNode) -> None:
    """No instance of a doubled package is the wanted one; one stays until the transaction moves it."""
    move(node, driver_set("bookworm", OLDER))
    serve(node, driver_set("bookworm", NEWER))
    declare(node, driver_set("bookworm", NEWER))
    assert killed_at(node, "renameat", 10) and doubled(node)
    serve(node, driver_set("bookworm", BEFORE_RENAME))
    declare(node, driver_set("bookworm", BEFORE_RENAME))
    complete(node, BEFORE_RENAME)


def test_a_torn_file_is_unpacked_again_and_a_rest_is_named(node: DnfNode) -> None:
    """After a power cut a file may be torn though the database has the package. The rest of a killed run is harmless."""
    older, newer = driver_set("bookworm", OLDER), driver_set("bookworm", NEWER)
    move(node, older)
    serve(node, newer)
    declare(node, newer)
    assert killed_at(node, "renameat", 10) and doubled(node)
    node.run("sh", "-c", ": > /usr/bin/nvidia-smi; rm /usr/lib/modprobe.d/nvidia.conf")
    said = node.apply()["steps"][0]["message"]
    have(node, newer)
    assert "an interrupted run made good" in said and "unpacked again because files were torn" in said, said
    (rest,) = node.run("sh", "-c", "find /usr /etc -name '*;????????'").split()
    assert f"left by a killed run: {rest}" in said, said


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_killed_at_every_stage_on_every_way(either: DnfNode) -> None:
    """Every rename and unlink of dnf, and some writes to the database, on the four ways in turn."""
    ways = len(WAY)
    stages = (
        [("renameat", n) for n in range(1, 15)] + [("unlinkat", n) for n in range(1, 5)] + [("unlink", n) for n in range(1, 9, 2)]
    )
    stages += [("pwrite64", n) for n in range(5, 400, 25)]
    # another way for the same stage in the next round: 5 steps on a way of 4
    order = [stages[n % len(stages)] for n in range(len(stages) + (len(stages) % ways == 0))]
    killed, twice = through(either, order)
    assert killed >= len(order) * 2 // 3 and twice >= 8, (killed, twice, len(order))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_at_any_time_the_next_run_completes(either: DnfNode) -> None:
    """From dnf's first second to after its last, in twenty steps."""
    node = either
    move(node, driver_set(node.suite, OLDER))
    for number, version in zip(range(20), itertools.cycle(WAY), strict=False):
        serve(node, driver_set(node.suite, version))
        declare(node, driver_set(node.suite, version))
        began: list[float] = []

        def is_time(number: int = number, began: list[float] = began) -> bool:
            if not began and node.processes("dnf"):
                began.append(time.monotonic())
            return bool(began) and time.monotonic() > began[0] + 0.15 * number

        cut(node, node.apply_words(), is_time)
        complete(node, version)
