"""The rules that look across nodes: each on a table, all together under any order of any number of agents."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead.model.finding import Action, Finding, Level
from fairlead.policy import Rules
from fairlead.policy.drain_budget import allowed
from fairlead.policy.drain_limits import (
    DrainCause,
    DrainLimit,
    Group,
    LimitKind,
    ListedNode,
    NodeList,
    certain,
    job_of,
    overshoot,
    room,
)
from fairlead.policy.ownership import build

NOW = 1_000_000.0
RULES = Rules(budget_percent=100, budget_group_percent=100, common_cause_nodes=0, suspect_job_nodes=0)
XID = DrainCause(check="xid")


def ours(
    name: str, time: float = NOW, check: str = "xid", job: int | None = None, partitions: tuple[str, ...] = ("gpu",)
) -> ListedNode:
    reason = build(check, "0123456789ab", "GPU 0000:1b:00.0 is bad", job=job).text
    return ListedNode(name=name, available=False, drained=True, reason=reason, time=time, partitions=partitions)


def up(name: str, *partitions: str) -> ListedNode:
    return ListedNode(name=name, partitions=partitions or ("gpu",))


def down(name: str) -> ListedNode:
    return ListedNode(name=name, available=False, reason="old hardware", partitions=("gpu",))


def others(count: int, first: int = 100) -> tuple[ListedNode, ...]:
    return tuple(up(f"n{n}") for n in range(first, first + count))


def kind(limit: DrainLimit | None) -> LimitKind | None:
    return limit.kind if limit else None


# -- budgets ------------------------------------------------------------------------------------------


def test_every_unavailable_node_uses_the_budget_but_not_oneself_nor_maintenance() -> None:
    rules = replace(RULES, budget_nodes=2)
    maintained = ListedNode(
        name="m", available=False, drained=True, reason="fairlead:maintain:0123456789ab new driver", partitions=("gpu",)
    )
    nodes = (up("n1"), down("n2"), maintained, *others(6))
    assert room(NodeList(me="n1", nodes=nodes), XID, rules, NOW) is None
    full = room(NodeList(me="n1", nodes=(*nodes, ours("n3"))), XID, rules, NOW)
    assert full is not None and full.kind is LimitKind.PARTITION
    assert full.text == "drain budget of partition gpu is used up: 2 of 10 nodes are out, 2 may be"
    assert room(NodeList(me="n3", nodes=(*nodes, ours("n3"))), XID, rules, NOW) is None


def test_every_partition_of_the_node_must_have_room() -> None:
    nodes = (up("n1", "gpu", "debug"), up("n2", "debug"), replace(down("n3"), partitions=("debug",)), *others(20))
    full = room(NodeList(me="n1", nodes=nodes), XID, replace(RULES, budget_percent=10), NOW)
    assert full is not None and full.name == "debug"
    assert room(NodeList(me="n100", nodes=nodes), XID, replace(RULES, budget_percent=10), NOW) is None


@pytest.mark.parametrize(
    ("out", "percent", "pending"), [(1, 50, False), (2, 50, True), (0, 0, False), (1, 0, True), (3, 100, False)]
)
def test_a_switch_and_a_block_have_a_budget_of_their_own(out: int, percent: int, pending: bool) -> None:
    rack = ("n1", "n2", "n3", "n4")
    gone = tuple(ours(name) for name in rack[1 : 1 + out])
    nodes = (up("n1"), *gone, *(up(name) for name in rack[1 + out :]), *others(60))
    rules = replace(RULES, budget_group_percent=percent)
    for level in (LimitKind.SWITCH, LimitKind.BLOCK):
        listed = NodeList(
            me="n1", nodes=nodes, groups=(Group(level, "s1", frozenset(rack)), Group(level, "s2", frozenset({"n100"})))
        )
        limit = room(listed, XID, rules, NOW)
        assert (limit is not None) is pending
        assert limit is None or (limit.kind, limit.name) == (level, "s1")
    assert room(NodeList(me="n1", nodes=nodes), XID, rules, NOW) is None  # an unknown topology is no limit


def test_a_group_counts_the_nodes_that_slurmctld_still_has() -> None:
    switch = Group(LimitKind.SWITCH, "s1", frozenset({"n1", "n2", "gone1", "gone2", "gone3", "gone4"}))
    assert kind(room(NodeList(me="n1", nodes=(up("n1"), ours("n2")), groups=(switch,)), XID, RULES, NOW)) is None
    tight = replace(RULES, budget_group_percent=50)
    assert kind(room(NodeList(me="n1", nodes=(up("n1"), ours("n2")), groups=(switch,)), XID, tight, NOW)) is LimitKind.SWITCH


# -- common cause -------------------------------------------------------------------------------------

CAUSE = replace(RULES, common_cause_nodes=3, common_cause_window_seconds=600, common_cause_hold_seconds=3600)


@pytest.mark.parametrize(
    ("drains", "pending"),
    [
        ([("a", "xid", 0), ("b", "xid", 10)], False),
        ([("a", "xid", 0), ("b", "xid", 10), ("c", "xid", 20)], True),
        ([("a", "xid", 0), ("b", "xid", 10), ("c", "ecc", 20)], False),  # another check
        ([("a", "xid", 0), ("b", "xid", 10), ("c", "xid", 700)], False),  # before the window
        ([("a", "xid", 0), ("b", "xid", 10), ("c", "xid", 600)], True),
        ([("a", "xid", 0), ("b", "xid", 10), ("c", "xid", -30)], True),  # slurmctld's clock is ahead of ours
        ([("a", "manual", 0), ("b", "manual", 0), ("c", "manual", 0)], False),
        ([("a", "maintain", 0), ("b", "maintain", 0), ("c", "maintain", 0)], False),
    ],
)
def test_the_same_check_on_many_nodes_at_once_is_held(drains: list[tuple[str, str, int]], pending: bool) -> None:
    nodes = (up("n1"), *(ours(name, NOW - ago, check) for name, check, ago in drains), *others(60))
    limit = room(NodeList(me="n1", nodes=nodes), XID, CAUSE, NOW)
    assert kind(limit) is (LimitKind.COMMON_CAUSE if pending else None)
    assert limit is None or limit.text == (
        "common cause: xid drained 3 other nodes within 600 s (a, b, c), held for 3600 s at most"
    )


def test_a_clock_that_went_back_a_year_makes_old_drains_no_common_cause() -> None:
    """Three drains of last month would be within the window of a clock that is a year behind. What is alike now is seen after the
    drain, by slurmctld's times."""
    year, month = 365 * 86400.0, 30 * 86400.0
    old = tuple(ours(name, NOW - month + second) for second, name in enumerate("abc"))
    assert room(NodeList(me="n1", nodes=(up("n1"), *old, *others(60))), XID, CAUSE, NOW - year) is None
    assert overshoot(NodeList(me="n1", nodes=(ours("n1", NOW), *old, *others(60))), XID, CAUSE) is None
    now = tuple(ours(name, NOW - 10 + second) for second, name in enumerate("abc"))
    assert room(NodeList(me="n1", nodes=(up("n1"), *now, *others(60))), XID, CAUSE, NOW - year) is None
    undone = overshoot(NodeList(me="n1", nodes=(ours("n1", NOW), *now, *others(60))), XID, CAUSE)
    assert kind(undone) is LimitKind.COMMON_CAUSE


