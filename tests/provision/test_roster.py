"""The roster: who holds a node, what may be called ok, and which rows say the same."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

pytest.importorskip("ClusterShell")

from fairlead.cli.fleet_table import changes, lines, summary, table
from fairlead.provision.agent_accounts import AgentAccount
from fairlead.provision.roster import RosterRow, as_data, fold, out_of_service, rows
from fairlead.slurm.client import JobOn, NodeState
from fairlead.slurm.listing import Listed

NOW = 1_795_300_000
WELL = AgentAccount(reached=True, verdict="ok", age_seconds=3, agent="1.2.0", profile="hgx-h100", generation=3)
LOST = AgentAccount(reached=False, trouble="no answer in 10 s")


def slurm(
    name: str = "n1", states: str = "IDLE", reason: str = "", user: str = "root", *jobs: str, since: int = NOW - 60
) -> Listed:
    state = NodeState(
        name=name,
        states=frozenset(states.split("+")),
        reason=reason,
        reason_user=user if reason else "",
        reason_time=since if reason else 0,
        partitions=("gpu",),
    )
    return Listed(state=state, version="24.11.5", jobs=tuple(JobOn(id=j, state="R", nodes=1) for j in jobs))


@pytest.mark.parametrize(
    ("states", "reason", "by", "name", "why"),
    [
        ("IDLE", "", None, "", ""),
        ("IDLE", "ann: riser swap", None, "", ""),  # 24.11 keeps the words of a drain that was lifted
        ("IDLE+DRAIN", "ann: riser swap", "person", "root", "ann: riser swap"),
        ("DOWN", "burnt", "person", "root", "burnt"),
        ("IDLE+DRAIN", "fairlead:xid:abcdef012345 Xid 79 job=7", "agent", "agent (xid)", "Xid 79 job=7"),
        ("DOWN+DRAIN", "fairlead:xid:abcdef012345 Xid 79 : Not responding", "agent", "agent (xid)", "Xid 79 : Not responding"),
        ("IDLE+DRAIN", "fairlead:manual:abcdef012345 new PSU", "hand", "fairlead drain", "new PSU"),
        ("IDLE+DRAIN", "fairlead:maintain:abcdef012345 driver 580", "maintain", "fairlead maintain", "driver 580"),
        ("IDLE+DRAIN", "fairlead:xid: like one", "person", "root", "fairlead:xid: like one"),
        ("IDLE+DRAIN", "Prolog error", "slurm", "slurm", "Prolog error"),
        ("DOWN+NOT_RESPONDING", "Not responding", "slurm", "slurm", "Not responding"),
        ("IDLE+DRAIN", "gres/gpu count reported lower than configured (7 < 8)", "slurm", "slurm", ""),
        ("IDLE+DRAIN", "two\nlines\x1b[2J", "person", "root", "two lines [2J"),
    ],
)
def test_who_holds_it(states: str, reason: str, by: str | None, name: str, why: str) -> None:
    holder = out_of_service(slurm("n1", states, reason))
    assert (holder.by if holder else None) == by
    if holder is not None:
        assert (holder.name, holder.since_unix) == (name, NOW - 60) and holder.why == (why or reason)


@pytest.mark.parametrize(
    ("states", "word"),
    [
        ("IDLE", "up"),
        ("MIXED+PLANNED", "up"),
        ("ALLOCATED+NOT_RESPONDING", "up+not_responding"),
        ("IDLE+RESERVED", "up+reserved"),
        ("IDLE+DRAIN", "drained"),
        ("MIXED+DRAIN", "draining"),
        ("IDLE+COMPLETING+DRAIN", "draining"),
        ("DOWN+DRAIN+NOT_RESPONDING", "drained+down+not_responding"),
        ("IDLE+MAINTENANCE", "maintenance"),
        ("IDLE+POWERED_DOWN", "powered_down"),
    ],
)
def test_slurms_words(states: str, word: str) -> None:
    assert rows([slurm("n1", states)], None)[0].slurm == word


@pytest.mark.parametrize(
    ("accounts", "word"),
    [
        (None, "not asked"),
        ({}, "unreachable"),
        ({"n1": LOST}, "unreachable"),
        ({"n1": replace(LOST, verdict="ok")}, "unreachable"),
        ({"n1": AgentAccount(reached=True)}, "none"),
        ({"n1": replace(WELL, verdict="stale")}, "stale"),
        ({"n1": replace(WELL, verdict="drain")}, "drain"),
        ({"n1": WELL}, "ok"),
    ],
)
def test_ok_is_only_the_word_of_an_agent_that_was_reached(accounts: dict[str, AgentAccount] | None, word: str) -> None:
    assert rows([slurm()], accounts)[0].word == word


def fleet() -> tuple[RosterRow, ...]:
    nodes = [slurm(f"n{i}", "MIXED" if i % 2 else "IDLE", "", "root", *(["11", "12"] if i % 2 else [])) for i in range(1, 101)]
    nodes[6] = slurm("n7", "IDLE+DRAIN", "fairlead:xid:abcdef012345 Xid 79 on GPU 0000:1b:00.0 job=11", since=NOW - 7200)
    nodes[7] = slurm("n8", "IDLE+DRAIN", "fairlead:xid:bbbbbb012345 Xid 79 on GPU 0000:1b:00.0 job=12", since=NOW - 60)
    accounts = {f"n{i}": replace(WELL, age_seconds=float(i % 9)) for i in range(1, 101)}
    bad = replace(WELL, verdict="drain", text="xid: Xid 79 on GPU 0000:1b:00.0")
    accounts |= {
        "n7": bad,
        "n8": bad,
        "n50": LOST,
        "n60": replace(WELL, drift=("numa_balancing",)),
        "n61": replace(WELL, agent="1.1.0"),
    }
    accounts |= {"n70": AgentAccount(reached=True, trouble="its verdict expired 7 s ago: gone", verdict="stale")}
    accounts |= {"n71": AgentAccount(reached=True, trouble="its verdict expired 99 s ago: gone", verdict="stale")}
    return rows(nodes, accounts)


def test_what_says_the_same_is_one_row_and_the_worst_stands_first() -> None:
    folds = fold(fleet())
    assert [f.nodes for f in folds] == ["n50", "n[70-71]", "n[7-8]", "n[1-6,9-49,51-59,62-69,72-100]", "n60", "n61"]
    worst, stale, drained, well, *_ = folds
    assert (worst.rows[0].word, stale.rows[0].word, drained.rows[0].word, well.rows[0].word) == (
        "unreachable",
        "stale",
        "drain",
        "ok",
    )
    assert drained.since_unix == (NOW - 7200, NOW - 60) and well.jobs == 2 and well.age_seconds == 8.0
    assert sum(len(f.rows) for f in folds) == 100


def test_the_table_and_its_summary() -> None:
    made = fleet()
    head, cells = table(fold(made), NOW)
    assert head == ("NODES", "VERDICT", "SLURM", "JOBS", "SWEPT", "PROFILE", "DRIFT", "AGENT", "SLURMD", "BY", "SINCE", "WHY")
    row = dict(zip(head, cells[2], strict=True))
    assert (row["NODES"], row["BY"], row["SINCE"], row["JOBS"]) == ("n[7-8]", "agent (xid)", "60 s to 2 h", "")
    assert row["WHY"] == "Xid 79 on GPU 0000:1b:00.0"
    assert summary(made, 0.31) == ("100 nodes: 95 ok, 2 drain, 2 stale, 1 unreachable; 2 out of service; 2 jobs; asked in 0.3 s")
    assert lines(fold(made))[3] == "n[1-6,9-49,51-59,62-69,72-100]: ok, up"


@pytest.mark.parametrize(
    ("first", "others", "shown"),
    [
        ("ecc: row remap pending job=4242", "ecc: row remap pending", "ecc: row remap pending"),
        ("gone since 99999999999999 s ago", "gone since 3 s ago", "gone since some time ago"),
        ("xid: Xid 79 job=7", "xid: Xid 79 job=7", "xid: Xid 79 job=7"),
    ],
)
def test_no_job_or_time_of_one_node_is_shown_for_others(first: str, others: str, shown: str) -> None:
    said = {f"n{i}": replace(WELL, verdict="warn", text=others if i > 1 else first) for i in range(1, 4)}
    made = rows([slurm(name) for name in said], said)
    head, cells = table(fold(made), NOW)
    assert [dict(zip(head, c, strict=True))["WHY"] for c in cells] == [shown]
    assert lines(fold(made)) == [f"n[1-3]: warn, up: {shown}"]
    alone = [dict(zip(head, c, strict=True))["WHY"] for c in table(fold(made[:1]), NOW)[1]]
    assert alone == [first], "a row of one node keeps its words"


def test_what_an_agent_that_was_not_reached_is_said_of_it_is_compared() -> None:
    lost = {"n1": replace(LOST, verdict="ok"), "n2": replace(LOST, verdict="ok", trouble="Permission denied")}
    assert len(fold(rows([slurm("n1"), slurm("n2")], lost))) == 2


def test_412_nodes_that_are_well_are_one_line() -> None:
    names = [f"gpu{i:03}" for i in range(1, 413)]
    made = rows([slurm(name) for name in names], dict.fromkeys(names, WELL))
    assert lines(fold(made)) == ["gpu[001-412]: ok, up"]


def test_without_agents_there_is_no_column_of_theirs() -> None:
    made = rows([slurm("n1"), slurm("n2", "IDLE+DRAIN", "ann: riser")], None)
    head, _ = table(fold(made), NOW)
    assert head == ("NODES", "SLURM", "SLURMD", "BY", "SINCE", "WHY")
    assert summary(made, 0.1) == "2 nodes: 1 out of service; 0 jobs; asked in 0.1 s"
    assert lines(fold(made)) == ["n2: drained by root: ann: riser", "n1: up"]


def test_a_watch_tells_changes_folded() -> None:
    before = rows([slurm(f"n{i}") for i in range(1, 5)], {f"n{i}": WELL for i in range(1, 5)})
    after = rows(
        [slurm("n1"), slurm("n2", "IDLE+DRAIN", "ann: riser"), slurm("n3", "IDLE+DRAIN", "ann: riser"), slurm("n9")],
        {"n1": replace(WELL, age_seconds=1), "n2": WELL, "n3": WELL, "n9": LOST},
    )
    told = [line.partition(" ")[2] for line in changes(before, after, NOW)]
    assert told == [
        "n[2-3]: ok, drained by root: ann: riser (was ok, up)",
        "n9: unreachable, up: no answer in 10 s (was not there)",
        "n4: not in Slurm any more",
    ]
    assert changes(after, after, NOW) == []


def test_the_data_of_each_node() -> None:
    data = msgspec.to_builtins(as_data(fleet()))
    assert data["words"]["unreachable"] == "n50" and data["words"]["drain"] == "n[7-8]" and "not asked" not in data["words"]
    seventh = data["nodes"][6]
    assert seventh["drained"] == {
        "by": "agent",
        "check": "xid",
        "user": "root",
        "since_unix": NOW - 7200,
        "why": "Xid 79 on GPU 0000:1b:00.0 job=11",
        "reason": "fairlead:xid:abcdef012345 Xid 79 on GPU 0000:1b:00.0 job=11",
    }
    assert seventh["slurm"] == {"states": ["DRAIN", "IDLE"], "partitions": ["gpu"], "slurmd": "24.11.5"}
    assert seventh["agent"]["verdict"] == "drain" and data["nodes"][0]["jobs"] == [11, 12]


@pytest.mark.parametrize(
    ("states", "word", "out"),
    [
        ("IDLE+POWERED_DOWN", "off", False),
        ("IDLE+POWERING_DOWN", "off", False),
        ("IDLE+POWERING_UP", "off", False),
        ("DOWN+POWERED_DOWN", "unreachable", True),  # it was not back in time
        ("ALLOCATED+POWER_DOWN", "unreachable", False),  # a job runs there, so it should answer
        ("IDLE+DRAIN+POWERED_DOWN", "off", True),
        ("IDLE", "unreachable", False),
    ],
)
def test_what_slurmctld_has_switched_off_is_neither_sick_nor_ok(states: str, word: str, out: bool) -> None:
    (row,) = rows([slurm("n1", states)], {})
    assert (row.word, row.lost) == (word, out)
    assert ("1 out of service" in summary([row], 0.1)) is out and f"1 {word}" in summary([row], 0.1)
    (reached,) = rows([slurm("n1", states)], {"n1": WELL})
    assert reached.word == "ok" and (reached.slurm == "up") is (states == "IDLE")
