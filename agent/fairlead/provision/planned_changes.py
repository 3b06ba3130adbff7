"""Shows what a run would change on each node and why, and which nodes need a reboot or a drain for it. Equal plans are one
group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

import msgspec
from msgspec import Struct

from fairlead.model.isolated import isolated
from fairlead.model.plain_text import aside
from fairlead.provision.inventory import fold
from fairlead.provision.node_answer import HINT
from fairlead.provision.provision_report import WAITS, NodeResult, advice, located, shortened, theirs
from fairlead.provision.report_width import counted, names, within
from fairlead.provision.same_failures import of_any_node, of_several, shown_texts

_ORDER = ("", *WAITS)
SHOWN = 3  # how many lines of one setting the text shows
_BAD = {"failed", "refused", "unreadable"}
_WORDS = {"would_change": "would change"}


class PlannedChange(Struct, frozen=True, kw_only=True):
    """Describes one change. ``setting``: "" for a part of fairlead itself (release, hooks, document, units). ``needs``: what the
    change needs ("", idle, drain or reboot), because a running job would notice the change or not survive it."""

    setting: str
    target: str
    why: str
    needs: str = ""
    diff: str = ""


class NodePlan(Struct, frozen=True, kw_only=True):
    """Describes one node's plan. ``state``: same, would_change, failed (something cannot be changed or read), unreachable.
    ``needs``: the most disruptive need of its changes. ``busy``: a job runs on the node now. ``hint_of_node``: the hint came
    from the node (provision_report.py)."""

    node: str
    state: str
    needs: str = ""
    busy: bool = False
    steps: tuple[PlannedChange, ...] = ()
    failures: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    hint: str = ""
    hint_of_node: bool = False


def of_items(
    node: str,
    items: Iterable[Mapping[str, Any]],
    *,
    busy: bool = False,
    ours: Sequence[PlannedChange] = (),
    origin: Mapping[str, str] = {},
) -> NodePlan:
    """Return a node's plan from the items in the JSON output of a dry run of `fairlead apply`. ours: the changes to fairlead
    itself. origin: the file that declares each key."""
    steps, failures, warnings, hints = list(ours), [], [], []
    for item in items:
        if item["state"] == "absent":
            warnings.append(f"{item['setting']}: {item['message']}")
            hints.append(item.get("hint") or "")
        if item["state"] in _BAD:
            failures.append(located(f"{item['setting']}: {item['message']}", origin))
            hints.append(item.get("hint") or "")
        for step in item.get("steps", ()):
            needs = "" if step["disruption"] == "none" else step["disruption"]
            made = PlannedChange(setting=item["setting"], target=step["target"], why=step["why"], needs=needs, diff=step["diff"])
            steps.append(made)
        if left_out := item.get("left_out"):
            steps.append(PlannedChange(setting=item["setting"], target="", why=f"and {left_out} more, left out here"))
    return NodePlan(
        node=node,
        state="failed" if failures else "would_change" if steps else "same",
        needs=max((s.needs for s in steps), key=_ORDER.index, default=""),
        busy=busy,
        steps=tuple(steps),
        failures=tuple(failures),
        warnings=tuple(warnings),
        hint=next(filter(None, hints), ""),
    )


def of_result(result: NodeResult) -> NodePlan:
    """Return a node's plan from its result of a check run over ssh."""
    if result.state not in {"same", "changed"} and not result.apply:
        state = "unreachable" if result.state == "unreachable" else "failed"
        return NodePlan(node=result.node, state=state, failures=(result.message,), hint=result.hint,
                        hint_of_node=result.hint_of_node)  # fmt: skip
    settings = {item["setting"] for item in result.apply.get("items", ())}
    diffs = {d.partition("\n")[0].removeprefix("--- "): d for d in result.diffs}
    said = [c.partition(": ") for c in result.changes]
    ours = [PlannedChange(setting="", target=t, why=w, diff=diffs.get(t, "")) for t, _, w in said if t not in settings]
    made = of_items(result.node, result.apply.get("items", ()), busy=bool(result.apply.get("busy")), ours=ours)
    return msgspec.structs.replace(made, failures=result.failures, hint_of_node=bool(made.hint))


def of_one(result: NodeResult) -> NodePlan:
    """Return the plan of ``of_result``. If the result cannot be read, only this node's plan is failed."""
    return isolated(lambda: of_result(result), lambda why: NodePlan(node=result.node, state="failed", failures=(why,), hint=HINT))


def groups(plans: Sequence[NodePlan]) -> list[tuple[NodePlan, list[str]]]:
    """Return the groups of nodes with the same plan: for each, the plan of its first node and the nodes. The diffs may differ,
    and in the failures a node's own name and address. The largest group is first, and nodes that were not reached are at the
    end."""
    found: dict[NodePlan, list[NodePlan]] = {}
    for plan in plans:
        steps = tuple(msgspec.structs.replace(step, diff="") for step in plan.steps)
        same = msgspec.structs.replace(_with_words(plan, _of_any_node(plan)), node="", busy=False, steps=steps)
        found.setdefault(same, []).append(plan)
    grouped = []
    for group in found.values():
        words = shown_texts([(*p.failures, p.hint) for p in group], _of_any_node(group[0]))
        grouped.append((_with_words(group[0], words), [p.node for p in group]))
    return sorted(grouped, key=lambda g: (g[0].state == "unreachable", -len(g[1]), g[1]))


def _of_any_node(plan: NodePlan) -> tuple[str, ...]:
    """Return the plan's failures and its hint, without the node's own name and address."""
    return tuple(of_any_node(text, plan.node, from_ssh=plan.state == "unreachable") for text in (*plan.failures, plan.hint))