def test_a_hold_outlasts_the_window_and_ends_with_its_own_limit_or_a_resume() -> None:
    nodes = (up("n1"), *(ours(name) for name in "abc"), *others(60))
    listed = NodeList(me="n1", nodes=nodes)
    waits = [room(listed, replace(XID, waited=waited), CAUSE, NOW + waited) for waited in (0.0, 601.0, 3599.0, 3600.0)]
    assert [kind(limit) for limit in waits] == [LimitKind.COMMON_CAUSE] * 3 + [None]
    for_ever = replace(CAUSE, common_cause_hold_seconds=0)
    limit = room(listed, replace(XID, waited=1e6), for_ever, NOW + 1e6)
    assert limit is not None and limit.text.endswith("held until a person acts")
    resumed = replace(listed, nodes=(up("n1"), up("a"), *(ours(name) for name in "bc"), *others(60)))
    assert room(resumed, replace(XID, waited=601.0), CAUSE, NOW + 601) is None


# -- the suspect job ----------------------------------------------------------------------------------

JOB = replace(RULES, suspect_job_nodes=2)


@pytest.mark.parametrize(
    ("blamed", "mine", "pending"),
    [
        ([7, 7], 7, True),
        ([7], 7, False),
        ([7, 7], 8, False),  # another job
        ([7, 7], None, False),  # none: the fault came without it
        ([7, 77], 7, False),
        ([7, None], 7, False),
    ],
)
def test_a_job_that_faults_on_several_nodes_is_the_suspect(blamed: list[int | None], mine: int | None, pending: bool) -> None:
    checks = ("ecc", "xid", "xid")
    drained = tuple(ours(f"d{n}", NOW - 5000, checks[n], job) for n, job in enumerate(blamed))
    listed = NodeList(me="n1", nodes=(up("n1"), *drained, *others(60)))
    limit = room(listed, DrainCause(check="xid", job=mine), JOB, NOW)
    assert kind(limit) is (LimitKind.SUSPECT_JOB if pending else None)
    assert limit is None or limit.text == (
        "job 7 is the suspect: drains of 2 other nodes blame it (d0, d1), held for 86400 s at most"
    )


