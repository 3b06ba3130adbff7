"""Faults that the NVIDIA driver reported in the kernel log of this boot: Xid, SXid, and GPUs fallen off the bus.

What each code means, what to do and whether it drains is data (`fairlead.xid.catalogue`): NVIDIA's Xid catalogue and the
driver's nverror.h. On top of it: Xid 45 follows its cause; 13, 31, 43 and their like are the job's own fault and only
reported for a while; 63 and 94 wait for the job's end, and then want a GPU reset; 154 counts by its number, the last one
per GPU; 162 cancels 163; an NVLink line (144 to 150) or SXid counts only when the line itself says Fatal; hundreds of
lines of one fault are one finding. "Fallen off the bus" without an Xid (NVSentinel issue 155) counts as 79. The same
recovery action is read from NVML (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION), which works without a log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from fairlead.model.check import Check, CheckParams, KernelRecord, Past
from fairlead.model.device import names_of
from fairlead.model.facts import Missing, Node, Why
from fairlead.model.finding import Action, Finding, Level, Mode, Service
from fairlead.xid import Kind, XidLine, read
from fairlead.xid.catalogue import recovery
from fairlead.xid.meaning import Meaning, meaning


class Params(CheckParams, frozen=True, kw_only=True):
    remember_seconds: Annotated[
        int, Meta(ge=0, description="How long a fault that drains nothing (a job's own, a corrected one) is reported.")
    ] = 3600
    services: Annotated[
        dict[str, Service],
        Meta(description='The site\'s own choice per code, such as {"63": "keep"}: keep, drain_after_job or drain_now.'),
    ] = field(default_factory=dict)


class _Fault(Struct, frozen=True):
    """All lines of one fault on one device: the first line that says most, the last record, how many."""

    line: XidLine
    first: KernelRecord
    last: KernelRecord
    count: int = 1
    hint: str = ""


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    if not past.available and not past.records:
        yield Finding(
            check="xid", level=Level.OK, summary="needs the kernel log of this boot", service=Service.KEEP, needs_history=True
        )
    if past.log is not None:
        yield Finding(
            check="xid",
            level=Level.UNKNOWN,
            summary="the kernel log cannot be read",
            evidence=(past.log.detail,),
            service=Service.KEEP,
        )
    records = tuple(sorted((r for r in past.records if _this_boot(r, node)), key=lambda r: r.sequence))
    drained: set[str] = set()
    for fault in _faults(records):
        finding = _finding(fault, node, params)
        if finding is not None:
            if finding.level is Level.DRAIN:
                drained.add(fault.line.pci)
            yield finding
    yield from _by_nvml(node, past, drained)
    if past.overrun:
        yield Finding(
            check="xid",
            level=Level.WARN,
            summary=f"{past.overrun} kernel records were lost to a ring buffer overrun: an Xid may have been missed",
            service=Service.KEEP,
            evidence_id=f"overrun={past.overrun}",
        )


def _this_boot(record: KernelRecord, node: Node) -> bool:
    return not record.boot_id or isinstance(node.boot_id, Missing) or record.boot_id == node.boot_id


def _faults(records: tuple[KernelRecord, ...]) -> list[_Fault]:
    """Lines joined to faults, in the order of telling: causes before what follows from them."""
    faults: dict[tuple[str, str, int, int | None], _Fault] = {}
    for place, line in read(r.text for r in records):
        record = records[place]
        if line.follows:
            continue
        if line.code == 45 and line.kind is Kind.XID:
            if line.caused_by is not None and line.caused_by != 45:
                _note(faults, replace(line, code=line.caused_by), record, hint="named by an Xid 45")
            continue
        if line.code == 162:
            faults.pop(("xid", line.pci, 163, None), None)
        _note(faults, line, record)
    return sorted(faults.values(), key=lambda f: (f.line.code not in (79, 119, 120), f.line.code == 154, f.first.sequence))


def _note(faults: dict[tuple[str, str, int, int | None], _Fault], line: XidLine, record: KernelRecord, *, hint: str = "") -> None:
    group = "sxid" if line.kind is Kind.SXID else "xid"
    key = (group, line.pci, line.code, line.link if line.fatal is not None else None)
    known = faults.get(key)
    if known is None:
        faults[key] = _Fault(line, record, record, 1, hint)
        return
    if hint:
        return  # the cause itself is there
    newest = line.code == 154 or (line.fatal and not known.line.fatal) or known.hint
    faults[key] = _Fault(line if newest else known.line, known.first, record, known.count + 1)


def _finding(fault: _Fault, node: Node, params: Params) -> Finding | None:
    means = _counts_as(fault, params)
    if means is None:
        return None
    action, service = means.action, means.service
    if service is Service.KEEP:
        age = node.uptime_seconds - fault.last.seconds if not isinstance(node.uptime_seconds, Missing) else 0.0
        if age > params.remember_seconds:
            return None
    line = fault.line
    name = "SXid" if line.kind is Kind.SXID else "Xid"
    where = f"{'NVSwitch' if line.kind is Kind.SXID else 'GPU'} {line.pci}" if line.pci else "an unnamed GPU"
    link = f", link {line.link}" if line.link is not None else ""
    follow_up = "" if action is Action.NONE else f": {action.value}"
    blame = ", the job's own fault" if means.blames == "application" else ""
    boot = fault.last.boot_id or (node.boot_id if isinstance(node.boot_id, str) else "")
    return Finding(
        check="xid",
        level=Level.WARN if service is Service.KEEP else Level.DRAIN,
        device=line.pci,
        summary=f"{name} {line.code} on {where} ({means.words}{link}){follow_up}{blame}",
        evidence=_evidence(fault),
        action=action,
        service=service,
        evidence_id=f"{boot}:{fault.last.sequence}",
        fault=f"{name.lower()}{line.code}",
    )


def _counts_as(fault: _Fault, params: Params) -> Meaning | None:
    """The meaning of a fault with the site's choice of service; None for nothing to tell."""
    means = meaning(fault.line)
    own = params.services.get(str(fault.line.code)) if fault.line.kind is not Kind.SXID else None
    service = means.service if own is None else own
    if service is Service.KEEP and means.harmless:
        return None
    needs_reset = service is Service.DRAIN_AFTER_JOB and means.action in (Action.NONE, Action.RESTART_APP)
    return replace(means, service=service, action=Action.RESET_GPU if needs_reset else means.action)


