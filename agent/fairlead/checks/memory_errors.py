"""Reports errors of the host's memory: uncorrected errors, and corrected errors at a high rate.

EDAC, the kernel's subsystem for memory errors, counts them (/sys/devices/system/edac,
Documentation/ABI/testing/sysfs-devices-edac: ce_count and ue_count since the driver loaded). The kernel log has records of five
sources. EDAC writes "EDAC MC0: 1 UE ...". A machine check writes "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7:
be00..."; bit 61 of the last number, the status, means uncorrected (Intel SDM volume 3, IA32_MCi_STATUS). If the firmware handles
errors before the kernel does, the record is "{1}[Hardware Error]: event severity: recoverable" (drivers/firmware/efi/cper.c). A
firmware event with "section_type: PCIe error" is no memory error, and `pcie_errors` judges the counters of the link. AMD's
decoder writes "[Hardware Error]: Uncorrected ...". The kernel writes "Memory failure: 0x12345: ..." when it stops using a page.

The check needs no rasdaemon. mcelog warns at 10 corrected errors of a DIMM in 24 hours, and rasdaemon at 50 corrected errors of a
page. This check judges a rate instead. The site declares the number of memory controllers, because without EDAC's driver no error
is counted. A record of a memory controller that this node has not had in this boot is a warning and does not drain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, KernelRecord, Past
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Action, Finding, Level, Mode, Service, with_action
from fairlead.model.host_facts import MemoryController
from fairlead.model.trend import growth, series
from fairlead.model.unread import age_seconds, host_of, known_device, record_id, unread, unread_log

_UNCORRECTED = (
    (re.compile(r"EDAC (MC\d{1,4}): \d+ UE (?:[A-Za-z][\w /,.:=#()'-]{0,120} )?on [\w#]"), "EDAC"),
    (re.compile(r"\{(?P<event>\d+)\}\[Hardware Error\]: +event severity: (?:recoverable|fatal)"), "firmware"),
    (re.compile(r"(?:mce: )?\[Hardware Error\]: (?:Uncorrected|Deferred error)"), "machine check"),
    (re.compile(r"mce: Uncorrected hardware memory error"), "machine check"),
    (re.compile(r"Memory failure: 0x[0-9a-f]+: "), "page given up"),
)
_STATUS = re.compile(r"mce: \[Hardware Error\]: CPU \d+: Machine Check(?: Exception)?: +\d+ Bank \d+: ([0-9a-f]{16})")
_UC = 1 << 61
SECTION_SECONDS = 5.0  # the kernel logs the section_type of an error a few lines after its severity
_SECTION = re.compile(r"\{(\d+)\}\[Hardware Error\]: +section_type: (PCIe error)?")


class Params(CheckParams, frozen=True, kw_only=True):
    controllers_expected: Annotated[
        Annotated[int, Meta(ge=0, le=64)] | None,
        Meta(description="Number of EDAC memory controllers of this kind of node. If unset, it is not judged."),
    ] = None
    uncorrected_max: Annotated[
        int, Meta(ge=0, description="This many uncorrected errors since the driver loaded are accepted.")
    ] = 0
    corrected_per_hour_max: Annotated[
        float,
        Meta(ge=0, description="The check warns at this many or more corrected errors an hour on one controller. 0: never."),
    ] = 100.0
    window_seconds: Annotated[int, Meta(ge=60, le=7200, description="The rate is measured over this window.")] = 3600
    window_least_seconds: Annotated[int, Meta(ge=1, description="Samples that are closer together than this give no rate.")] = 300


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    yield from unread_log(past)
    yield from _from_log(node, past)
    for host in host_of(node):
        if isinstance(host, Finding):
            yield host
        elif isinstance(host.controllers, Missing):
            yield unread("EDAC", host.controllers)
        else:
            if params.controllers_expected is not None and len(host.controllers) < params.controllers_expected:
                yield Finding(
                    level=Level.UNKNOWN,
                    summary=f"{len(host.controllers)} of {params.controllers_expected} memory controllers are watched by EDAC",
                    evidence=("is the EDAC driver of this CPU loaded (i10nm_edac, skx_edac, amd64_edac)?",),
                    action=Action.PROVISION,
                )
            for controller in host.controllers:
                yield from _counted(controller, node, past, params)


def _from_log(node: Node, past: Past) -> Iterator[Finding]:
    """Yield one finding for each source of records in the kernel log. The newest record of the source is the evidence."""
    found: dict[tuple[str, str], list[KernelRecord]] = {}
    sections = [match for record in past.records if (match := _SECTION.match(record.text))]
    described = {match[1] for match in sections}
    only_pcie = described - {match[1] for match in sections if not match[2]}
    for record in past.records:
        status = _STATUS.match(record.text)
        if status is not None:
            if int(status[1], 16) & _UC:
                found.setdefault(("machine check", ""), []).append(record)
            continue
        for pattern, source in _UNCORRECTED:
            match = pattern.match(record.text)
            if match is not None:
                event = match.groupdict().get("event")
                if event in only_pcie or (event and event not in described and age_seconds(record, node) < SECTION_SECONDS):
                    break
                device = match[1].lower() if source == "EDAC" else ""
                found.setdefault((source, device), []).append(record)
                break
    for (source, device), records in found.items():
        last = records[-1]
        if device and not known_device(device, node, past):
            yield _strange(last)
            continue
        yield with_action(
            Level.DRAIN,
            f"uncorrected memory error in the kernel log ({source})",
            Action.CHECK_HARDWARE,
            f"kernel log at {last.seconds:.1f} s, record {last.sequence}, {len(records)} lines",
            device=device,
            service=Service.DRAIN_AFTER_JOB,
            evidence_id=record_id(last, node),
            fault=source,
        )


def _strange(record: KernelRecord) -> Finding:
    return Finding(
        level=Level.WARN,
        summary="the kernel log tells of a memory controller that this node does not have",
        evidence=(f"kernel log at {record.seconds:.1f} s, record {record.sequence}",),
    )


def _counted(controller: MemoryController, node: Node, past: Past, params: Params) -> Iterator[Finding]:
    name = controller.name
    for what, value in (("corrected", controller.corrected), ("uncorrected", controller.uncorrected)):
        if isinstance(value, Missing):
            yield unread(f"the count of {what} errors of memory controller {name}", value, name)
    if isinstance(controller.uncorrected, int) and controller.uncorrected > params.uncorrected_max:
        yield with_action(
            Level.DRAIN,
            f"{controller.uncorrected} uncorrected memory errors on {name}",
            Action.CHECK_HARDWARE,
            device=name,
            service=Service.DRAIN_AFTER_JOB,
            evidence_id=f"uncorrected={controller.uncorrected}",
        )
    value, now = controller.corrected, node.uptime_seconds
    if isinstance(value, Missing) or isinstance(now, Missing) or not params.corrected_per_hour_max or not value:
        return
    known = series(past)
    found = growth(
        known.get((name, "corrected"), ()),
        value,
        now,
        window_seconds=params.window_seconds,
        least_seconds=params.window_least_seconds,
    )
    if found is not None and found.per_hour >= params.corrected_per_hour_max:
        dimm = f", most of DIMM {controller.worst_dimm}" if controller.worst_dimm else ""
        yield with_action(
            Level.WARN,
            f"corrected memory errors come too fast on {name}{dimm}",
            Action.CHECK_HARDWARE,
            f"{found.per_hour:.0f} per hour over {found.seconds:.0f} s, {value} in all",
            device=name,
        )
    elif found is None and not past.available:
        yield Finding(
            level=Level.OK,
            device=name,
            summary=f"{value} corrected memory errors on {name}: their rate needs history",
            needs_history=True,
        )


def samples(node: Node) -> Iterator[tuple[str, str, float]]:
    """Yield the count of corrected errors of each memory controller."""
    if not isinstance(node.host, Missing) and not isinstance(node.host.controllers, Missing):
        for controller in node.host.controllers:
            if isinstance(controller.corrected, int):
                yield controller.name, "corrected", float(controller.corrected)


def kind(text: str) -> str:
    """Return the source of an uncorrected error, or the section_type that firmware reports. Return "" for any other record."""
    if section := _SECTION.match(text):
        return "PCIe section" if section[2] else "other section"
    status = _STATUS.match(text)
    if status is not None:
        return "machine check" if int(status[1], 16) & _UC else ""
    for pattern, source in _UNCORRECTED:
        if match := pattern.match(text):
            return f"{source} {match[1].lower()}" if source == "EDAC" else source
    return ""


check = Check(
    summary="Errors of the host's memory: uncorrected, and corrected ones as a rate",
    params=Params,
    another_gpu={"controllers_expected": None},
    judge=judge,
    mode=Mode.OBSERVE,
    kind=kind,
    wakes_on=("EDAC MC", "mce: [Hardware Error]", "mce: Uncorrected", "[Hardware Error]: ", "{", "Memory failure: 0x"),
    samples=samples,
    slow=True,
)
