"""Nothing is written to a node on an old reading, by whichever program; and whose state it is where several texts may stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from fairlead.drains.node_writer import STALE_SECONDS, NodeWriter, owner_among
from fairlead.errors import SlurmUnavailable
from fairlead.policy.decision_rules import Rules
from fairlead.policy.ownership import Owner, Token, build
from fairlead.slurm.client import JobOn, NodeState, NodeTimes

MARK, TEXT = build("maintain", "aaaaaaaaaaaa", "failed"), build("maintain", "bbbbbbbbbbbb", "new driver")
IDLE = NodeState(name="n1", states=frozenset({"IDLE"}))


@dataclass
class Ctld:
    """A slurmctld whose answers take ``answer_seconds`` of the clock."""

    answer_seconds: float = 0.0
    now: float = 100.0
    written: list[str] = field(default_factory=list)

    def node(self, name: str) -> NodeState:
        self.now += self.answer_seconds
        return IDLE

    def nodes(self, names: Sequence[str] = ()) -> tuple[NodeState, ...]:
        return (self.node("n1"),)

    def jobs_on(self, name: str) -> tuple[JobOn, ...]:
        return ()

    def began(self) -> float:
        return 0.0

    def node_times(self) -> tuple[NodeTimes, ...]:
        return ()

    def drain(self, name: str, reason: str) -> None:
        self.written.append(reason)

    def update_reason(self, name: str, reason: str) -> None:
        self.written.append(reason)

    def resume(self, name: str) -> None:
        self.written.append("resume")


def writer(ctld: Ctld, sent_within: list[float], *, from_request: bool = False) -> NodeWriter:
    clock = lambda: ctld.now  # noqa: E731
    return NodeWriter(ctld, "n1", not_after=sent_within.append, from_request=from_request, wall=clock, clock=clock)


@pytest.mark.parametrize(("late", "written"), [(0.0, True), (STALE_SECONDS, True), (STALE_SECONDS + 0.1, False)])
def test_a_write_needs_a_fresh_reading(late: float, written: bool) -> None:
    ctld, within = Ctld(), list[float]()
    one = writer(ctld, within)
    one.read()
    ctld.now += late
    if written:
        one.write(lambda: ctld.resume("n1"))
        assert within == [pytest.approx(STALE_SECONDS - late)], "the write itself may be sent no later either"
    else:
        with pytest.raises(SlurmUnavailable, match="nothing was written: 2 s went by after the reading of n1"):
            one.write(lambda: ctld.resume("n1"))
    assert one.fresh() == written and ctld.written == ["resume"] * written


def test_a_slow_answer_takes_no_time_from_the_write() -> None:
    """slurmctld needs about as long for the write as for the reading."""
    ctld, within = Ctld(answer_seconds=STALE_SECONDS * 0.75), list[float]()
    one = writer(ctld, within, from_request=True)
    one.read()
    one.write(lambda: ctld.resume("n1"))
    assert within == [pytest.approx(STALE_SECONDS)]


def test_nothing_is_written_before_the_first_reading() -> None:
    ctld = Ctld()
    with pytest.raises(SlurmUnavailable):
        writer(ctld, []).write(lambda: ctld.resume("n1"))
    assert not ctld.written


@pytest.mark.parametrize("from_request", [False, True])
def test_a_reading_may_age_from_its_request(from_request: bool) -> None:
    """As in maintenance: a slurmctld that took longer to answer than a reading is good for is asked again."""
    one = writer(Ctld(answer_seconds=STALE_SECONDS + 1), [], from_request=from_request)
    one.read()
    assert one.fresh() is not from_request


@pytest.mark.parametrize(
    ("states", "reason", "owner", "token"),
    [
        ({"IDLE"}, "", Owner.FREE, None),
        ({"IDLE", "DRAIN"}, MARK.text, Owner.OURS, MARK),
        ({"IDLE", "DRAIN"}, TEXT.text, Owner.OURS, TEXT),
        ({"IDLE", "DRAIN"}, f"{TEXT.text} : reboot issued", Owner.OURS, TEXT),
        ({"IDLE", "DRAIN"}, "a person's", Owner.FOREIGN, None),
    ],
)
def test_any_of_our_texts_may_be_the_one(states: set[str], reason: str, owner: Owner, token: Token | None) -> None:
    node = NodeState(name="n1", states=frozenset(states), reason=reason, reason_user="root")
    assert owner_among(node, (MARK, TEXT), Rules()) == (owner, token)
