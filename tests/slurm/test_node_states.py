"""The table of node states, on real nodes of every release: what the drain protocol does in each state, and what it leaves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.drains.outcome import Outcome, finish
from fairlead.errors import SlurmError
from fairlead.policy.ownership import keep_off, keep_off_drain, strip_suffixes
from fairlead.slurm.client import NodeState
from tests.lab.roots import SUITES
from tests.slurm.node_states import EVENTS, RELEASES, ROWS, Row
from tests.slurm.states import NAMES, PAIRS, WHY, States, row_of


@pytest.fixture(scope="module")
def all_states(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, States]]:
    """The clusters of all releases at once, so that they wait for their slurmctlds at the same time."""
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    made: dict[str, States] = {}
    try:
        for suite in SUITES:
            made[suite] = States(suite, tmp_path_factory.mktemp(suite))
            made[suite].open()
        yield made
    finally:
        for states in made.values():
            states.close()


def outcome(steps: object) -> tuple[str, str]:
    """The outcome's word, ``error`` for a SlurmError, and its detail."""
    try:
        result = finish(steps)  # type: ignore[arg-type]
    except SlurmError as e:
        return "error", str(e)
    return result.outcome.value, result.detail


@pytest.mark.slurm
@pytest.mark.parametrize("suite", list(SUITES))
@pytest.mark.parametrize("name", NAMES)
def test_row(all_states: dict[str, States], suite: str, name: str) -> None:
    states = all_states[suite]
    if not any(row.name == name and states.release in row.releases for row in ROWS):
        pytest.skip(f"{states.release} has no state {name!r}")
    row = row_of(name, states.release)
    free, ours = PAIRS[name]
    for each in all_states.values():
        each.bring(name)
    check_free(states, row, free)
    if row.reconcile:
        check_ours(states, row, ours)


def check_free(states: States, row: Row, name: str) -> None:
    """A node that the agent has not drained: first a look, then the drain that it wants."""
    drain = states.drain(name)
    if row.drain == "error":
        assert "no node" in outcome(drain.drain("xid", WHY))[1]
        return
    before = states.wait(name, row.words)
    if row.name == "maint":
        assert outcome(drain.drain("gpu_count", "7 of 8 GPUs")) == ("held", "a maintenance reservation is running")
    found, detail = outcome(drain.drain("xid", WHY))
    after = states.node(name)
    print(f"{states.release} {row.name}: {'+'.join(sorted(before.states))} drain: {found} ({detail})")
    assert (found, row.why if found == "held" else "") == (row.drain, detail if row.why else ""), detail
    if found == "drained":
        assert after.drained and after.reason.endswith(WHY)
        assert busy(after) == busy(before) and after.states >= row.words - {"PLANNED", "MIXED"}
    else:
        assert (after.reason, after.drained) == (before.reason, before.drained)
        left = drain.ledger.load()
        assert left is None or not left.ours


def busy(node: NodeState) -> bool:
    """Has it jobs? 22.05 calls a drained node with some CPUs taken ALLOCATED, not MIXED."""
    return not node.states.isdisjoint({"ALLOCATED", "MIXED"})


def check_ours(states: States, row: Row, name: str) -> None:
    """A drain of ours stood before the node came into this state: it is reconciled, then a resume is wanted."""
    drain = states.drain(name)
    if row.drain == "error":
        before_it = drain.ledger.load()
        assert outcome(drain.reconcile())[0] == outcome(drain.resume())[0] == "error"
        after_it = drain.ledger.load()
        assert before_it is not None and after_it is not None and after_it.token == before_it.token and after_it.ours
        return
    before = states.wait(name, row.words_with_ours)
    entry = drain.ledger.load()
    reconciled, detail = outcome(drain.reconcile())
    print(f"{states.release} {row.name}: ours {'+'.join(sorted(before.states))} {before.reason!r}")
    print(f"{states.release} {row.name}: reconcile: {reconciled} ({detail})")
    assert reconciled == row.reconcile, detail
    if reconciled != "drained" and entry is not None:
        drain.ledger.save(entry)  # the resume is asked of a protocol that still has its drain
    resumed, detail = outcome(drain.resume())
    after = states.node(name)
    print(f"{states.release} {row.name}: resume: {resumed} ({detail})")
    assert resumed == row.resume, detail
    if resumed == "resumed":
        assert not after.drained
    else:
        assert (after.reason, after.drained) == (before.reason, before.drained)
    if row.name == "reboot issued":
        states.cluster.stop_slurmd(name)
        states.cluster.run(["/usr/sbin/slurmd", "-b", "-N", name])  # -b: it says that the node has been rebooted
        back = states.wait(name, frozenset({"IDLE", "DRAIN"}))
        assert back.reason.endswith(f"{WHY} : reboot issued")
        assert outcome(drain.resume())[0] == "resumed"


def test_every_event_names_a_test_that_there_is() -> None:
    for event in EVENTS:
        file, _, name = event.seen.partition(": ")
        text = (Path(__file__).parent / file).read_text()
        assert (f'"{name}": (' if file == "directed.py" else f"def {name}(") in text, event.seen


def test_the_table_is_the_policys() -> None:
    """The words of a row that holds are those that the policy keeps off; a row that drains is not kept off."""
    for row in ROWS:
        assert row.drain in {*Outcome, "error"} and {row.reconcile, row.resume} <= {*Outcome, "error", ""}
        if row.drain == "held":
            assert keep_off(row.words) == row.why
        elif row.drain == "drained":
            assert not keep_off_drain(row.words)
    assert {row.name for row in ROWS if not row.made} == {"blocked"}
    assert all(set(row.releases) <= set(RELEASES) for row in ROWS) and set(SUITES.values()) == set(RELEASES)
    assert strip_suffixes("x : reboot issued : reboot timed out") == "x"
