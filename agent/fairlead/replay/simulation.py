"""Replays recorded kernel logs through the checks and the policy, in simulated time. The result shows when and why the node would
have been drained.

The code that decides is that of the agent. Facts that are not in a log are not guessed, so only the checks run that kernel
records start. A replay assumes that no job runs, and reports a drain that would wait for the end of a job as such. It assumes
that slurmctld carries out every order at once, that no drain limit delays a drain, and that the return-to-service command
passes. It also assumes that no virtiofs is mounted. So a task whose trace shows that it waits for a FUSE server does not count as
hung. Nothing here reads a clock or a random number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

from fairlead import checks
from fairlead.config import Document
from fairlead.history.memory import History
from fairlead.judge import heeded_by, judge, policies_of
from fairlead.judge import prefixes as wakes
from fairlead.model.check_definition import KernelRecord
from fairlead.model.facts import Driver, Missing, Node, unreadable
from fairlead.model.finding import Finding, Service
from fairlead.model.host_facts import Host
from fairlead.policy import Decision, Now, Order, PolicyState, Proof, acknowledge, decide
from fairlead.policy.policy_state import identity, remembered_findings
from fairlead.replay.recording import Boot, Progress, Recording
from fairlead.replay.timestamps import show

SETTLE_SWEEPS = 300  # the largest number of sweeps after the last record
_NUMBERS = re.compile(r"^kernel log at [0-9.]+ s, record \d+")
_NOT_IN_A_LOG = unreadable("not in a kernel log")


class Event(Struct, frozen=True, kw_only=True):
    """Describes something that would have happened.

    kind: drain, also, resume, by_hand, held, warn or acknowledged. also: another fault on the drained node. by_hand: a person
    would have to resume the node. held: the finding would drain the node, but is suppressed because of ``why``. acknowledged:
    according to the recording, a person has acknowledged the findings.

    seconds, at: the time of the event in the recording's time, as a number and as text. boot: the number of the boot, from 1.
    line: the number of the line in the log that caused the event, or 0 for none. faults: the faults that a drain is for, as
    (check, device, fault).
    """

    kind: str
    seconds: float
    at: str
    boot: int
    check: str = ""
    device: str = ""
    text: str = ""
    action: str = ""
    service: str = ""
    why: str = ""
    line: int = 0
    evidence: tuple[str, ...] = ()
    faults: tuple[tuple[str, str, str], ...] = ()


class Replayed(Struct, frozen=True, kw_only=True):
    """Holds the result of replaying one recording with one policy.

    lines: the number of lines in the recording. records: the number of kernel records that checks declare. drained: whether the
    node is drained at the end. recorded: what the agent recorded at the time, as (time, text).
    """

    name: str
    boots: int
    lines: int
    records: int
    events: tuple[Event, ...]
    drained: bool
    recorded: tuple[tuple[str, str], ...] = ()

    @property
    def drains(self) -> tuple[Event, ...]:
        return tuple(e for e in self.events if e.kind == "drain")


def prefixes() -> tuple[str, ...]:
    """Return the prefixes of kernel records that start a check."""
    return tuple(dict.fromkeys(prefix for check in checks.load().values() for prefix in check.wakes_on))


def replay(recording: Recording, document: Document, progress: Progress = lambda name, part: None) -> Replayed:
    """Replay a recording through the checks and the policy of a document."""
    return _Replay(recording, document, progress).run()


Line = tuple[int, KernelRecord]


class _Replay:
    def __init__(self, recording: Recording, document: Document, progress: Progress) -> None:
        self.recording = recording
        self.progress = progress
        self.document = document
        self.wakes = wakes(document)
        self.policies = {name: policy for name, policy in policies_of(document).items() if name in self.wakes}
        self.state = PolicyState()
        self.drained = ""  # the check that the drain is for, or "" while the node is not drained
        self.returned = False  # whether the node has gone back into service since the last decision
        self.since = 0.0
        self.events: list[Event] = []
        self.reported: set[str] = set()
        self.also: set[tuple[str, str]] = set()  # the faults of the drained node that were reported already
        self.lines: dict[int, int] = {}
        self._same = 0  # decisions in a row that changed nothing

    def run(self) -> Replayed:
        boots = self.recording.boots
        for number, boot in enumerate(boots, 1):
            self._boot(number, boot, last=number == len(boots))
        moment = self.recording
        recorded = tuple((show(at, since_boot=moment.since_boot, dated=moment.dated), text) for at, text in moment.recorded)
        return Replayed(
            name=moment.name,
            boots=len(boots),
            lines=moment.lines,
            records=sum(len(b.records) for b in boots),
            events=tuple(self.events),
            drained=bool(self.drained),
            recorded=recorded,
        )

    def _boot(self, number: int, boot: Boot, *, last: bool) -> None:
        self.number, self.boot = number, boot
        self.history = History("", boot.id)
        self.lines = {}
        self.now = boot.began
        self._sweep()
        moments: list[tuple[float, list[Line]]] = [
            (boot.began + seconds - boot.up_seconds, list(group))
            for seconds, group in groupby(boot.records, key=lambda line: line[1].seconds)
        ]
        moments += [(at, []) for at in boot.known]
        for place, (at, records) in enumerate(sorted(moments, key=lambda m: (m[0], not m[1]))):
            self.progress(self.recording.name, place / len(moments))
            self._pass(at)
            self.now = max(self.now, at)
            if records:
                self._records(records)
            else:
                self._known()
        self._pass(boot.ended)
        self.now = max(self.now, boot.ended)
        if last:
            self._settle()

    def _records(self, records: list[Line]) -> None:
        self.lines |= {record.sequence: line for line, record in records}
        known = [record for _, record in records]
        if self.history.add_records(known):
            self._decide({n for r in known for n in heeded_by(r.text, self.wakes)})

    def _known(self) -> None:
        """Acknowledge the findings that were active when a person resumed the node. The recording has the time of that resume."""
        self.state = acknowledge(self.state, remembered_findings(self.state))  # the findings that the replay has at that time
        self.drained, self.returned = "", True
        self._event("acknowledged", text="a person resumed the node")
        self._decide(set())

    def _sweep(self) -> None:
        self._decide(None)

    def _pass(self, until: float) -> None:
        """Sweep until the time ``until``: at the agent's interval while something changes, and at growing intervals while nothing
        changes.

        Some changes are caused by time alone. The end of a warning may be seen late, but by no more than the time since the
        last change. At the end of each boot grace there is always a sweep.
        """
        sweep = self.document.agent.interval_seconds
        began = self.boot.began - self.boot.up_seconds
        graces = sorted({began + p.boot_grace_seconds for p in self.policies.values() if p.boot_grace_seconds})
        step = sweep
        while True:
            step = 2 * step if self._quiet() else sweep
            at = min([self.now + step, *(g for g in graces if g > self.now)])
            if at >= until:
                return
            self.now = at
            self._sweep()

    def _settle(self) -> None:
        for _ in range(SETTLE_SWEEPS):
            self.now += self.document.agent.interval_seconds
            self._sweep()
            if self._quiet():
                return

    def _quiet(self) -> bool:
        return self._same > max((p.recover for p in self.policies.values()), default=1) + max(
            (p.confirm_of for p in self.policies.values()), default=1
        )

    def _decide(self, woken: set[str] | None) -> None:
        """Decide once. ``woken``: the checks that a record has started, or None for a full sweep."""
        up = self.boot.up_seconds + self.now - self.boot.began
        node = _node(self.recording.name, self.boot, up)
        only = self.wakes.keys() if woken is None else woken
        findings = judge(replace(self.document, settings={}), node, self.history.past(), only) if only else ()
        slow = {name for name in only if checks.load()[name].slow}  # a log has the records of these checks, but not the facts
        findings = tuple(f for f in findings if f.check not in slow or f.evidence_id.startswith(f"{self.boot.id}:"))
        now = Now(
            boot_seconds=up,
            wall_seconds=self.now,
            boot_id=self.boot.id,
            drained=bool(self.drained),
            returned=self.returned,
            full_sweep=woken is None,
            drain_check=self.drained,
            drain_since_seconds=self.since,
            proof=Proof.PASSED,
        )
        self.returned = False
        ran = self.policies.keys() if woken is None else woken
        decision = decide(findings, self.policies, self.state, now, self.document.policy, ran=ran)
        same = replace(decision.state, clean_sweeps=0, thorough_clean_sweeps=0) == replace(
            self.state, clean_sweeps=0, thorough_clean_sweeps=0
        )
        self._same = self._same + 1 if same and decision.order is Order.KEEP else 0
        self.state = decision.state
        self._tell(decision)

    def _tell(self, decision: Decision) -> None:
        if decision.order is Order.DRAIN:
            self.drained, self.since = decision.reason_check, self.now
            first = decision.counted[0]
            self._event(
                "drain",
                first,
                text=f"{decision.reason_check}: {decision.reason_summary}",
                faults=tuple((f.check, f.device, f.fault) for f in decision.counted),
            )
            self.also = {(f.key, f.fault) for f in decision.counted}
        elif decision.order is Order.RESUME:
            self.drained, self.returned = "", True
            self._event("resume", text="well again")
        elif self.drained and "by hand" in decision.text:
            self._once(
                f"by hand {self.since}", "by_hand", text=decision.text.partition("; ")[0].removeprefix("drained by fairlead, ")
            )
        for finding in decision.counted if self.drained else ():
            if (finding.key, finding.fault) not in self.also:
                self.also.add((finding.key, finding.fault))
                self._event("also", finding)
        for finding, why in zip(decision.suppressed, decision.why_suppressed, strict=True):
            self._once(f"held {finding.key} {finding.fault} {why.partition(':')[0]}", "held", finding, why=why)
        for finding in decision.warned:
            if finding.summary != "just well again":
                self._once(f"warn {finding.key} {finding.fault or finding.summary}", "warn", finding)

    def _once(self, key: str, kind: str, finding: Finding | None = None, *, text: str = "", why: str = "") -> None:
        if self._key(key) not in self.reported:
            self.reported.add(self._key(key))
            self._event(kind, finding, text=text, why=why)

    def _key(self, key: str) -> str:
        return f"{self.number} {key}"

    def _event(
        self,
        kind: str,
        finding: Finding | None = None,
        *,
        text: str = "",
        why: str = "",
        faults: tuple[tuple[str, str, str], ...] = (),
    ) -> None:
        sequence = identity(finding).rpartition(":")[2] if finding is not None else ""
        moment = self.recording
        self.events.append(
            Event(
                kind=kind,
                seconds=round(self.now, 3),
                at=show(self._shown(), since_boot=moment.since_boot, dated=moment.dated) if moment.timed else "",
                boot=self.number,
                check=finding.check if finding else "",
                device=finding.device if finding else "",
                text=text or (f"{finding.check}: {finding.summary}" if finding else ""),
                action=finding.action.value if finding else "",
                service=finding.service.value if finding and finding.service is not Service.KEEP else "",
                why=why,
                line=self.lines.get(int(sequence), 0) if sequence.isdigit() else 0,
                evidence=tuple(self._evidence(finding)) if finding else (),
                faults=faults,
            )
        )

    def _evidence(self, finding: Finding) -> Iterator[str]:
        """Return the evidence without the times and record numbers that a log does not have. ``Event.line`` names the line of the
        log instead."""
        for text in finding.evidence:
            if told := text if self.recording.of_an_agent else _NUMBERS.sub("", text).lstrip(" ,:"):
                yield told

    def _shown(self) -> float:
        """Return the present time as the log counts it: in seconds since the boot if the log does so, else as Unix time."""
        return self.now - self.boot.began + self.boot.up_seconds if self.recording.since_boot else self.now


def _node(name: str, boot: Boot, up_seconds: float) -> Node:
    """Return a Node with the few facts that a kernel log contains."""
    gone: Missing = _NOT_IN_A_LOG
    return Node(
        name=name,
        boot_id=boot.id,
        uptime_seconds=up_seconds,
        virtual=gone,
        cpus=(),
        numa=(),
        pci=(),
        nics=(),
        driver=Driver(module_version=boot.driver or gone, library_version=gone, nvml_version=gone, cuda_version=gone),
        gpus=gone,
        host=Host(mounts=()),
    )


class Difference(Struct, frozen=True, kw_only=True):
    """Describes a difference between two policies on the same recording.

    only: "policy" or "against" if only that policy drains. "both" if both drain, but differently. what: the difference in words.
    policy, against: the drains of the two policies.
    """

    name: str
    only: str
    what: str
    policy: Event | None = None
    against: Event | None = None


def compare(first: Replayed, second: Replayed) -> Iterator[Difference]:
    """Compare the drains of two replays of the same recording. Each drain is compared with the first drain of the other replay
    in the same boot with a common fault. Each drain is compared at most once."""
    left, right = list(first.drains), list(second.drains)
    for event in first.drains:
        twin = next((e for e in right if e.boot == event.boot and set(e.faults) & set(event.faults)), None)
        if twin is None:
            continue
        left.remove(event)
        right.remove(twin)
        parts = [
            f"{word} {one} and {other}"
            for word, one, other in (
                ("at", event.at, twin.at),
                ("action", event.action, twin.action),
                ("service", event.service, twin.service),
            )
            if one != other
        ]
        if parts:
            yield Difference(name=first.name, only="both", what="; ".join(parts), policy=event, against=twin)
    for event in left:
        yield Difference(name=first.name, only="policy", what=_instead(event, second), policy=event)
    for event in right:
        yield Difference(name=first.name, only="against", what=_instead(event, first), against=event)
    if first.drained != second.drained:
        words = {True: "drained", False: "in service"}
        yield Difference(name=first.name, only="both", what=f"at the end {words[first.drained]} and {words[second.drained]}")


def _instead(event: Event, other: Replayed) -> str:
    """Return what the other policy decides instead of this drain."""
    for each in other.events:
        if each.kind == "held" and (each.check, each.device) == (event.check, event.device) and each.boot == event.boot:
            return f"held: {each.why}"
    for each in other.events:
        if each.kind == "warn" and (each.check, each.device) == (event.check, event.device) and each.boot == event.boot:
            return "only a warning"
    return "drained already" if any(e.boot <= event.boot for e in other.drains) else "nothing"
