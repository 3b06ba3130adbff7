"""Makes the roster: one row for each node, with what Slurm and the node's own agent say about it. Equal rows are folded into
one.

A row is ``ok`` only if the node's agent was reached and says so. Otherwise ``word`` says whether the agent was not asked, was
not reached, or what it reports.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict

from ClusterShell.NodeSet import NodeSet
from msgspec import Struct

from fairlead.model.verdict import one_line
from fairlead.policy.ownership import MAINTAIN, MANUAL, PROLOG_ERROR, SUFFIXES, parse, strip_suffixes
from fairlead.provision.agent_accounts import AgentAccount
from fairlead.slurm.client import POWER, UNAVAILABLE, switched_off
from fairlead.slurm.listing import Listed

DRAINED = frozenset({"DRAIN", "DRAINED", "DRAINING"})
#: The worst is first, so that what needs attention is at the top.
WORDS = ("unreachable", "none", "stale", "drain", "unknown", "warn", OFF := "off", NOT_ASKED := "not asked", "ok")
#: With these words begin reasons that slurmctld sets by itself (drain_nodes and set_node_reason of src/slurmctld). Others begin
#: with a word of ``SUFFIXES`` without its " : ".
_SLURMS = (PROLOG_ERROR, "Epilog error", "Kill task failed", "Batch job complete failure", "Low ", "gres/")
_JOB = re.compile(r" job=[0-9]{1,19}\Z")
_AGO = re.compile(r"[0-9]+ s ago")


class OutOfService(Struct, frozen=True, kw_only=True):
    """Says who took the node out of service. by: agent, hand (`fairlead drain`), maintain, slurm or person. check: the check
    name in fairlead's reason, or "" for another reason. user: the user that slurmctld stores with the reason. since_unix: the
    time of the reason, in whole Unix seconds. why: the reason without fairlead's token. reason: the whole reason."""

    by: str
    check: str = ""
    user: str = ""
    since_unix: int = 0
    why: str = ""
    reason: str = ""

    @property
    def name(self) -> str:
        """Return the text for a column."""
        words = {"agent": f"agent ({self.check})", "hand": "fairlead drain", "maintain": "fairlead maintain"}
        return words.get(self.by, self.by if self.by == "slurm" else self.user or self.by)


class RosterRow(Struct, frozen=True, kw_only=True):
    """Describes one node. states: the node's states in Slurm's words. account: what the node's agent reports, or None if the
    agents were not asked. jobs: the ids of the jobs on the node."""

    node: str
    states: tuple[str, ...]
    partitions: tuple[str, ...]
    slurmd: str
    jobs: tuple[int, ...]
    out_of_service: OutOfService | None
    account: AgentAccount | None

    @property
    def word(self) -> str:
        """Return the word of the agent's verdict, ``unreachable``, ``off`` or ``not asked``. It is ``ok`` only if the agent was
        reached just now and says so. It is ``off`` if slurmctld has switched the node off, or is switching it on."""
        if self.account is None:
            return NOT_ASKED
        if not self.account.reached and (switched_off(self.states) or self._switched_on):
            return OFF
        return self.account.verdict if self.account.reached else "unreachable"

    @property
    def _switched_on(self) -> bool:
        return "POWERING_UP" in self.states and "DOWN" not in self.states

    @property
    def lost(self) -> bool:
        """Return whether the node is out of service. A node that slurmctld switches off or on is not."""
        return bool(set(self.states) & (UNAVAILABLE - POWER))

    @property
    def slurm(self) -> str:
        """Return Slurm's state in a word or two: up (idle or not), draining, drained, and other states."""
        states = set(self.states)
        busy = bool(states & {"ALLOCATED", "MIXED", "COMPLETING"})
        rest = states - {"IDLE", "ALLOCATED", "MIXED", "COMPLETING", "PLANNED"}
        first = ["up"] if not rest & UNAVAILABLE else []
        if rest & DRAINED:
            first, rest = ["draining" if busy else "drained"], rest - DRAINED
        return "+".join((*first, *sorted(s.lower() for s in rest)))

    @property
    def why(self) -> str:
        """Return why the node is out of service, and what its agent says."""
        return self._text(str)

    @property
    def alike(self) -> str:
        """Return ``why`` without what differs from node to node: the job at the end, and how long ago something was."""
        return self._text(_alike)

    def _text(self, fit: Callable[[str], str]) -> str:
        texts = [fit(self.out_of_service.why)] if self.out_of_service is not None else []
        if (a := self.account) is not None:
            said = fit(_said(a))
            texts += [said] if said and not any(t and t in said for t in texts) else []
            texts += [f"on hold by {a.hold}"] if a.hold else []
        return "; ".join(t for t in texts if t)


def rows(nodes: Iterable[Listed], accounts: Mapping[str, AgentAccount] | None) -> tuple[RosterRow, ...]:
    """Return the rows in Slurm's order. ``accounts``: the agents' accounts by node, or None if the agents were not asked. A node
    without an account counts as not reached, or as off if slurmctld has switched it off."""
    off = AgentAccount(reached=False, trouble="switched off by slurmctld")
    lost = AgentAccount(reached=False, trouble="it was not asked")
    return tuple(
        _row(n, None if accounts is None else accounts.get(n.state.name, off if switched_off(n.state.states) else lost))
        for n in nodes
    )


