"""A healthy host as facts, and ways to break one thing of it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fairlead import checks
from fairlead.model.check_definition import Past, Sample
from fairlead.model.facts import Node
from fairlead.model.finding import Finding, Level
from fairlead.model.host_facts import (
    PORT_COUNTER_BITS,
    Clock,
    FsErrors,
    Host,
    MemoryController,
    MountPoint,
    NvmeController,
    RdmaPort,
    Space,
    Tasks,
    UnitState,
)
from tests.checks.nodes import nic, node

NOW = 10000.0  # uptime of tests.checks.nodes.node
WELL = Host(
    ports=(
        RdmaPort(
            name="mlx5_0", port=1, pci="0000:19:00.0", width_lanes=4,
            counters={**dict.fromkeys(PORT_COUNTER_BITS, 0), "packet_seq_err": 0, "local_ack_timeout_err": 0},
            carrier_downs={"ibp25s0": 1},
        ),
    ),
    controllers=(MemoryController(name="mc0", corrected=0, uncorrected=0),),
    nvme=(NvmeController(name="nvme0", pci="0000:2a:00.0", state="live"),),
    mounts=(
        MountPoint(path="/", device="9:0", kind="ext4", source="/dev/md0", read_only=False),
        MountPoint(path="/home", device="0:51", kind="nfs4", source="filer:/home", read_only=False),
        MountPoint(path="/opt/image", device="7:0", kind="squashfs", source="/dev/loop0", read_only=True, flagged_read_only=True),
    ),
    fs_errors=(FsErrors(device="md0", errors=0),),
    spaces=(
        Space(path="/", total_bytes=1000, available_bytes=700, total_inodes=1000, free_inodes=900),
        Space(path="/home", total_bytes=1000, available_bytes=700, total_inodes=0, free_inodes=0),
    ),
    tasks=Tasks(total=900, seen=400),
    units=(UnitState(name="slurmd.service", load="loaded", active="active", sub="running"),),
    clock=Clock(synchronised=True, maximum_error_seconds=0.02, estimated_error_seconds=1e-4, offset_seconds=1.7e9),
    memory_bytes=2 << 40,
    smt="off",
    cpus_online=112,
)  # fmt: skip


def host_node(**changes: Any) -> Node:
    """The healthy node with changes of its host."""
    return node(host=replace(WELL, **changes), nics=(nic(interfaces=("ibp25s0",)),))


def samples(device: str, name: str, *values: float, every: float = 600.0) -> tuple[Sample, ...]:
    """Values of the past, oldest first, the newest ``every`` seconds ago."""
    first = NOW - every * len(values)
    return tuple(Sample(device=device, name=name, seconds=first + every * i, value=v) for i, v in enumerate(values))


def past(*series: tuple[Sample, ...], **more: Any) -> Past:
    return Past(available=True, samples=tuple(s for one in series for s in one), **more)


def judged(check: str, node: Node, history: Past | None = None, **params: Any) -> list[Finding]:
    """What a check says, by its own parameters."""
    known = checks.load()[check]
    return list(known.findings(node, history if history is not None else past(), known.params(**params)))


def levels(found: list[Finding]) -> list[tuple[Level, str]]:
    return [(f.level, f.device) for f in found]
