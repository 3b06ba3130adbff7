"""A run over the fabric with a stand-in for Slurm: which nodes count as gone, and what a resumed run does first.

test_fabric_on_slurm.py has the same under real Slurm, where a node really dies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.config.accept_options import AcceptOptions
from fairlead.errors import SlurmUnavailable
from fairlead.measure import fabric_plan, fabric_run
from fairlead.measure.fabric_jobs import FabricJobs
from fairlead.measure.fabric_run import FabricRun
from fairlead.measure.fabric_store import FabricRecord, FabricStore
from fairlead.measure.pairs.fabric_verdict import PairLimits
from fairlead.measure.pairs.pair_judgement import judge
from fairlead.measure.pairs.pair_table import PairValue, unknown_leaves
from fairlead.measure.results_store import ResultStore
from fairlead.measure.slurm_jobs import AcceptanceJob
from fairlead.measure.step_output import StepOutput
from fairlead.slurm.client import NodeState
from tests.measure.fabric_lab import passes
from tests.measure.test_pair_judgement import named

NODES = tuple(f"n{k}" for k in range(1, 7))
PRINTED = """# nccl-tests version 2.17.9 nccl-headers=22903 nccl-library=22903
# Collective test starting: all_gather_perf
#  Rank  0 Group  0 Pid 100 on n device 0 [0000:1b:00] none
#  size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong
8589934592 134217728 float none -1 1000 47.0 47.0 0 1000 47.0 47.0 0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 47.0
"""


class StandIn(FabricJobs):
    """Steps are commands of this machine. silent_from: the step of a pair from which slurmctld starts no step, until somebody
    asks it for a job. dead: nodes on which no step starts from that step on. left: how often the steps of a killed process are
    asked for until they have ended. dead_at_end: nodes on which no step starts after the last round.
    unknown: how often slurmctld then says that it does not know the states of the nodes, and starts no step on them."""

    def __init__(
        self, *, silent_from: int = 1000, dead: Sequence[str] = (), dead_at_end: Sequence[str] = (), unknown: int = 0
    ) -> None:
        super().__init__()
        self.silent_from, self.dead = silent_from, frozenset(dead)
        self.begun, self.probes, self.left = 0, Counter[str](), 0
        self.dead_at_end, self.unknown = frozenset(dead_at_end), unknown

    def hold_nodes(self, nodes: Sequence[str], *, name: str, minutes: int, more: Sequence[str]) -> int:
        return 7

    def state(self, job: int) -> AcceptanceJob | None:
        if self.begun >= self.silent_from and not self.dead and not self.unknown:
            self.silent_from = 1000
        return AcceptanceJob(id=job, name="", node="", state="RUNNING")

    def suspensions(self, job: int) -> str | None:
        return ""

    def holding(self, name: str) -> AcceptanceJob | None:
        return self.state(7)

    def steps(self, job: int, name: str) -> list[str]:
        self.left = max(0, self.left - 1)
        return [f"7.{k}" for k in range(self.left)]

    def end_steps(self, steps: Sequence[str]) -> None:
        assert steps

    def nodes(self, names: Sequence[str] = ()) -> tuple[NodeState, ...]:
        word = "UNKNOWN" if self.unknown else "ALLOCATED"
        if self.unknown:
            self.unknown -= 1
            self.silent_from = self.silent_from if self.unknown else 1000
        return tuple(NodeState(name=name, states=frozenset({word})) for name in names)

    def cancel(self, name: str) -> None:
        return

    def environment(self) -> Mapping[str, str]:
        return {"PATH": "/usr/bin:/bin"}

    def step_command(self, job: int, nodes: Sequence[str], *, name: str, seconds: int, more: Sequence[str]) -> list[str]:
        assert not self.left, "steps of the killed process still run"
        self.begun += len(nodes) == 2
        self.probes.update(nodes if len(nodes) == 1 else ())
        if self.begun and len(nodes) > 2 and self.dead_at_end:  # the counters of the ports are read once more
            self.dead, self.silent_from = self.dead_at_end, 0
        silent = self.begun >= self.silent_from and (not self.dead or bool(self.dead & set(nodes)))
        return ["/bin/false"] if silent else ["/usr/bin/env"]


def measured(jobs: StandIn, folder: Path, *, resumed: bool = False) -> FabricRecord:
    (folder / "printed").write_text(PRINTED)
    plan = fabric_plan.make(
        unknown_leaves(NODES),
        AcceptOptions(pair_command=f"cat {folder}/printed"),
        gpus=0,
        rails=1,
        limits=PairLimits(),
        sbatch=(),
        time_minutes=0,
        max_wait_seconds=10,
        left_out={},
        switch_ports={},
    )
    with closing(ResultStore(str(folder / "accept.sqlite"))) as store:
        fabric = FabricStore(store)
        fabric.begin(plan, user="root", fairlead="0")
        FabricRun(plan, jobs, fabric, lambda line: None).measure(resumed=resumed)
        return fabric.load(plan.run)


def test_a_slurmctld_that_starts_no_step_for_a_moment_makes_no_node_gone(tmp_path: Path) -> None:
    """It stops in round 2 and answers again after the nodes were asked, as at its restart. Every step failed until then."""
    jobs = StandIn(silent_from=4)
    record = measured(jobs, tmp_path)
    assert record.gone == {}, "the nodes were not asked again after slurmctld had answered"
    assert all(v.gbps == 47.0 for v in record.values)
    assert named(judge(record.values, record.plan.leaves, PairLimits(), record.gone)) == []
    assert set(jobs.probes) == set(NODES)


def test_nodes_that_slurmctld_does_not_know_yet_are_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its restart, slurmctld has every node as UNKNOWN until it has asked it, and starts no step on it (seen on 24.11)."""
    monkeypatch.setattr(fabric_run, "UNKNOWN_POLL_SECONDS", 0.01)
    record = measured(StandIn(silent_from=4, unknown=3), tmp_path)
    assert record.gone == {} and all(v.gbps == 47.0 for v in record.values)
    monkeypatch.setattr(fabric_run, "UNKNOWN_SECONDS", 0.05)
    (tmp_path / "accept.sqlite").unlink()
    with pytest.raises(SlurmUnavailable, match="does not know the state of n"):
        measured(StandIn(silent_from=4, unknown=1000), tmp_path)


