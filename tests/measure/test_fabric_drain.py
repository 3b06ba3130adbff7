"""Which nodes `fairlead accept --fabric --drain` drains: those of a whole and recent run that no newer run clears, and no other
node than the one that failed. ssh is a program of the test; test_fabric_on_slurm.py has a real drain."""

from __future__ import annotations

import json
import shlex
import time
from contextlib import closing
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.config import encode_document, profile_document
from fairlead.config.accept_options import AcceptOptions
from fairlead.measure import fabric_plan
from fairlead.measure.fabric_store import FabricStore
from fairlead.measure.pairs.fabric_verdict import PairLimits
from fairlead.measure.pairs.pair_table import LeafSource, Leaves, PairValue
from fairlead.measure.pairs.round_plan import next_round
from fairlead.measure.results_store import ResultStore

DAY = 86400.0
GOOD = 47.0
SSH = """#!/bin/sh
for each in "$@"; do :; done
echo "$each" >>{folder}/ssh.log
echo '{{"outcome": "drained", "detail": "as asked"}}'
"""


def recorded(folder: Path, *, slow: str = "n3", days: float = 0, rounds: int = 99, nodes: int = 8) -> str:
    """Store a run that has ended, of two leaves. rounds: how many of its rounds were measured, as after --cancel."""
    of = {f"n{k}": f"leaf{1 + (k > 4)}" for k in range(1, nodes + 1)}
    plan = fabric_plan.make(
        Leaves(source=LeafSource.DECLARED, of=of, detail="test"),
        AcceptOptions(),
        gpus=2,
        rails=1,
        limits=PairLimits(),
        sbatch=(),
        time_minutes=0,
        max_wait_seconds=10,
        left_out={},
        switch_ports={},
    )
    values: list[PairValue] = []
    with closing(ResultStore(str(folder / "accept.sqlite"))) as store:
        fabric = FabricStore(store)
        fabric.begin(plan, user="root", fairlead="0")
        while (planned := next_round(plan.pairs, values, {})) and planned.number <= rounds:
            fabric.planned(plan.run, planned)
            row = [
                PairValue(round=planned.number, stage=planned.stage, node_a=a, node_b=b, gbps=30.0 if slow in (a, b) else GOOD)
                for a, b in planned.pairs
            ]
            fabric.measured(plan.run, row)
            values += row
        at = time.time() - days * DAY
        store.write(("UPDATE fabric_run SET began = ?, ended = ? WHERE run = ?", [(at - 60, at, plan.run)]))
    return plan.run


def said(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    """What --drain says of each node. ssh.log has the commands that were sent."""
    ssh = folder / "ssh"
    ssh.write_text(SSH.format(folder=folder))
    ssh.chmod(0o755)
    store = str(folder / "accept.sqlite")
    main(["accept", "--fabric", "--show", *words, "--drain", "--json", "--store", store, "--ssh", str(ssh)])
    found: dict[str, str] = json.loads(capsys.readouterr().out)["drained"]
    return found


def sent(folder: Path) -> list[list[str]]:
    log = folder / "ssh.log"
    return [shlex.split(line) for line in log.read_text().splitlines()] if log.exists() else []


def test_the_node_that_failed_is_drained_and_the_command_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path)
    assert said(tmp_path, capsys) == {"n3": "drained: as asked"}
    (words,) = sent(tmp_path)
    assert words[1:5] == ["drain", "--json", "--node", "n3"], "another node at this address would drain itself"


@pytest.mark.parametrize(
    ("days", "rounds", "why"),
    [
        (8, 99, "not drained: the run is 8 days old, and the node may have been repaired: measure again"),
        (-2, 99, "not drained: the run is -2 days old, and the node may have been repaired: measure again"),
        (0, 2, "not drained: the run did not measure all of its rounds"),
    ],
)
def test_an_old_run_and_one_that_was_cancelled_drain_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], days: float, rounds: int, why: str
) -> None:
    recorded(tmp_path, days=days, rounds=rounds)
    assert said(tmp_path, capsys) == {"n3": why}
    assert sent(tmp_path) == []


def test_a_run_that_was_cancelled_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = recorded(tmp_path, rounds=2)
    assert main(["accept", "--fabric", "--show", run, "--store", str(tmp_path / "accept.sqlite")]) == 2
    assert f"run {run} of root; it was cancelled before its last round" in capsys.readouterr().out


def test_a_node_that_a_newer_run_cleared_is_not_drained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = recorded(tmp_path, days=2)
    newer = recorded(tmp_path, slow="n7", days=1)
    assert said(tmp_path, capsys, old) == {"n3": f"not drained: run {newer}, which is newer, says pass"}
    assert said(tmp_path, capsys, newer) == {"n7": "drained: as asked"}, "the older run has cleared it, which says nothing"
    assert [words[4] for words in sent(tmp_path)] == ["n7"]


def test_a_newer_run_without_the_node_says_nothing_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = recorded(tmp_path, slow="n8", days=2)
    recorded(tmp_path, slow="n1", days=1, nodes=7)
    assert said(tmp_path, capsys, old) == {"n8": "drained: as asked"}


def test_a_recorded_table_drains_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accept", "--judge", str(tmp_path / "pairs.csv"), "--drain"]) == 64
    assert "a recorded table does not say when it was measured" in capsys.readouterr().err


def test_drain_refuses_if_it_runs_on_another_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "node.json"
    document.write_bytes(encode_document(profile_document("gpu18")))
    words = ["drain", "--reason", "slow", "--document", str(document)]
    for more in ((), ("--dry-run",)):
        assert main([*words, "--node", "gpu17", *more]) == 64
        assert "this is gpu18, not gpu17: nothing was changed" in capsys.readouterr().err
