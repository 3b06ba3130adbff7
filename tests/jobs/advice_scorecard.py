"""The scorecard of advice: for each rule a job that it must find, and a harmless twin that differs in little and must pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from fairlead.jobs.job_measures import JobMeasures, measures
from fairlead.jobs.usage_record import HostUsage
from tests.jobs.made_jobs import GB, HOUR, a_finding, a_gpu, a_job, a_record, allocations

NODE_GPUS = {"n1": 8, "n2": 8, "n3": 8, "n4": 8}
SECONDS = 4 * HOUR


def played(
    *, gpus: tuple[Any, ...] = (), host: dict[str, Any] | None = None, nodes: tuple[str, ...] = ("n1",), **job: Any
) -> JobMeasures:
    """The measures of a job with these GPUs on each of these nodes."""
    each = gpus or (a_gpu(0), a_gpu(1))
    usage = {"cpu_seconds": 0.5 * SECONDS, "cpus": 16, "memory_max_bytes": 100 * GB, "memory_limit_bytes": 128 * GB}
    made = HostUsage(**{**usage, "memory_total_bytes": 512 * GB, **(host or {})})
    records = [a_record(node=node, gpus=each, host=made) for node in nodes]
    return measures(allocations(a_job(gpus=len(each) * len(nodes), nodes=nodes, **job), *records), NODE_GPUS)


def busy(part: float, number: int = 0, **changes: Any) -> Any:
    return a_gpu(number, **{"busy_seconds": part * SECONDS, **changes})


def with_finding(check: str) -> JobMeasures:
    gpus = (busy(0.9, 0), busy(0.9, 1), busy(0.9, 2), busy(0.4, 3))
    record = a_record(gpus=gpus, findings=(a_finding(check, gpus[3].pci),))
    return measures(allocations(a_job(gpus=4), record), NODE_GPUS)


class Pair(Struct, frozen=True):
    """rule: which rule must find ``trigger`` and nothing in ``twin``. differs: how the twin differs."""

    rule: str
    trigger: Callable[[], JobMeasures]
    twin: Callable[[], JobMeasures]
    differs: str


def idle_gpu(number: int = 1) -> Any:
    return busy(0.0, number, zero_seconds=SECONDS, first_busy_seconds=None, sm_active_seconds=0.0, tensor_active_seconds=0.0)


PAIRS = (
    Pair(
        "unused_gpus", lambda: played(gpus=(a_gpu(0), idle_gpu())), lambda: played(gpus=(a_gpu(0), busy(0.7, 1))), "it did work"
    ),
    Pair(
        "unused_gpus",
        lambda: played(gpus=(idle_gpu(0),)),
        lambda: played(gpus=(busy(0.0001, 0, first_busy_seconds=30.0),)),
        "one kernel of a second ran",
    ),
    Pair(
        "input_bound",
        lambda: played(gpus=(busy(0.08, 0), busy(0.08, 1)), host={"cpu_seconds": 1.1 * SECONDS}),
        lambda: played(gpus=(busy(0.08, 0), busy(0.08, 1)), host={"cpu_seconds": 0.2 * SECONDS}),
        "the CPU waits too (a person at a notebook)",
    ),
    Pair(
        "small_kernels",
        lambda: played(gpus=(busy(0.95, sm_active_seconds=0.12 * SECONDS),)),
        lambda: played(gpus=(busy(0.95, sm_active_seconds=0.40 * SECONDS),)),
        "more SMs work",
    ),
    Pair(
        "precision",
        lambda: played(gpus=(busy(0.95, tensor_active_seconds=0.0),)),
        lambda: played(gpus=(busy(0.95, tensor_active_seconds=0.05 * SECONDS),)),
        "the tensor cores work a little",
    ),
    Pair(
        "smaller_gpu",
        lambda: played(gpus=(busy(0.5, sm_active_seconds=0.08 * SECONDS, memory_max_bytes=6 * GB),)),
        lambda: played(gpus=(busy(0.5, sm_active_seconds=0.08 * SECONDS, memory_max_bytes=40 * GB),)),
        "it needs the memory",
    ),
    Pair(
        "uneven_gpus",
        lambda: played(gpus=(busy(0.9, 0), busy(0.9, 1), busy(0.9, 2), busy(0.4, 3))),
        lambda: played(gpus=(busy(0.9, 0), busy(0.9, 1), busy(0.9, 2), busy(0.75, 3))),
        "it is within the spread of a healthy job",
    ),
    Pair(
        "late_start",
        lambda: played(gpus=tuple(busy(0.7, n, first_busy_seconds=2400.0) for n in range(2))),
        lambda: played(gpus=(busy(0.7, 0, first_busy_seconds=300.0), busy(0.7, 1, first_busy_seconds=2400.0))),
        "one GPU began at once: the second phase uses more",
    ),
    Pair(
        "spread_nodes",
        lambda: played(gpus=(a_gpu(0),), nodes=("n1", "n2", "n3", "n4")),
        lambda: played(gpus=tuple(a_gpu(n) for n in range(8)), nodes=("n1", "n2")),
        "whole nodes",
    ),
    Pair("time_limit", lambda: played(limit_seconds=72 * HOUR), lambda: played(limit_seconds=24 * HOUR), "6 times is no waste"),
    Pair(
        "time_limit",
        lambda: played(limit_seconds=72 * HOUR),
        lambda: played(limit_seconds=72 * HOUR, state="FAILED"),
        "a job that failed early says nothing about its limit",
    ),
    Pair(
        "host_memory",
        lambda: played(gpus=(a_gpu(0),), host={"memory_limit_bytes": 400 * GB, "memory_max_bytes": 40 * GB}),
        lambda: played(gpus=(a_gpu(0),), host={"memory_limit_bytes": 400 * GB, "memory_max_bytes": 350 * GB}),
        "it used the memory",
    ),
    Pair(
        "fake_load",
        lambda: played(gpus=(busy(1.0, sm_active_seconds=0.008 * SECONDS, tensor_active_seconds=0.0),)),
        lambda: played(gpus=(busy(1.0, sm_active_seconds=0.30 * SECONDS, tensor_active_seconds=0.0),)),
        "real work on a third of the SMs",
    ),
)
