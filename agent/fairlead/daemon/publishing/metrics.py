"""Renders the agent's metrics for Prometheus from one immutable input, for the text file or a scrape.

Names follow prometheus.io/docs/practices/naming: base units, ``_total`` on counters. No label contains a process name, a
comment or other text of a user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct, field
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from fairlead.daemon.publishing import gpu_activity_metrics, gpu_error_metrics, gpu_load_metrics, mig_metrics, xid_metrics
from fairlead.daemon.publishing.gpu_labels import LABELS, Labels, labels_of
from fairlead.model.facts import Ecc, Gpu, Missing, Node, NvLink, PcieLink, RowRemap
from fairlead.model.finding import Finding, Level
from fairlead.model.gpu_load import REASONS
from fairlead.model.node_jobs import GpuOfJob
from fairlead.model.verdict import State
from fairlead.policy.drain_limits import DrainLimit

_ECC = ("volatile_corrected", "volatile_uncorrected", "aggregate_corrected", "aggregate_uncorrected")
_LINK_ERRORS = (
    "crc_errors", "replay_errors", "recovery_errors",
    "malformed_packets", "receive_errors", "recoveries_failed", "recoveries", "effective_errors",
)  # fmt: skip
#: Each fact of a GPU that becomes one gauge: the attribute of ``Gpu``, the metric's name, and the help text.
_GAUGES = (
    ("temperature_celsius", "temperature_celsius", "GPU core temperature."),
    ("power_draw_watts", "power_draw_watts", "Power draw of the GPU card."),
    ("power_limit_watts", "power_limit_watts", "Enforced power limit."),
    ("clock_sm_hertz", "sm_clock_hertz", "Clock of the streaming multiprocessors."),
    ("memory_used_bytes", "memory_used_bytes", "Frame buffer in use."),
    ("memory_total_bytes", "memory_size_bytes", "Frame buffer size."),
    ("performance_state", "performance_state", "NVML performance state, 0 is the highest."),
    (
        "recovery_action",
        "recovery_action",
        "The driver's request: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, 5 IMEX, 6 bus reset, 7 system reboot.",
    ),
    ("persistence", "persistence_mode", "Persistence mode, 1 is on."),
    ("mig_current", "mig_mode", "MIG mode, 1 is on."),
    ("mig_pending", "mig_mode_pending", "MIG mode after the next reset, 1 is on."),
    ("inforom_valid", "inforom_valid", "1 when the InfoROM's checksums are right. They are read once an hour."),
)
_PCIE = (
    ("gen_current", "pcie_link_generation"),
    ("gen_max", "pcie_link_generation_max"),
    ("width_current", "pcie_link_width_lanes"),
    ("width_max", "pcie_link_width_max_lanes"),
)


class MetricsInput(Struct, frozen=True, kw_only=True):
    """Holds everything that one rendering needs. Times are Unix times, durations are seconds.

    checks: every enabled check with its mode. sources: each source with the time of its last answer. suppressed: the findings
    that would drain the node but are suppressed. ladder: each fault (``CHECK.FAULT/CARD``) with its escalation step. strikes:
    each GPU card with the number of its strikes in the window. slurm_node: the node's name in Slurm. slurm_up: whether slurmctld
    answered the last question, or None before the first question. gpu_labels: the index and UUID of each GPU as last read, by
    PCI address. job_gpus: the GPUs and MIG devices of the running jobs. xids: kind, PCI address, code and number of records.
    nvlink_links: True adds metrics of each NVLink.
    """

    version: str
    slurm_node: str = ""
    generation: int = 0
    profile: str = ""
    state: State = State.UNKNOWN
    sequence: int = 0
    sweep_unix: float = 0.0
    sources: tuple[tuple[str, float], ...] = ()
    sweep_seconds: float = 0.0
    expires_unix: float = 0.0
    checks: tuple[tuple[str, str], ...] = ()
    findings: tuple[Finding, ...] = ()
    suppressed: tuple[Finding, ...] = ()
    drained: bool = False
    limit: DrainLimit | None = None
    slurm_up: bool | None = None
    sweeps: int = 0
    records: int = 0
    overruns: int = 0
    worker_crashes: int = 0
    worker_stuck: bool = False
    nvml_released: bool = False
    history_ok: bool = True
    jobs: int = 0
    job_gpus: tuple[GpuOfJob, ...] = ()
    node: Node | None = None
    ladder: tuple[tuple[str, str], ...] = ()
    strikes: tuple[tuple[str, int], ...] = ()
    reboots: int = 0
    proofs: tuple[tuple[str, int], ...] = ()
    gpu_labels: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    xids: tuple[tuple[str, str, str, int], ...] = ()
    nvlink_links: bool = False


class _One:
    """Holds one metric family for prometheus_client to render."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


