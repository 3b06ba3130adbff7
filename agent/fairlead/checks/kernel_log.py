"""Reports kernel records that the site declares. Each pattern has a name, a level and an action of its own.

The check reads only records of the facility kernel, because processes may write records of other facilities (syslog(3),
Documentation/ABI/testing/dev-kmsg). A pattern matches from the start of the record's text, and only the first 400 characters of a
record are read. A pattern is a regular expression of Python's ``re``. It begins with at least four plain characters, and the
agent selects records by these characters. In a pattern, only single characters or classes may be repeated, and at most two
repetitions may be unbounded. So no record can delay the agent.

The text of a record is not shown, since it may hold names of processes. Two kinds of records are never matched, because a user
chooses how they begin: records that begin with a task's name (crashes, "NAME invoked oom-killer"), and lines of a firewall. A
task's name has at most 15 characters. A pattern cannot match such a record by mistake if it begins with at least 16 fixed
characters and has no text that the kernel writes after a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any

from msgspec import Meta, Struct

from fairlead.model.check_definition import Check, CheckParams, KernelRecord, Past
from fairlead.model.facts import Node
from fairlead.model.finding import Action, Finding, Level, Mode, Service
from fairlead.model.hung_tasks import waiting_for_fuse
from fairlead.model.unread import age_seconds, record_id, unread_log

RECORD_CHARACTERS = 400
_WAYS_MAX = 200_000  # enough for two unbounded repetitions; the worst record then takes a few milliseconds to match
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
_SINGLE = {"LITERAL", "NOT_LITERAL", "ANY", "IN", "CATEGORY"}
_PLAIN = {*_SINGLE, "AT", "BRANCH", "SUBPATTERN", *_REPEATS}


class Pattern(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Describes one kind of record that the site declares."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9_-]{1,40}(?!\n)$", description="Name of the finding.")]
    regex: Annotated[
        str, Meta(min_length=4, max_length=300, description="The pattern, which matches from the start of the record's text.")
    ]
    service: Annotated[Service, Meta(description="keep (warn), drain_after_job or drain_now.")] = Service.KEEP
    action: Annotated[Action, Meta(description="What to do next.")] = Action.NONE
    count: Annotated[
        int, Meta(ge=1, le=20, description="The check reports the pattern at this many records or more within `seconds`.")
    ] = 1
    seconds: Annotated[int, Meta(ge=1, description="A record counts for this long.")] = 86400

    def __post_init__(self) -> None:
        prefix(self.regex)


class Params(CheckParams, frozen=True, kw_only=True):
    patterns: Annotated[tuple[Pattern, ...], Meta(description="The site's patterns: name, regex, service, action.")] = ()

    def __post_init__(self) -> None:
        names = [p.name for p in self.patterns]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two patterns are called {name}")


@lru_cache(maxsize=256)
def prefix(regex: str) -> str:
    """Return the plain characters that a pattern begins with. Raise ValueError with the reason if the pattern is not accepted."""
    from re import _parser  # type: ignore[attr-defined]

    try:
        tree: Any = _parser.parse(regex)
        re.compile(regex)
    except (re.error, OverflowError, RecursionError) as e:
        raise ValueError(f"regex {regex!r}: {e}") from None
    if tree.state.flags & ~re.UNICODE:
        raise ValueError(f"regex {regex!r}: flags are not accepted")
    plain = ""
    for op, argument in tree:
        if str(op) == "AT" and not plain:
            continue  # a "^" adds nothing: every pattern matches from the start
        if str(op) != "LITERAL":
            break
        plain += chr(argument)
    if len(plain) < 4:
        raise ValueError(f"regex {regex!r}: begins with fewer than four plain characters")
    _ways(tree, regex)
    return plain


def _ways(tree: Any, regex: str) -> int:
    """Return an upper bound for the number of ways in which ``re`` can try a parsed pattern from one position of a record. Raise
    ValueError if the pattern is not accepted."""
    ways = 1
    for op, argument in tree:
        name = str(op)
        if name not in _PLAIN:
            raise ValueError(f"regex {regex!r}: {name.lower()} is not accepted")
        if name in _REPEATS:
            least, most, inner = argument
            if int(most) > 1 and (len(inner) != 1 or str(inner[0][0]) not in _SINGLE):
                raise ValueError(f"regex {regex!r}: only single characters and classes may be repeated")
            ways *= (min(int(most), RECORD_CHARACTERS) - min(int(least), RECORD_CHARACTERS) + 1) * _ways(inner, regex)
        elif name == "SUBPATTERN":
            ways *= _ways(argument[-1], regex)
        elif name == "BRANCH":
            ways *= sum(_ways(branch, regex) for branch in argument[1])
        if ways > _WAYS_MAX:
            raise ValueError(f"regex {regex!r}: too many repetitions and alternatives, one after the other")
    return ways


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    if not params.patterns:
        return
    yield from unread_log(past)
    left_out = waiting_for_fuse(node, past)
    for pattern in params.patterns:
        start, compiled = prefix(pattern.regex), re.compile(pattern.regex)
        found = [
            r
            for r in past.records
            if r.text.startswith(start)
            and r.sequence not in left_out
            and age_seconds(r, node) <= pattern.seconds
            and compiled.match(r.text[:RECORD_CHARACTERS])
        ]
        if len(found) >= pattern.count:
            yield _finding(pattern, found, node)


def _finding(pattern: Pattern, found: list[KernelRecord], node: Node) -> Finding:
    last = found[-1]
    follow_up = "" if pattern.action is Action.NONE else f": {pattern.action.value}"
    return Finding(
        level=Level.WARN if pattern.service is Service.KEEP else Level.DRAIN,
        device=pattern.name,
        summary=f"{pattern.name} in the kernel log{follow_up}",
        evidence=(f"kernel log at {last.seconds:.1f} s, record {last.sequence}, {len(found)} lines",),
        action=pattern.action,
        service=pattern.service,
        evidence_id=record_id(last, node),
        fault=pattern.name,
    )


def reads_records(params: Params) -> tuple[str, ...]:
    """Return the plain characters that the declared patterns begin with."""
    return tuple(prefix(p.regex) for p in params.patterns)


check = Check(
    summary="Kernel records that the site declares",
    params=Params,
    judge=judge,
    mode=Mode.OBSERVE,
    reads_records=reads_records,
)
