"""Every program changes a node in the same steps: read, decide, write on that reading, read back. And no program has its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.drains.node_writer import STALE_SECONDS, NodeWriter
from fairlead.drains.outcome import finish
from fairlead.drains.read_write_read import NodeChange, WriteDecision, change_node
from fairlead.errors import SlurmError, SlurmUnavailable
from fairlead.slurm.client import NodeState
from tests.slurm.model import Ctld

PACKAGE = Path(__file__).resolve().parents[2] / "agent/fairlead"


class SlowCtld(Ctld):
    """A slurmctld whose answers take ``answer_seconds`` of ``now``; ``calls``: what it was asked for."""

    def __init__(self, answer_seconds: float = 0.1) -> None:
        super().__init__("24", ("n1",))
        self.answer_seconds = answer_seconds
        self.now = 100.0
        self.calls: list[str] = []

    def node(self, name: str) -> NodeState:
        self.now += self.answer_seconds
        self.calls.append("read")
        return super().node(name)

    def drain(self, name: str, reason: str) -> None:
        self.now += self.answer_seconds
        self.calls.append("drain")
        super().drain(name, reason)


def writer_of(ctld: SlowCtld) -> NodeWriter:
    return NodeWriter(ctld, "n1", from_request=True, wall=lambda: ctld.now, clock=lambda: ctld.now)


def drain_if_free(ctld: SlowCtld, refused: Callable[[SlurmError], str] | None = None) -> NodeChange[str]:
    """The rule of these tests: drain a node that nobody has drained."""
    return NodeChange(
        decide=lambda state: WriteDecision(not state.drained, f"not written: {state.reason or 'old'}"),
        write=lambda state: ctld.drain("n1", "ours"),
        judge=lambda: ctld.node("n1").reason,
        refused=refused,
    )


def test_the_steps_are_named_before_they_are_taken() -> None:
    ctld = SlowCtld()
    calls_before_step = {}
    steps = change_node(writer_of(ctld), drain_if_free(ctld))
    with pytest.raises(StopIteration) as end:
        while True:
            step = next(steps)
            calls_before_step[step] = list(ctld.calls)
    assert calls_before_step == {"read": [], "write": ["read"], "read back": ["read", "drain"]}
    assert ctld.calls == ["read", "drain", "read"] and end.value.value == "ours"


def test_the_rule_of_the_program_decides() -> None:
    ctld = SlowCtld()
    ctld.update("n1", "DRAIN", "a person's", user="ann")
    assert finish(change_node(writer_of(ctld), drain_if_free(ctld))) == "not written: a person's"
    assert ctld.calls == ["read"]


def test_a_reading_that_is_too_old_is_not_written_on() -> None:
    ctld = SlowCtld(answer_seconds=STALE_SECONDS + 0.1)
    assert finish(change_node(writer_of(ctld), drain_if_free(ctld))) == "not written: old"
    assert ctld.calls == ["read"]


def test_a_program_that_was_stopped_before_its_write_does_not_write() -> None:
    ctld = SlowCtld()
    steps = change_node(writer_of(ctld), drain_if_free(ctld))
    assert [next(steps), next(steps)] == ["read", "write"]
    ctld.now += STALE_SECONDS
    with pytest.raises(SlurmUnavailable, match="nothing was written"):
        next(steps)
    assert ctld.calls == ["read"]


def test_another_change_may_have_been_lost_from_the_reading_to_the_end_of_the_write() -> None:
    ctld = SlowCtld(answer_seconds=0.5)
    writer = writer_of(ctld)
    finish(change_node(writer, drain_if_free(ctld)))
    assert writer.window_seconds == pytest.approx(1.0)


@pytest.mark.parametrize("error", [SlurmError("no such state"), SlurmUnavailable("no answer")])
def test_what_slurmctld_refuses_is_judged_and_what_it_does_not_answer_is_tried_again(error: SlurmError) -> None:
    def fail(name: str) -> None:
        raise error

    ctld = SlowCtld()
    change = drain_if_free(ctld, refused=lambda e: f"refused: {e}")
    steps = change_node(writer_of(ctld), NodeChange(change.decide, lambda state: fail("n1"), change.judge, change.refused))
    if isinstance(error, SlurmUnavailable):
        with pytest.raises(SlurmUnavailable):
            finish(steps)
    else:
        assert finish(steps) == "refused: no such state"
    unjudged = NodeChange(change.decide, lambda state: fail("n1"), change.judge)
    with pytest.raises(type(error)):
        finish(change_node(writer_of(ctld), unjudged))


def uses_of_a_writer(text: str) -> list[int]:
    """The lines on which a file that knows ``NodeWriter`` uses one, by whatever name that ends in ``writer``."""
    if "NodeWriter" not in text:
        return []
    attributes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)]
    return [node.lineno for node in attributes if re.search(r"(?i)writer(\(.*\))?$", ast.unparse(node.value))]


def test_no_program_has_steps_of_its_own() -> None:
    """Outside the room drains a writer is made and passed on. Whoever read and wrote with it would have another sequence."""
    planted = "writer: NodeWriter\nstate = self._writer(work).read()\nwriter.write(call)\n"
    assert uses_of_a_writer(planted) == [2, 3]
    found = {path: uses_of_a_writer(path.read_text()) for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE / "drains"}
    assert not {str(path): lines for path, lines in found.items() if lines}
