"""Judges whether the GPUs of a running job are idle, over a window between readings of its usage records.

A GPU is idle only if every signal says so and the window is measured: no kernel ran (by the driver's sample buffer), hardly any
byte went over PCIe and NVLink, the used memory did not change, the SMs were not active (where GPM exists), and the coverage is
at least 95 %. What is missing makes a GPU "unknown", never idle. Power is no signal: an idle H100 draws 70 W, and busy ones may
draw little. A job is idle only if all of its GPUs on all of its nodes are idle and the job's CPUs and memory were quiet too. A
job of which some GPUs work is never told anything: one silent rank may be a fault, and Slurm cannot take one GPU back.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from fairlead.jobs.cost_and_energy import Day
from fairlead.jobs.usage_record import GpuUsage, UsageRecord

#: A record and Slurm's Start of the same run differ by the prolog and by the clocks of node and controller.
START_SECONDS = 600.0
MODES = ("observe", "notify", "ask", "act")
Word = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.@:+-]{1,64}\Z")]
Words = Annotated[tuple[Word, ...], Meta(max_length=1000)]
Positive = Annotated[float, Meta(gt=0, le=1e6)]
Count = Annotated[int, Meta(ge=0, le=100000)]
Command = Annotated[str, Meta(pattern=r"^(/[^\x00\n]{1,500})?\Z")]


class IdleOptions(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds what a site declares in [idle] of site.toml."""

    mode: Annotated[
        Literal["observe", "notify", "ask", "act"],
        Meta(description="How far the program goes. Each mode includes those before it. observe tells nobody."),
    ] = "observe"
    signed_off: Annotated[
        Day, Meta(description="The day on which the site has accepted the lists of observe. Every other mode needs this.")
    ] = ""
    window_minutes: Annotated[Positive, Meta(description="For how long all GPUs of a job are idle before the first notice.")] = 60
    repeat_minutes: Annotated[Positive, Meta(description="The time from the first notice to the second.")] = 60
    ask_minutes: Annotated[Positive, Meta(description="The time from notice 2 to the question, and from there to the act.")] = 30
    warm_up_minutes: Annotated[Positive, Meta(description="The time after a job's begin that no window reaches into.")] = 15
    coverage_min: Annotated[float, Meta(ge=0.95, le=1, description="The least measured part of the window.")] = 0.95
    bytes_per_second_max: Annotated[
        Positive, Meta(description="A GPU with more bytes per second over PCIe and NVLink is active.")
    ] = 1_000_000
    cpu_cores_max: Annotated[
        Positive,
        Meta(description="A job that uses more CPU on a node than so many cores is active: it stages, compiles or loads."),
    ] = 0.01
    host_memory_growth_bytes: Annotated[
        Annotated[int, Meta(ge=0)],
        Meta(description="A job whose memory on a node (with its page cache) grew by more than this is active."),
    ] = 64 << 20
    memory_kept_bytes: Annotated[
        Annotated[int, Meta(ge=0)],
        Meta(description="A job that keeps more GPU memory than this may be a server or a notebook: it is listed, never told."),
    ] = 256 << 20
    exempt_users: Annotated[Words, Meta(description="Users whose jobs are never judged.")] = ()
    exempt_accounts: Annotated[Words, Meta(description="Accounts whose jobs are never judged.")] = ()
    exempt_partitions: Annotated[Words, Meta(description="Partitions whose jobs are never judged.")] = ()
    exempt_qos: Annotated[Words, Meta(description="QOS whose jobs are never judged.")] = ()
    exempt_reservations: Annotated[Words, Meta(description="Reservations whose jobs are never judged.")] = ()
    channel: Annotated[
        Command,
        Meta(description="The site's program that delivers messages. Empty: scontrol notify, which cannot lead to an act."),
    ] = ""
    act_command: Annotated[Command, Meta(description="The site's program that acts on a job. Empty: nothing acts.")] = ""
    act_partitions: Annotated[Words, Meta(description="The partitions in which the program may act.")] = ()
    notices_per_hour: Annotated[Count, Meta(description="The most messages in an hour.")] = 20
    notices_per_user_per_day: Annotated[Count, Meta(description="The most messages to one user in a day.")] = 6
    acts_per_hour: Annotated[Count, Meta(description="The most acts in an hour.")] = 4
    acts_per_user_per_hour: Annotated[Count, Meta(description="The most acts on the jobs of one user in an hour.")] = 1
    keep_hours: Annotated[Positive, Meta(description="How long the comment fairlead:keep keeps a job from messages.")] = 4
    keeps_per_user_per_week: Annotated[Count, Meta(description="How many such comments of one user count in a week.")] = 10
    precision_min: Annotated[
        float, Meta(ge=0.95, le=1, description="The program stops if fewer of the answers than this say that the job was idle.")
    ] = 0.95
    answers_min: Annotated[
        Annotated[int, Meta(ge=1, le=1000)], Meta(description="So many answers are needed to compute that.")
    ] = 5


