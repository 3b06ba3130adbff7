"""Sleeping tasks, units, the clock, sizes and the site's own kernel records, and their harmless twins."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from fairlead.checks import kernel_log
from fairlead.config.document import decode_document
from fairlead.errors import ConfigError
from fairlead.model.check import Past
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.finding import Action, Level, Service
from fairlead.model.host_facts import Clock, StuckTask, Tasks, UnitState
from tests.checks.hosts import NOW, host_node, judged, levels, past, samples
from tests.checks.nodes import BOOT, log

NA = unreadable("Input/output error")


def asleep(seconds: float, **changes: Any) -> Node:
    return host_node(tasks=Tasks(total=900, seen=400, stuck=(StuckTask(pid=4711, seconds=seconds, **changes),)))


@pytest.mark.parametrize(
    ("node", "level"),
    [
        (asleep(1), None),  # what every disk read looks like
        (asleep(299), None),
        (asleep(300), Level.WARN),
        (asleep(300, kernel=True), Level.WARN),
        (asleep(60, killed=True), None),
        (asleep(130, killed=True, job=12, step="0"), Level.DRAIN),
        (host_node(tasks=NA), Level.UNKNOWN),
    ],
)
def test_sleeping_tasks(node: Node, level: Level | None) -> None:
    assert [f.level for f in judged("stuck_tasks", node)] == ([level] if level is not None else [])


def test_an_unkillable_step_is_named_and_nothing_a_user_chose() -> None:
    (found,) = judged("stuck_tasks", asleep(130, killed=True, job=12, step="0"))
    assert found.summary == "1 tasks of job 12 cannot be killed: reboot_node"
    assert (found.evidence, found.action, found.service) == (
        ("process 4711 (job 12 step 0)",),
        Action.REBOOT_NODE,
        Service.DRAIN_NOW,
    )
    assert judged("stuck_tasks", asleep(3), Past())[0].needs_history
    record = "INFO: task evil; resume me:1234 blocked for more than 120 seconds."
    (told,) = judged("stuck_tasks", host_node(), log(record))
    assert told.level is Level.WARN and "evil" not in told.summary + str(told.evidence)
    assert judged("stuck_tasks", host_node(), log(record, seconds=NOW - 4000)) == []
    assert judged("stuck_tasks", asleep(300, kernel=True), kernel_threads=False) == []


def unit(active: str = "active", sub: str = "running", load: str = "loaded", name: str = "slurmd.service") -> UnitState:
    return UnitState(name=name, load=load, active=active, sub=sub)


@pytest.mark.parametrize(
    ("units", "level"),
    [
        ((unit(),), None),
        ((unit("reloading", "reload"),), None),
        ((unit("failed", "failed"),), Level.DRAIN),
        ((unit("inactive", "dead"),), Level.DRAIN),
        ((unit("activating", "auto-restart"),), Level.DRAIN),
        ((unit("inactive", "dead", load="not-found"),), Level.DRAIN),
        ((unit(name="munge.service"),), Level.DRAIN),
        ((), Level.UNKNOWN),
        (NA, Level.UNKNOWN),
    ],
)
def test_units(units: Any, level: Level | None) -> None:
    found = judged("units", host_node(units=units), wanted=("slurmd.service",))
    assert levels(found) == ([(level, "" if level is Level.UNKNOWN else "slurmd.service")] if level is not None else [])
    assert judged("units", host_node(units=units)) == []


def test_units_that_failed_and_are_not_wanted() -> None:
    others = (unit(), unit("failed", "failed", name="apt-daily.service"), unit("failed", "failed", name="user@1000.service"))
    assert levels(judged("units", host_node(units=others), failed=True)) == [(Level.WARN, "apt-daily.service")]
    assert judged("units", host_node(units=others), wanted=("slurmd.service",)) == []


def clock(offset: float = 1.7e9, *, synchronised: bool = True, error: float = 0.02) -> Node:
    return host_node(
        clock=Clock(synchronised=synchronised, maximum_error_seconds=error, estimated_error_seconds=0.0, offset_seconds=offset)
    )


def history(*offsets: float, every: float = 60.0) -> Past:
    return past(samples("clock", "offset_seconds", *offsets, every=every))


@pytest.mark.parametrize(
    ("node", "known", "fault"),
    [
        (clock(), history(1.7e9, 1.7e9), None),
        (clock(synchronised=False), past(), "unsynchronised"),
        (clock(error=7.5), past(), "error"),
        (clock(1.7e9 + 30), history(1.7e9, 1.7e9), "step"),
        (clock(1.7e9 - 30), history(1.7e9, 1.7e9), "step"),
        (clock(1.7e9 + 30), history(1.7e9, 1.7e9 + 30, 1.7e9 + 30), "step"),  # still told for a while
        (clock(1.7e9 + 0.5), history(1.7e9), None),  # slewed
        (clock(1.7e9 + 4), history(1.7e9, every=3500.0), None),  # 1100 ppm over an hour without a sample
        (clock(1.7e9 + 30), history(1.7e9, every=7000.0), None),  # no sample in the window to compare with
    ],
)
def test_clock(node: Node, known: Past, fault: str | None) -> None:
    assert [(f.level, f.fault) for f in judged("clock", node, known)] == ([(Level.WARN, fault)] if fault else [])


def test_a_clock_that_nobody_has_to_set_and_one_that_cannot_be_read() -> None:
    assert judged("clock", clock(synchronised=False, error=16.0), synchronised=False) == []
    assert [f.level for f in judged("clock", host_node(clock=NA))] == [Level.UNKNOWN]


@pytest.mark.parametrize(
    ("params", "changes", "level"),
    [
        ({"memory_bytes_min": 1 << 40}, {}, None),
        ({"memory_bytes_min": 3 << 40}, {}, Level.DRAIN),
        ({"memory_bytes_min": 1 << 40}, {"memory_bytes": NA}, Level.UNKNOWN),
        ({"cpus_expected": 112}, {}, None),
        ({"cpus_expected": 112}, {"cpus_online": 111}, Level.DRAIN),
        ({"cpus_expected": 112}, {"cpus_online": 224}, Level.WARN),
        ({"cpus_expected": 112}, {"cpus_online": NA}, Level.UNKNOWN),
        ({"smt": False}, {}, None),
        ({"smt": True}, {}, Level.DRAIN),
        ({"smt": False}, {"smt": "notsupported"}, None),
        ({"smt": False}, {"smt": NA}, Level.UNKNOWN),
        ({}, {"memory_bytes": NA, "cpus_online": NA, "smt": NA}, None),  # nothing declared
    ],
)
def test_sizes(params: dict[str, Any], changes: dict[str, Any], level: Level | None) -> None:
    assert [f.level for f in judged("cpu_memory", host_node(**changes), **params)] == ([level] if level is not None else [])


def pattern(**changes: Any) -> dict[str, Any]:
    made = kernel_log.Pattern(**{"name": "soft-lockup", "regex": r"watchdog: BUG: soft lockup - CPU#\d+ stuck", **changes})
    return {"patterns": (made,)}


LOCKUP = "watchdog: BUG: soft lockup - CPU#6 stuck for 23s! [VM Thread:4054]"


def test_the_sites_own_records() -> None:
    (warn,) = judged("kernel_log", host_node(), log(LOCKUP), **pattern())
    assert (warn.level, warn.device, warn.summary) == (Level.WARN, "soft-lockup", "soft-lockup in the kernel log")
    assert warn.evidence == ("kernel log at 9990.0 s, record 100, 1 lines",) and "Thread" not in str(warn)
    (bad,) = judged("kernel_log", host_node(), log(LOCKUP), **pattern(service=Service.DRAIN_NOW, action=Action.REBOOT_NODE))
    assert (bad.level, bad.summary, bad.evidence_id) == (Level.DRAIN, "soft-lockup in the kernel log: reboot_node", f"{BOOT}:100")
    assert judged("kernel_log", host_node(), log("x" + LOCKUP), **pattern()) == [], "only from the start of the record"
    assert judged("kernel_log", host_node(), log(LOCKUP), **pattern(count=2)) == []
    assert judged("kernel_log", host_node(), log(LOCKUP, LOCKUP), **pattern(count=2)) != []
    assert judged("kernel_log", host_node(), log(LOCKUP, seconds=NOW - 90000), **pattern()) == []
    assert judged("kernel_log", host_node(), log(LOCKUP)) == []
    assert [f.level for f in judged("kernel_log", host_node(), past(log=NA), **pattern())] == [Level.UNKNOWN]
    assert kernel_log.reads_records(kernel_log.Params(**pattern())) == ("watchdog: BUG: soft lockup - CPU#",)


@pytest.mark.parametrize(
    ("regex", "why"),
    [
        ("soft lockup(", "unterminated subpattern"),
        ("abc.d", "begins with fewer than four plain characters"),
        (".*soft lockup", "begins with fewer than four plain characters"),
        ("(?i)watchdog", "flags are not taken"),
        ("watchdog(a+)+", "only single characters and classes may be repeated"),
        ("watchdog(a|a)*b", "only single characters and classes may be repeated"),
        ("watchdog.*.*.*", "too many repetitions"),
        ("watchdog" + "a{0,64}" * 5, "too many repetitions"),
        ("watchdog" + "(a|a)" * 25, "too many repetitions"),
        (r"watchdog(a)\1", "groupref is not taken"),
        ("watchdog(?=a)", "assert is not taken"),
    ],
)
def test_a_pattern_that_could_hold_up_the_agent_is_refused(regex: str, why: str) -> None:
    with pytest.raises(ValueError, match=r"regex ") as e:
        kernel_log.Pattern(name="x", regex=regex)
    assert why in str(e.value)
    data = {"schema": 1, "generation": 1, "node": "n1", "checks": {"kernel_log": {"patterns": [{"name": "x", "regex": regex}]}}}
    with pytest.raises(ConfigError, match=r"checks.kernel_log.patterns") as refused:
        decode_document(msgspec.json.encode(data), "node.json")
    assert why in str(refused.value)


def test_the_worst_pattern_that_is_taken_is_quick() -> None:
    (params,) = pattern(regex="watchdog.*a.*b")["patterns"]
    start = time.process_time()
    for _ in range(10):
        judged("kernel_log", host_node(), log("watchdog" + "a" * 5000), patterns=(params,))
    assert time.process_time() - start < 10


def test_two_patterns_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two patterns are called soft-lockup"):
        kernel_log.Params(patterns=(*pattern()["patterns"], *pattern()["patterns"]))


@pytest.mark.parametrize("check", ["rdma_ports", "memory_errors", "disks", "fs_errors", "clock", "stuck_tasks"])
def test_a_host_that_was_not_read_is_unknown(check: str) -> None:
    node = host_node()
    blind = msgspec.structs.replace(node, host=Missing(NA.why, "not read"))
    assert [f.level for f in judged(check, blind)] == [Level.UNKNOWN]