@pytest.mark.parametrize(
    ("summary", "job"), [("x job=7", 7), ("job=7", 7), ("x job=7 more", None), ("xjob=7", None), ("job=", None)]
)
def test_the_job_is_read_from_the_end_of_the_reason(summary: str, job: int | None) -> None:
    assert job_of(summary) == job


# -- what is covered ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [replace(XID, certain=True, job=7), DrainCause(check="manual", job=7)])
def test_a_device_that_is_gone_and_a_persons_drain_meet_only_the_budgets(fault: DrainCause) -> None:
    rules = replace(CAUSE, suspect_job_nodes=2, budget_nodes=4)
    nodes = (up("n1"), *(ours(name, job=7) for name in "abc"), *others(60))
    assert room(NodeList(me="n1", nodes=nodes), replace(XID, job=7), rules, NOW) is not None
    assert room(NodeList(me="n1", nodes=nodes), fault, rules, NOW) is None
    assert kind(room(NodeList(me="n1", nodes=(*nodes, ours("e"))), fault, rules, NOW)) is LimitKind.PARTITION


@pytest.mark.parametrize(
    ("check", "action", "expected"),
    [
        ("xid", Action.REBOOT_NODE, True),  # 79: fallen off the bus
        ("xid", Action.CHECK_HARDWARE, True),
        ("row_remap", Action.CONTACT_SUPPORT, True),
        ("xid", Action.RESET_GPU, False),
        ("xid", Action.CONTACT_SUPPORT, False),  # a number that the catalogue does not know yet
        ("gpu_count", Action.REBOOT_NODE, False),  # rests on what the profile expects
        ("pcie_link", Action.CHECK_HARDWARE, False),
    ],
)
def test_what_is_certain(check: str, action: Action, expected: bool) -> None:
    assert certain(Finding(check=check, level=Level.DRAIN, summary="x", action=action)) is expected


def test_a_gpu_that_is_only_suspect_is_not_certain() -> None:
    """What the xid check says where several users' jobs faulted on one GPU: the jobs may be to blame after all."""
    fault = Finding(check="xid", level=Level.DRAIN, summary="x", action=Action.CHECK_HARDWARE, fault="users")
    assert not certain(fault)


# -- after the drain ----------------------------------------------------------------------------------


