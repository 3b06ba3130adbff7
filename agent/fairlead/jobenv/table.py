"""A job's environment as data: what is set, when, why, and who says so. Nothing here reads a machine.

Only what a job's shape needs, only where the user set nothing; facts of the node (interfaces, HCAs) go to /etc/nccl.conf
by the setting ``nccl`` instead. `fairlead env explain` shows these rows, the task prolog applies them.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class When(StrEnum):
    """In which steps a row applies. The words are what slurm/task-prolog reads."""

    ALWAYS = "always"
    GPUS = "gpus"  # more than one GPU: several on this node, or several tasks that have one
    DISTRIBUTED = "distributed"  # more than one node, or more than one task
    SHARE = "share"  # a task of several on a node, at most one GPU each, whose CPUs fairlead knows


class Level(StrEnum):
    """MINIMAL rows are set with FAIRLEAD_PROFILE=minimal too."""

    MINIMAL = "minimal"
    FULL = "full"


class Row(Struct, frozen=True, kw_only=True):
    """One variable. ``value``: literal, or a rule of the task prolog: @cores, @first_host, @port."""

    name: str
    when: When
    value: str
    level: Level
    what: str
    why: str
    source: str


ROWS: tuple[Row, ...] = (
    Row(
        name="CUDA_DEVICE_ORDER",
        when=When.ALWAYS,
        value="PCI_BUS_ID",
        level=Level.MINIMAL,
        what="CUDA counts GPUs in PCI order",
        why="rank i then means the same GPU to CUDA, nvidia-smi, NCCL and the CPU binding; CUDA's default puts the fastest first",
        source="https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables",
    ),
    Row(
        name="NCCL_DEBUG",
        when=When.ALWAYS,
        value="WARN",
        level=Level.FULL,
        what="NCCL prints the error text when it fails",
        why="without it a failing NCCL call returns a number only; WARN prints nothing while all is well",
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-debug",
    ),
    Row(
        name="OMP_NUM_THREADS",
        when=When.SHARE,
        value="@cores",
        level=Level.FULL,
        what="as many OpenMP threads as the task has physical cores",
        why="torchrun and some libraries assume 1 where it is unset, others all CPUs of the node",
        source="https://docs.pytorch.org/docs/stable/elastic/run.html",
    ),
    Row(
        name="MASTER_ADDR",
        when=When.DISTRIBUTED,
        value="@first_host",
        level=Level.FULL,
        what="the first host of the step, where rank 0 listens",
        why="torch.distributed's env:// rendezvous needs it; every script works it out by hand",
        source="https://docs.pytorch.org/docs/stable/distributed.html#environment-variable-initialization",
    ),
    Row(
        name="MASTER_PORT",
        when=When.DISTRIBUTED,
        value="@port",
        level=Level.FULL,
        what="20000 to 29999 by job and step number",
        why="two jobs or steps on one node must not meet on one port; the range lies below net.ipv4.ip_local_port_range",
        source="https://docs.pytorch.org/docs/stable/distributed.html#environment-variable-initialization",
    ),
    Row(
        name="TORCH_NCCL_TRACE_BUFFER_SIZE",
        when=When.GPUS,
        value="2000",
        level=Level.FULL,
        what="PyTorch remembers the last 2000 collectives",
        why="makes a hang diagnosable (flight recorder); costs some kilobytes",
        source="https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html",
    ),
    Row(
        name="TORCH_NCCL_DUMP_ON_TIMEOUT",
        when=When.GPUS,
        value="1",
        level=Level.FULL,
        what="PyTorch writes the remembered collectives when one times out",
        why="the trace is of use only when it is written",
        source="https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html",
    ),
)

# Never set for users, each with the reason. A test holds ROWS against it.
NEVER: dict[str, str] = {
    "NCCL_ALGO": "NCCL chooses by size; forcing ring costs a quarter of NVSwitch bandwidth",
    "NCCL_PROTO": "forced LL128 has corrupted data (nccl#2001)",
    "NCCL_BUFFSIZE": "must be equal on all ranks; suffixes such as 4M are read as 4",
    "NCCL_NTHREADS": "must be equal on all ranks",
    "NCCL_MIN_NCHANNELS": "must be equal on all ranks",
    "NCCL_MAX_NCHANNELS": "must be equal on all ranks",
    "NCCL_MIN_CTAS": "must be equal on all ranks",
    "NCCL_MAX_CTAS": "must be equal on all ranks",
    "NCCL_P2P_DISABLE": "hides a broken node instead of repairing it",
    "NCCL_SHM_DISABLE": "hides a broken node instead of repairing it",
    "NCCL_IB_DISABLE": "falls back to TCP silently",
    "NCCL_IB_GID_INDEX": "NCCL chooses it by itself since 2.21",
    "NCCL_CUMEM_ENABLE": "a debugging variable by NVIDIA's own classes",
    "NCCL_CHECKS_DISABLE": "removed from NCCL in 2.2.12",
    "CUDA_VISIBLE_DEVICES": "Slurm owns it",
    "CUDA_LAUNCH_BLOCKING": "serialises every kernel launch",
    "LD_PRELOAD": "the user's program is the user's",
    "LD_LIBRARY_PATH": "the user's program is the user's",
    "PYTHONPATH": "the user's program is the user's",
    "PATH": "the user's program is the user's",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable segments clash with some memory registrations",
    "NVIDIA_TF32_OVERRIDE": "changes results",
    "OMP_PROC_BIND": "with torchrun it binds all workers to the same cores",
    "RANK": "belongs to the launcher",
    "WORLD_SIZE": "belongs to the launcher",
    "LOCAL_RANK": "belongs to the launcher",
}