def _row(node: Listed, account: AgentAccount | None) -> RosterRow:
    state = node.state
    return RosterRow(
        node=state.name,
        states=tuple(sorted(state.states)),
        partitions=state.partitions,
        slurmd=node.version,
        jobs=tuple(sorted({int(job.id) for job in node.jobs})),
        out_of_service=out_of_service(node),
        account=account,
    )


def out_of_service(node: Listed) -> OutOfService | None:
    """Return who took the node out of service, or None if the node is in service. In Slurm 24.11 a resumed node still has its
    old reason, which does not count."""
    state = node.state
    if not state.states & UNAVAILABLE or not state.reason:
        return None
    words = strip_suffixes(state.reason)
    common: dict[str, Any] = {"user": state.reason_user, "since_unix": state.reason_time, "reason": one_line(state.reason)}
    token = parse(state.reason)
    if token is not None:
        by = "maintain" if token.text.startswith(MAINTAIN) else "hand" if token.check == MANUAL else "agent"
        return OutOfService(by=by, check=token.check, why=one_line(token.summary + state.reason[len(words) :]), **common)
    slurms = words.startswith(_SLURMS) or any(words.startswith(s.removeprefix(" : ")) for s in SUFFIXES)
    return OutOfService(by="slurm" if slurms else "person", why=one_line(state.reason), **common)


def _said(account: AgentAccount) -> str:
    return account.trouble or ("" if account.verdict == "ok" else account.text)


def _alike(text: str) -> str:
    return _JOB.sub("", _AGO.sub("some time ago", text))


class RosterFold(Struct, frozen=True, kw_only=True):
    """Holds equal rows. age_seconds: the time since the oldest of the nodes' last sweeps. since_unix: the earliest and the latest
    time at which one of the nodes went out of service."""

    nodes: str
    rows: tuple[RosterRow, ...]

    @property
    def age_seconds(self) -> float | None:
        ages = [r.account.age_seconds for r in self.rows if r.account is not None and r.account.age_seconds is not None]
        return max(ages, default=None)

    @property
    def since_unix(self) -> tuple[int, int]:
        times = [r.out_of_service.since_unix for r in self.rows if r.out_of_service is not None and r.out_of_service.since_unix]
        return (min(times), max(times)) if times else (0, 0)

    @property
    def why(self) -> str:
        """Return the rows' ``why``. If the rows differ in a job or a time, these are left out, because one node's value would
        appear for all nodes."""
        said = {r.why for r in self.rows}
        return said.pop() if len(said) == 1 else self.rows[0].alike

    @property
    def jobs(self) -> int:
        return len({job for r in self.rows for job in r.jobs})


def fold(rows: Iterable[RosterRow]) -> tuple[RosterFold, ...]:
    """Fold equal rows. The worst rows come first, and among equally bad rows those of the most nodes. Ages, jobs and times are
    not compared, because they always differ between nodes."""
    groups: dict[tuple[object, ...], list[RosterRow]] = {}
    for row in rows:
        groups.setdefault(_likeness(row), []).append(row)
    folds = [RosterFold(nodes=str(NodeSet.fromlist([r.node for r in same])), rows=tuple(same)) for same in groups.values()]
    return tuple(sorted(folds, key=lambda f: (_rank(f.rows[0]), -len(f.rows), f.nodes)))


def _rank(row: RosterRow) -> tuple[int, bool]:
    return WORDS.index(row.word) if row.word in WORDS else 0, row.out_of_service is None


def _likeness(row: RosterRow) -> tuple[object, ...]:
    a, h = row.account, row.out_of_service
    who = (h.name, _alike(h.why)) if h is not None else ()
    texts: tuple[object, ...] = ()
    if a is not None:
        texts = (a.reached, a.verdict, _alike(_said(a)), a.agent, a.driver, a.profile, a.generation, a.drift, a.hold)
    return (row.word, row.slurm, row.slurmd, who, texts)


class SlurmPart(TypedDict):
    """What Slurm says of a node: its states, its partitions, and slurmd's release."""

    states: list[str]
    partitions: list[str]
    slurmd: str


class FleetNode(TypedDict):
    """A node. word: of the agent's verdict, unreachable, or not asked. drained: who took it out of service, or null. agent: what
    its agent reports, or null if the agents were not asked."""

    node: str
    word: str
    why: str
    slurm: SlurmPart
    jobs: list[int]
    drained: OutOfService | None
    agent: AgentAccount | None


class FleetData(TypedDict):
    """All nodes, and for each word the nodes that have it, in Slurm's notation."""

    nodes: list[FleetNode]
    words: dict[str, str]


def as_data(made: Iterable[RosterRow]) -> FleetData:
    """Return the rows for --json: one object for each node, and for each ``word`` the nodelist of its nodes."""
    listed = tuple(made)
    by_word = {w: str(NodeSet.fromlist([r.node for r in listed if r.word == w])) for w in WORDS}
    return {
        "nodes": [
            {
                "node": r.node,
                "word": r.word,
                "why": r.why,
                "slurm": {"states": list(r.states), "partitions": list(r.partitions), "slurmd": r.slurmd},
                "jobs": list(r.jobs),
                "drained": r.out_of_service,
                "agent": r.account,
            }
            for r in listed
        ],
        "words": {word: nodes for word, nodes in by_word.items() if nodes},
    }