class Metrics:
    """Renders the current input. A metric family that has not changed since the last rendering is not rendered again."""

    def __init__(self, view: MetricsInput) -> None:
        self.view = view
        self._rendered: tuple[MetricsInput, bytes] | None = None
        self._texts: dict[str, tuple[Metric, bytes]] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families of the current input."""
        view = self.view
        yield from _agent(view)
        yield from _checks(view)
        gpus = () if view.node is None or isinstance(view.node.gpus, Missing) else view.node.gpus
        names = labels_of(gpus, view.gpu_labels)
        yield from xid_metrics.families(view.xids, names, view.gpu_labels)
        if gpus:
            yield from _gpus(tuple(zip(gpus, names, strict=True)), links=view.nvlink_links)
            yield gpu_activity_metrics.job_family(view.job_gpus, names)
        if view.node is not None:
            yield gpu_load_metrics.driver_family(view.node)
            yield from _nics(view.node)

    def render(self) -> bytes:
        """Return the metrics in Prometheus text format 0.0.4. The same input is rendered only once."""
        view, rendered = self.view, self._rendered
        if rendered is None or rendered[0] is not view:
            rendered = self._rendered = (view, b"".join(self._text(family) for family in self.collect()))
        return rendered[1]

    def _text(self, family: Metric) -> bytes:
        known = self._texts.get(family.name)
        if known is None or (known[0] is not family and known[0] != family):
            known = self._texts[family.name] = (family, generate_latest(_One(family)))
        return known[1]

    def listen(self, address: str) -> None:
        """Serve /metrics at host:port in separate threads. Raises OSError or ValueError if the address cannot be used."""
        from fairlead.daemon.publishing.scrape import serve

        serve(address, self.render, CONTENT_TYPE_LATEST)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"fairlead_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"fairlead_{name}", text, value=value)


def _agent(view: MetricsInput) -> Iterator[Metric]:
    info = GaugeMetricFamily("fairlead_build_info", "Version of the agent; always 1.", labels=["version"])
    info.add_metric([view.version], 1)
    yield info
    named = GaugeMetricFamily("fairlead_node_info", "The node by its name in Slurm; always 1.", labels=["node"])
    named.add_metric([view.slurm_node], 1)
    yield named
    document = GaugeMetricFamily("fairlead_document_generation", "Generation of the node's document.", labels=["profile"])
    document.add_metric([view.profile], view.generation)
    yield document
    state = GaugeMetricFamily("fairlead_verdict_state", "The verdict: 1 for its present state.", labels=["state"])
    for each in State:
        state.add_metric([each.value], each is view.state)
    yield state
    yield _gauge("verdict_sequence", "Sequence number of the verdict.", view.sequence)
    yield _gauge("verdict_expires_timestamp_seconds", "When the verdict expires if it is not renewed.", view.expires_unix)
    yield _gauge("sweep_timestamp_seconds", "When the last full sweep ended.", view.sweep_unix)
    yield _gauge("sweep_duration_seconds", "How long the last full sweep took.", view.sweep_seconds)
    source = GaugeMetricFamily(
        "fairlead_source_timestamp_seconds",
        "When a source last answered: nvml, kernel_log, host (/proc and /sys), state_dir (the disk).",
        labels=["source"],
    )
    for name, at in view.sources:
        source.add_metric([name], at)
    yield source
    yield _gauge("drained", "1 while a drain by fairlead is set in slurmctld.", view.drained)
    limit = GaugeMetricFamily(
        "fairlead_drain_limited",
        "1 while a drain limit delays a drain: partition, switch, block, common_cause, suspect_job.",
        labels=["limit", "name"],
    )
    if view.limit is not None:
        limit.add_metric([view.limit.kind.value, view.limit.name], 1)
    yield limit
    up = GaugeMetricFamily(
        "fairlead_slurm_up", "1 when slurmctld answered the last question; absent until the agent has asked it."
    )
    if view.slurm_up is not None:
        up.add_metric([], view.slurm_up)
    yield up
    yield _gauge("jobs", "Jobs on this node, by the prolog's records.", view.jobs)
    yield _gauge("nvml_released", "1 while NVML is released on request (RUN_DIR/nvml-release).", view.nvml_released)
    yield _gauge("nvml_worker_stuck", "1 while an NVML call has not returned.", view.worker_stuck)
    yield _gauge("history_up", "1 while the history is on disk.", view.history_ok)
    yield _counter("sweeps", "Full sweeps.", view.sweeps)
    yield _counter("kernel_records", "Kernel records that woke a check.", view.records)
    yield _counter("kernel_records_lost", "Kernel records that were overwritten before the agent read them.", view.overruns)
    yield _counter("nvml_worker_crashes", "NVML workers that died.", view.worker_crashes)


def _checks(view: MetricsInput) -> Iterator[Metric]:
    worst: dict[str, Level] = {}
    order = {Level.OK: 0, Level.WARN: 1, Level.UNKNOWN: 2, Level.DRAIN: 3}
    for finding in view.findings:
        worst[finding.check] = max(worst.get(finding.check, Level.OK), finding.level, key=order.__getitem__)
    status = GaugeMetricFamily(
        "fairlead_check_status", "Worst finding of a check: 0 ok, 1 warn, 2 drain, 3 unknown.", labels=["check", "mode"]
    )
    for name, mode in view.checks:
        status.add_metric([name, mode], worst.get(name, Level.OK))
    yield status
    found = GaugeMetricFamily("fairlead_findings", "Findings now.", labels=["check", "level", "device"])
    # the devices of drift are files and CPUs, which would make hundreds of series
    counts = Counter(
        (f.check, f.level.word, "" if f.check.startswith("setting.") else f.device)
        for f in view.findings
        if f.level is not Level.OK
    )
    for labels, count in sorted(counts.items()):
        found.add_metric(list(labels), count)
    yield found
    proofs = CounterMetricFamily(
        "fairlead_return_command_runs", "Runs of the return-to-service command by outcome.", labels=["outcome"]
    )
    for outcome, count in view.proofs:
        proofs.add_metric([outcome], count)
    yield proofs
    steps = GaugeMetricFamily(
        "fairlead_ladder_step",
        "1 for the present escalation step of a fault of a GPU card, while it is remembered.",
        labels=["fault", "step"],
    )
    for fault, step in view.ladder:
        steps.add_metric([fault, step], 1)
    yield steps
    struck = GaugeMetricFamily(
        "fairlead_strikes", "Drains for a GPU card (serial, address or node) in the window.", labels=["board"]
    )
    for card, count in view.strikes:
        struck.add_metric([card], count)
    yield struck
    yield _gauge("reboots_for_faults", "Boots that followed a fault, in the window.", view.reboots)
    yield _gauge("held_findings", "Findings that would drain but are suppressed.", len(view.suppressed))


def _gpus(gpus: Sequence[tuple[Gpu, Labels]], *, links: bool) -> Iterator[Metric]:
    info = GaugeMetricFamily("fairlead_gpu_info", "A GPU; always 1.", labels=[*LABELS, "serial", "name"])
    lost = GaugeMetricFamily("fairlead_gpu_lost", "1 when the driver says that the GPU is lost.", labels=LABELS)
    busy = GaugeMetricFamily(
        "fairlead_gpu_utilization_ratio", "Part of the last sample period in which a kernel ran, 0 to 1.", labels=LABELS
    )
    ran = GaugeMetricFamily("fairlead_gpu_processes", "Compute processes.", labels=LABELS)
    for gpu, labels in gpus:
        info.add_metric([*labels, _known(gpu.serial), _known(gpu.name)], 1)
        lost.add_metric(labels, gpu.lost)
        if not isinstance(gpu.utilization_percent, Missing):
            busy.add_metric(labels, gpu.utilization_percent / 100)
        if not isinstance(gpu.processes, Missing):
            ran.add_metric(labels, len(gpu.processes))
    yield from (info, lost, busy, ran)
    for attribute, name, text in _GAUGES:
        family = GaugeMetricFamily(f"fairlead_gpu_{name}", text, labels=LABELS)
        for gpu, labels in gpus:
            _add(family, labels, getattr(gpu, attribute))
        yield family
    slow = GaugeMetricFamily("fairlead_gpu_clock_event", "1 while this reason limits the clocks.", labels=[*LABELS, "reason"])
    for gpu, labels in gpus:
        if not isinstance(gpu.throttle_reasons, Missing):
            for bit, reason in REASONS:
                slow.add_metric([*labels, reason], bool(gpu.throttle_reasons & bit))
    yield slow
    yield from _memory(tuple((labels, g.ecc, g.remap) for g, labels in gpus))
    yield from gpu_error_metrics.families(gpus)
    yield from mig_metrics.families(gpus)
    yield from gpu_activity_metrics.families(gpus)
    yield from _pcie(tuple((labels, g.pcie) for g, labels in gpus))
    yield from _nvlinks(tuple((labels, g.nvlinks) for g, labels in gpus), each=links)
    yield from gpu_load_metrics.families(gpus)


@lru_cache(maxsize=1)  # these families have most of the series, and rarely change between two renderings
def _memory(gpus: tuple[tuple[Labels, Ecc | Missing, RowRemap | Missing], ...]) -> tuple[Metric, ...]:
    errors = CounterMetricFamily("fairlead_gpu_ecc_errors", "ECC errors.", labels=[*LABELS, "kind"])
    mode = GaugeMetricFamily("fairlead_gpu_ecc_mode", "ECC mode, 1 is on.", labels=LABELS)
    sram = GaugeMetricFamily(
        "fairlead_gpu_sram_threshold_exceeded", "1 when SRAM errors are past NVIDIA's threshold.", labels=LABELS
    )
    rows = GaugeMetricFamily(
        "fairlead_gpu_remapped_rows", "Remapped rows over the life of the GPU card.", labels=[*LABELS, "kind"]
    )
    state = GaugeMetricFamily(
        "fairlead_gpu_row_remap_state", "1 when a remap is pending, or has failed.", labels=[*LABELS, "kind"]
    )
    spare = GaugeMetricFamily(
        "fairlead_gpu_row_remap_banks", "Memory banks by their remaining spare rows.", labels=[*LABELS, "left"]
    )
    for labels, ecc, remap in gpus:
        if isinstance(ecc, Ecc):
            _add(mode, labels, ecc.mode_current)
            _add(sram, labels, ecc.sram_threshold_exceeded)
            for kind in _ECC:
                _add(errors, [*labels, kind], getattr(ecc, kind))
        if isinstance(remap, RowRemap):
            rows.add_metric([*labels, "corrected"], remap.corrected)
            rows.add_metric([*labels, "uncorrected"], remap.uncorrected)
            state.add_metric([*labels, "pending"], remap.pending)
            state.add_metric([*labels, "failed"], remap.failed)
            if not isinstance(remap.histogram, Missing):
                for left, banks in zip(("max", "high", "partial", "low", "none"), remap.histogram, strict=False):
                    spare.add_metric([*labels, left], banks)
    return errors, mode, sram, rows, state, spare


@lru_cache(maxsize=1)
def _pcie(gpus: tuple[tuple[Labels, PcieLink | Missing], ...]) -> tuple[Metric, ...]:
    families: list[Metric] = []
    for attribute, name in _PCIE:
        family = GaugeMetricFamily(f"fairlead_gpu_{name}", "PCIe link of the GPU.", labels=LABELS)
        for labels, pcie in gpus:
            if isinstance(pcie, PcieLink):
                _add(family, labels, getattr(pcie, attribute))
        families.append(family)
    replays = CounterMetricFamily("fairlead_gpu_pcie_replays", "PCIe replays.", labels=LABELS)
    for labels, pcie in gpus:
        if isinstance(pcie, PcieLink):
            _add(replays, labels, pcie.replays)
    return *families, replays


@lru_cache(maxsize=1)
def _nvlinks(gpus: tuple[tuple[Labels, tuple[NvLink, ...] | Missing], ...], *, each: bool) -> tuple[Metric, ...]:
    count = GaugeMetricFamily("fairlead_gpu_nvlinks_active", "Number of links that are up.", labels=LABELS)
    active = GaugeMetricFamily(
        "fairlead_gpu_nvlink_active", "1 when the link is up. Only with agent.metrics_nvlink_links.", labels=[*LABELS, "link"]
    )
    errors = CounterMetricFamily("fairlead_gpu_nvlink_errors", "NVLink errors of all links.", labels=[*LABELS, "kind"])
    for labels, links in gpus:
        if isinstance(links, Missing):
            continue
        states = [link.active for link in links if not isinstance(link.active, Missing)]
        if states:
            count.add_metric(labels, sum(states))
        for link in links if each else ():
            _add(active, [*labels, str(link.link)], link.active)
        for kind in _LINK_ERRORS:
            known = [v for link in links if not isinstance(v := getattr(link, kind), Missing)]
            if known:
                errors.add_metric([*labels, kind.removesuffix("_errors")], sum(known))
    return count, active, errors


def _nics(node: Node) -> Iterator[Metric]:
    up = GaugeMetricFamily("fairlead_nic_up", "1 when the port is active.", labels=["device", "port", "pci"])
    rate = GaugeMetricFamily("fairlead_nic_rate_bytes_per_second", "Rate of the port.", labels=["device", "port", "pci"])
    for nic in node.nics:
        if not nic.rdma:
            continue
        labels = [nic.name, str(nic.port), nic.pci]
        if not isinstance(nic.state, Missing):
            up.add_metric(labels, nic.state == "ACTIVE")
        if not isinstance(nic.rate_gbps, Missing):
            rate.add_metric(labels, nic.rate_gbps * 1e9 / 8)
    yield from (up, rate)


def _known(value: object) -> str:
    return "" if isinstance(value, Missing) else str(value)


def _add(family: GaugeMetricFamily | CounterMetricFamily, labels: Sequence[str], value: float | bool | Missing) -> None:
    """Add a value. A missing value gets no series, so that an alert on its absence works. A zero would be wrong."""
    if not isinstance(value, Missing):
        family.add_metric(labels, float(value))
