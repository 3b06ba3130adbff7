"""Reports file systems that found errors in themselves: they became read-only, were shut down, or counted errors.

After an error, ext4 makes the file system read-only and does not change the flag of the mount (errors=remount-ro,
Documentation/admin-guide/ext4.rst). /proc/1/mountinfo then has "rw" for the mount and "ro" for the file system. For a file system
that was mounted read-only on purpose, mountinfo has "ro" for the mount and for the file system. The check recognises the mounts
of one file system by major:minor and never by the source, because a user chooses the source of a FUSE mount. squashfs, erofs and
iso9660 are never writable. The paths in `writable` must be writable, whatever made them read-only.

The kernel records are "EXT4-fs error (device md0)", "EXT4-fs (md0): Remounting filesystem read-only", "XFS (dm-0): ... Filesystem
has been shut down" and "BTRFS error (device ...)". From Linux 5.18 on, the BTRFS record has a state ("(device sda1: state EA)").
ext4 keeps a count of errors until fsck (Documentation/ABI/testing/sysfs-fs-ext4, errors_count). Loop devices, and devices that
are built on loop devices alone, are not judged, because they may be a user's image (`Host.images`). A record of a device that
this node has not had in this boot does not drain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, KernelRecord, Past
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Action, Finding, Level, Mode, Service, with_action
from fairlead.model.host_facts import Host, MountPoint
from fairlead.model.unread import host_of, is_image, known_device, record_id, unread, unread_log

Path = Annotated[str, Meta(pattern=r"^/[^\x00\n]*(?!\n)$")]
_JUDGED = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs")
_DEVICE = r"([A-Za-z0-9-]{1,32})"
_SHUT_DOWN = (
    re.compile(rf"EXT4-fs \({_DEVICE}\): Remounting filesystem read-only"),
    re.compile(
        rf"XFS \({_DEVICE}\): (?:Filesystem has been shut down|Log I/O Error Detected|"
        r"[A-Z][\w/ -]{2,40} (?:[Dd]etected\b|received\b|\(0x[0-9a-f]+\) (?:detected|received) at ).*Shutting down filesystem)"
    ),
    re.compile(rf"BTRFS(?: info| error)? \(device {_DEVICE}(?::? state \w+)?\): forced readonly"),
)
_ERROR = (
    re.compile(rf"EXT4-fs error \(device {_DEVICE}\)"),
    re.compile(
        rf"XFS \({_DEVICE}\): (?:Metadata (?:CRC error|corruption) detected|metadata I/O error[ :]|"
        r"Corruption (?:detected|warning|of ))"
    ),
    re.compile(rf"BTRFS (?:error|critical) \(device {_DEVICE}"),
    re.compile(rf"BTRFS: error \(device {_DEVICE}(?::? state \w+)?\) in "),
)


class Params(CheckParams, frozen=True, kw_only=True):
    writable: Annotated[
        tuple[Path, ...], Meta(description="Mount points that must be writable, whatever made them read-only.")
    ] = ()
    counted_errors_max: Annotated[
        int, Meta(ge=0, description="This many errors in an ext4 superblock are accepted. More are a warning until fsck.")
    ] = 0


def _drain(device: str, summary: str, evidence: str, evidence_id: str = "") -> Finding:
    action, service = Action.CHECK_HARDWARE, Service.DRAIN_AFTER_JOB
    return with_action(Level.DRAIN, summary, action, evidence, device=device, service=service, evidence_id=evidence_id)


def _warn(device: str, summary: str, evidence: str) -> Finding:
    return Finding(level=Level.WARN, device=device, summary=summary, evidence=(evidence,))


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    yield from unread_log(past)
    reported = [(*found, record) for record in past.records if (found := _read(record.text)) is not None]
    reported = [each for each in reported if not is_image(each[1], node)]
    ours = [(shut, device, record) for shut, device, record in reported if known_device(device, node, past)]
    shut_down = {device: record for shut, device, record in ours if shut}
    for device, record in shut_down.items():
        yield _drain(device, f"the file system on {device} was shut down for errors", _where(record), record_id(record, node))
    for _, device, record in ours:
        if device not in shut_down:
            yield _warn(device, f"the file system on {device} found errors", _where(record))
    if len(reported) > len(ours):
        strange = next(record for _, device, record in reported if not known_device(device, node, past))
        yield _warn("", "the kernel log tells of file systems on devices that this node does not have", _where(strange))
    for host in host_of(node):
        if isinstance(host, Finding):
            yield host
            return
        if isinstance(host.mounts, Missing):
            yield unread("the mount table", host.mounts)
        else:
            yield from _read_only(host, host.mounts, set(shut_down), params)
        if isinstance(host.fs_errors, Missing):
            yield unread("the errors that ext4 counts", host.fs_errors)
            return
        for ext4 in host.fs_errors:
            if ext4.device.startswith("loop") or ext4.device in host.images:
                continue
            if isinstance(ext4.errors, Missing):
                yield unread(f"the error count of {ext4.device}", ext4.errors, ext4.device)
            elif ext4.errors > params.counted_errors_max and ext4.device not in shut_down:
                yield _warn(ext4.device, f"{ext4.errors} errors in the file system on {ext4.device}: fsck", "errors_count")


def _where(record: KernelRecord) -> str:
    return f"kernel log at {record.seconds:.1f} s, record {record.sequence}"


def _read(text: str) -> tuple[bool, str] | None:
    """Return whether the file system was shut down, and its device.

    The first value is True for a record of a shutdown and False for a record of errors. The result is None for other records
    and for loop devices.
    """
    for pattern in (*_SHUT_DOWN, *_ERROR):
        match = pattern.match(text[:400])
        if match is not None:
            return None if match[1].startswith("loop") else (pattern in _SHUT_DOWN, match[1])
    return None


def _read_only(host: Host, mounts: tuple[MountPoint, ...], reported: set[str], params: Params) -> Iterator[Finding]:
    on_purpose = {m.device for m in mounts if m.flagged_read_only and m.kind in _JUDGED}
    by_path = {m.path: m for m in mounts}
    seen: set[str] = set()
    for mount in mounts:
        device = mount.source.rpartition("/")[2]
        turned = mount.read_only and not mount.flagged_read_only and mount.device not in on_purpose
        if not turned or mount.kind not in _JUDGED or device.startswith("loop") or mount.device in seen | host.images:
            continue
        seen.add(mount.device)
        if device not in reported:
            yield _drain(device, f"the file system on {device} ({mount.path}) became read-only", f"{mount.kind}, mountinfo")
    for path in params.writable:
        found = by_path.get(path)
        if found is None:
            yield _warn(path, f"{path} should be a writable mount and is none", "mountinfo")
        elif (found.read_only or found.flagged_read_only) and found.device not in seen:
            yield _drain(path, f"{path} is read-only", f"{found.kind}, mountinfo")


def kind(text: str) -> str:
    """Return what happened and on which device, for a record about a file system error. Return "" for loop devices and other
    records."""
    found = _read(text)
    return "" if found is None else f"{'shut' if found[0] else 'errors'} {found[1]}"


check = Check(
    summary="File systems that became read-only, shut down, or counted errors",
    params=Params,
    judge=judge,
    mode=Mode.ENFORCE,
    boot_grace_seconds=60,
    kind=kind,
    wakes_on=("EXT4-fs error", "EXT4-fs (", "XFS (", "BTRFS ", "BTRFS: error "),
    slow=True,
)
