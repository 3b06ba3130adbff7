"""Checks that each GPU has joined its NVLink fabric and that the fabric is healthy.

nvmlDeviceGetGpuFabricInfoV (nvml.h, nvmlGpuFabricInfo_v2_t) gives a state: NOT_SUPPORTED, NOT_STARTED, IN_PROGRESS or COMPLETED.
It also gives the clique, the cluster, and a status that counts only in the state COMPLETED. The health mask
(NVML_GPU_FABRIC_HEALTH_MASK_*) has bits for degraded bandwidth, route recovery, an unhealthy route, recovery from an access
time-out, and an incorrect configuration. An HGX H100 has a fabric of its own. Its GPUs are COMPLETED in clique 0 of cluster 0,
and NVML gives no health for them (recorded with driver 590.48). An HGX A100 has no such fabric, so the state of its GPUs is
NOT_SUPPORTED. CUDA does not start on a GPU before the state of the GPU is COMPLETED. All GPUs of one node belong to one clique of
one cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.device import readable_gpus
from fairlead.model.facts import Gpu, Missing, Node, Why
from fairlead.model.finding import Action, Finding, Level, Mode, Service, with_action
from fairlead.model.gpu_load import GpuFabric
from fairlead.model.unread import unlisted

NOT_SUPPORTED, NOT_STARTED, IN_PROGRESS, COMPLETED = range(4)
_TRUE, _FALSE = 1, 2
#: Each row has the shift of a value in the health mask, the words for it, and whether it drains. Each value has two bits, and 1
#: means true.
HEALTH = (
    (0, "its bandwidth is degraded", True),
    (2, "a route is being recovered", False),
    (4, "a route is unhealthy", True),
    (6, "it recovers from an access time-out", False),
)
_CONFIGURATION_SHIFT, _CONFIGURATION_NONE = 8, 1
CONFIGURATION = {
    2: "wrong system GUID", 3: "wrong chassis serial number", 4: "no partition", 5: "too few NVLinks",
    6: "incompatible firmware", 7: "wrong location", 8: "invalid state of the GPU",
}  # fmt: skip
_PARTITION_SHIFT, _MANAGER_SHIFT = 12, 14


class Params(CheckParams, frozen=True, kw_only=True):
    required: Annotated[bool, Meta(description="The GPUs of this kind of node form an NVLink fabric.")] = False


def _finding(gpu: str, level: Level, words: str, *, evidence_id: str = "") -> Finding:
    action = Action.CHECK_FABRIC if level is Level.DRAIN else Action.NONE
    return with_action(level, words, action, device=gpu, service=Service.DRAIN_AFTER_JOB, evidence_id=evidence_id)


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    yield from unlisted(node)
    joined: list[tuple[Gpu, GpuFabric]] = []
    for gpu in readable_gpus(node):
        fabric = gpu.load.fabric
        if isinstance(fabric, Missing):
            if params.required and fabric.why is Why.UNREADABLE:
                yield _finding(gpu.pci, Level.UNKNOWN, f"the NVLink fabric of GPU {gpu.pci} cannot be read ({fabric.detail})")
            continue
        if fabric.state == COMPLETED and fabric.status == 0:
            joined.append((gpu, fabric))
        yield from _state(gpu.pci, fabric, params)
        if fabric.state == COMPLETED and isinstance(fabric.health, int):
            yield from _health(gpu.pci, fabric.health)
    yield from _together(joined)


def _state(pci: str, fabric: GpuFabric, params: Params) -> Iterator[Finding]:
    if fabric.state == COMPLETED:
        if fabric.status:
            yield _finding(pci, Level.DRAIN, f"GPU {pci} could not join its NVLink fabric (NVML {fabric.status})")
    elif fabric.state == NOT_SUPPORTED:
        if params.required:
            yield _finding(pci, Level.DRAIN, f"GPU {pci} knows no NVLink fabric")
    else:
        words = {NOT_STARTED: "has not begun to join", IN_PROGRESS: "has not finished joining"}
        yield _finding(pci, Level.DRAIN, f"GPU {pci} {words.get(fabric.state, 'is in an unknown state of')} its NVLink fabric")


def _health(pci: str, mask: int) -> Iterator[Finding]:
    for shift, words, drains in HEALTH:
        if mask >> shift & 3 == _TRUE:
            yield _finding(pci, Level.DRAIN if drains else Level.WARN, f"NVLink fabric of GPU {pci}: {words}", evidence_id=words)
    configuration = mask >> _CONFIGURATION_SHIFT & 15
    if configuration > _CONFIGURATION_NONE:
        words = CONFIGURATION.get(configuration, f"code {configuration}")
        yield _finding(pci, Level.DRAIN, f"NVLink fabric of GPU {pci} is configured wrongly: {words}", evidence_id=words)
    if mask >> _PARTITION_SHIFT & 3 == _FALSE:
        yield _finding(pci, Level.DRAIN, f"NVLink fabric of GPU {pci}: it has no partition", evidence_id="partition")
    if mask >> _MANAGER_SHIFT & 3 == _FALSE:
        yield _finding(pci, Level.WARN, f"NVLink fabric of GPU {pci}: its fabric manager is not connected", evidence_id="manager")


def _together(joined: list[tuple[Gpu, GpuFabric]]) -> Iterator[Finding]:
    """Yield one finding for each GPU that is in another clique or cluster than most GPUs of the node."""
    cliques = Counter((f.cluster, f.clique) for _, f in joined)
    if len(cliques) < 2:
        return
    usual = min(cliques, key=lambda clique: (-cliques[clique], clique))
    for gpu, fabric in joined:
        if (fabric.cluster, fabric.clique) != usual:
            other = "cluster" if fabric.cluster != usual[0] else f"clique {fabric.clique} instead of {usual[1]}"
            yield _finding(gpu.pci, Level.DRAIN, f"GPU {gpu.pci} is in another NVLink {other} than the node's others")


check = Check(
    summary="Every GPU has joined its NVLink fabric, with full bandwidth and the node's others",
    params=Params,
    another_gpu={"required": False},
    judge=judge,
    mode=Mode.OBSERVE,
    confirm=2,
    confirm_of=2,
    recover=2,
    boot_grace_seconds=300,
    slow=True,
)