def _evidence(fault: _Fault) -> tuple[str, ...]:
    """What was read, without the name of any process."""
    line = fault.line
    said = f": {line.public_text[:160]}" if line.public_text else ""
    times = f", {fault.count} lines" if fault.count > 1 else ""
    hint = f" ({fault.hint})" if fault.hint else ""
    mig = "".join(f" {n}:{v}" for n, v in (("GPU-I", line.gi), ("GPU-CI", line.ci)) if v is not None)
    return (f"kernel log at {fault.last.seconds:.1f} s, record {fault.last.sequence}{mig}{hint}{times}{said}",)


def _by_nvml(node: Node, past: Past, drained: set[str]) -> Iterator[Finding]:
    """The driver's advice without a log line. Never there (older drivers): the log says it. Not there any more: unknown."""
    for gpu in () if isinstance(node.gpus, Missing) else node.gpus:
        number = gpu.recovery_action
        if isinstance(number, Missing):
            known = any(f"{name}/recovery_action" in past.readable for name in names_of(gpu))
            if known and number.why is Why.UNREADABLE and not gpu.lost:
                yield Finding(
                    check="xid",
                    level=Level.UNKNOWN,
                    device=gpu.pci,
                    summary=f"the driver's advice on GPU {gpu.pci} cannot be read any more",
                    evidence=(number.detail,) if number.detail else (),
                    service=Service.KEEP,
                )
            continue
        if number == 0 or gpu.pci in drained:
            continue
        words, action, service = recovery(number)
        yield Finding(
            check="xid",
            level=Level.DRAIN,
            device=gpu.pci,
            summary=f"GPU {gpu.pci}: {words}: {action.value}",
            evidence=(f"NVML recovery action {number}",),
            action=action,
            service=service,
            evidence_id=f"recovery={number}",
        )


check = Check(
    summary="Faults the NVIDIA driver reported in the kernel log (Xid, SXid, fallen off the bus)",
    params=Params,
    judge=judge,
    mode=Mode.ENFORCE,
    wakes_on=(
        "NVRM: Xid",
        "NVRM: GPU",
        "NVRM: The NVIDIA GPU",
        "NVRM: fallen off the bus",
        "fallen off the bus",
        "nvidia-nvswitch",
    ),
)