def test_a_drain_within_every_limit_stands() -> None:
    rules = replace(RULES, budget_nodes=2)
    listed = NodeList(me="n1", nodes=(ours("n1", 5), ours("n2", 5), *others(6)))
    assert overshoot(listed, XID, rules) is None
    assert overshoot(NodeList(me="x", nodes=listed.nodes), XID, rules) is None


def test_of_those_past_a_limit_the_last_by_time_and_name_goes_at_once_and_the_rest_wait_once() -> None:
    rules = replace(RULES, budget_nodes=2)
    nodes = (ours("n1", 5), ours("n2", 5), ours("n3", 4), *others(6))
    holds = {me: overshoot(NodeList(me=me, nodes=nodes), XID, rules) for me in ("n1", "n2", "n3")}
    assert {me: limit.wait for me, limit in holds.items() if limit} == {"n1": True, "n2": False, "n3": True}
    after = (ours("n1", 5), up("n2"), ours("n3", 4), *others(6))
    assert all(overshoot(NodeList(me=me, nodes=after), XID, rules, waited=True) is None for me in ("n1", "n3"))


def test_whoever_has_waited_and_still_sees_too_many_goes() -> None:
    rules = replace(RULES, budget_nodes=1)
    nodes = (ours("n1", 5), ours("n2", 6), *others(6))
    limit = overshoot(NodeList(me="n1", nodes=nodes), XID, rules, waited=True)
    assert limit is not None and not limit.wait


def test_nodes_that_others_took_leave_no_seat() -> None:
    rules = replace(RULES, budget_nodes=2)
    nodes = (ours("n1", 5), ours("n2", 6), down("n3"), *others(6))
    first, second = (overshoot(NodeList(me=me, nodes=nodes), XID, rules) for me in ("n1", "n2"))
    assert first is not None and first.wait
    assert second is not None and not second.wait
    taken = (ours("n1", 5), down("n3"), down("n4"), *others(6))
    gone = overshoot(NodeList(me="n1", nodes=taken), XID, rules)
    assert gone is not None and not gone.wait


# -- any number of agents in any order ----------------------------------------------------------------


class Cluster:
    """slurmctld as the rules see it: who is drained, since when, in whole seconds of a clock that the test moves."""

    def __init__(self, total: int, down_nodes: int, groups: tuple[Group, ...]) -> None:
        self.total, self.groups, self.clock = total, groups, NOW
        self.down = {f"n{n:02d}" for n in range(total - down_nodes, total)}
        self.drained: dict[str, float] = {}
        self.most = 0

    def listed(self, me: str) -> NodeList:
        names = [f"n{n:02d}" for n in range(self.total)]
        nodes = tuple(
            down(n) if n in self.down else ours(n, self.drained[n], job=7) if n in self.drained else up(n) for n in names
        )
        return NodeList(me=me, nodes=nodes, groups=self.groups)


def agent(cluster: Cluster, me: str, fault: DrainCause, rules: Rules, end: dict[str, str]) -> Iterator[str]:
    """One agent's protocol; each yield is a moment at which all others may do anything."""
    if room(cluster.listed(me), fault, rules, cluster.clock) is not None:
        end[me] = "no room"
        return
    # So an overshoot is only by agents that had looked before the limit was full.
    assert all(len(members & cluster.drained.keys()) < may for members, may in most_allowed(cluster, rules) if me in members)
    yield "write"
    cluster.drained[me] = float(int(cluster.clock))
    cluster.most = max(cluster.most, len(cluster.drained))
    yield "read back"
    limit = overshoot(cluster.listed(me), fault, rules)
    if limit is not None and limit.wait:
        yield "wait"
        limit = overshoot(cluster.listed(me), fault, rules, waited=True)
    if limit is not None:
        yield "undo"
        del cluster.drained[me]
    end[me] = "undone" if limit else "drained"


def group(kind: LimitKind, name: str, numbers: range) -> Group:
    return Group(kind, name, frozenset(f"n{n:02d}" for n in numbers))


