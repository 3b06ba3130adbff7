"""Says which files other exporters want for the jobs on this node (``host.job_map_files`` describes the files)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fairlead.jobs.gpu_usage_sums import GpuReading


class OnGpu(NamedTuple):
    """Says that a job has a GPU or a MIG device now. uid: of the job's user, or None if it is not known."""

    job: int
    uid: int | None
    gpu: GpuReading


def wanted_files(jobs: Iterable[OnGpu], index: Mapping[str, int], *, gpustat: str, dcgm: str) -> dict[str, str]:
    """Return the content of each file by path. ``index``: NVML's index by PCI address. ``gpustat``, ``dcgm``: the folders of
    jobstats' exporter and of dcgm-exporter, or "" for none.

    A file of jobstats names one job, so a GPU that several jobs share has none: its values are not those of one job.
    """
    by_gpu: dict[str, list[OnGpu]] = {}
    for job in jobs:
        by_gpu.setdefault(job.gpu.uuid, []).append(job)
    files: dict[str, str] = {}
    for uuid, there in by_gpu.items():
        gpu, number = there[0].gpu, index.get(there[0].gpu.pci)
        instance = f".{gpu.mig.partition('/')[0]}" if gpu.mig else ""
        name = "" if number is None else f"{number}{instance}"
        if gpustat and len(there) == 1 and there[0].uid is not None:
            files |= {f"{gpustat}/{each}": f"{there[0].job} {there[0].uid}\n" for each in (uuid, name) if each}
        if dcgm and name:
            path = f"{dcgm}/{name}"
            files[path] = files.get(path, "") + "".join(f"{job.job}\n" for job in there)
    return files
