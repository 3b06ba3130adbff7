"""A fleet of jobs with a known truth on three simulated nodes, from the GPUs to the program that tells owners of idle jobs.

Each node has its real agent. The idle program reads the agents' usage records every ten minutes of the fleet, with the default
thresholds and with notices switched on. Only the channel is a file.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from fairlead.controller.idle_program import IdleProgram
from fairlead.jobs.advice import AdviceOptions, advice
from fairlead.jobs.allocations import joined
from fairlead.jobs.idle_rule import IdleOptions, RunningJob
from fairlead.jobs.job_measures import measures
from fairlead.jobs.job_run import JobRun
from fairlead.jobs.usage_record import UsageRecord
from tests.controller.played_idle import FileChannel
from tests.jobs.played_node import GB, MIB, Clock, Part, PlayedJob, PlayedNode
from tests.lab.faults import Load

POLL_SECONDS = 600.0
LASTS_SECONDS = 6000.0  # long enough for the first notice of a job that ended its work after 20 minutes
TRAINING = Load(92, 60, 30, 40, 550, 10**8, 10**10)
SPINS = Load(100, 2, 0, 0, 250, 0, 0)
ONE_SM = Load(100, 1, 0, 0, 120, 0, 0)
WORKS = Part(load=TRAINING, memory=60 * GB, cores=4.0, host_bytes=8 * GB)


class Class(Struct, frozen=True):
    """A job of a class. truth: what it does, in words. innocent: nobody may be told of it. marks: fields of RunningJob."""

    name: str
    truth: str
    node: int
    job: PlayedJob
    innocent: bool = True
    marks: dict[str, bool] = {}


def _one(name: str, truth: str, node: int, gpu: int, *parts: Part, innocent: bool = True, **marks: bool) -> Class:
    job = PlayedJob(100 * (node + 1) + gpu, {gpu: parts}, grouped=marks.pop("grouped", True))
    return Class(name, truth, node, job, innocent, {"batch": True, **marks})


FLEET = (
    _one("forgotten job", "sleeps from its begin", 0, 0, Part(), innocent=False),
    _one("ended work", "works for 20 minutes, then its script sleeps", 0, 1, WORKS, Part(1200.0), innocent=False),
    _one("periodic work", "1 s of work in each minute", 0, 2,
         Part(load=Load(100, 30, 0, 5, 300, 10**7, 0), on_seconds=1.0, period_seconds=60.0, memory=200 * MIB)),
    _one("staging", "downloads 6 MiB/s, no kernel has run", 0, 3, Part(cores=0.03, host_bytes_per_second=6 * MIB)),
    _one("slow staging", "downloads 30 kB/s with hardly any CPU", 0, 4, Part(cores=0.003, host_bytes_per_second=30_000)),
    _one("compiling", "7.5 CPU cores, no kernel has run", 0, 5, Part(cores=7.5, host_bytes=3 * GB)),
    _one("checkpoint pause", "works for 20 minutes, then writes its state for 70", 0, 6,
         WORKS, Part(1200.0, memory=60 * GB, cores=0.4, host_bytes=30 * GB), Part(5400.0, TRAINING, memory=60 * GB, cores=4.0)),
    _one("evaluation on the CPU", "works for 20 minutes, then 12 CPU cores", 0, 7,
         WORKS, Part(1200.0, memory=60 * GB, cores=12.0, host_bytes=30 * GB)),
    _one("notebook", "a cell of 20 s each 97 minutes, keeps its memory", 1, 0,
         Part(load=TRAINING, on_seconds=20.0, period_seconds=5820.0, memory=2 * GB, cores=0.004)),
    _one("interactive shell", "a session of salloc, without any work", 1, 1, Part(), batch=False),
    _one("inference server at night", "loads its model, then waits without polling", 1, 2,
         Part(load=TRAINING, memory=40 * GB, cores=1.0), Part(60.0, memory=40 * GB, cores=0.002)),
    _one("inference server that polls", "waits with a whole CPU core", 1, 3, Part(memory=40 * GB, cores=1.0)),
    _one("declared server", "idle, with the comment fairlead:serve", 1, 4, Part(), serve=True),
    _one("fake load", "a loop of matrix products on one SM", 1, 5, Part(load=ONE_SM, memory=500 * MIB, cores=1.0)),
    Class("silent rank", "one rank is dead, the other spins in NCCL", 1,
          PlayedJob(206, {6: (Part(load=SPINS, memory=60 * GB, cores=1.0),), 7: (Part(memory=60 * GB),)}), True, {"batch": True}),
    _one("training", "works all the time", 2, 0, WORKS),
    _one("without samples", "idle, and the driver gives no samples of the utilisation", 2, 1, Part()),
    _one("without PCIe counters", "idle, and the driver does not count bytes", 2, 2, Part()),
    _one("without a control group", "idle, and its CPU time is not known", 2, 3, Part(), grouped=False),
    Class("forgotten job with two GPUs", "sleeps from its begin", 2, PlayedJob(304, {4: (Part(),), 5: (Part(),)}), False,
          {"batch": True}),
)  # fmt: skip


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of a job. judged: the words of the idle program at its last run, and why. notices: how many the owner got.
    advised: the rules of advice that found the job. coverage: the measured part of its time."""

    name: str
    truth: str
    innocent: bool
    judged: str
    why: str
    notices: int
    advised: tuple[str, ...]
    coverage: float