class RunningJob(Struct, frozen=True, kw_only=True):
    """Holds what slurmctld says of a running job. The marks are words that the owner has put into the job's comment: nothing else
    of the comment is read. gpus: the number of GPUs, None if Slurm does not say it. batch: False for a job of salloc or srun,
    None if that is not known."""

    job: int
    user: str
    begin_unix: float
    nodes: tuple[str, ...]
    gpus: int | None
    account: str = ""
    partition: str = ""
    qos: str = ""
    reservation: str = ""
    batch: bool | None = None
    keep: bool = False
    serve: bool = False
    work: bool = False
    idle: bool = False
    requeue: bool = False


class GpuJudgement(Struct, frozen=True, kw_only=True):
    """Says "idle", "active" or "unknown" of one GPU, and why. kept_bytes: the mean of the used memory, None if not known."""

    word: str
    why: str
    uuid: str = ""
    kept_bytes: float | None = None


class JobJudgement(Struct, frozen=True, kw_only=True):
    """Says what a job is: "idle", "partly" (some GPUs work), "active", "unknown" or "exempt". spared: the class of innocent
    reason for which the job is listed and never told; "" for none. possible: classes that could not be excluded. idle_gpus:
    number of idle GPUs. idle_seconds: how long the window was, in seconds."""

    word: str
    why: str
    spared: str = ""
    possible: tuple[str, ...] = ()
    idle_gpus: int = 0
    idle_seconds: float = 0.0

    @property
    def is_for_notice(self) -> bool:
        return self.word == "idle" and not self.spared


#: What each class of innocent reason means. Observe prints these.
CLASSES = {
    "memory_kept": "keeps GPU memory: an inference server, a notebook or a debugger may wait for a person",
    "interactive": "an interactive job: a person may be back soon",
    "server": "the owner declared it as a server (comment fairlead:serve)",
    "hardware": "a check reported this node or GPU while the job ran",
    "not_begun": "no kernel has run yet: another host may stage its data, or nobody has opened its notebook yet",
    "paused": "kernels ran before: the program may wait for another job, a lock or a person",
}


def judge_job(job: RunningJob, readings: Mapping[str, Sequence[UsageRecord]], now: float, options: IdleOptions) -> JobJudgement:
    """Judge a running job. readings: the job's records of each node, the oldest first; the window is from the first to the
    last."""
    if why := _exempt(job, options):
        return JobJudgement(word="exempt", why=why)
    if job.gpus is None:
        return JobJudgement(word="unknown", why="Slurm does not say how many GPUs it has (AccountingStorageTRES=gres/gpu)")
    missing = [node for node in job.nodes if not readings.get(node)]
    if missing:
        return JobJudgement(word="unknown", why=f"{len(missing)} of {len(job.nodes)} nodes gave no record")
    gpus: list[GpuJudgement] = []
    for node in job.nodes:
        records = readings[node]
        if why := _unfit(job, records, now, options):
            return JobJudgement(word="unknown", why=f"{node}: {why}")
        gpus += [_gpu(records, at, options) for at in range(len(records[-1].gpus))]
    if len(gpus) < job.gpus:
        return JobJudgement(word="unknown", why=f"the records have {len(gpus)} GPUs, and Slurm allocated {job.gpus}")
    of_word = {word: [gpu for gpu in gpus if gpu.word == word] for word in ("unknown", "active", "idle")}
    idle = len(of_word["idle"])
    if of_word["active"]:
        word = "partly" if idle else "active"
        return JobJudgement(word=word, why=of_word["active"][0].why, idle_gpus=idle)
    if of_word["unknown"]:
        return JobJudgement(word="unknown", why=of_word["unknown"][0].why, idle_gpus=idle)
    return _idle(job, readings, gpus, options)