LIMITS = st.sampled_from(
    [
        (replace(RULES, budget_nodes=1), ()),
        (replace(RULES, budget_nodes=3), ()),
        (replace(RULES, budget_percent=20), ()),
        (replace(RULES, budget_group_percent=50), tuple(group(LimitKind.SWITCH, f"s{s}", range(s, 16, 4)) for s in range(4))),
        (CAUSE, ()),
        (JOB, ()),
        (replace(CAUSE, budget_nodes=5, suspect_job_nodes=4), (group(LimitKind.BLOCK, "b", range(8)),)),
    ]
)


def most_allowed(cluster: Cluster, rules: Rules) -> Iterator[tuple[set[str], int]]:
    """Each limit as (the nodes it counts, how many may be drained)."""
    everyone = {f"n{n:02d}" for n in range(cluster.total)}
    budget = allowed(rules.budget_percent, rules.budget_nodes, cluster.total)
    yield everyone, max(0, budget - len(cluster.down))
    for each in cluster.groups:
        members = each.nodes & everyone
        yield set(members), max(0, allowed(rules.budget_group_percent, 0, len(members)) - len(members & cluster.down))
    for number in (rules.common_cause_nodes, rules.suspect_job_nodes):
        if number:
            yield everyone, number


@settings(max_examples=200, deadline=None)
@given(
    limits=LIMITS,
    total=st.integers(2, 16),
    gone=st.integers(0, 2),
    order=st.lists(st.tuples(st.integers(0, 15), st.sampled_from([0.0, 0.0, 0.3, 1.1])), max_size=120),
    patient=st.booleans(),
)
def test_in_the_end_every_limit_holds_and_one_node_at_least_is_drained(
    limits: tuple[Rules, tuple[Group, ...]], total: int, gone: int, order: list[tuple[int, float]], patient: bool
) -> None:
    """``order``: who takes the next step, and how far the clock moves. ``patient``: no second look before every undoing that
    was decided is done, which is what its 1.5 s are for; without it the limit holds just the same, but all may yield."""
    rules, groups = limits
    cluster = Cluster(total, min(gone, total - 1), groups)
    end: dict[str, str] = {}
    running = {
        me: agent(cluster, me, DrainCause(check="xid", job=7), rules, end)
        for n in range(total)
        if (me := f"n{n:02d}") not in cluster.down
    }
    at: dict[str, str] = {}

    def step(me: str) -> None:
        if patient and at.get(me) == "wait" and any(where in ("read back", "undo") for other, where in at.items() if other != me):
            return
        try:
            at[me] = next(running[me])
        except StopIteration:
            running.pop(me)
            at.pop(me, None)

    for number, seconds in order:
        cluster.clock += seconds
        if (me := f"n{number % total:02d}") in running:
            step(me)
    while running:
        for me in sorted(running):
            step(me)
    assert set(cluster.drained) == {me for me, how in end.items() if how == "drained"}
    seats = []
    for members, may in most_allowed(cluster, rules):
        assert len(members & cluster.drained.keys()) <= may
        seats.append((members, may))
    if patient and all(may >= 1 for _, may in seats):
        assert cluster.drained


@settings(max_examples=100, deadline=None)
@given(total=st.integers(2, 16), budget=st.integers(1, 4), past=st.integers(1, 3), data=st.data())
def test_of_n_past_the_limit_exactly_n_undo_when_all_see_the_same(
    total: int, budget: int, past: int, data: st.DataObject
) -> None:
    writers = min(total, budget + past)
    rules = replace(RULES, budget_nodes=budget)
    times = data.draw(st.lists(st.integers(0, 2), min_size=writers, max_size=writers))
    cluster = Cluster(total, 0, ())
    cluster.drained = {f"n{n:02d}": NOW + seconds for n, seconds in enumerate(times)}
    holds = {me: overshoot(cluster.listed(me), XID, rules) for me in cluster.drained}
    gone = {me for me, limit in holds.items() if limit is not None and not limit.wait}
    assert len(gone) == max(0, writers - budget)
    for me in gone:
        del cluster.drained[me]
    assert all(overshoot(cluster.listed(me), XID, rules, waited=True) is None for me in cluster.drained)
