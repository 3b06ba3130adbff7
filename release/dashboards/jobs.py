"""Describes the dashboard of jobs: how busy their GPUs are, their energy, and GPUs that do nothing.

A series of a GPU has no label of a job. ``fairlead_job_gpu`` says which job has the GPU, and recording rules join the two.
"""

from __future__ import annotations

from release.dashboards.panel import FRESH, Dashboard, Panel, Row

WITH_JOB = f"sum(instance:fairlead_gpus_with_job:count and {FRESH})"

NOW = (
    Panel(
        kind="stat", title="GPUs with a job", text="GPUs that a running job has.",
        query=WITH_JOB,
    ),
    Panel(
        kind="stat", title="GPUs without a job", text="GPUs that no running job has.",
        query=f"sum(instance:fairlead_gpus:count and {FRESH}) - {WITH_JOB}",
    ),
    Panel(
        kind="stat", title="Busy, of GPUs with a job", unit="percent",
        text="The mean over all GPUs with a job of the part of time in which a kernel ran, in the last five minutes.",
        query="avg(gpu_job:fairlead_gpu_busy:ratio5m)",
    ),
    Panel(
        kind="stat", title="GPUs with a job and no kernel for an hour", text="Look at them with `fairlead idle observe`.",
        query="count(gpu_job:fairlead_gpu_busy:ratio1h == 0) or 0 * count(gpu_job:fairlead_gpu_busy:ratio1h)",
    ),
)  # fmt: skip
EACH = (
    Panel(
        kind="table", title="Least busy jobs", unit="percent",
        text="The jobs whose GPUs ran a kernel for the smallest part of the last hour. Low is no proof of waste: `fairlead job ID`.",
        query="bottomk(30, job:fairlead_gpu_busy:ratio1h)",
    ),
    Panel(
        kind="table", title="Busy, but few SMs active", unit="percent",
        text="The SM activity of jobs whose GPUs are busy for more than 80 %. Small kernels, or a loop that only looks busy.",
        query="bottomk(30, job:fairlead_gpu_sm_active:ratio1h and job:fairlead_gpu_busy:ratio1h > 0.8)",
    ),
    Panel(
        kind="table", title="Most GPUs without a kernel for an hour", text="The number of such GPUs of each job.",
        query="topk(30, count by (job) (gpu_job:fairlead_gpu_busy:ratio1h == 0))",
    ),
    Panel(
        kind="table", title="Energy of the last hour", unit="kwatth", text="The energy of each job's GPU cards in the last hour. The node is not measured.",
        query="topk(30, sum by (job) (gpu_job:fairlead_gpu_energy_joules:increase1h) / 3.6e6)",
    ),
)  # fmt: skip
TIME = (
    Panel(
        kind="lines", title="Busy by job", unit="percent", legend="job {{job}}", wide=True,
        text="The mean over a job's GPUs of the part of time in which a kernel ran.",
        query="avg by (job) (gpu_job:fairlead_gpu_busy:ratio5m)",
    ),
    Panel(
        kind="lines", title="GPUs with a job", text="GPUs that a running job has, over time.", legend="GPUs",
        query=WITH_JOB,
    ),
    Panel(
        kind="lines", title="Power of all GPUs", unit="watts", text="The power draw of all GPU cards.", legend="GPU cards",
        query=f"sum(instance:fairlead_gpu_power_draw_watts:sum and {FRESH})",
    ),
)  # fmt: skip
DASHBOARD = Dashboard(
    name="jobs",
    title="fairlead: jobs",
    text="What running jobs do with their GPUs. The busy time of a MIG instance is not known.",
    rows=(
        Row(title="Now", panels=NOW),
        Row(title="Jobs", panels=EACH),
        Row(title="Over time", panels=TIME),
    ),
)
