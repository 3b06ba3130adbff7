"""Directed and random sequences on real Slurm: no promise about a node's state breaks, whatever comes between.

The promises are in promises.py, what happens in moves.py and directed.py. A failure prints the story of each broken sequence
and the command that runs its seed alone. FAIRLEAD_SEQUENCES: how many random ones per release in the long run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pytest

from tests.lab.cluster import Cluster
from tests.lab.roots import SUITES
from tests.slurm import directed, moves, sequences
from tests.slurm.sequences import Ended, cluster_of_wards
from tests.slurm.ward import Ward

pytestmark = [pytest.mark.slurm, pytest.mark.root]
NODES = [f"n{i}" for i in range(1, 1 + max(len(directed.ALONE), 10))]
#: The release of `make test`: the one whose `scontrol reboot ASAP` alone lifts a drain.
FIRST = "bookworm"
RANDOM = 5
IN_A_BATCH = 10
SEQUENCES = int(os.environ.get("FAIRLEAD_SEQUENCES", "200"))
Lab = tuple[Cluster, list[Ward]]


def releases(items: Sequence[str]) -> list[object]:
    """Each release of Slurm; all but the first in the long run only."""
    return [pytest.param(suite, marks=[] if suite == FIRST else pytest.mark.slow) for suite in items]


@pytest.fixture(scope="module", params=releases(list(SUITES)))
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    with cluster_of_wards(request.param, NODES) as made:
        yield made


def kept(ended: Sequence[Ended], capsys: pytest.CaptureFixture[str]) -> None:
    """Every promise is kept; the seeds are printed, and the stories of those that are not."""
    with capsys.disabled():
        print("\nsequences: " + " ".join(each.seed for each in ended))
    broken = [each for each in ended if each.broken]
    assert not broken, "\n\n" + "\n\n".join(map(str, broken))


@pytest.mark.timeout(600)
def test_what_broke_once(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    cluster, wards = lab
    kept(directed.alone(cluster, wards, list(directed.ALONE)), capsys)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "event",
    [
        moves.restart_without_state,
        pytest.param(moves.reconfigure, marks=pytest.mark.slow),  # test_rebooted.py has it in `make test`
        pytest.param(moves.restart_cleared, marks=pytest.mark.slow),
        pytest.param(moves.restart_with_a_backup, marks=pytest.mark.slow),
        pytest.param(moves.restart, marks=pytest.mark.slow),
    ],
    ids=lambda event: event.__name__,
)
def test_slurmctld_starts_anew(lab: Lab, event: moves.Event, capsys: pytest.CaptureFixture[str]) -> None:
    """Drains that it lost come back and are nobody's resume; a person's resume that it did not lose counts."""
    cluster, wards = lab
    kept(directed.together(cluster, wards[: len(directed.BEFORE)], event), capsys)


@pytest.mark.slow  # in `make test` the random ones are those on the model (test_interleave.py)
@pytest.mark.timeout(600)
def test_a_few_at_random(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    cluster, wards = lab
    kept(sequences.batch(cluster, wards[:RANDOM], 0), capsys)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_at_random(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten at once, each batch with events of slurmctld of its own."""
    cluster, wards = lab
    ended: list[Ended] = []
    for number in range(1, SEQUENCES // IN_A_BATCH + 1):
        ended += sequences.batch(cluster, wards[:IN_A_BATCH], number)
    kept(ended, capsys)


@pytest.mark.timeout(300)
def test_six_calls_for_a_drain_and_six_for_a_resume(lab: Lab) -> None:
    """And none while nothing changes."""
    told = directed.counted(lab[1][0])
    assert told["nothing wrong"] == 0 and 0 < told["drain"] <= 6 and 0 < told["resume"] <= 6, told


@pytest.mark.timeout(300)
def test_an_xid_of_no_gpu_is_shown_and_does_not_drain(lab: Lab) -> None:
    story, verdicts, state = directed.no_gpu(lab[1][0])
    assert "0000:ff:00" in story and "DRAIN" not in state, story
    assert not any(verdict.startswith("drain") for verdict in verdicts), verdicts
