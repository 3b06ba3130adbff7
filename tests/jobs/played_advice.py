"""Jobs that an advice rule must find, and harmless twins that differ in little, on five simulated nodes with real agents.

The usage records of the agents and rows as sacct prints them go through the reader of ``fairlead usage --from``, and then to the
rules with their default thresholds.
"""

from __future__ import annotations

import time
from pathlib import Path

from msgspec import Struct

from fairlead.controller.records_folder import read_folder
from fairlead.jobs.advice import AdviceOptions, advice
from fairlead.jobs.allocations import joined
from fairlead.jobs.job_measures import measures
from fairlead.jobs.usage_record import encoded
from tests.jobs.few_columns import COLUMNS
from tests.jobs.played_node import GB, Clock, Part, PlayedJob, PlayedNode
from tests.lab.faults import Load

LASTS_SECONDS = 2400.0
END_SECONDS = 120.0
NODES = 5


class Case(Struct, frozen=True):
    """A job. rule: which rule the job is about. finds: the rule must find it; else it is a twin, and ``differs`` says how.
    parts: of each GPU, by node and index."""

    number: int
    rule: str
    finds: bool
    differs: str
    parts: dict[int, dict[int, tuple[Part, ...]]]
    limit_minutes: int = 60
    memory_limit: int = 128 * GB


def _load(percent: int, sm: int = 60, tensor: int = 30) -> Load:
    return Load(percent, sm, tensor, 30, 100 + 5 * percent, 10**8, 10**9)


def _part(load: Load | None = None, *, since: float = 0.0, memory: int = 40 * GB, cores: float = 0.5, host: int = 100 * GB,
          on: float = 0.0, period: float = 0.0) -> Part:  # fmt: skip
    does = Part().load if load is None else load
    return Part(since, does, on, period, memory if load is not None else 0, cores, host)


GOOD = _part(_load(90))
LATE, SOON = _part(_load(90), since=1080.0), _part(_load(90), since=300.0)
WAITS = _part()

CASES = (
    Case(1, "unused_gpus", True, "", {0: {0: (GOOD,), 1: (WAITS,)}}),
    Case(2, "unused_gpus", False, "the second GPU works too", {0: {2: (GOOD,), 3: (_part(_load(70)),)}}),
    Case(3, "input_bound", True, "", {0: {4: (_part(_load(90, 40), on=0.8, period=10.0, cores=1.1),)}}),
    Case(4, "input_bound", False, "the CPU waits too", {0: {5: (_part(_load(90, 40), on=0.8, period=10.0, cores=0.2),)}}),
    Case(5, "small_kernels", True, "", {0: {6: (_part(_load(95, 12)),)}}),
    Case(6, "small_kernels", False, "more SMs work", {0: {7: (_part(_load(95, 40)),)}}),
    Case(7, "precision", True, "", {1: {0: (_part(_load(95, 70, 0)),)}}),
    Case(8, "precision", False, "the tensor cores work a little", {1: {1: (_part(_load(95, 70, 5)),)}}),
    Case(9, "smaller_gpu", True, "", {1: {2: (_part(_load(50, 8), memory=6 * GB),)}}),
    Case(10, "smaller_gpu", False, "it needs the memory", {1: {3: (_part(_load(50, 8)),)}}),
    Case(11, "fake_load", True, "", {1: {4: (_part(_load(100, 1, 0)),)}}),
    Case(12, "fake_load", False, "a third of the SMs works", {1: {5: (_part(_load(100, 30, 0)),)}}),
    Case(13, "host_memory", True, "", {1: {6: (_part(_load(90), host=40 * GB),)}}, 60, 400 * GB),
    Case(14, "host_memory", False, "it used the memory", {1: {7: (_part(_load(90), host=350 * GB),)}}, 60, 400 * GB),
    Case(15, "uneven_gpus", True, "", {2: {0: (GOOD,), 1: (GOOD,), 2: (GOOD,), 3: (_part(_load(40)),)}}),
    Case(16, "uneven_gpus", False, "within the spread of a healthy job",
         {2: {4: (GOOD,), 5: (GOOD,), 6: (GOOD,), 7: (_part(_load(75)),)}}),
    Case(17, "late_start", True, "", {3: {0: (WAITS, LATE)}}),
    Case(18, "late_start", False, "the first kernel ran after 5 minutes", {3: {1: (WAITS, SOON)}}),
    Case(19, "time_limit", True, "", {3: {2: (GOOD,)}}, 480),
    Case(20, "time_limit", False, "7.5 times is no waste", {3: {3: (GOOD,)}}, 300),
    Case(21, "spread_nodes", True, "", {3: {4: (GOOD,)}, 4: {0: (GOOD,)}}),
    Case(22, "spread_nodes", False, "as many GPUs on one node", {4: {1: (GOOD,), 2: (GOOD,)}}),
)  # fmt: skip


