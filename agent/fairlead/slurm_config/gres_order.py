"""Numbers GPUs and MIG instances as slurmd does with AutoDetect=nvml: the GRES index of each.

Slurm sorts its list twice (src/plugins/gres/gpu/gres_gpu.c, _merge_system_gres_conf). First it sorts by device files, where
numbers in the names count as numbers. The files of an instance are those of its GPU and of its capabilities
(/dev/nvidia-caps/nvidia-capN). The driver numbers capabilities by GPU, GPU instance and compute instance. Then it sorts by the
position of -1 in Links, and devices without Links come last. Whole GPUs have Links. An instance has none from Slurm 23.02 on.
Before, src/plugins/gpu/nvml/gpu_nvml.c gave it Links with -1 at its position among the instances of its GPU. Read in 22.05.8,
23.02.7, 24.11.5 and 26.05.3.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

#: The first release in which MIG instances have no Links.
WITHOUT_LINKS = (23, 2)
WHOLE = (-1, -1)
#: A device: the minor number of the GPU, and the ids of its GPU instance and compute instance, or WHOLE.
Device = tuple[int, tuple[int, int]]


class GresGpu(Struct, frozen=True):
    """Describes one GPU: its minor number, and (GPU instance, compute instance) of its MIG devices in NVML's order, or None for a
    whole GPU. The GPUs are listed in NVML's order."""

    minor: int
    devices: tuple[tuple[int, int], ...] | None


def indices(gpus: Sequence[GresGpu], release: tuple[int, ...], *, links: bool = True) -> dict[Device, int]:
    """Return the GRES index of each device. ``release``: Slurm's, such as (24, 11). ``links``: whether whole GPUs have Links."""
    rows: list[tuple[tuple[float, int, tuple[int, int]], Device]] = []
    for position, gpu in enumerate(gpus):
        if gpu.devices is None:
            rows.append(((position if links else float("inf"), gpu.minor, WHOLE), (gpu.minor, WHOLE)))
        for at, ids in enumerate(gpu.devices or ()):
            rows.append(((at if release < WITHOUT_LINKS else float("inf"), gpu.minor, ids), (gpu.minor, ids)))
    return {device: number for number, (_, device) in enumerate(sorted(rows))}
