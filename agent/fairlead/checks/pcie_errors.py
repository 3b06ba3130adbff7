"""Reports errors on the PCIe links of GPUs: replays, and Advanced Error Reporting (AER) of the GPU and of the port above it.

Replays come from NVML_FI_DEV_PCIE_REPLAY_COUNTER (94). NVIDIA's driver recommends at most 8 replays a minute (DCGM
dcgm_gpu_hardware_limits.h, DCGM_LIMIT_MAX_PCIREPLAY_RATE). AER counters are in /sys/bus/pci/devices/X/aer_dev_correctable,
aer_dev_nonfatal and aer_dev_fatal (Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats; kernel 4.19 and newer). The kernel
also logs uncorrected errors (drivers/pci/pcie/aer.c). If a port takes its link down because of an uncorrected error, the kernel
logs this, too (Downstream Port Containment, "DPC: containment event"; drivers/pci/pcie/dpc.c).

The check judges how much each counter grows in a window, and never the value of the counter. Errors within the boot grace do not
count. So a link that trained badly at boot and has run well since then is healthy. Correctable errors are corrected, but many of
them cost bandwidth and precede worse errors. A fatal error means that the link was lost. A few non-fatal errors come from probing
software.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, KernelRecord, Past, Sample
from fairlead.model.device import device_of, listed_gpus, readable_gpus
from fairlead.model.facts import Gpu, Missing, Node, PcieLink, Why
from fairlead.model.finding import Action, Finding, Level, Mode, Service, with_action
from fairlead.model.gpu_health import AerCounts
from fairlead.model.trend import Growth, counters, growth, series, settled_seconds
from fairlead.model.unread import unlisted, unread

BOOT_GRACE_SECONDS = 120
KINDS = ("correctable", "nonfatal", "fatal")
_SEVERITY = r"Uncorrect(?:ed|able) \((?P<fatal>Fatal|Non-Fatal)\)"
_AT = r"(?P<pci>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
_FORMS = (
    re.compile(rf"\S{{1,40}} {_AT}: (?:AER: )?PCIe Bus Error: severity={_SEVERITY}", re.ASCII),
    re.compile(
        rf"\S{{1,40}} [0-9a-f:.]{{7,16}}: AER: (?:Multiple )?{_SEVERITY} error (?:message )?received(?: from|:) {_AT}", re.ASCII
    ),
)
_CONTAINED = re.compile(rf"\S{{1,40}} {_AT}: (?:AER: )?DPC: containment event, ", re.ASCII)


class Params(CheckParams, frozen=True, kw_only=True):
    replays_per_minute_max: Annotated[
        float, Meta(ge=0, description="The check warns at this many or more PCIe replays a minute. 0: never.")
    ] = 8.0
    correctable_per_hour_max: Annotated[
        float,
        Meta(
            ge=0,
            description="The check warns at this many or more correctable AER errors an hour of a GPU or its port. 0: never.",
        ),
    ] = 1000.0
    nonfatal_per_hour_max: Annotated[
        float,
        Meta(
            ge=0, description="The check warns at this many or more non-fatal AER errors an hour of a GPU or its port. 0: never."
        ),
    ] = 10.0
    fatal_per_hour_max: Annotated[
        float, Meta(ge=0, description="This many fatal AER errors an hour of a GPU or its port are accepted.")
    ] = 0.0
    window_seconds: Annotated[int, Meta(ge=60, le=7200, description="Rates are measured over this window.")] = 3600
    window_least_seconds: Annotated[int, Meta(ge=1, description="Samples that are closer together than this give no rate.")] = 300
    remember_seconds: Annotated[int, Meta(ge=0, description="A kernel record of a fatal error counts for this long.")] = 3600


def _finding(gpu: Gpu, level: Level, summary: str, evidence: str, *, evidence_id: str = "") -> Finding:
    action, service = Action.CHECK_HARDWARE, Service.DRAIN_AFTER_JOB
    return with_action(level, summary, action, evidence, device=gpu.pci, service=service, evidence_id=evidence_id)


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    yield from unlisted(node)
    reported = _records(node, past, params)
    known = series(past)
    paths = {d.address: d.path for d in node.pci}
    for gpu in readable_gpus(node):
        yield from _unreadable(gpu)
        path = paths.get(gpu.pci, (gpu.pci,))
        record = next((reported[a] for a in reversed(path) if a in reported), None)
        if record is not None:
            yield _finding(
                gpu,
                Level.DRAIN,
                f"fatal PCIe error on the way to GPU {gpu.pci}",
                f"kernel log at {record.seconds:.1f} s, record {record.sequence}",
                evidence_id=f"{record.boot_id or node.boot_id}:{record.sequence}",
            )
        if not isinstance(node.uptime_seconds, Missing):
            yield from _rates(gpu, node.uptime_seconds, known, params, fatal_reported=record is not None)


def _unreadable(gpu: Gpu) -> Iterator[Finding]:
    """Yield a finding for replays that cannot be read if AER counts nothing either, and for AER counts that cannot be read."""
    replays = gpu.pcie.replays if isinstance(gpu.pcie, PcieLink) else gpu.pcie
    if isinstance(replays, Missing) and replays.why is Why.UNREADABLE and not isinstance(gpu.aer, AerCounts):
        yield unread(f"PCIe errors of GPU {gpu.pci}", replays, gpu.pci)
    for name, counts in (("GPU", gpu.aer), ("the port above GPU", gpu.port_aer)):
        bad = [counts] if isinstance(counts, Missing) else [] if counts is None else [getattr(counts, kind) for kind in KINDS]
        why = next((v for v in bad if isinstance(v, Missing) and v.why is Why.UNREADABLE), None)
        if why is not None:
            yield unread(f"AER counts of {name} {gpu.pci}", why, gpu.pci)


def _rates(
    gpu: Gpu, now: float, known: Mapping[tuple[str, str], tuple[Sample, ...]], params: Params, *, fatal_reported: bool
) -> Iterator[Finding]:
    def grown(name: str, value: object) -> Growth | None:
        if type(value) is not int or value == 0:
            return None
        samples = known.get((device_of(gpu), name), ())
        window = settled_seconds(now, params.window_seconds, params.boot_grace_seconds, BOOT_GRACE_SECONDS)
        found = growth(samples, value, now, window_seconds=window, least_seconds=params.window_least_seconds)
        return found if found is not None and found.amount > 0 else None

    replays = grown("pcie.replays", gpu.pcie.replays if isinstance(gpu.pcie, PcieLink) else None)
    if replays is not None and 0 < params.replays_per_minute_max <= replays.per_minute:
        yield _finding(gpu, Level.WARN, f"too many PCIe replays on GPU {gpu.pci}", _amount(replays))
    for part, where, counts in (("aer", "GPU", gpu.aer), ("port_aer", "the port above GPU", gpu.port_aer)):
        if not isinstance(counts, AerCounts):
            continue
        many = grown(f"{part}.correctable", counts.correctable)
        if many is not None and 0 < params.correctable_per_hour_max <= many.per_hour:
            yield _finding(gpu, Level.WARN, f"too many correctable PCIe errors at {where} {gpu.pci}", _amount(many))
        many = grown(f"{part}.nonfatal", counts.nonfatal)
        if many is not None and 0 < params.nonfatal_per_hour_max <= many.per_hour:
            yield _finding(gpu, Level.WARN, f"too many non-fatal PCIe errors at {where} {gpu.pci}", _amount(many))
        many = grown(f"{part}.fatal", counts.fatal)
        if many is not None and many.per_hour > params.fatal_per_hour_max and not fatal_reported:
            yield _finding(gpu, Level.DRAIN, f"fatal PCIe error at {where} {gpu.pci}", _amount(many))


def _amount(grown: Growth) -> str:
    return f"{grown.amount:.0f} in {grown.seconds:.0f} s"


def _records(node: Node, past: Past, params: Params) -> dict[str, KernelRecord]:
    """Return the last record of a fatal error of each device, by PCI address. The device had the error or reported it."""
    found: dict[str, KernelRecord] = {}
    now = node.uptime_seconds
    for record in past.records:
        if record.boot_id and isinstance(node.boot_id, str) and record.boot_id != node.boot_id:
            continue
        if not isinstance(now, Missing) and now - record.seconds > params.remember_seconds:
            continue
        address = fatal(record.text)
        if address and (address not in found or found[address].sequence < record.sequence):
            found[address] = record
    return found


def fatal(text: str) -> str:
    """Return the PCI address of the device that had a fatal error, as the text of a kernel record names it. Return "" for any
    other record."""
    if "(Fatal)" not in text and "DPC" not in text:
        return ""
    match = next((m for m in (form.match(text) for form in (*_FORMS, _CONTAINED)) if m), None)
    if match is None or match.groupdict().get("fatal", "Fatal") != "Fatal":
        return ""
    address = match["pci"].lower()
    domain, _, rest = address.partition(":") if address.count(":") == 2 else ("0000", "", address)
    return f"{int(domain, 16):04x}:{rest}"


def samples(node: Node) -> Iterator[tuple[str, str, float]]:
    """Yield the replay count of each GPU, and the AER counts of the GPU and of the port above it."""
    for gpu in listed_gpus(node):
        device = device_of(gpu)
        if isinstance(gpu.pcie, PcieLink):
            yield from counters([(device, "pcie.replays", gpu.pcie.replays)])
        for part, counts in (("aer", gpu.aer), ("port_aer", gpu.port_aer)):
            if isinstance(counts, AerCounts):
                yield from counters((device, f"{part}.{kind}", getattr(counts, kind)) for kind in KINDS)


check = Check(
    summary="PCIe errors of GPUs: replays and AER errors as rates, fatal ones",
    params=Params,
    judge=judge,
    mode=Mode.OBSERVE,
    confirm=2,
    confirm_of=3,
    boot_grace_seconds=BOOT_GRACE_SECONDS,
    wakes_on=("pcieport ", "nvidia "),
    kind=lambda text: f"fatal {address}" if (address := fatal(text)) else "",
    samples=samples,
    slow=True,
)