def _idle(
    job: RunningJob, readings: Mapping[str, Sequence[UsageRecord]], gpus: Sequence[GpuJudgement], options: IdleOptions
) -> JobJudgement:
    """Judge a job of which all GPUs are idle: by its hosts, and by the classes of innocent reasons."""
    if not gpus:
        return JobJudgement(word="unknown", why="the records have no GPU")
    for node in job.nodes:
        word, why = _host(readings[node], options)
        if word != "quiet":
            return JobJudgement(word=word, why=f"{node}: {why}", idle_gpus=len(gpus))
    seconds = min(readings[node][-1].written_unix - readings[node][0].written_unix for node in job.nodes)
    last = [readings[node][-1] for node in job.nodes]
    kept = max(gpu.kept_bytes or 0.0 for gpu in gpus)
    begun = any(gpu.first_busy_seconds is not None for record in last for gpu in record.gpus)
    spared = ""
    if job.serve:
        spared = "server"
    elif any(record.findings for record in last):
        spared = "hardware"
    elif job.batch is not True:
        spared = "interactive"
    elif kept > options.memory_kept_bytes:
        spared = "memory_kept"
    return JobJudgement(
        word="idle",
        why=f"no kernel, hardly any byte, unchanged memory and quiet CPUs for {seconds / 60:.0f} min on {len(gpus)} GPUs",
        spared=spared,
        possible=("paused" if begun else "not_begun",),
        idle_gpus=len(gpus),
        idle_seconds=seconds,
    )


def _exempt(job: RunningJob, options: IdleOptions) -> str:
    rows = (
        ("user", job.user, options.exempt_users),
        ("account", job.account, options.exempt_accounts),
        ("partition", job.partition, options.exempt_partitions),
        ("QOS", job.qos, options.exempt_qos),
        ("reservation", job.reservation, options.exempt_reservations),
    )
    return next((f"its {kind} is exempt" for kind, value, exempt in rows if value in exempt), "")


def _unfit(job: RunningJob, records: Sequence[UsageRecord], now: float, options: IdleOptions) -> str:
    """Return why these records cannot be judged, or ""."""
    first, last = records[0], records[-1]
    seconds = last.written_unix - first.written_unix
    if any(r.job != job.job or r.begin_unix != last.begin_unix or r.boot_id != last.boot_id for r in records):
        return "the records are of several runs or boots"
    if last.end_unix is not None:
        return "its record has ended"
    if first.begin_unix + 60 * options.warm_up_minutes > first.written_unix:
        return "the window begins in the warm-up of the job"
    if seconds < 60 * options.window_minutes * 0.98:  # two polls are never exactly a window apart
        return f"the window has {seconds / 60:.0f} of {options.window_minutes:g} min"
    if any(b.written_unix <= a.written_unix for a, b in itertools.pairwise(records)):
        return "the records are not in order"
    if last.clock_steps != first.clock_steps:
        return "the node's clock was set in this time"
    if abs(now - last.written_unix) > 300:
        return "its last record is older than 5 min, or the clocks differ"
    if abs((last.alloc_seconds - first.alloc_seconds) - seconds) > 0.02 * seconds:
        return "the record's times do not agree"
    if any([g.uuid for g in r.gpus] != [g.uuid for g in last.gpus] for r in records):
        return "the records name different GPUs"
    return ""


