"""Judges a node and its past with every enabled check and every declared setting. The input is facts, the output is findings.

``decide_at_once`` decides on the findings of one reading. `fairlead check` uses it, because a command has no earlier readings.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec.structs import replace

from fairlead import checks, settings
from fairlead.checks import gpu_count
from fairlead.config import Document
from fairlead.errors import ConfigError
from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.facts import Node
from fairlead.model.finding import Finding, Level
from fairlead.model.host_facts import Wanted
from fairlead.model.setting import drift
from fairlead.policy import CheckPolicy, Decision, Now, PolicyState, decide


def reads(document: Document) -> tuple[str, ...]:
    """Return the files whose text the enabled checks and the declared settings need."""
    wanted = [path for name, check in checks.load().items() if _judges(check, document.checks[name]) for path in check.reads]
    wanted += [path for name, want in document.settings.items() for path in settings.load()[name].wanted_reads(want)]
    return tuple(dict.fromkeys(wanted))


def quick_reads(document: Document) -> tuple[str, ...]:
    """Return the files that are read at every sweep. They are the files of the checks that are judged at every sweep."""
    quick = [c for name, c in checks.load().items() if _judges(c, document.checks[name]) and not c.slow]
    return tuple(dict.fromkeys(path for check in quick for path in check.reads))


def _judges(check: Check, params: CheckParams) -> bool:
    return params.enabled and (check.judges is None or check.judges(params))


def wanted(document: Document) -> Wanted:
    """Return what the enabled checks need from the host: which mounts to read, and whether to read the systemd units."""
    asked = [c.wants(document.checks[n]) for n, c in checks.load().items() if c.wants and document.checks[n].enabled]
    return Wanted(
        mounts=tuple(dict.fromkeys(path for want in asked for path in want.mounts)), units=any(want.units for want in asked)
    )


def heeded_by(text: str, wakes: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """Yield the names of the checks that a kernel record matters to. ``wakes``: the prefixes of kernel records for each check."""
    loaded = checks.load()
    for name, known in wakes.items():
        if text.startswith(known) and loaded[name].heeds(text):
            yield name


def prefixes(document: Document) -> dict[str, tuple[str, ...]]:
    """Return, for each enabled check, the prefixes of the kernel records that wake it.

    A check has prefixes of its own, and its parameters may declare more.
    """
    found = {}
    for name, check in checks.load().items():
        params = document.checks[name]
        if params.enabled and (known := (*check.wakes_on, *(check.reads_records(params) if check.reads_records else ()))):
            found[name] = known
    return found


def quick_checks(document: Document) -> frozenset[str]:
    """Return the names of the checks whose facts every sweep reads. A thorough sweep reads all facts.

    Only thorough sweeps judge the drift of settings, because a setting changes only if a person or a daemon changes it.
    """
    return frozenset(n for n, check in checks.load().items() if document.checks[n].enabled and not check.slow)


def judge(document: Document, node: Node, past: Past, only: Collection[str] | None = None) -> tuple[Finding, ...]:
    """Return all findings about a node. ``only``: the names of the checks to use (``setting.NAME`` for drift), or None for all.

    A check that fails on unexpected facts yields a finding of level ``unknown``, because what was not judged is not healthy.
    """
    found: list[Finding] = []
    another_kind = _has_another_kind(document, node)
    for name, check in checks.load().items():
        params = document.checks[name]
        if params.enabled and (only is None or name in only):
            if another_kind and check.another_gpu:
                params = replace(params, **check.another_gpu)
            found += _guarded(name, check.findings(node, past, params))
    for name, want in document.settings.items():
        if want.managed and (only is None or f"setting.{name}" in only):
            found += _guarded(f"setting.{name}", drift(name, settings.load()[name], want, node, document.unsupported))
    return tuple(found)


def _has_another_kind(document: Document, node: Node) -> bool:
    params = document.checks["gpu_count"]
    return params.enabled and isinstance(params, gpu_count.Params) and gpu_count.is_another_kind(node, params)


def _guarded(name: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    try:
        yield from findings
    except ConfigError as e:
        yield Finding(check=name, level=Level.UNKNOWN, summary=str(e))
    except Exception as e:  # a bug in one check must not stop the other checks
        summary = f"the check itself failed: {type(e).__name__}: {e}"
        yield Finding(check=name, level=Level.UNKNOWN, summary=" ".join(summary.split())[:200])


def policies_of(document: Document) -> dict[str, CheckPolicy]:
    """Return the policy of every enabled check and managed setting (``setting.NAME``)."""
    loaded = checks.load()
    found = {n: CheckPolicy.of(loaded[n], params) for n, params in document.checks.items() if params.enabled}
    found |= {f"setting.{n}": CheckPolicy.of_setting(want.mode) for n, want in document.settings.items() if want.managed}
    return found


def decide_at_once(document: Document, node: Node, findings: Iterable[Finding], only: Collection[str] | None = None) -> Decision:
    """Return the decision that the agent would make on the findings of one reading, once it has confirmed them.

    The agent's own policy decides, so that a command never contradicts the agent. A check in mode ``observe`` drains nothing, and
    boot grace applies. Acknowledgements, an admin hold, the budgets and a running apply are left out, because only the agent
    knows them. Findings that need history are left out, because one reading cannot judge them. ``only``: as in ``judge``.
    """
    at_once = {"confirm": 1, "confirm_after_job": 0, "confirm_warn": 0, "confirm_of": 1}
    policies = {n: replace(p, **at_once) for n, p in policies_of(document).items() if only is None or n in only}
    boot_id = node.boot_id if isinstance(node.boot_id, str) else ""
    up_seconds = node.uptime_seconds if isinstance(node.uptime_seconds, float) else math.inf
    now = Now(boot_seconds=up_seconds, wall_seconds=0.0, boot_id=boot_id)
    judged = [f for f in findings if not f.needs_history]
    return decide(judged, policies, PolicyState(boot_id=boot_id), now, document.policy)