def _with_words(plan: NodePlan, words: tuple[str, ...]) -> NodePlan:
    *failures, hint = words
    return msgspec.structs.replace(plan, failures=tuple(failures), hint=hint)


def needing(plans: Sequence[NodePlan]) -> dict[str, tuple[str, ...]]:
    """Return the nodes by what their plan needs: reboot, drain, idle."""
    return {need: tuple(p.node for p in plans if p.needs == need) for need in reversed(WAITS)}


def text(plans: Sequence[NodePlan], *, diff: bool = False, undeclared: Sequence[str] = ()) -> str:
    """Return the plan for a person: a paragraph for each group of equal nodes, then the failures that several groups have in
    common, then the nodes by what they need. undeclared: nodes that Slurm has and the site does not declare."""
    lines: list[str] = []
    grouped = groups(plans)
    alike = of_several((_FailedPlans.of(plan), nodes) for plan, nodes in grouped)
    for example, nodes in grouped:
        lines += _paragraph(example, nodes, diff=diff, alike=_FailedPlans.of(example) in alike)
    for failing, nodes in alike.items():
        lines += [f"{counted(nodes)}: all of them fail alike", *failing.lines(nodes)]
    for need, named in needing(plans).items():
        if named:
            lines.append(f"needs {WAITS[need]}: {names(named)}")
    busy = [p.node for p in plans if p.busy]
    lines += [f"a job runs there now: {names(busy)}"] if busy else []
    lines += [f"{names(undeclared)}: in Slurm, but in no class of the site: not checked"] if undeclared else []
    states = ("same", "would_change", "failed", "unreachable")
    words = {"same": "the same", **_WORDS}
    counts = [(sum(p.state == s for p in plans), words.get(s, s)) for s in states]
    total = f"{len(plans)} node{'' if len(plans) == 1 else 's'}"
    return "\n".join([*lines, f"{total}: {', '.join(f'{n} {name}' for n, name in counts if n)}"])


def _paragraph(example: NodePlan, nodes: Sequence[str], *, diff: bool, alike: bool) -> list[str]:
    """Return the lines about a group of equal nodes. ``alike``: other groups have the same failures, so these are shown below."""
    needs = f", needs {WAITS[example.needs]}" if example.needs else ""
    lines = [f"{counted(nodes)}: {_WORDS.get(example.state, example.state)}{needs}", *within(_steps(example.steps))]
    shown = [f"    {line}" for step in example.steps for line in step.diff.splitlines()] if diff else []
    lines += [f"  diff of {example.node}, the first of them:"] if shown and len(nodes) > 1 else []
    lines += shortened(shown)
    warned = [f"  warning: {aside(w)}" for w in example.warnings]
    if alike:
        return lines + within([*warned, "  cannot: as on other nodes, shown below"])
    failed = [f"  cannot: {aside(f)}" for f in example.failures]
    return lines + within([*failed, *warned, *advice(example.hint, nodes, of_node=example.hint_of_node)])


class _FailedPlans(Struct, frozen=True):
    """Holds the failures of nodes, and what to do next."""

    failures: tuple[str, ...]
    hint: str
    hint_of_node: bool

    @staticmethod
    def of(plan: NodePlan) -> _FailedPlans | None:
        return _FailedPlans(plan.failures, plan.hint, plan.hint_of_node) if plan.failures else None

    def lines(self, nodes: Sequence[str]) -> list[str]:
        failed = [f"  cannot: {aside(f)}" for f in self.failures]
        return within([*failed, *advice(self.hint, nodes, of_node=self.hint_of_node)])


def _steps(steps: Sequence[PlannedChange]) -> list[str]:
    """Return one line for each reason. Of a setting with many reasons (one for each device), return only the first lines."""
    targets: dict[tuple[str, str, str], list[str]] = {}
    for step in steps:
        key = (step.setting, step.why, step.needs) if step.setting else ("", f"{step.target}: {step.why}", step.needs)
        targets.setdefault(key, []).append(step.target)
    lines: list[str] = []
    for setting in dict.fromkeys(key[0] for key in targets):
        said = []
        for (name, why, needs), at in targets.items():
            if name == setting:
                more = f"{at[0]} and {len(at) - 1} more" if len(at) > 1 else at[0] if at[0] not in why else ""
                where = aside(f"{setting}: {why}{f' ({more})' if more else ''}") if setting else theirs(why)
                said.append(f"  {where}{f' [{needs}]' if needs else ''}")
        cut = SHOWN if setting and len(said) > SHOWN + 1 else len(said)
        lines += said[:cut] + ([f"  {setting}: and {len(said) - cut} more like these (--json has them)"] if said[cut:] else [])
    return lines


class PlanGroup(TypedDict):
    """Nodes with equal plans, in Slurm's notation, and how many they are."""

    nodes: str
    count: int
    state: str
    needs: str


class PlanData(TypedDict):
    """The plans of nodes. needs: the nodes by what they need. undeclared: nodes that Slurm has and the site does not declare."""

    schema: int
    nodes: list[NodePlan]
    groups: list[PlanGroup]
    needs: dict[str, str]
    undeclared: list[str]


def data(plans: Sequence[NodePlan], undeclared: Sequence[str] = ()) -> PlanData:
    """Return the plan for --json."""
    grouped = [PlanGroup(nodes=fold(nodes), count=len(nodes), state=p.state, needs=p.needs) for p, nodes in groups(plans)]
    return {
        "schema": 1,
        "nodes": list(plans),
        "groups": grouped,
        "needs": {need: fold(nodes) for need, nodes in needing(plans).items()},
        "undeclared": list(undeclared),
    }
