"""Advises on one job: what its owner may change so that the job waits less or blocks fewer GPUs. One function is one rule.

A rule says what was measured, which threshold it passed and what may be done. Each rule has a switch ([advice] of site.toml). All
rules are silent for a job that ran less than 10 minutes and for a job that was measured for less than 95 % of its GPU time. GPUs
that several jobs have at once (shards, MPS) get no advice, because their values are those of no single job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from fairlead.jobs.job_measures import GpuMeasures, JobMeasures, mean, median

Part = Annotated[float, Meta(ge=0, le=1)]
Minutes = Annotated[float, Meta(ge=0, le=100000)]


class AdviceOptions(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds the thresholds and switches of a site's [advice]. Parts are from 0 to 1."""

    off: Annotated[tuple[str, ...], Meta(description="Rules that are switched off, by name.", max_length=64)] = ()
    input_busy_max: Annotated[Part, Meta(description="`input_bound`: the GPUs are busy for less than this part.")] = 0.15
    input_cores_min: Annotated[
        Annotated[float, Meta(ge=0, le=4096)], Meta(description="`input_bound`: a node has at least so many busy CPU cores.")
    ] = 0.9
    kernels_busy_min: Annotated[Part, Meta(description="`small_kernels`: the GPUs are busy for more than this part.")] = 0.80
    kernels_sm_max: Annotated[Part, Meta(description="`small_kernels`: the SMs are active for less than this part.")] = 0.25
    tensor_sm_min: Annotated[Part, Meta(description="`precision`: the SMs are active for more than this part.")] = 0.50
    tensor_max: Annotated[Part, Meta(description="`precision`: the tensor cores are active for less than this part.")] = 0.01
    small_memory_bytes: Annotated[
        Annotated[int, Meta(ge=0)], Meta(description="`smaller_gpu`: no GPU uses more memory than this, in bytes.")
    ] = 10_000_000_000
    small_sm_max: Annotated[Part, Meta(description="`smaller_gpu`: the SMs are active for less than this part.")] = 0.15
    uneven_part: Annotated[Part, Meta(description="`uneven_gpus`: a GPU is so far from the median of the others.")] = 0.25
    late_minutes: Annotated[Minutes, Meta(description="`late_start`: the first kernel ran after so many minutes.")] = 15.0
    limit_times: Annotated[
        Annotated[float, Meta(ge=1, le=100000)], Meta(description="`time_limit`: the limit is so many times the run time.")
    ] = 10.0
    host_memory_times: Annotated[
        Annotated[float, Meta(ge=1, le=1000)],
        Meta(description="`host_memory`: the job's part of the node's memory is so many times its part of the GPUs."),
    ] = 1.5


class NotCounted(Struct, frozen=True, kw_only=True):
    """Names a finding on a GPU or its node while the job ran: what the job did there is not counted against its owner."""

    node: str
    check: str
    level: str
    pci: str = ""
    at_unix: float = 0.0