def _gpu(records: Sequence[UsageRecord], at: int, options: IdleOptions) -> GpuJudgement:
    """Judge one GPU over the window."""
    uses = [record.gpus[at] for record in records]
    first, last = uses[0], uses[-1]
    seconds = records[-1].written_unix - records[0].written_unix

    def said(word: str, why: str, kept: float | None = None) -> GpuJudgement:
        return GpuJudgement(word=word, why=f"GPU {last.uuid}: {why}", uuid=last.uuid, kept_bytes=kept)

    busy, seen = _grown(first, last, "busy_seconds"), last.seen_seconds - first.seen_seconds
    moved = [_grown(first, last, name) for name in ("pcie_transmit_bytes", "pcie_receive_bytes")]
    links = [_grown(first, last, name) for name in ("nvlink_transmit_bytes", "nvlink_receive_bytes") if _has(uses, name)]
    if last.shared:
        return said("unknown", "other jobs may use it too")
    if busy is not None and busy > 0:
        return said("active", f"a kernel ran for {busy:.3g} s")
    if any(value is not None and value > options.bytes_per_second_max * seconds for value in (*moved, *links)):
        return said("active", "bytes went over PCIe or NVLink")
    sm = _grown(first, last, "sm_active_seconds") if _has(uses, "sm_active_seconds") else 0.0
    if sm:
        return said("active", f"the SMs were active for {sm:.3g} s")
    if busy is None or sm is None or None in moved or None in links:
        return said("unknown", "a signal is missing")
    if seen < options.coverage_min * seconds or last.spot_seconds - first.spot_seconds > (1 - options.coverage_min) * seconds:
        return said("unknown", f"it was measured for {max(0.0, seen) / seconds:.0%} of the window, or by single values only")
    if _has(uses, "sm_active_seconds") and last.gpm_seconds - first.gpm_seconds < options.coverage_min * seconds:
        return said("unknown", "GPM covers too little of the window")
    means = [_mean_memory(a, b) for a, b in itertools.pairwise(uses)]
    known = [value for value in means if value is not None]
    if len(known) < len(means) or first.memory_max_bytes is None or last.memory_max_bytes is None:
        return said("unknown", "its used memory is not known")
    if last.memory_max_bytes > first.memory_max_bytes or max(known) - min(known) > max(16 << 20, 0.01 * max(known)):
        return said("active", "its used memory changed", max(known))
    return said("idle", "no signal of work", max(known))


def _has(uses: Sequence[GpuUsage], name: str) -> bool:
    """Return whether a GPU has this sum at all: a PCIe GPU has no NVLink, and a GPU before Hopper has no GPM."""
    return any(getattr(use, name) is not None for use in uses)


def _grown(first: GpuUsage, last: GpuUsage, name: str) -> float | None:
    """Return by how much a sum has grown, or None if it is not known or has become smaller."""
    before, after = getattr(first, name), getattr(last, name)
    return None if before is None or after is None or after < before else float(after - before)


def _mean_memory(first: GpuUsage, last: GpuUsage) -> float | None:
    seconds, before, after = last.memory_seconds - first.memory_seconds, first.memory_byte_seconds, last.memory_byte_seconds
    return None if seconds <= 0 or before is None or after is None else (after - before) / seconds


def _host(records: Sequence[UsageRecord], options: IdleOptions) -> tuple[str, str]:
    """Return "quiet", "active" or "unknown" of the job's processes on a node, and why."""
    first, last = records[0].host, records[-1].host
    seconds = records[-1].written_unix - records[0].written_unix
    if first.cpu_seconds is None or last.cpu_seconds is None or last.cpu_seconds < first.cpu_seconds:
        return "unknown", "the CPU time of the job is not known"
    if (cores := (last.cpu_seconds - first.cpu_seconds) / seconds) > options.cpu_cores_max:
        return "active", f"its processes used {cores:.2g} CPU cores: staging, compiling, loading or waiting for input"
    if first.memory_max_bytes is None or last.memory_max_bytes is None:
        return "unknown", "the memory of the job is not known"
    if last.memory_max_bytes - first.memory_max_bytes > options.host_memory_growth_bytes:
        return "active", "its memory grew: it reads or writes files"
    return "quiet", ""
