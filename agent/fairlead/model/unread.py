"""Makes UNKNOWN findings for a check that cannot read what it judges. Without any finding, the node would look healthy."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from fairlead.model.check_definition import KernelRecord, Past
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Finding, Level
from fairlead.model.host_facts import Host, RdmaPort


def unread(what: str, why: Missing, device: str = "") -> Finding:
    """Return an UNKNOWN finding: ``what`` cannot be read."""
    evidence = (why.detail,) if why.detail else ()
    return Finding(level=Level.UNKNOWN, device=device, summary=f"{what} cannot be read", evidence=evidence)


def unlisted(node: Node) -> Iterator[Finding]:
    """Yield an UNKNOWN finding for a check of GPUs if the driver did not list the GPUs. Without this finding, the GPUs would look
    healthy."""
    if isinstance(node.gpus, Missing):
        yield Finding(level=Level.UNKNOWN, summary="cannot judge: NVML lists no GPUs")


def host_of(node: Node) -> Iterator[Host | Finding]:
    """Yield exactly one value: the host's facts, or a finding that says why there are none."""
    yield unread("the host", node.host) if isinstance(node.host, Missing) else node.host


def rdma_ports(node: Node, ignore: Collection[str]) -> Iterator[RdmaPort | Finding]:
    """Yield the RDMA ports of the devices that are not in ``ignore``, or one finding that says why they are not known."""
    for host in host_of(node):
        if isinstance(host, Finding):
            yield host
        elif isinstance(host.ports, Missing):
            yield unread("the RDMA ports", host.ports)
        else:
            yield from (port for port in host.ports if port.name not in ignore)


def unread_log(past: Past) -> Iterator[Finding]:
    """Yield an UNKNOWN finding for a check that kernel records start, if the kernel log cannot be read."""
    if past.log is not None:
        yield unread("the kernel log", past.log)


def record_id(record: KernelRecord, node: Node) -> str:
    """Return the ``evidence_id`` of a kernel record. Its finding stays until the boot ends, or until somebody acknowledges it."""
    boot = record.boot_id or (node.boot_id if isinstance(node.boot_id, str) else "")
    return f"{boot}:{record.sequence}"


def known_device(name: str, node: Node, past: Past) -> bool:
    """Return whether this node has a block device or memory controller with this name, or had such a device in this boot.

    A device that failed may be gone. If the devices are not known, return True, so that a record with this name counts.
    """
    host = node.host
    if isinstance(host, Missing) or isinstance(host.devices, Missing) or isinstance(host.mounts, Missing):
        return True
    # a user may choose the source of a FUSE mount or of a mount of ``images``
    mounts = (m for m in host.mounts if m.device not in host.images and not m.kind.startswith("fuse"))
    return name in host.devices or name in past.devices or name in (m.source.rpartition("/")[2] for m in mounts)


def is_image(name: str, node: Node) -> bool:
    """Return whether a block device is built only on devices that a user may have provided (``Host.images``)."""
    return not isinstance(node.host, Missing) and name in node.host.images


def age_seconds(record: KernelRecord, node: Node) -> float:
    return 0.0 if isinstance(node.uptime_seconds, Missing) else node.uptime_seconds - record.seconds
