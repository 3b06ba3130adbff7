"""What a check says when it cannot see what it judges: unknown, never silence."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.model.check import KernelRecord, Past
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Finding, Level
from fairlead.model.host_facts import Host


def unread(what: str, why: Missing, device: str = "") -> Finding:
    """UNKNOWN: ``what`` cannot be read."""
    evidence = (why.detail,) if why.detail else ()
    return Finding(level=Level.UNKNOWN, device=device, summary=f"{what} cannot be read", evidence=evidence)


def unlisted(node: Node) -> Iterator[Finding]:
    """UNKNOWN for a check that judges GPUs when the driver did not say which there are: silence would read as health."""
    if isinstance(node.gpus, Missing):
        yield Finding(level=Level.UNKNOWN, summary="cannot judge: NVML lists no GPUs")


def host_of(node: Node) -> Iterator[Host | Finding]:
    """The host's facts, or why there are none: exactly one of them."""
    yield unread("the host", node.host) if isinstance(node.host, Missing) else node.host


def unread_log(past: Past) -> Iterator[Finding]:
    """For a check that kernel records wake."""
    if past.log is not None:
        yield unread("the kernel log", past.log)


def record_id(record: KernelRecord, node: Node) -> str:
    """``evidence_id`` of a kernel record: it stands for its boot, or until somebody acknowledges it."""
    boot = record.boot_id or (node.boot_id if isinstance(node.boot_id, str) else "")
    return f"{boot}:{record.sequence}"


def known_device(name: str, node: Node, past: Past) -> bool:
    """Whether this node has a block device or memory controller of that name, or had one in this boot: what died may be gone.
    Where it cannot be told, a record is believed."""
    host = node.host
    if isinstance(host, Missing) or isinstance(host.devices, Missing) or isinstance(host.mounts, Missing):
        return True
    mounts = (m for m in host.mounts if m.device not in host.images and not m.kind.startswith("fuse"))  # its source a user names
    return name in host.devices or name in past.devices or name in (m.source.rpartition("/")[2] for m in mounts)


def is_image(name: str, node: Node) -> bool:
    """Whether a block device stands on what may be a user's (``Host.images``) and on nothing else."""
    return not isinstance(node.host, Missing) and name in node.host.images


def age_seconds(record: KernelRecord, node: Node) -> float:
    return 0.0 if isinstance(node.uptime_seconds, Missing) else node.uptime_seconds - record.seconds
