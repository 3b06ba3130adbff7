"""`fairlead check` and the agent say the same of the same facts: of each fault and each twin of the scorecard, in each mode."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead import config
from fairlead.cli import main, read_machine
from fairlead.config import Document
from fairlead.daemon.loop.history_update import after_judging, before_judging
from fairlead.errors import ExitCode
from fairlead.history.memory import History
from fairlead.host.kmsg import past_now
from fairlead.judge import decide_at_once, judge, policies_of
from fairlead.model.check_definition import Past
from fairlead.model.facts import Node
from fairlead.model.finding import Mode
from fairlead.policy import Now, Order, PolicyState, decide
from tests.lab.trees import MACHINES
from tests.scorecard import faults
from tests.scorecard.entry import Step
from tests.scorecard.on_a_tree import FaultyTree, playable

pytestmark = pytest.mark.trees

TREE, PROFILE = "hgx-h100.tuned", "hgx-h100"
SWEEPS = 5  # more than any check confirms in
SECONDS = 15.0
#: The mode of the site, and of every check.
MODES = ((Mode.OBSERVE, None), (Mode.ENFORCE, Mode.ENFORCE), (Mode.ENFORCE, Mode.OBSERVE))
#: One row of each check.
FIRST = {fault.check: fault.name for fault in reversed(faults.load())}
#: `make test` tries these in each mode, and the other rows in their own. `make test-all` tries all rows in each mode.
HALVES = [
    pytest.param(steps, modes, id=f"{fault.name}-{half}{'' if modes else '-own mode'}", marks=pytest.mark.slow if later else ())
    for fault in faults.load()
    for half, steps in (("fault", fault.steps), ("twin", fault.twin))
    for modes, later in (((MODES, False),) if FIRST[fault.check] == fault.name else ((MODES, True), ((), False)))
    if playable(steps)
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> FaultyTree:
    return FaultyTree(MACHINES / TREE, tmp_path_factory.mktemp("tree"), PROFILE)


def read_tree(document: Document, tree: Path) -> tuple[Node, Past]:
    """Return what `check` reads of a tree."""
    arguments = argparse.Namespace(root=str(tree))
    return read_machine.read_machine(arguments, document)


def with_modes(document: Document, site: Mode, check: Mode | None) -> Document:
    """Return the document with the site's mode, and that of every check where it is given."""
    judged = {name: params if check is None else replace(params, mode=check) for name, params in document.checks.items()}
    return replace(document, policy=replace(document.policy, mode=site), checks=judged)


def of_agent(document: Document, node: Node, root: Path) -> ExitCode:
    """Return what the agent's verdict comes to on a node that stays as it is; it has a history, and slurmctld accepts a drain."""
    boot_id = node.boot_id if isinstance(node.boot_id, str) else ""
    history = History("", boot_id)
    history.add_records(past_now(str(root / "dev/kmsg"), boot_id).records)
    state, drained = PolicyState(), False
    assert isinstance(node.uptime_seconds, float)
    for sweep in range(SWEEPS):
        seconds = node.uptime_seconds + sweep * SECONDS
        facts = replace(node, uptime_seconds=seconds)
        before_judging(history, facts)
        findings = judge(document, facts, history.past())
        after_judging(history, document, facts, seconds, ran=None, thorough=True)
        now = Now(boot_seconds=seconds, wall_seconds=1e9 + seconds, boot_id=boot_id, drained=drained)
        decision = decide(findings, policies_of(document), state, now, document.policy)
        state = decision.state
        drained = decision.order is Order.DRAIN or (drained and decision.order is not Order.RESUME)
    return ExitCode[decision.state_word.value.upper()]


def test_most_of_the_scorecard_has_a_form_on_a_tree() -> None:
    assert len(HALVES) > 100


@pytest.mark.parametrize(("steps", "modes"), HALVES)
def test_check_ends_with_the_agent_s_verdict(
    steps: tuple[Step, ...], modes: Sequence[tuple[Mode, Mode | None]], tree: FaultyTree, capsys: pytest.CaptureFixture[str]
) -> None:
    with tree.after(steps) as path:
        document = config.load_document(str(path))
        node, past = read_tree(document, tree.path)
        expected = of_agent(document, node, tree.path)
        code = main(["check", "--root", str(tree.path), "--document", str(path), "--json"])
        said = json.loads(capsys.readouterr().out)
        assert ExitCode(code) is expected, said
        assert said["state"] == expected.name.lower()
        if expected is not ExitCode.DRAIN:
            assert not [f for f in said["findings"] if f["counts_as"] == "drain"]
        for site, check in modes:
            other = with_modes(document, site, check)
            decision = decide_at_once(other, node, judge(other, node, past))
            assert ExitCode(decision.level) is of_agent(other, node, tree.path), (site, check, decision.text)
