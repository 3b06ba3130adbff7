"""Reports local disks that fail: NVMe controllers that died or are missing, and reads or writes that failed.

The state of a controller is in /sys/class/nvme/*/state (drivers/nvme/host/sysfs.c). A controller in state "live" is healthy. The
states "resetting" and "connecting" are temporary, and "dead" is final. The kernel records come from four parts of the kernel. The
block layer writes "I/O error, dev nvme0n1, sector ..." (block/blk-mq.c). Before Linux 5.19 this record begins with
"blk_update_request: ". Of the block layer's errors, the check counts only those that mean a faulty device
(blk_errors in block/blk-core.c). "operation not supported" and a full device do not count. The page cache writes "Buffer I/O
error on dev ..." (fs/buffer.c). The NVMe driver writes "nvme nvme0: controller is down; will reset", "Removing after probe
failure" and "Disabling device after reset failure" (drivers/nvme/host/pci.c). md writes "md/raid1:md0: Disk failure on ...".

A failed request to discard or to zero sectors ("op 0x3:(DISCARD)", "op 0x9:(WRITE_ZEROES)"; blk_op_name in block/blk-core.c) does
not count, because it loses no data. mkfs and fstrim also send such requests to drives that do not support them. Loop
devices, network devices and removable devices may be under the control of a job's user. The same is true of devices that are
built only on them (`Host.images`). The check does not count any of these as disks of the node. If the records name a block device
that this node has not had in this boot, the check warns and does not drain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, KernelRecord, Past
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Action, Finding, Level, Mode, Service
from fairlead.model.host_facts import USERS_DEVICES
from fairlead.model.unread import age_seconds, host_of, is_image, known_device, record_id, unread, unread_log

_DEVICE = r"([A-Za-z0-9-]{1,32})"
_FAILED = re.compile(
    r"(?:blk_update_request: |print_req_error: )?(?:I/O|critical medium|critical target|timeout|protection|device offline) error,"
    rf" dev {_DEVICE}, sector (?=\d)(?!\d+ op 0x\w+:\((?:DISCARD|SECURE_ERASE|WRITE_ZEROES|WRITE_SAME)\))"
)
_BUFFER = re.compile(rf"Buffer I/O error on dev(?:ice)? {_DEVICE},")
_NVME = re.compile(r"nvme (nvme\d{1,5}): (?:I/O (?:tag )?\d.{1,80} timeout|I/O timeout|controller is down; will reset)")
_NVME_REMOVED = re.compile(r"nvme (nvme\d{1,5}): (?:Removing after probe failure|Disabling device after reset failure)")
_RAID = re.compile(rf"md/raid\d{{0,2}}:?(md\w{{1,32}}): Disk failure on {_DEVICE}")
_PASSING = ("new", "resetting", "connecting")


class Params(CheckParams, frozen=True, kw_only=True):
    nvme_expected: Annotated[
        Annotated[int, Meta(ge=0, le=64)] | None,
        Meta(description="Number of NVMe controllers of this kind of node. If unset, it is not judged."),
    ] = None
    errors_max: Annotated[
        int, Meta(ge=1, le=20, description="The check drains at this many failed requests of a disk in the window or more.")
    ] = 10
    window_seconds: Annotated[
        int, Meta(ge=60, description="Length of the window. Fewer failed requests than `errors_max` in it are a warning.")
    ] = 86400


def _finding(level: Level, device: str, summary: str, **more: str) -> Finding:
    drain = level is Level.DRAIN
    return Finding(
        level=level,
        device=device,
        summary=f"{summary}: check_hardware",
        action=Action.CHECK_HARDWARE,
        service=Service.DRAIN_AFTER_JOB if drain else Service.KEEP,
        evidence=(more["evidence"],) if "evidence" in more else (),
        evidence_id=more.get("evidence_id", ""),
        fault=more.get("fault", ""),
    )


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    yield from unread_log(past)
    yield from _from_log(node, past, params)
    for host in host_of(node):
        if isinstance(host, Finding):
            yield host
            return
        if isinstance(host.nvme, Missing):
            yield unread("the NVMe controllers", host.nvme)
            return
        for controller in host.nvme:
            name, state = controller.name, controller.state
            if isinstance(state, Missing):
                yield unread(f"the state of {name}", state, name)
            elif state in _PASSING:
                yield _finding(Level.WARN, name, f"{name} is {state}", evidence=f"PCI {controller.pci or '-'}")
            elif state != "live":
                yield _finding(Level.DRAIN, name, f"{name} is {state}", evidence=f"PCI {controller.pci or '-'}", fault="state")
        local = [c.name for c in host.nvme if c.pci]  # a controller over a network has no PCI address
        if params.nvme_expected is not None and len(local) < params.nvme_expected:
            here = ", ".join(local) or "none"
            yield _finding(
                Level.DRAIN, "", f"{len(local)} of {params.nvme_expected} NVMe controllers are there",
                evidence=f"there: {here}", fault="count",
            )  # fmt: skip


def _from_log(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    failed: dict[str, list[KernelRecord]] = {}
    lost: dict[str, KernelRecord] = {}
    raid: dict[str, KernelRecord] = {}
    strange: list[KernelRecord] = []
    for record in past.records:
        text = record.text
        if match := _NVME_REMOVED.match(text):
            lost[match[1]] = record
        elif match := _RAID.match(text):
            if is_image(match[1], node):
                continue
            if known_device(match[1], node, past) and known_device(match[2], node, past):
                raid[f"{match[1]} ({match[2]})"] = record
            else:
                strange.append(record)
        elif match := _request(text):
            if match.re is not _NVME and is_image(match[1], node):
                continue
            if match.re is _NVME or known_device(match[1], node, past):
                failed.setdefault(match[1], []).append(record)
            else:
                strange.append(record)
    for device, record in lost.items():
        yield _finding(
            Level.DRAIN, device, f"the driver gave {device} up", evidence=_where(record, 1),
            evidence_id=record_id(record, node), fault="gone",
        )  # fmt: skip
    for device, record in raid.items():
        yield _finding(Level.WARN, device, f"a disk of RAID {device} failed", evidence=_where(record, 1), fault="raid")
    if strange:
        said = "the kernel log tells of failures of disks that this node does not have"
        yield _finding(Level.WARN, "", said, evidence=_where(strange[-1], len(strange)), fault="strange")
    for device, records in failed.items():
        recent = [r for r in records if age_seconds(r, node) <= params.window_seconds]
        if recent:
            level = Level.DRAIN if len(recent) >= params.errors_max else Level.WARN
            yield _finding(
                level, device, f"{len(recent)} failed requests on {device}", evidence=_where(recent[-1], len(recent)),
                evidence_id=record_id(recent[-1], node), fault="errors",
            )  # fmt: skip


def _where(record: KernelRecord, lines: int) -> str:
    return f"kernel log at {record.seconds:.1f} s, record {record.sequence}, {lines} lines"


def _request(text: str) -> re.Match[str] | None:
    """Return the regex match if the text reports a failed request on one of the node's own disks. Return None for any other
    record."""
    match = _FAILED.match(text) or _BUFFER.match(text) or _NVME.match(text)
    return None if match is None or match[1].startswith(USERS_DEVICES) else match


def kind(text: str) -> str:
    """Return what happened and on which device, for a record about the node's own disks. Return "" for any other record."""
    if match := _NVME_REMOVED.match(text):
        return f"gone {match[1]}"
    if match := _RAID.match(text):
        return f"raid {match[1]} {match[2]}"
    match = _request(text)
    return "" if match is None else f"failed {match[1]}"


check = Check(
    summary="Local disks: NVMe controllers dead or missing, requests that failed, RAID members lost",
    params=Params,
    judge=judge,
    mode=Mode.OBSERVE,
    confirm_of=3,
    boot_grace_seconds=60,
    kind=kind,
    wakes_on=(
        "I/O error, dev ",
        "critical medium error, dev ",
        "critical target error, dev ",
        "timeout error, dev ",
        "protection error, dev ",
        "device offline error, dev ",
        "blk_update_request: ",
        "print_req_error: ",
        "Buffer I/O error on dev",
        "nvme nvme",
        "md/raid",
    ),
    slow=True,
)
