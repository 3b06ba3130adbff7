"""Reads what ``fairlead usage`` counts from the collector's store and from Slurm: what a folder has too (``records_folder``)."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from msgspec.structs import replace

from fairlead.controller.accounting import Accounting
from fairlead.controller.job_store import JobStore
from fairlead.controller.records_folder import NamedRecord, Recorded, read_records
from fairlead.errors import SlurmError
from fairlead.jobs.job_run import JobRun
from fairlead.jobs.node_rows import SINFO, NodeEvent, NodeGpus, node_events_of, node_gpus_of, sacctmgr_words
from fairlead.jobs.usage_record import GpuUsage, HostUsage, UsageRecord
from fairlead.slurm.scontrol import Scontrol

_NO_HOST = HostUsage()


def read_store(folder: str, client: Scontrol, begin_unix: float, end_unix: float, *, running: str) -> Recorded:
    """Return what is known about a time. running: the folder with the newest records of running jobs. Raises InputMissing,
    DataError, HostError of the store. What Slurm does not say is named in ``mistakes``."""
    mistakes: list[str] = []
    with JobStore(folder, write=False) as store:
        first = store.first_end()
        runs = store.runs_between(begin_unix, end_unix)
        words: dict[str, str] = {}
        records: list[NamedRecord] = [
            (f"the record of job {run.label} on {record.node}", _slim(record, words))
            for run in runs
            for record in store.records(run)
        ]
    if first is None or first > begin_unix:
        since = "has no job" if first is None else f"begins on {time.strftime('%Y-%m-%d %H:%M', time.localtime(first))}"
        mistakes.append(f"{folder}: the store {since}: what ran before is not counted")
    now_running = running_runs(client, end_unix, {(run.job, run.begin_unix) for run in runs}, mistakes)
    if now_running and os.path.isdir(running):
        jobs = {run.job for run in now_running}
        records += [each for each in read_records(running, mistakes) if each[1].job in jobs]
    return Recorded(
        runs=(*runs, *now_running),
        records=tuple(records),
        nodes=_nodes(client, mistakes),
        events=_events(client, begin_unix, end_unix, mistakes),
        mistakes=tuple(mistakes),
    )


def _slim(record: UsageRecord, words: dict[str, str]) -> UsageRecord:
    """Return a record with those values that are counted. A month of a large cluster has half a million records. words: the texts
    that occur again and again."""
    gpus = tuple(
        GpuUsage(
            uuid=words.setdefault(gpu.uuid, gpu.uuid),
            pci=words.setdefault(gpu.pci, gpu.pci),
            mig=gpu.mig,
            shared=gpu.shared,
            seen_seconds=gpu.seen_seconds,
            busy_seconds=gpu.busy_seconds,
            zero_seconds=gpu.zero_seconds,
            gpm_seconds=gpu.gpm_seconds,
            sm_active_seconds=gpu.sm_active_seconds,
            energy_joules=gpu.energy_joules,
            energy_gap_seconds=gpu.energy_gap_seconds,
        )
        for gpu in record.gpus
    )
    return replace(record, gpus=gpus, findings=(), host=_NO_HOST)


def running_runs(client: Scontrol, end_unix: float, ended: set[tuple[int, int]], mistakes: list[str]) -> Sequence[JobRun]:
    """Return the runs that have begun before a time and have not ended."""
    try:
        found = Accounting(client).all_running(mistakes)
    except SlurmError as e:
        mistakes.append(f"{e}: running jobs are not counted")
        return ()
    return [run for run in found if run.begin_unix < end_unix and (run.job, run.begin_unix) not in ended]


def _nodes(client: Scontrol, mistakes: list[str]) -> tuple[NodeGpus, ...] | None:
    try:
        return tuple(node_gpus_of(client.ask(["sinfo", *SINFO]).splitlines(), mistakes))
    except SlurmError as e:
        mistakes.append(f"{e}: the capacity is not known")
        return None


def _events(client: Scontrol, begin_unix: float, end_unix: float, mistakes: list[str]) -> tuple[NodeEvent, ...] | None:
    try:
        words = sacctmgr_words(f"uts{begin_unix:.0f}", f"uts{end_unix:.0f}")
        return tuple(node_events_of(client.ask(["sacctmgr", *words]).splitlines(), mistakes))
    except SlurmError as e:
        mistakes.append(f"{e}: the time out of service is not known")
        return None
