"""What the agent keeps for the rules across nodes: since when an order is held, and that a held one stays visible."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.daemon.slurmctld.courier import Courier
from fairlead.daemon.slurmctld.slurm_state import CourierOrder
from fairlead.drains.cluster_limits import CROWD_UNKNOWN, FORGET_SECONDS, ClusterLimits
from fairlead.drains.ledger import Ledger
from fairlead.drains.node_state import NodeDrainState
from fairlead.drains.outcome import CONTEST_SECONDS
from fairlead.drains.protocol import DrainProtocol
from fairlead.policy.decision_rules import Rules
from fairlead.policy.drain_limits import LimitKind
from fairlead.policy.ownership import Token, build
from fairlead.slurm.client import NodeState
from fairlead.slurm.node_groups import NodeGroup
from tests.daemon.slurmctld.test_courier import Ctld

RULES = Rules(budget_percent=100, common_cause_nodes=1, common_cause_hold_seconds=100)
XID = CourierOrder(kind="drain", check="xid", summary="Xid 119 on GPU 0000:1b:00.0")


def nodes(*drained: str, job: int | None = None) -> tuple[NodeState, ...]:
    made = []
    for name in ("n1", "n2", "n3", "n4", "n5"):
        state = NodeState(name=name, states=frozenset({"IDLE"}), partitions=("gpu",))
        if name in drained:
            reason = build("xid", "0123456789ab", "x", job=job).text
            state = replace(state, states=frozenset({"IDLE", "DRAIN"}), reason=reason, reason_time=int(time.time()))
        made.append(state)
    return tuple(made)


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


TOKEN = build("xid", "aaaaaaaaaaaa", "Xid 119 on GPU 0000:1b:00.0")


def limit_of(
    limits: ClusterLimits, listed: tuple[NodeState, ...], token: Token = TOKEN, *, certain: bool = False
) -> LimitKind | None:
    hold = limits.why_no_room("n1", token, listed, certain=certain)
    return hold.kind if hold else None


def test_a_hold_is_counted_from_its_first_refusal_and_ends_with_its_time(clock: Clock) -> None:
    limits = ClusterLimits(RULES, clock=clock)
    for seconds in (0, 60, 99):
        clock.now = 50.0 + seconds
        assert limit_of(limits, nodes("n2")) is LimitKind.COMMON_CAUSE
    clock.now = 150.0
    assert limit_of(limits, nodes("n2")) is None
    assert limits.why_not_keep("n1", TOKEN, nodes("n1", "n2")) is None  # nor is the drain undone for it
    clock.now = 151.0
    assert limit_of(limits, nodes("n2")) is LimitKind.COMMON_CAUSE  # the next one begins anew


def test_a_node_whose_clock_went_back_a_year_drains_for_a_common_cause_once(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first drain is undone by slurmctld's times; from then on it knows how far its clock is behind."""
    limits = ClusterLimits(RULES, clock=clock)
    listed, mine = nodes("n2"), nodes("n1", "n2")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 365 * 86400.0)
    assert limit_of(limits, listed) is None
    assert limits.why_not_keep("n1", TOKEN, mine) is not None
    assert limit_of(limits, listed) is LimitKind.COMMON_CAUSE
    monkeypatch.setattr(time, "time", lambda: now)
    changed = ClusterLimits(RULES, clock=clock)
    changed.take_over(limits)
    assert changed.why_not_keep("n1", TOKEN, nodes("n1")) is None
    assert limit_of(changed, listed) is LimitKind.COMMON_CAUSE, "the clock is right again"


def test_a_topology_says_how_many_agents_there_may_be() -> None:
    """Before the first list of nodes: so the first answers that do not come are already asked for again with care."""
    names = [f"n{n}" for n in range(10_000)]
    groups = tuple(NodeGroup("switch", f"s{n}", frozenset(names[n : n + 40])) for n in range(0, 10_000, 40))
    limits = ClusterLimits(RULES, lambda: groups)
    assert limits.crowd == CROWD_UNKNOWN
    limits.refresh()
    assert limits.crowd == 1000
    limits.why_no_room("n1", TOKEN, nodes("n2"))
    assert limits.crowd == 1, "the list of nodes is true"


def test_an_order_that_went_away_begins_anew(clock: Clock) -> None:
    limits = ClusterLimits(RULES, clock=clock)
    assert limit_of(limits, nodes("n2")) is LimitKind.COMMON_CAUSE
    clock.now += FORGET_SECONDS
    assert limit_of(limits, nodes("n2")) is LimitKind.COMMON_CAUSE


def test_a_reloaded_document_keeps_what_has_been_waited(clock: Clock) -> None:
    limits = ClusterLimits(RULES, clock=clock)
    limit_of(limits, nodes("n2"))
    clock.now += 100
    other = ClusterLimits(RULES, clock=clock)
    other.take_over(limits)
    assert limit_of(other, nodes("n2")) is None


