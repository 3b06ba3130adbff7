"""The site's own patterns of kernel records."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from fairlead.checks import kernel_log
from fairlead.config.document import decode_document
from fairlead.errors import ConfigError
from fairlead.model.facts import unreadable
from fairlead.model.finding import Action, Level, Service
from tests.checks.hosts import NOW, host_node, judged, past
from tests.checks.nodes import BOOT, log

NA = unreadable("Input/output error")


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
        ("(?i)watchdog", "flags are not accepted"),
        ("watchdog(a+)+", "only single characters and classes may be repeated"),
        ("watchdog(a|a)*b", "only single characters and classes may be repeated"),
        ("watchdog.*.*.*", "too many repetitions"),
        ("watchdog" + "a{0,64}" * 5, "too many repetitions"),
        ("watchdog" + "(a|a)" * 25, "too many repetitions"),
        (r"watchdog(a)\1", "groupref is not accepted"),
        ("watchdog(?=a)", "assert is not accepted"),
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
