"""What happened to one node in a sequence, as somebody outside saw it: nothing here knows how the agent works.

Times are CLOCK_REALTIME seconds of the one machine that everything runs on.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab.clients import NodeState, parse_node
from tests.lab.roots import LabError
from tests.slurm.wire import Call, node_text

#: What puts the node back into service when a person does it, and what takes findings for known or repaired.
RELEASES = ("resume", "undrain", "fairlead resume", "fairlead resume --adopt")
KNOWN = ("fairlead ack", "fairlead clear")


@dataclass
class Fault:
    """A fault of the hardware. ``kind``: ``xid`` (a kernel record, which a boot ends), ``lost`` or ``remap`` (a GPU's state).

    ``lasting``: a reboot does not repair it. ``ended``: since when it is not there any more.
    """

    at: float
    kind: str
    gpu: str
    lasting: bool = True
    ended: float = float("inf")

    def __str__(self) -> str:
        return f"{self.kind} on {self.gpu}"


@dataclass(frozen=True)
class Act:
    """What a person did: a drain with ``words`` of their own, a release, ``fairlead hold`` ... ``ok``: it was accepted."""

    began: float
    ended: float
    what: str
    words: str = ""
    ok: bool = True
    before: NodeState | None = None


@dataclass(frozen=True)
class Span:
    """Something that lasted: ``what`` is ``no agent``, ``no slurmctld``, ``reboot``, ``reconfigure``, ``hold``, ``slow``;
    ``loses``: slurmctld came back without what it knew, or with less."""

    began: float
    ended: float
    what: str
    loses: bool = False


@dataclass(frozen=True)
class Seen:
    """The node as slurmctld showed it from ``at`` on."""

    at: float
    node: NodeState

    @property
    def out(self) -> bool:
        """Slurm starts no job here."""
        return bool({"DRAIN", "DOWN", "FAIL", "UNKNOWN", "REBOOT_ISSUED"} & set(self.node.states))


@dataclass
class Record:
    """Everything about one node in one sequence. ``reconcile_seconds``: how often its agent asks slurmctld about a drain of its
    own."""

    node: str
    began: float
    reconcile_seconds: float = 2.0
    ended: float = 0.0
    faults: list[Fault] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    emptied: list[float] = field(default_factory=list)
    #: What fairlead told: when, where (why, verdict), the text.
    reported: list[tuple[float, str, str]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    #: How many times longer everything may take: more than 1 where the machine had more to do than four programs a processor.
    busy: float = 1.0
    #: When a job's script began here.
    jobs: list[tuple[float, str]] = field(default_factory=list)
    lines: list[tuple[float, str]] = field(default_factory=list)

    def tell(self, at: float, text: str) -> None:
        self.lines.append((at, text))

    def measure(self) -> None:
        """How busy the machine is now; the most counts."""
        self.busy = max(self.busy, os.getloadavg()[0] / (4 * len(os.sched_getaffinity(0))))

    def text(self) -> str:
        """All of it, by time."""
        lines = [*self.lines, (self.began, f"bounds are {self.busy:.1f} times as long: so busy was the machine")]
        lines += [(call.began, f"    agent: {call}") for call in self.calls]
        lines += [(seen.at, f"        slurmctld: {node_text(seen.node)}") for seen in self.seen]
        lines += [(at, f"        {job} starts") for at, job in self.jobs]
        lines += [(at, f"    {where}: {text.strip()}") for at, where, text in self.reported]
        return "\n".join(f"{at - self.began:7.2f}  {text}" for at, text in sorted(lines))


def samples(file: Path, node: str, since: float) -> list[Seen]:
    """The changes of one node since then, of a file that ``sampler`` writes."""
    found: list[Seen] = []
    at = 0.0
    for line in file.read_text(errors="replace").splitlines():
        if line.startswith("@ "):
            at = float(line[2:])
        elif at >= since and re.match(rf"NodeName={node}\b", line):
            try:
                state = parse_node(line)
            except LabError:
                continue
            if not found or found[-1].node != state:
                found.append(Seen(at, state))
    return found


def sampler(file: str, seconds: float) -> str:
    """A script that writes down all nodes over and over, until it is killed."""
    return f"while :; do echo @ $EPOCHREALTIME; scontrol -o show node 2>/dev/null; sleep {seconds}; done > {file}"