@pytest.mark.parametrize("dead", [("n3",), ("n1", "n6")])
def test_a_node_on_which_no_step_starts_twice_is_gone(tmp_path: Path, dead: Sequence[str]) -> None:
    jobs = StandIn(silent_from=4, dead=dead)
    record = measured(jobs, tmp_path)
    assert set(record.gone) == set(dead)
    assert named(judge(record.values, record.plan.leaves, PairLimits(), record.gone)) == [("gone", n) for n in dead]
    assert all(jobs.probes[n] == 2 for n in dead)


def test_a_node_that_goes_down_after_its_last_pair_is_found_at_the_end(tmp_path: Path) -> None:
    """What was slow since its last figure may be its doing, so that the run has to know it."""
    record = measured(StandIn(dead_at_end=["n3"]), tmp_path)
    assert set(record.gone) == {"n3"}
    assert named(judge(record.values, record.plan.leaves, PairLimits(), record.gone)) == [("gone", "n3")]


def test_a_resumed_run_waits_for_the_end_of_the_steps_that_were_left(tmp_path: Path) -> None:
    jobs = StandIn()
    jobs.left = 3
    record = measured(jobs, tmp_path, resumed=True)
    assert all(v.gbps == 47.0 for v in record.values) and jobs.begun


def test_nodes_of_two_kinds_are_no_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The median of all nodes would accuse every node of the slower kind."""
    path, topology = tmp_path / "accept.sqlite", tmp_path / "topology"
    topology.write_text("leaf1: n[1-6]\n")
    states = tuple(NodeState(name=node, hostname=node, states=frozenset({"IDLE"})) for node in NODES)
    monkeypatch.setattr(FabricJobs, "nodes", lambda self, names=(): states)
    passes(path, NODES[:4], kind="8 x NVIDIA H100 80GB HBM3")
    passes(path, NODES[4:], kind="8 x NVIDIA A100-SXM4-80GB")
    words = ["accept", "--fabric", "n[1-6]", "--dry-run", "--store", str(path), "--topology", str(topology)]
    assert main(words) == 64
    said = capsys.readouterr().err
    assert "nodes of 2 kinds" in said and "n[1-4] (8 x NVIDIA H100 80GB HBM3); n[5-6] (8 x NVIDIA A100-SXM4-80GB)" in said
    assert main([*words, "--expect", "20"]) == 0, "a person has said what each pair must reach"
    passes(path, NODES[4:], kind="8 x NVIDIA H100 80GB HBM3")
    assert main(words) == 0


@pytest.mark.parametrize("begun", [True, False])
def test_a_step_that_did_not_start_in_time_did_not_hang(tmp_path: Path, begun: bool) -> None:
    """slurmctld gives no answer, or is overloaded: srun asks again until its deadline. That says nothing about the nodes."""
    plan = measured(StandIn(), tmp_path).plan
    said = f"{plan.begun}\n" if begun else "srun: Job step creation temporarily disabled, retrying (Socket timed out)\n"
    output = StepOutput(err=said.encode(), status=143, seconds=99.0, late=True)
    with closing(ResultStore(str(tmp_path / "accept.sqlite"))) as store:
        run = FabricRun(plan, StandIn(), FabricStore(store), lambda line: None)
        value = run._value(PairValue(round=1, node_a="n1", node_b="n2"), output)
    assert value.failed is begun and value.gbps is None
    assert value.why.startswith("hung" if begun else "the step did not start: srun: Job step creation temporarily"), value.why
