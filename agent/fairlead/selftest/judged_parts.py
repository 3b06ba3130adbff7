"""Reads the whole machine as the agent does, judges it with every check, and plans every setting. It applies nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from fairlead import checks, config, judge, settings
from fairlead.errors import ConfigError
from fairlead.host.gather import gather
from fairlead.host.kmsg import past_now
from fairlead.host.nvml import Worker
from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.finding import Finding, Level
from fairlead.model.setting import HardwareAbsent, Setting, Want
from fairlead.selftest.fact_sources import Reading, serials
from fairlead.selftest.part_process import Message, doing


def judge_machine(reading: Reading, nvml_failed: str) -> Iterator[Message]:
    """Yield a row for each check and each setting. ``nvml_failed``: why NVML is not asked again, or "" to ask it."""
    document = reading.document
    raw: Any = unreadable(nvml_failed)
    stuck = None
    if not nvml_failed:
        yield doing("ask NVML")
        worker = Worker(document.agent.nvml_deadline_seconds)
        try:
            result = worker.sweep()
            raw, stuck = result.raw, result.stuck
        finally:
            worker.close()
        yield {"secrets": serials(raw)}
    yield doing("read the machine")
    wanted, unsupported = judge.wanted(document), document.unsupported
    node = gather(reading.root, raw, reads=reading.patterns, wanted=wanted, unsupported=unsupported, stuck=stuck)
    yield doing("read the kernel log")
    past = past_now(document.agent.kmsg_path, node.boot_id if isinstance(node.boot_id, str) else "")
    for name, check in checks.load().items():
        yield doing(f"judge by the check {name}")
        yield {"check": _judged(name, check, document.checks[name], node, past)}
    for name, setting in settings.load().items():
        yield doing(f"plan the setting {name}")
        yield {"setting": _planned(name, setting, node, document)}


def _judged(name: str, check: Check, params: CheckParams, node: Node, past: Past) -> Message:
    began = time.monotonic()
    if not params.enabled:
        return {"name": name, "state": "off"}
    try:
        found = list(check.findings(node, past, params))
    except Exception as e:  # a bug in one check must not stop the other checks
        return {"name": name, "state": "failed", "reasons": [f"{type(e).__name__}: {e}"]}
    lacks = [f for f in found if f.level is Level.UNKNOWN and not f.needs_history]
    return {
        "name": name,
        "state": "lacks" if lacks else "judged",
        "reasons": list(dict.fromkeys(f.summary for f in lacks)),
        "milliseconds": (time.monotonic() - began) * 1000,
        **_levels(found),
    }


def _levels(found: Iterable[Finding]) -> Message:
    words = [f.level.word for f in found]
    return {level.word: words.count(level.word) for level in Level}


def _planned(name: str, setting: Setting, node: Node, document: config.Document) -> Message:
    declared = document.settings.get(name)
    began = time.monotonic()
    state, reasons, changes = _plan(setting, declared or setting.want(), node)
    took = (time.monotonic() - began) * 1000
    said = {"name": name, "state": state, "reasons": reasons, "changes": changes, "milliseconds": took}
    return {**said, "declared": declared is not None}


def _plan(setting: Setting, want: Want, node: Node) -> tuple[str, list[str], int]:
    """Return the state of a SettingRow, the reasons, and the length of the plan."""
    try:
        observed = setting.observe(node)
        if isinstance(observed, Missing):
            return "missing", [observed.detail], 0
        return "planned", [], len(setting.plan(want, observed))
    except HardwareAbsent as e:
        return "absent", [e.missing], 0
    except ConfigError as e:
        return "refused", [e.reason], 0
    except Exception as e:  # a bug in one setting must not stop the other settings
        return "failed", [f"{type(e).__name__}: {e}"], 0