def test_what_is_certain_stays_so_after_the_drain_and_for_that_drain_only(clock: Clock) -> None:
    limits = ClusterLimits(RULES, clock=clock)
    assert limit_of(limits, nodes("n2", "n3"), certain=True) is None
    assert limits.why_not_keep("n1", TOKEN, nodes("n1", "n2", "n3")) is None
    other = replace(TOKEN, token="bbbbbbbbbbbb")
    hold = limits.why_not_keep("n1", other, nodes("n1", "n2", "n3"))
    assert hold is not None and hold.kind is LimitKind.COMMON_CAUSE


def test_a_contested_drain_waits_once(clock: Clock) -> None:
    limits = ClusterLimits(replace(RULES, common_cause_nodes=0, budget_nodes=1), clock=clock)
    listed = nodes("n1", "n2")
    first = limits.why_not_keep("n1", TOKEN, listed)
    second = limits.why_not_keep("n1", TOKEN, listed)
    assert first is not None and first.wait and second is not None and not second.wait


def turned(courier: Courier) -> Courier:
    """The courier after it has done all that is due."""
    for _ in courier.turn():
        pass
    return courier


def squeezed(folder: Path, clock: Clock) -> tuple[Ctld, Courier]:
    """A courier whose order the drain budget holds: of ten nodes one may be out, and an admin has drained one."""
    ctld = Ctld()
    ctld.drain("n2", "an admin's")
    ledger = Ledger(str(folder), str(folder), node="n1")
    courier = Courier(
        DrainProtocol(NodeDrainState(ctld, ledger, "n1", Rules(budget_percent=10))), reconcile_seconds=600, clock=clock
    )
    courier.want(XID)
    turned(courier)
    assert courier.take().over_budget
    return ctld, courier


def test_a_held_order_is_tried_again_and_stays_visible_meanwhile(tmp_path: Path, clock: Clock) -> None:
    ctld, courier = squeezed(tmp_path, clock)
    courier.want(replace(XID, kind="keep", pending_room=True))
    waits = []
    for _ in range(10):
        tried, began = ctld.calls.count("nodes"), clock.now
        while ctld.calls.count("nodes") == tried:
            clock.now += 0.1
            limit = turned(courier).take().limit
            assert limit is not None and limit.kind is LimitKind.PARTITION
        waits.append(clock.now - began)
    assert waits[0] < 4.1 and 60 < max(waits) <= 256.1  # so that many held nodes do not keep slurmctld busy
    assert ctld.calls.count("drain") == 1  # the admin's
    ctld.resume("n2")
    clock.now += 256
    assert turned(courier).take().drained and not courier.take().over_budget


def test_a_held_order_whose_fault_is_gone_is_forgotten(tmp_path: Path, clock: Clock) -> None:
    ctld, courier = squeezed(tmp_path, clock)
    courier.want(CourierOrder())
    ctld.resume("n2")
    for _ in range(3):
        clock.now += 256
        standing = turned(courier).take()
        assert not standing.over_budget and not standing.drained
    assert ctld.calls.count("drain") == 1


def test_a_contested_drain_is_settled_within_seconds_whatever_is_wanted_then(tmp_path: Path, clock: Clock) -> None:
    """Two drain at once where one may: the one that ranks first waits, and stays when the other has gone."""
    ctld, rules = Ctld(), Rules(budget_percent=10)
    courier = Courier(
        DrainProtocol(NodeDrainState(ctld, Ledger(str(tmp_path), str(tmp_path), node="n1"), "n1", rules)),
        reconcile_seconds=600,
        clock=clock,
    )

    def other() -> None:
        ctld.before_write = lambda: None
        ctld.drain("n2", build("xid", "0123456789ab", "x").text)

    ctld.before_write = other
    courier.want(XID)
    standing = turned(courier).take()
    assert ctld.node("n1").drained and not standing.drained and not standing.over_budget
    courier.want(CourierOrder())
    ctld.resume("n2")
    assert not turned(courier).take().drained  # not before its time
    clock.now += CONTEST_SECONDS[1]
    assert turned(courier).take().drained and ctld.node("n1").drained


def test_orders_that_nobody_gives_any_more_are_forgotten(clock: Clock) -> None:
    limits = ClusterLimits(RULES, clock=clock)
    for job in range(40):
        clock.now += 1000.0
        token = build("xid", "aaaaaaaaaaaa", "Xid 119 on GPU 0000:1b:00.0", job=job)
        assert limit_of(limits, nodes("n2", "n3"), token) is LimitKind.COMMON_CAUSE
    assert len(limits._waiting) <= 2
