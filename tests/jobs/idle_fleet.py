"""Simulates jobs with a known truth, second by second, as the agents would record them: loads, staging, pauses, servers.

A load says for each second of a job which part of the second a kernel ran, and what the GPU and the host did. ``Played.records``
gives the record of a job at a time. Sums come from the seconds, so a load that is blind to spot samples is still counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from fairlead.jobs.idle_rule import RunningJob
from fairlead.jobs.usage_record import GpuUsage, HostUsage, UsageRecord

BEGIN = 1_790_000_000.0
MIB = 1 << 20
GB = 10**9


class Second(Struct, frozen=True):
    """What happens in one second: parts from 0 to 1, bytes, used bytes, CPU cores, and the memory of the job's processes."""

    busy: float = 0.0
    sm: float = 0.0
    pcie: int = 2000  # the driver's own polling
    nvlink: int = 0
    memory: int = 0
    cores: float = 0.0
    host_memory: int = 100 * MIB


Load = Callable[[int, int], Second]  # (second of the job, number of the GPU) -> what happens


def idle_batch(_t: int, _gpu: int) -> Second:
    """A forgotten job: it sleeps."""
    return Second()


def ended_work(t: int, _gpu: int) -> Second:
    """Work for 20 minutes, then the program has ended its work, and the script sleeps."""
    return Second(busy=0.9, sm=0.5, pcie=10**8, memory=20 * GB, cores=1.0) if t < 1200 else Second()


def training(_t: int, _gpu: int) -> Second:
    return Second(busy=0.9, sm=0.6, pcie=10**8, nvlink=10**9, memory=60 * GB, cores=4.0, host_memory=8 * GB)


def periodic(t: int, _gpu: int) -> Second:
    """1 s of work in each minute, which spot samples nearly never see."""
    return Second(busy=1 / STEP, sm=0.3 / STEP, pcie=10**5, memory=200 * MIB) if t % 60 == 30 else Second(memory=200 * MIB)


def staging(t: int, _gpu: int) -> Second:
    """A download of 110 GB in 5 hours: no GPU work, little CPU, a page cache that grows."""
    return Second(cores=0.03, host_memory=min(64 * GB, 100 * MIB + t * 6 * MIB))


def slow_staging(t: int, _gpu: int) -> Second:
    """A download of 30 kB/s by a program that uses hardly any CPU."""
    return Second(cores=0.003, host_memory=100 * MIB + t * 30_000)


def compiling(_t: int, _gpu: int) -> Second:
    return Second(cores=7.5, host_memory=3 * GB)


def checkpoint_pauses(t: int, _gpu: int) -> Second:
    """20 minutes of work, then 70 minutes in which the state is written."""
    return training(t, _gpu) if t % 5400 < 1200 else Second(memory=60 * GB, cores=0.4, host_memory=30 * GB)


def evaluation_on_cpu(t: int, _gpu: int) -> Second:
    return training(t, _gpu) if t < 1200 else Second(memory=60 * GB, cores=12.0, host_memory=30 * GB)


def notebook(t: int, _gpu: int) -> Second:
    """A person runs a cell each 97 minutes. The kernel keeps its memory."""
    return Second(busy=1.0, sm=0.3, memory=2 * GB, cores=1.0) if t % 5820 < 20 else Second(memory=2 * GB, cores=0.004)


def quiet_server(t: int, _gpu: int) -> Second:
    """An inference server at night: it waits for requests without polling."""
    return Second(busy=1.0, sm=0.2, memory=40 * GB, cores=1.0) if t < 60 else Second(memory=40 * GB, cores=0.002)


def polling_server(_t: int, _gpu: int) -> Second:
    return Second(memory=40 * GB, cores=1.0)


def silent_rank(t: int, gpu: int) -> Second:
    """One rank is dead, the others spin in NCCL."""
    return Second(memory=60 * GB, cores=1.0) if gpu == 3 else Second(busy=1.0, sm=0.02, memory=60 * GB, cores=1.0)


def fake_load(_t: int, _gpu: int) -> Second:
    return Second(busy=1.0, sm=0.008, pcie=3000, memory=500 * MIB, cores=1.0)


