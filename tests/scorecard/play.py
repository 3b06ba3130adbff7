"""Play the rows on some nodes at once: break, look who notices and how soon, mend; then the twin, which nobody may notice.

``timed`` True is the measurement: the node's clocks run as ours do, but where a row needs minutes and for the twins. False is
the test: all clocks run ``FAST`` times as fast, so that every look at a node is a thorough one.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.lab import cpus
from tests.lab.cluster import Cluster
from tests.lab.ledger import own_name
from tests.lab.roots import LabError
from tests.scorecard.entry import Anew, Call, Document, Elapse, Fast, Fault, Sweeps
from tests.scorecard.running import CLOCK
from tests.scorecard.score_node import ScoreNode

SUITE = "bookworm"
FAST, FAST_INTERVAL = 40.0, 0.4  # a sweep is one in 16 s of the node's: as far apart as thorough looks are
QUIET_SWEEPS = 5  # sweeps a twin is watched for: more than any check's `confirm_of`
STEADY_SWEEPS = 2  # sweeps for which what was found must stay as it is
DETECT_SECONDS = {True: 120.0, False: 120.0}  # timed, and not


@dataclass
class Seen:
    """What fairlead made of one row. Times in seconds from the last step; None: it did not happen.

    found: the finding wanted, at the level wanted. drained: the verdict said drain (slurmctld had accepted it). level: at
    which the finding was. others: findings of other checks. flaps: it did not stay. twin_drained, twin_told, noise: of the
    twin: drained; findings that are meant; findings that are not.
    """

    fault: Fault
    found: float | None = None
    drained: float | None = None
    level: str = ""
    summary: str = ""
    others: list[str] = field(default_factory=list)
    flaps: list[str] = field(default_factory=list)
    twin_drained: str = ""
    twin_said: list[str] = field(default_factory=list)
    noise: list[str] = field(default_factory=list)
    broken: str = ""

    @property
    def missed(self) -> bool:
        return self.found is None or (self.fault.level == "drain" and self.drained is None)

    @property
    def good(self) -> bool:
        return not (self.missed or self.flaps or self.twin_drained or self.noise or self.broken)


def weight(fault: Fault) -> float:
    """Roughly how long a row takes, to begin with the longest."""
    calls = sum(2 for s in fault.steps if isinstance(s, Call) and s.verb in ("hang", "crash"))
    minutes = 5 * any(isinstance(s, Fast) for s in fault.steps)
    return calls + minutes + fault.fresh + sum(2 * isinstance(s, Elapse) for s in (*fault.steps, *fault.twin))


def matches(fault: Fault, finding: dict[str, Any]) -> bool:
    return bool(finding["check"] == fault.check and finding["level"] == fault.level and fault.says in finding["summary"])


class Player:
    """Plays rows on one node."""

    def __init__(self, node: ScoreNode, *, timed: bool = False) -> None:
        self.node, self.timed = node, timed

    def play(self, fault: Fault, seen: Seen, *, twin: bool) -> None:
        """One half of a row: the fault or its twin. A lab that fails is noted, not raised."""
        try:
            self.node.heal(fresh=self._fresh(fault))
            (self._twin if twin else self._fault)(fault, seen)
        except (LabError, OSError) as error:
            seen.broken = f"{'twin' if twin else 'fault'}: {error}"

    def _fresh(self, fault: Fault) -> bool:
        return fault.fresh or any(isinstance(s, Elapse) for s in (*fault.steps, *fault.twin))

    def _steps(self, steps: Sequence[Any]) -> None:
        for step in steps:
            self.node.take(step)

    def _fault(self, fault: Fault, seen: Seen) -> None:
        *first, last = _staged(fault.steps)
        for steps in first:
            self._steps(steps)
        start = time.monotonic()
        self._steps(last)
        deadline = start + DETECT_SECONDS[self.timed]
        wanted = fault.level == "drain" and (self.node.strict or self.node.drains_by_default(fault.check))
        while seen.found is None or (wanted and seen.drained is None):
            now = time.monotonic()
            if now > deadline:
                seen.others = [text_of(f) for f in self.node.findings()] or [self.node.verdict().text]
                return
            verdict = self.node.verdict()
            if seen.found is None and verdict.state.value != "ok":
                hits = [f for f in self.node.findings() if matches(fault, f)]
                if hits:
                    seen.found, seen.level, seen.summary = now - start, hits[0]["level"], hits[0]["summary"]
            if seen.drained is None and verdict.state.value == "drain":
                seen.drained = now - start
            time.sleep(0.003)
        if self.node.speed > 1 and any(isinstance(s, Fast) for s in fault.steps):  # told in the node's own time
            seen.found = seen.found * self.node.speed
            seen.drained = seen.drained * self.node.speed if seen.drained is not None else None
        self._steady(fault, seen, drained=wanted)
        seen.others = [text_of(f) for f in self.node.findings() if f["check"] != fault.check]

    def _steady(self, fault: Fault, seen: Seen, *, drained: bool) -> None:
        """While the fault is there the finding stays, and so does the drain."""

        def read() -> None:
            if drained and self.node.verdict().state.value != "drain":
                seen.flaps.append(f"verdict {self.node.verdict().state.value}")
            told_now = self.node.findings_now()
            if told_now is not None and not any(f["check"] == fault.check for f in told_now):
                seen.flaps.append("no finding any more")

        self._watch(STEADY_SWEEPS, read)

    def _twin(self, fault: Fault, seen: Seen) -> None:
        self._steps(fault.twin)

        def read() -> None:
            verdict = self.node.verdict()
            if verdict.state.value == "drain":
                seen.twin_drained = verdict.text
            for finding in self.node.findings():
                meant = fault.twin_said and fault.twin_said in finding["summary"]
                into = seen.twin_said if meant else seen.noise
                if text_of(finding) not in into and finding["level"] != "unknown":
                    into.append(text_of(finding))

        self._watch(QUIET_SWEEPS, read)
        # what is not known yet (a question that was just asked) is noise when it is not known at the end either
        seen.noise += [text_of(f) for f in self.node.findings() if f["level"] == "unknown"]

    def _watch(self, sweeps: int, read: Callable[[], None]) -> None:
        """Look at every verdict for so many sweeps."""
        begin = last = self.node.verdict().sequence
        deadline = time.monotonic() + 240 + sweeps * self.node.interval
        while last < begin + sweeps:
            if time.monotonic() > deadline:
                raise LabError(f"node {self.node.name}: no {sweeps} verdicts in time\n{self.node.log_end()}")
            now = self.node.verdict().sequence
            if now != last:
                last = now
                read()
            time.sleep(0.01)
        read()


def _staged(steps: Sequence[Any]) -> list[list[Any]]:
    """The steps before the last one that takes time by itself, and those after it, from which the reaction counts."""
    at = max((n + 1 for n, s in enumerate(steps[:-1]) if isinstance(s, Anew | Elapse | Fast | Sweeps | Document)), default=0)
    return [list(steps[:at]), list(steps[at:])] if at else [list(steps)]


def text_of(finding: dict[str, Any]) -> str:
    return f"{finding['check']} {finding['level']}: {finding['summary']}"


@contextmanager
def nodes_up(count: int, *, interval: float = FAST_INTERVAL, fast: int = -1) -> Iterator[list[ScoreNode]]:
    """A real slurmctld and so many simulated nodes with their agents; the last ``fast`` of them (-1: all) have fast clocks,
    the others a sweep each ``interval`` seconds."""
    with Cluster(SUITE, nodes=count, cores=4, name=own_name("scorecard")) as cluster:
        cpus.preload(CLOCK)
        slow = 0 if fast < 0 else count - fast
        made = [ScoreNode(cluster, name, interval=interval) for name in cluster.node_names[:slow]]
        made += [ScoreNode(cluster, name, interval=FAST_INTERVAL, speed=FAST) for name in cluster.node_names[slow:]]
        try:
            for each in made:
                each.up()
            made[0].write_document()  # msgspec 0.22 crashes if two threads are the first to convert to one type
            with ThreadPoolExecutor(count) as pool:
                list(pool.map(ScoreNode.furnish, made))
            yield made
        finally:
            with ThreadPoolExecutor(count) as pool:
                list(pool.map(ScoreNode.down, made))


def play(faults: Iterable[Fault], nodes: Sequence[ScoreNode], *, tell: Callable[[Seen, bool], None] | None = None) -> list[Seen]:
    """Play fault and twin of every row, on all nodes at once; results in the order of ``faults``. Where some clocks run as ours,
    faults are played on those, and only twins and what takes minutes on the others."""
    results = {fault.name: Seen(fault) for fault in faults}
    timed = any(node.speed == 1 for node in nodes)
    todo: dict[bool, queue.SimpleQueue[tuple[Seen, bool]]] = {fast: queue.SimpleQueue() for fast in (False, True)}
    for seen in sorted(results.values(), key=lambda seen: -weight(seen.fault)):
        for twin in (False, True):
            long = any(isinstance(s, Fast) for s in seen.fault.steps)
            todo[not timed or twin or long].put((seen, twin))

    def work(node: ScoreNode) -> None:
        player = Player(node, timed=timed)
        while True:
            try:
                seen, twin = todo[node.speed > 1].get_nowait()
            except queue.Empty:
                return
            player.play(seen.fault, seen, twin=twin)
            if tell is not None:
                tell(seen, twin)

    threads = [threading.Thread(target=work, args=(node,), name=node.name) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return list(results.values())
