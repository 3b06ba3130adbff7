"""Reports the result of a provisioning run as JSON, as text for a person, and as a page for a change ticket. Nodes with equal
outcome are one group."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import msgspec
from msgspec import Struct, field

from fairlead.errors import ExitCode
from fairlead.model.plain_text import aside, one_line
from fairlead.nccl.compute_ports import PortDifference
from fairlead.provision.inventory import fold
from fairlead.provision.node_answer import HINT, SAID, TEXT_MAX
from fairlead.provision.report_width import counted, names, within
from fairlead.provision.same_failures import of_any_node, of_several, shown_texts

DOCUMENT = "node.json"  # the name of the document in an error of a setting
DIFF_LINES_MAX = 1000
SHOWN_LINES_MAX = 10_000
STATES = ("same", "changed", "failed", "unreachable", "unfinished")
_ADVISED = {"failed", "refused", "unreadable", "absent"}  # states of a setting whose hint is shown
#: What a deferred change waits for, in words. The least disruptive is first (fairlead.model.change.Disruption).
WAITS = {
    "idle": "an idle node",
    "draining": "a node that is drained, where jobs may still run",
    "drain": "a drained node",
    "reboot": "a reboot",
}


class NodeResult(Struct, frozen=True, kw_only=True):
    """Describes one node's outcome. state: same, changed (in check mode: would change), failed, unreachable, unfinished.

    waiting: the settings that were deferred. waits: for each setting in ``waiting``, the key of WAITS that it waits for.
    hint_of_node: the hint came from the node. It is then shown as the node's words, and not as fairlead's advice.
    """

    node: str
    state: str
    changed: int = 0
    changes: tuple[str, ...] = ()  # each is "what: why", with the same words on equal nodes
    waiting: tuple[str, ...] = ()  # "setting: why"
    waits: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()  # "setting: why": the node has no hardware for this setting
    message: str = ""
    hint: str = ""
    hint_of_node: bool = False
    task: str = ""
    apply: Mapping[str, Any] = field(default_factory=dict)
    diffs: tuple[str, ...] = ()
    no_wheel: Mapping[str, str] = field(default_factory=dict)


class ClassDifference(Struct, frozen=True, kw_only=True):
    """Describes a difference between the nodes of one class. name: the site's name of that class."""

    name: str
    difference: PortDifference

    def text(self) -> str:
        """Return one line: "class h100: gpu[3,17]: ports: 7 InfiniBand up, mlx5_3 down; the other 410 have 8 InfiniBand up"."""
        d = self.difference
        return f"class {self.name}: {names(d.nodes)}: {d.aspect}: {d.said}; {_others(d.others)} {d.usual}"