def played(folder: Path, library: Path, speed: float) -> list[Outcome]:
    """Play the fleet, which takes ``LASTS_SECONDS`` / ``speed``, and return what became of each job."""
    clock = Clock(speed)
    nodes = [PlayedNode(folder / f"n{number}", f"n{number + 1}", library, clock) for number in range(3)]
    try:
        for node in nodes:
            node.start()
        nodes[2].faults.error(1, "nvmlDeviceGetSamples", 3)
        for key in ("pcie.transmit_bytes", "pcie.receive_bytes"):
            nodes[2].faults.set(2, key, {"error": 3})
        for number, node in enumerate(nodes):
            node.begin(*(each.job for each in FLEET if each.node == number))
        return _polled(folder, nodes, clock)
    finally:
        for node in nodes:
            if node.process is not None:
                node.end()


def _polled(folder: Path, nodes: list[PlayedNode], clock: Clock) -> list[Outcome]:
    channel = FileChannel(folder)
    program = IdleProgram(
        options=IdleOptions(mode="notify", signed_off="2026-11-01", channel="/bin/true"),
        folder=str(folder / "idle"),
        running=lambda: _running(nodes),
        records=lambda: [record for node in nodes for record in node.records()],
        channel=channel,
        act=None,
        clock=clock.unix,
        boottime=clock.boot,
        switches=(),
    )
    due = POLL_SECONDS
    judged: dict[int, tuple[str, str]] = {}
    while nodes[0].seconds() < LASTS_SECONDS:
        for node in nodes:
            node.follow()
        if nodes[0].seconds() >= due:
            due += POLL_SECONDS
            for row in program.run().rows:
                spared = f", spared: {row.judgement.spared}" if row.judgement.spared else ""
                judged[row.job.job] = (row.judgement.word + spared, row.judgement.why)
        time.sleep(0.1)
    accepted = [event.case for event in program.journal.read() if event.kind == "accepted"]
    assert len(accepted) == len(channel.got())
    records = [record for node in nodes for record in node.records()]
    return [_outcome(each, judged, accepted, records) for each in FLEET]


def _running(nodes: list[PlayedNode]) -> list[RunningJob]:
    return [
        RunningJob(
            job=each.job.number,
            user=f"user{each.job.number}",
            begin_unix=nodes[each.node].began_unix,
            nodes=(nodes[each.node].name,),
            gpus=len(each.job.parts),
            partition="gpu",
            **each.marks,
        )
        for each in FLEET
    ]


def _outcome(each: Class, judged: dict[int, tuple[str, str]], accepted: list[str], records: Iterable[UsageRecord]) -> Outcome:
    (record,) = [r for r in records if r.job == each.job.number]
    gpus = record.gpus
    word, why = judged.get(each.job.number, ("", ""))
    return Outcome(
        name=each.name,
        truth=each.truth,
        innocent=each.innocent,
        judged=word,
        why=why,
        notices=sum(case.startswith(f"{each.job.number}@") for case in accepted),
        advised=_advised(each, record),
        coverage=min((gpu.seen_seconds / record.alloc_seconds for gpu in gpus), default=0.0),
    )


def _advised(each: Class, record: UsageRecord) -> tuple[str, ...]:
    job = JobRun(
        job=record.job,
        label=str(record.job),
        user="alice",
        account="a",
        partition="gpu",
        state="RUNNING",
        begin_unix=int(record.begin_unix),
        nodes=(record.node,),
        gpus=len(each.job.parts),
    )
    found = joined([job], [record], record.written_unix)
    return tuple(said.rule for said in advice(measures(found.allocations, {record.node: 8}), AdviceOptions()))