class Advised(Struct, frozen=True, kw_only=True):
    """What the rules said of a job. found: all rules that found it. evidence: of the rule that the job is about."""

    case: Case
    found: tuple[str, ...]
    evidence: str
    coverage: float


def played(folder: Path, library: Path, speed: float) -> list[Advised]:
    """Play all jobs at once, which takes ``LASTS_SECONDS`` / ``speed``, and return what the rules say of each."""
    clock = Clock(speed)
    nodes = [PlayedNode(folder / f"n{number}", f"n{number + 1}", library, clock) for number in range(NODES)]
    try:
        for node in nodes:
            node.start()
        for number, node in enumerate(nodes):
            of_node = [each for each in CASES if number in each.parts]
            node.begin(*(PlayedJob(each.number, each.parts[number], each.memory_limit) for each in of_node))
        while min(node.seconds() for node in nodes) < LASTS_SECONDS:
            for node in nodes:
                node.follow()
            time.sleep(0.1)
        for node in nodes:
            node.end_jobs()
        for node in nodes:
            node.until(lambda n=node: all(r.ended_by for r in n.records()), "end of the records", 60)  # type: ignore[misc]
        ended = clock.unix()
        while clock.unix() < ended + END_SECONDS:  # a record waits some seconds for the last reading of its GPUs
            time.sleep(0.1)
        return _judged(_written(folder / "read", nodes), clock.unix())
    finally:
        for node in nodes:
            if node.process is not None:
                node.end()


def _written(folder: Path, nodes: list[PlayedNode]) -> Path:
    """Write what ``fairlead usage --from`` reads."""
    folder.mkdir()
    for node in nodes:
        for record in node.records():
            (folder / f"{node.name}-{record.job}.json").write_bytes(encoded(record))
    rows = []
    for each in CASES:
        names = ",".join(nodes[number].name for number in each.parts)
        gpus = sum(len(parts) for parts in each.parts.values())
        begin = int(nodes[min(each.parts)].began_unix)
        end = begin + int(LASTS_SECONDS)
        row = (each.number, "alice", "a", "gpu", "normal", "COMPLETED", begin, end, each.limit_minutes, f"gres/gpu={gpus}", names)
        rows.append("|".join(map(str, row)))
    (folder / "jobs.psv").write_text("\n".join(["|".join(COLUMNS), *rows]) + "\n")
    listed = "".join(f"{node.name}|gpu|gpu:h100:8\n" for node in nodes)
    (folder / "nodes.psv").write_text(f"NODELIST|PARTITION|GRES\n{listed}")
    return folder


def _judged(folder: Path, now: float) -> list[Advised]:
    read = read_folder(str(folder))
    assert not read.mistakes, read.mistakes
    found = joined(read.runs, (record for _, record in read.records), now)
    assert not found.left_out, found.left_out
    node_gpus = {each.node: each.gpus for each in read.nodes or ()}
    advised = []
    for case in CASES:
        job = measures([a for a in found.allocations if a.job.job == case.number], node_gpus)
        said = advice(job, AdviceOptions())
        evidence = next((each.evidence for each in said if each.rule == case.rule), "")
        advised.append(Advised(case=case, found=tuple(each.rule for each in said), evidence=evidence, coverage=job.coverage))
    return advised