class Played(Struct, frozen=True):
    """A job of a simulated fleet. innocent: nobody may be told of it. flaws: what its records lack, as fields of GpuUsage."""

    job: RunningJob
    load: Load
    innocent: bool
    flaws: dict[str, Any] = {}
    host: bool = True

    def record(self, seconds: int) -> UsageRecord:
        """The record of this job so many seconds after its begin."""
        gpus = tuple(self._gpu(number, seconds) for number in range(self.job.gpus))
        told = [self.load(t, 0) for t in range(0, seconds, STEP)]
        host = HostUsage(cpu_seconds=STEP * sum(s.cores for s in told), cpus=8, memory_max_bytes=max(s.host_memory for s in told))
        return UsageRecord(
            job=self.job.job,
            node=self.job.nodes[0],
            boot_id="b",
            begin_unix=self.job.begin_unix,
            begin_boot=100.0,
            written_unix=self.job.begin_unix + seconds,
            alloc_seconds=float(seconds),
            gpus=gpus,
            host=host if self.host else HostUsage(),
        )

    def _gpu(self, number: int, seconds: int) -> GpuUsage:
        done = [self.load(t, number) for t in range(0, seconds, STEP)]
        first = next((t * STEP for t, s in enumerate(done) if s.busy), None)
        values: dict[str, Any] = {
            "uuid": f"GPU-{self.job.job}-{number}",
            "pci": f"0000:{number:02x}:00.0",
            "seen_seconds": float(seconds),
            "busy_seconds": STEP * sum(s.busy for s in done),
            "zero_seconds": float(STEP * sum(not s.busy for s in done)),
            "first_busy_seconds": first,
            "gpm_seconds": float(seconds),
            "sm_active_seconds": STEP * sum(s.sm for s in done),
            "memory_max_bytes": max(s.memory for s in done),
            "memory_byte_seconds": float(STEP * sum(s.memory for s in done)),
            "memory_seconds": float(seconds),
            "pcie_transmit_bytes": STEP * sum(s.pcie for s in done),
            "pcie_receive_bytes": STEP * sum(s.pcie for s in done),
            "nvlink_transmit_bytes": STEP * sum(s.nvlink for s in done),
            "nvlink_receive_bytes": STEP * sum(s.nvlink for s in done),
        }
        return GpuUsage(**{**values, **self.flaws})


#: The simulation goes in steps of so many seconds. The periodic load works in second 30 of each minute, which is a step.
STEP = 10


def a_run(number: int, gpus: int = 2, **changes: Any) -> RunningJob:
    values: dict[str, Any] = {
        "job": number,
        "user": f"user{number}",
        "account": "a",
        "partition": "gpu",
        "begin_unix": BEGIN,
        "nodes": (f"n{number}",),
        "gpus": gpus,
        "batch": True,
    }
    return RunningJob(**{**values, **changes})


def fleet() -> list[Played]:
    """Jobs of every class of section 10 and of the table of false positives."""
    return [
        Played(a_run(1), idle_batch, False),
        Played(a_run(2), ended_work, False),
        Played(a_run(3, gpus=8), idle_batch, False),
        Played(a_run(10), training, True),
        Played(a_run(11), periodic, True),
        Played(a_run(12), staging, True),
        Played(a_run(13), slow_staging, True),
        Played(a_run(14), compiling, True),
        Played(a_run(15), checkpoint_pauses, True),
        Played(a_run(16), evaluation_on_cpu, True),
        Played(a_run(17), notebook, True),
        Played(a_run(18, batch=False), idle_batch, True),
        Played(a_run(19), quiet_server, True),
        Played(a_run(20), polling_server, True),
        Played(a_run(21, serve=True), idle_batch, True),
        Played(a_run(22, gpus=4), silent_rank, True),
        Played(a_run(23), fake_load, True),
        # What is missing is never idle.
        Played(a_run(30), idle_batch, True, {"busy_seconds": None}),
        Played(a_run(31), idle_batch, True, {"pcie_receive_bytes": None}),
        Played(a_run(32), idle_batch, True, {"memory_byte_seconds": None}),
        Played(a_run(33), idle_batch, True, {"seen_seconds": 0.0}),
        Played(a_run(34), idle_batch, True, {"gpm_seconds": 0.0}),
        Played(a_run(35), idle_batch, True, {"shared": True}),
        Played(a_run(36), idle_batch, True, host=False),
        Played(a_run(37, batch=None), idle_batch, True),
    ]