class ProvisionReport(Struct, frozen=True, kw_only=True):
    """Holds the result of a run. seconds: how long it took. began: Unix time. tags: the chosen settings, () for all.
    undeclared: nodes that Slurm has and the site does not declare."""

    schema: int = 1
    site: str
    generation: int
    check: bool
    seconds: float
    nodes: tuple[NodeResult, ...]
    networks: tuple[ClassDifference, ...] = ()  # nodes whose network differs from that of most nodes of their class
    began: float = 0.0
    tags: tuple[str, ...] = ()
    undeclared: tuple[str, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """Return the first of these that is true: 69 if a node failed, 68 if a node was not reached, 75 if a change waits (see
        WAITS; not in check mode), 1 if a node has no hardware for a setting. Otherwise return 0: all is as declared."""
        states = {n.state for n in self.nodes}
        if states & {"failed", "unfinished"}:
            return ExitCode.UNAVAILABLE
        if "unreachable" in states:
            return ExitCode.NO_HOST
        if any(n.waiting for n in self.nodes) and not self.check:
            return ExitCode.TRY_AGAIN
        return ExitCode.WARN if any(n.warnings for n in self.nodes) else ExitCode.OK

    @property
    def detailed_exit_code(self) -> ExitCode:
        """Return ``exit_code``, but 1 in place of 0 if a node was changed (in check mode: would change)."""
        changed = any(n.state == "changed" for n in self.nodes)
        return ExitCode.WARN if changed and self.exit_code is ExitCode.OK else self.exit_code

    def count(self, state: str) -> int:
        return sum(n.state == state for n in self.nodes)


def node_result(node: str, event: str, task: str, res: Mapping[str, Any]) -> NodeResult:
    """Return a node's outcome from the runner's event for it (runner_on_ok, runner_on_failed, runner_on_unreachable)."""
    if event == "runner_on_unreachable":
        words = one_line(str(res.get("msg", "")), TEXT_MAX)
        return NodeResult(node=node, state="unreachable", message=words, hint=_reach_hint(words), task=task)
    if event == "runner_on_ok" and "changes" not in res:  # ansible-runner empties a result that is too long
        res = {"failed": True, "msg": f"{SAID}: its result is empty", "hint": HINT}
    if not res.get("apply") and (event != "runner_on_ok" or res.get("failed")):
        words = one_line(str(res.get("msg") or res.get("exception") or "no message"), TEXT_MAX)
        return NodeResult(
            node=node,
            state="failed",
            message=words,
            hint=one_line(str(res.get("hint") or ""), TEXT_MAX),
            hint_of_node=bool(res.get("of_node")),
            task=task,
            failures=(words,),
            no_wheel=dict(res.get("no_wheel") or {}),
        )
    applied = dict(res.get("apply") or {})
    changes = [f"{c['what']}: {c['why']}" for c in res.get("changes", ())]
    waiting, waits, failures, warnings, diffs = [], [], [], [], []
    left_out = int(res.get("left_out", 0))
    changes += [f"and {left_out} more, left out here"] if left_out else []
    for c in res.get("changes", ()):
        if "after" in c:
            diffs.append(_diff(c))
    for item in applied.get("items", ()):
        steps = item.get("steps", ())
        if item["state"] in {"changed", "would_change"}:
            changes.append(f"{item['setting']}: {item['message']}")
            diffs += [step["diff"] for step in steps]
        elif made := [step for step in steps if step.get("done")]:  # a part was done, and the rest waits or has failed
            more = len({step["why"] for step in made}) - 1
            changes.append(f"{item['setting']}: {made[0]['why']}" + (f" (and {more} more)" if more else ""))
            diffs += [step["diff"] for step in made]
        if item["state"] == "deferred":
            waiting.append(f"{item['setting']}: {item['message']}")
            waits.append(item["pending"] if item.get("pending") in WAITS else "idle")
        elif item["state"] in {"failed", "refused", "unreadable"}:
            failures.append(f"{item['setting']}: {item['message']}")
        elif item["state"] == "absent":
            warnings.append(f"{item['setting']}: {item['message']}")
    state = "failed" if failures else ("changed" if changes else "same")
    return NodeResult(
        node=node,
        state=state,
        changed=len(changes) + max(0, left_out - 1),
        changes=tuple(changes),
        waiting=tuple(waiting),
        waits=tuple(waits),
        failures=tuple(failures),
        warnings=tuple(warnings),
        message=one_line("; ".join(failures), TEXT_MAX),
        hint=(hint := next((i["hint"] for i in applied.get("items", ()) if i.get("hint") and i["state"] in _ADVISED), "")),
        hint_of_node=bool(hint),
        task=task,
        apply=applied,
        diffs=tuple(diffs),
    )


def with_origin(result: NodeResult, origin: Mapping[str, str]) -> NodeResult:
    """Return the result with the name of the declaring file in each failure of a setting. The node only has its document, which
    does not name that file. ``origin``: the file that declares each key."""
    failures = tuple(located(f, origin) for f in result.failures)
    if failures == result.failures:
        return result
    return msgspec.structs.replace(result, failures=failures, message=one_line("; ".join(failures), TEXT_MAX))


def located(failure: str, origin: Mapping[str, str]) -> str:
    """Return the failure ("setting: what is wrong") with the name of the file that declares the setting, if ``origin`` has it."""
    setting, _, rest = failure.partition(": ")
    said = {where: key for key, where in origin.items() if key.startswith(f"settings.{setting}.")}
    words = rest.removeprefix(f"{DOCUMENT}: ")
    if words == rest:
        return f"{failure} (declared in {', '.join(said)})" if said else failure
    key = words.partition(": ")[0]
    where = next((w for k, w in origin.items() if k == key or k.startswith(f"{key}.") or key.startswith(f"{k}.")), "")
    return f"{setting}: {where or DOCUMENT}: {words}"


def _diff(change: Mapping[str, Any]) -> str:
    import difflib

    before, after = str(change.get("before", "")).splitlines(), change["after"].splitlines()
    if max(len(before), len(after)) > DIFF_LINES_MAX:  # a diff of long texts takes too much time, and a node may send any text
        before, after = [f"({len(before)} lines)"], [f"({len(after)} lines)"]
    return "\n".join(difflib.unified_diff(before, after, change["what"], change["what"], lineterm="")) + "\n"


def _reach_hint(words: str) -> str:
    if "ermission denied" in words:
        return "is the key of [ansible] private_key authorized on the node?"
    if "ost key verification" in words:
        return "put the node's host key into known_hosts"
    return "is the node up, and does its name or [ansible] hosts lead to it?"


def groups(nodes: Sequence[NodeResult]) -> list[tuple[NodeResult, list[str]]]:
    """Return the groups of nodes with equal outcome: for each, the outcome to show and the nodes. In the failures, a node's own
    name and address may differ. The largest group is first. Nodes that were not reached or not finished are at the end."""
    found: dict[tuple[Any, ...], list[NodeResult]] = {}
    for n in nodes:
        # all values of a node that the report shows
        said = (n.changes, n.waiting, n.waits, n.warnings, n.hint_of_node, len(n.failures), _of_any_node(n))
        found.setdefault((n.state, *said), []).append(n)
    grouped = []
    for group in found.values():
        *failures, message, hint = shown_texts([(*n.failures, n.message, n.hint) for n in group], _of_any_node(group[0]))
        alike = msgspec.structs.replace(group[0], failures=tuple(failures), message=message, hint=hint)
        grouped.append((alike, [n.node for n in group]))
    return sorted(grouped, key=lambda g: (g[0].state in {"unreachable", "unfinished"}, -len(g[1]), g[0].node))


def _of_any_node(n: NodeResult) -> tuple[str, ...]:
    """Return the node's failures, its message and its hint, without the node's own name and address."""
    return tuple(of_any_node(text, n.node, from_ssh=n.state == "unreachable") for text in (*n.failures, n.message, n.hint))


def advice(hint: str, nodes: Sequence[str], *, of_node: bool) -> list[str]:
    """Return the line that says what to do next. It is fairlead's own advice, or the hint of these nodes. A node's hint is
    printed so that it does not look like a command."""
    if not hint or not of_node:
        return [f"  next: {hint}"] if hint else []
    return [f"  {f'{nodes[0]} says' if len(nodes) == 1 else 'each of them says'}: {aside(hint)}"]


def theirs(line: str) -> str:
    """Return a line that has words of a node, changed so that it looks neither like a command nor like fairlead's advice."""
    return aside(f"it says: {line}" if re.match(r"\W*next\b", line, re.IGNORECASE) else line)


def text(report: ProvisionReport, *, diff: bool = False) -> str:
    """Return the report for a person: one paragraph for each group of equal nodes, then the failures that several groups have in
    common, then the totals. The groups that were not reached are the last groups."""
    lines: list[str] = []
    words = {"changed": "would change"} if report.check else {}
    grouped = groups(report.nodes)
    alike = of_several((_FailedNodes.of(example), nodes) for example, nodes in grouped)
    for example, nodes in grouped:
        waiting = f", {len(example.waiting)} waiting" if example.waiting else ""
        lines.append(f"{counted(nodes)}: {words.get(example.state, example.state)}{waiting}")
        lines += within(_paragraph(example, nodes, alike=_FailedNodes.of(example) in alike))
        if diff and example.diffs:
            lines += [f"  diff of {example.node}, the first of them:"] if len(nodes) > 1 else []
            lines += shortened([f"    {line}" for d in example.diffs for line in d.splitlines()])
    for failing, nodes in alike.items():
        lines += [f"{counted(nodes)}: all of them {failing.state} alike", *within(failing.lines(nodes))]
    lines += within(each.text() for each in report.networks)
    if report.undeclared:
        lines.append(f"{names(report.undeclared)}: in Slurm, but in no class of {report.site}: left out")
    return "\n".join([line for line in lines if line] + [summary(report)])


def _paragraph(example: NodeResult, nodes: Sequence[str], *, alike: bool) -> list[str]:
    """Return the lines about a group of equal nodes. ``alike``: other groups have the same failures, so these are shown below."""
    lines = [f"  {theirs(change)}" for change in example.changes]
    lines += [f"  waits for {WAITS[k]}: {aside(w)}" for w, k in zip(example.waiting, example.waits, strict=True)]
    failing = _FailedNodes.of(example)
    if failing is not None:
        lines += ["  as on other nodes, shown below"] if alike else failing.lines(nodes)
    if example.warnings:
        lines += [f"  warning: {aside(w)}" for w in example.warnings]
        lines += advice(example.hint, nodes, of_node=example.hint_of_node) if example.state in {"same", "changed"} else []
    return lines


class _FailedNodes(Struct, frozen=True):
    """Holds the failures of nodes, in which task of the playbook they failed, and what to do next."""

    state: str
    words: tuple[str, ...]
    task: str
    hint: str
    hint_of_node: bool

    @staticmethod
    def of(n: NodeResult) -> _FailedNodes | None:
        if n.state not in {"failed", "unreachable", "unfinished"}:
            return None
        return _FailedNodes(n.state, n.failures or (n.message,), n.task, n.hint, n.hint_of_node)

    def lines(self, nodes: Sequence[str]) -> list[str]:
        task = [f"  task: {self.task}"] if self.task else []
        return [*(f"  {theirs(word)}" for word in self.words), *task, *advice(self.hint, nodes, of_node=self.hint_of_node)]


def shortened(lines: list[str]) -> list[str]:
    """Return the lines of a diff. If there are very many, return only the first lines."""
    more = len(lines) - SHOWN_LINES_MAX
    return lines if more <= 0 else [*lines[:SHOWN_LINES_MAX], f"    and {more} more lines, left out here"]


def ticket(report: ProvisionReport, code: ExitCode, by: str, *, diff: bool = False) -> str:
    """Return the report as a page for a change ticket: what was requested, by whom and when, and then the output of ``text``."""
    stamp = "%Y-%m-%d %H:%M:%S UTC"
    kind = "check (nothing was changed)" if report.check else "change"
    head = [
        f"fairlead provision: {kind}",
        f"by: {by}",
        f"site: {report.site}, generation {report.generation}",
        f"settings: {', '.join(report.tags) or 'all that are declared'}",
        f"began: {time.strftime(stamp, time.gmtime(report.began))}",
        f"ended: {time.strftime(stamp, time.gmtime(report.began + report.seconds))}",
        f"exit code: {int(code)}",
    ]
    return "\n".join([*head, "", text(report, diff=diff), ""])


class EqualNodes(TypedDict):
    """Nodes with equal results, in Slurm's notation. waiting: how many changes wait on each."""

    nodes: str
    count: int
    state: str
    waiting: int


def data(report: ProvisionReport, code: ExitCode) -> dict[str, Any]:
    """Return the report for --json: every node, the groups of equal nodes, the counts, and the exit code."""
    found: dict[str, Any] = msgspec.to_builtins(report)
    grouped = [
        EqualNodes(nodes=fold(nodes), count=len(nodes), state=example.state, waiting=len(example.waiting))
        for example, nodes in groups(report.nodes)
    ]
    counts = {state: report.count(state) for state in STATES if report.count(state)}
    return found | {"counts": counts, "groups": grouped, "exit_code": int(code)}


def _others(count: int) -> str:
    return "the other one has" if count == 1 else f"the other {count} have"


def summary(report: ProvisionReport) -> str:
    """Return the last line: "412 the same, 3 changed, 1 failed (2 of them waiting)"."""
    names = {"same": "the same", "changed": "would change" if report.check else "changed"}
    counts = ", ".join(f"{report.count(s)} {names.get(s, s)}" for s in STATES if report.count(s))
    waiting = sum(bool(n.waiting) for n in report.nodes)
    counts += f" ({waiting} of them waiting)" if waiting else ""
    warned = sum(bool(n.warnings) for n in report.nodes)
    counts += f", {warned} with warnings" if warned else ""
    changes = sum(n.changed for n in report.nodes)
    nodes = f"{len(report.nodes)} node{'' if len(report.nodes) == 1 else 's'}"
    return f"{nodes}: {counts or 'nothing'}; {changes} changes in {report.seconds:.1f} s"