class Advice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Holds one advice. evidence: what was measured. threshold: what it was compared with. text: what may be done. gpus: the GPUs
    that it is about, () for all. not_counted: the findings that touched these GPUs."""

    rule: str
    text: str
    evidence: str
    threshold: str
    gpus: tuple[str, ...] = ()
    not_counted: tuple[NotCounted, ...] = ()


RUN_SECONDS_MIN = 600.0
COVERAGE_MIN = 0.95
Rule = Callable[[JobMeasures, AdviceOptions], "Advice | None"]


def advice(job: JobMeasures, options: AdviceOptions) -> tuple[Advice, ...]:
    """Return the advice for a job. Return () for a job that is too short, not measured well enough, or shared."""
    own = job.gpus and not any(gpu.shared for gpu in job.gpus)
    if job.run_seconds < RUN_SECONDS_MIN or job.coverage < COVERAGE_MIN or not own:
        return ()
    found = (rule(job, options) for name, rule in RULES.items() if name not in options.off)
    return tuple(_with_findings(each, job) for each in found if each is not None)


def _with_findings(advice: Advice, job: JobMeasures) -> Advice:
    """Return an advice with the findings that touched its GPUs. What a job asked for does not depend on them."""
    if advice.rule in OF_THE_REQUEST:
        return advice
    found = {
        (gpu.node, finding.check, finding.pci): NotCounted(
            node=gpu.node, check=finding.check, level=finding.level, pci=finding.pci, at_unix=finding.at_unix
        )
        for gpu in job.gpus
        if not advice.gpus or _name(gpu) in advice.gpus
        for finding in gpu.findings
    }
    return replace(advice, not_counted=tuple(found.values()))


def unused_gpus(job: JobMeasures, options: AdviceOptions) -> Advice | None:
    """GPUs on which no kernel ran at all, while the job had them."""
    unused = [gpu for gpu in job.gpus if gpu.busy == 0]
    if not unused:
        return None
    some = len(unused) < len(job.gpus)
    return Advice(
        rule="unused_gpus",
        gpus=tuple(map(_name, unused)) if some else (),
        evidence=f"{len(unused)} of {len(job.gpus)} GPUs never ran a kernel: {_names(unused)}",
        threshold="busy 0 % for the whole job",
        text=f"ask for {len(job.gpus) - len(unused)} GPUs, or find why the others got no work"
        if some
        else "if the program needs no GPU, use a partition without GPUs; else find why it used none",
    )


def input_bound(job: JobMeasures, options: AdviceOptions) -> Advice | None:
    """GPUs that wait while the CPU works: the program may wait for its input."""
    busy = mean([gpu.busy for gpu in job.gpus])
    cores = max(job.cpu_cores.values(), default=0.0)
    if busy is None or not 0 < busy < options.input_busy_max or cores < options.input_cores_min:
        return None
    return Advice(
        rule="input_bound",
        evidence=f"the GPUs were busy for {busy:.0%}, and {cores:.1f} CPU cores of a node were busy all the time",
        threshold=f"busy below {options.input_busy_max:.0%}, and at least {options.input_cores_min:g} busy cores",
        text="the program may wait for its input: use more loader processes, larger batches, or data on a local disk"
        " (the record has no disk and network bytes)",
    )


def small_kernels(job: JobMeasures, options: AdviceOptions) -> Advice | None:
    """GPUs that always run a kernel, on few of their SMs."""
    busy, sm = mean([gpu.busy for gpu in job.gpus]), mean([gpu.sm for gpu in job.gpus])
    if busy is None or sm is None or busy <= options.kernels_busy_min or sm >= options.kernels_sm_max:
        return None
    return Advice(
        rule="small_kernels",
        evidence=f"a kernel ran for {busy:.0%} of the time, and the SMs were active for {sm:.0%}",
        threshold=f"busy above {options.kernels_busy_min:.0%}, and SM-active below {options.kernels_sm_max:.0%}",
        text="the kernels are small or wait for each other: try larger batches, CUDA graphs, or fused kernels",
    )


def precision(job: JobMeasures, options: AdviceOptions) -> Advice | None:
    """Busy SMs and idle tensor cores."""
    sm, tensor = mean([gpu.sm for gpu in job.gpus]), mean([gpu.tensor for gpu in job.gpus])
    if sm is None or tensor is None or sm <= options.tensor_sm_min or tensor >= options.tensor_max:
        return None
    return Advice(
        rule="precision",
        evidence=f"the SMs were active for {sm:.0%}, and the tensor cores for {tensor:.1%}",
        threshold=f"SM-active above {options.tensor_sm_min:.0%}, and tensor-active below {options.tensor_max:.0%}",
        text="if this work multiplies matrices in FP32, TF32 or BF16 may be faster; if it needs FP64 or has no such products,"
        " nothing is wrong",
    )


def smaller_gpu(job: JobMeasures, options: AdviceOptions) -> Advice | None:
    """Little memory and little SM activity: a MIG device or a smaller GPU would do."""
    sm = mean([gpu.sm for gpu in job.gpus])
    peaks = [gpu.memory_max_bytes for gpu in job.gpus]
    if sm is None or not sm or sm >= options.small_sm_max or any(gpu.mig for gpu in job.gpus):
        return None
    known = [peak for peak in peaks if peak is not None]
    if len(known) < len(peaks) or max(known) >= options.small_memory_bytes:
        return None
    return Advice(
        rule="smaller_gpu",
        evidence=f"no GPU used more than {max(known) / 1e9:.1f} GB, and the SMs were active for {sm:.0%}",
        threshold=f"memory below {options.small_memory_bytes / 1e9:g} GB, and SM-active below {options.small_sm_max:.0%}",
        text="a MIG device or a smaller GPU is enough for this work, and often starts sooner",
    )


def uneven_gpus(job: JobMeasures, options: AdviceOptions) -> Advice | None:
    """GPUs that are far from the median of the others: the work is uneven, or the hardware differs."""
    far = []
    for gpu in job.gpus:
        others = [each.busy for each in job.gpus if each is not gpu and each.busy is not None]
        if gpu.busy and others and abs(gpu.busy - median(others)) > options.uneven_part:
            far.append(gpu)
    if not far or len(job.gpus) < 3:  # of two GPUs nobody can say which one is far
        return None
    checks = sorted({finding.check for gpu in far for finding in gpu.findings})
    others = [gpu.busy for gpu in job.gpus if gpu not in far and gpu.busy is not None]
    middle = f"{median(others):.0%}" if others else "different values"
    return Advice(
        rule="uneven_gpus",
        gpus=tuple(map(_name, far)),
        evidence=f"{_names(far)} busy {', '.join(f'{gpu.busy or 0:.0%}' for gpu in far[:8])}; the others {middle}",
        threshold=f"more than {options.uneven_part:.0%} from the median of the others",
        text=f"this may be the hardware and not the job: {', '.join(checks)} reported it"
        if checks
        else "the work may be spread unevenly over the ranks; no check reported this hardware",
    )


def late_start(job: JobMeasures, options: AdviceOptions) -> Advice | None:
    """The first kernel ran late: the GPUs waited for staging."""
    begun = [gpu.first_busy_seconds for gpu in job.gpus if gpu.first_busy_seconds is not None]
    if not begun or min(begun) <= options.late_minutes * 60:
        return None
    hours = min(begun) * len(job.gpus) / 3600
    return Advice(
        rule="late_start",
        evidence=f"the first kernel ran {min(begun) / 60:.0f} min after the begin: {hours:.1f} GPU-hours before any work",
        threshold=f"after more than {options.late_minutes:g} min",
        text="copy and unpack data in a job without GPUs, and let this job depend on it (sbatch --dependency=afterok)",
    )


def spread_nodes(job: JobMeasures, options: AdviceOptions) -> Advice | None:
    """GPUs on more nodes than needed."""
    nodes = {gpu.node for gpu in job.gpus} | set(job.nodes_without_record)
    if not job.node_gpus or len(job.node_gpus) < len(nodes):
        return None
    whole = min(job.node_gpus.values())
    needed = -(-len(job.gpus) // whole) if whole else 0
    if not needed or len(nodes) <= needed:
        return None
    return Advice(
        rule="spread_nodes",
        evidence=f"{len(job.gpus)} GPUs on {len(nodes)} nodes",
        threshold=f"{needed} {'node has' if needed == 1 else 'nodes have'} as many GPUs ({whole} each)",
        text=f"ask for --nodes={needed}: ranks on one node exchange data over NVLink or PCIe, and whole nodes stay free",
    )


def time_limit(job: JobMeasures, options: AdviceOptions) -> Advice | None:
    """A time limit that is many times the run time of a job that ended well."""
    limit = job.job.limit_seconds
    if limit is None or job.job.state != "COMPLETED" or limit < options.limit_times * job.run_seconds:
        return None
    return Advice(
        rule="time_limit",
        evidence=f"the job ran {job.run_seconds / 3600:.1f} h, and its limit was {limit / 3600:.1f} h",
        threshold=f"{options.limit_times:g} times the run time",
        text="a shorter --time lets Slurm start the job earlier (backfill)",
    )


def host_memory(job: JobMeasures, options: AdviceOptions) -> Advice | None:
    """More of the node's memory than of its GPUs, and not used: the node's other GPUs cannot be allocated."""
    for node, limit in job.host_memory_limit_bytes.items():
        total, whole = job.host_memory_total_bytes.get(node), job.node_gpus.get(node)
        peak = job.host_memory_max_bytes.get(node)
        if not total or not whole or peak is None:
            continue
        own = sum(gpu.node == node for gpu in job.gpus)
        if own < whole and limit / total > options.host_memory_times * own / whole and peak < limit / 2:
            return Advice(
                rule="host_memory",
                evidence=f"{own} of {whole} GPUs of {node} and {limit / total:.0%} of its memory ({peak / limit:.0%} of it used)",
                threshold=f"{options.host_memory_times:g} times its part of the GPUs, and less than half of it used",
                text=f"ask for about {peak * 1.2 / 1e9:.0f} GB (--mem): others can use the node's other GPUs then",
            )
    return None


def fake_load(job: JobMeasures, options: AdviceOptions) -> Advice | None:
    """A kernel that always runs on hardly any SM, for the whole job."""
    pairs = [(gpu.busy, gpu.sm, gpu.tensor) for gpu in job.gpus]
    if not all(busy is not None and sm is not None and busy >= 0.98 and sm < 0.03 and not tensor for busy, sm, tensor in pairs):
        return None
    return Advice(
        rule="fake_load",
        evidence="a kernel ran for at least 98 % of the time on every GPU, and the SMs were active for less than 3 %",
        threshold="busy from 98 %, SM-active below 3 %, no tensor activity",
        text="utilisation alone shows no work here: a kernel that waits (NCCL, polling) or a loop that only keeps a GPU busy",
    )


#: The rules by name. ``small_kernels`` comes before ``fake_load``: both may be true of one job.
RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        unused_gpus,
        input_bound,
        small_kernels,
        precision,
        smaller_gpu,
        uneven_gpus,
        late_start,
        spread_nodes,
        time_limit,
        host_memory,
        fake_load,
    )
}


#: The rules about what the job asked for, and not about what its GPUs did.
OF_THE_REQUEST = frozenset(rule.__name__ for rule in (spread_nodes, time_limit, host_memory))


def _name(gpu: GpuMeasures) -> str:
    """Return ``gpu007/3``. The number is Slurm's GRES index, else the PCI address."""
    return f"{gpu.node}/{gpu.index if gpu.index is not None else gpu.pci}"


def _names(gpus: Sequence[GpuMeasures]) -> str:
    """Return ``gpu007/3, gpu007/4`` for at most 8 GPUs."""
    names = [_name(gpu) for gpu in gpus[:8]]
    return ", ".join(names) + (f" and {len(gpus) - 8} more" if len(gpus) > 8 else "")
