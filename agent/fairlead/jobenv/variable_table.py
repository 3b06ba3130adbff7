"""Describes a job's environment as data: which variable is set, when, why, and by which source. It reads nothing of the machine.

fairlead sets only variables that the job needs for its number of nodes, tasks and GPUs, and only if the user has not set them.
The setting ``nccl`` writes facts of the node (interfaces, HCAs) to /etc/nccl.conf instead. `fairlead env explain` shows the rows
of this table, and the task prolog applies them. ``never.py`` lists the variables that are never set, and those on which only a
site can decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from fairlead.errors import DataError


class When(StrEnum):
    """Says in which steps a row applies. slurm/task-prolog reads these words."""

    ALWAYS = "always"
    GPU = "gpu"  # the step has a GPU
    GPUS = "gpus"  # the step has more than one GPU: several on this node, or several tasks with one each
    NODES = "nodes"  # the step has more than one node
    DISTRIBUTED = "distributed"  # the step has more than one node, or more than one task
    BOUND = "share"  # several tasks run on the node with at most one GPU each, and fairlead knows the task's CPUs


class ValueLevel(StrEnum):
    """Says with which FAIRLEAD_PROFILE a row is set. With FAIRLEAD_PROFILE=minimal, only MINIMAL rows are set."""

    MINIMAL = "minimal"
    FULL = "full"


class VariableRow(Struct, frozen=True, kw_only=True):
    """Describes one variable. value: a literal, or a rule of the task prolog: @cores, @first_host, @port, @scratch.

    at_least: for When.NODES, the least number of nodes with which the row applies. unless: another variable with the same
    meaning. If the user has set that variable, this row is not set.
    """

    name: str
    when: When
    value: str
    level: ValueLevel
    what: str
    why: str
    source: str
    at_least: int = 0
    unless: str = ""

    @property
    def condition(self) -> str:
        """Return the condition of the row as the task prolog reads it: ``nodes``, ``nodes:128``, ``share!OMP_NUM_THREADS``."""
        return f"{self.when.value}{f':{self.at_least}' if self.at_least else ''}{f'!{self.unless}' if self.unless else ''}"


ROWS: tuple[VariableRow, ...] = (
    VariableRow(
        name="CUDA_DEVICE_ORDER",
        when=When.ALWAYS,
        value="PCI_BUS_ID",
        level=ValueLevel.MINIMAL,
        what="CUDA counts GPUs in PCI order",
        why="rank i then means the same GPU to CUDA, nvidia-smi, NCCL and the CPU binding; CUDA's default puts the fastest first",
        source="https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables",
    ),
    VariableRow(
        name="NCCL_DEBUG",
        when=When.ALWAYS,
        value="WARN",
        level=ValueLevel.FULL,
        what="NCCL prints the error text when it fails",
        why="without it a failing NCCL call returns a number only; WARN prints nothing while all is well",
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-debug",
    ),
    VariableRow(
        name="OMP_NUM_THREADS",
        when=When.BOUND,
        value="@cores",
        level=ValueLevel.FULL,
        what="as many OpenMP threads as the task has physical cores",
        why="torchrun and some libraries assume 1 where it is unset, others all CPUs of the node",
        source="https://docs.pytorch.org/docs/stable/elastic/run.html",
    ),
    *(
        VariableRow(
            name=name,
            when=When.BOUND,
            value="@cores",
            level=ValueLevel.FULL,
            what=f"as many threads of {whose} as the task has physical cores",
            why=why,
            source=source,
            unless="OMP_NUM_THREADS",
        )
        for name, whose, why, source in (
            (
                "MKL_NUM_THREADS",
                "MKL",
                "MKL takes the cores of its CPU mask, and in some builds those of the node",
                "https://www.intel.com/content/www/us/en/docs/onemkl/developer-guide-linux/2025-0/onemkl-specific-env-vars.html",
            ),
            (
                "OPENBLAS_NUM_THREADS",
                "OpenBLAS",
                "builds with their own threads start one for each CPU of the node",
                "https://github.com/OpenMathLib/OpenBLAS#setting-the-number-of-threads-at-runtime",
            ),
            (
                "NUMEXPR_NUM_THREADS",
                "NumExpr",
                "NumExpr counts the CPUs of the node, not of the task",
                "https://numexpr.readthedocs.io/en/latest/user_guide.html#threadpool-configuration",
            ),
            (
                "NUMEXPR_MAX_THREADS",
                "NumExpr's pool",
                "without it NumExpr caps its pool and says so in every task",
                "https://numexpr.readthedocs.io/en/latest/user_guide.html#threadpool-configuration",
            ),
        )
    ),
    VariableRow(
        name="MASTER_ADDR",
        when=When.DISTRIBUTED,
        value="@first_host",
        level=ValueLevel.FULL,
        what="the first host of the step, where rank 0 listens",
        why="torch.distributed's env:// rendezvous needs it; without it every script has to compute it",
        source="https://docs.pytorch.org/docs/stable/distributed.html#environment-variable-initialization",
    ),
    VariableRow(
        name="MASTER_PORT",
        when=When.DISTRIBUTED,
        value="@port",
        level=ValueLevel.FULL,
        what="20000 to 32749 by job and step number",
        why="two jobs or steps on one node must not meet on one port; the range lies below net.ipv4.ip_local_port_range",
        source="https://docs.pytorch.org/docs/stable/distributed.html#environment-variable-initialization",
    ),
    VariableRow(
        name="TORCH_NCCL_TRACE_BUFFER_SIZE",
        when=When.GPUS,
        value="2000",
        level=ValueLevel.FULL,
        what="PyTorch remembers the last 2000 collectives",
        why="makes a hang diagnosable (flight recorder); costs some kilobytes",
        source="https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html",
        unless="TORCH_FR_BUFFER_SIZE",  # the name since PyTorch 2.9, which still reads TORCH_NCCL_TRACE_BUFFER_SIZE
    ),
    VariableRow(
        name="TORCH_NCCL_DUMP_ON_TIMEOUT",
        when=When.GPUS,
        value="1",
        level=ValueLevel.FULL,
        what="PyTorch writes the remembered collectives when one times out",
        why="the trace is of use only when it is written",
        source="https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html",
    ),
)


def of_interface(name: str) -> tuple[VariableRow, ...]:
    """Return the row for Gloo's interface, which is also the interface of NCCL's sockets on this node. Return () if the name is
    "", which means that the interface is not known."""
    if not name:
        return ()
    why = "Gloo listens where the host name leads, which is the loopback on many systems; NCCL's sockets use this interface too"
    return (
        VariableRow(
            name="GLOO_SOCKET_IFNAME",
            when=When.NODES,
            value=name,
            level=ValueLevel.FULL,
            what="the interface that reaches the other nodes",
            why=why,
            source="https://docs.pytorch.org/docs/stable/distributed.html#choosing-the-network-interface-to-use",
        ),
    )


def of_scratch(folder: str) -> tuple[VariableRow, ...]:
    """Return the rows for temporary files and compiler caches below ``folder`` on a local disk. Return () if ``folder`` is "",
    which means that the site has declared no local disk."""
    if not folder:
        return ()
    rows = (
        ("TMPDIR", When.ALWAYS, "tmp", "temporary files on the local disk", "/tmp may be small, in memory, or full",
         "https://pubs.opengroup.org/onlinepubs/9799919799/basedefs/V1_chap08.html"),
        ("CUDA_CACHE_PATH", When.GPU, "cuda", "CUDA's cache of compiled kernels on the local disk",
         "in a home on a network file system thousands of ranks lock one file", "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables"),
        ("TRITON_CACHE_DIR", When.GPU, "triton", "Triton's cache on the local disk",
         "in a home on a network file system ranks race for the same files", "https://triton-lang.org/main/programming-guide/chapter-3/debugging.html"),
        ("TORCHINDUCTOR_CACHE_DIR", When.GPU, "inductor", "torch.compile's cache on the local disk",
         "its default is in /tmp, one folder for all jobs of a user", "https://docs.pytorch.org/tutorials/recipes/torch_compile_caching_configuration_tutorial.html"),
    )  # fmt: skip
    return tuple(
        VariableRow(
            name=name, when=when, value=f"@scratch:{folder}:{sub}", level=ValueLevel.FULL, what=what, why=why, source=source
        )
        for name, when, sub, what, why, source in rows
    )


def rail_only(declared: bool) -> tuple[VariableRow, ...]:
    """Return the row NCCL_CROSS_NIC=0 if the rails of the fabric are not connected with each other, else ()."""
    if not declared:
        return ()
    return (
        VariableRow(
            name="NCCL_CROSS_NIC",
            when=When.NODES,
            value="0",
            level=ValueLevel.FULL,
            what="each ring stays on one rail",
            why="the site's rails are not joined: NCCL's default tries a path from rail to rail and ends with a timeout",
            source="https://github.com/NVIDIA/nccl/issues/2013",
        ),
    )


class FabricRow(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Describes a variable that the fabric profile sets for jobs. when: "nodes", or "nodes:N" for at least N nodes."""

    name: str
    value: str
    when: str = "nodes"
    unless: str = ""
    why: str = ""
    source: str = ""


def of_fabric(rows: Iterable[FabricRow]) -> tuple[VariableRow, ...]:
    """Return the rows of the fabric profile's variables. Raises DataError for a condition that is not valid."""
    found = []
    for row in rows:
        match = re.fullmatch(r"nodes(?::([0-9]{1,5}))?", row.when)
        if not match or not re.fullmatch(r"[A-Z0-9_]*", row.unless):
            raise DataError(f"job environment: {row.name}: when must be nodes or nodes:N, and unless the name of a variable")
        made = VariableRow(
            name=row.name,
            when=When.NODES,
            value=row.value,
            level=ValueLevel.FULL,
            what="from the fabric profile",
            why=row.why,
            source=row.source,
            at_least=int(match[1] or 0),
            unless=row.unless,
        )
        found.append(made)
    return tuple(found)


def assemble(
    *,
    fabric: Iterable[FabricRow] = (),
    interface: str = "",
    scratch: str = "",
    crosses_rails: bool = True,
    master_suffix: str = "",
) -> tuple[VariableRow, ...]:
    """Return all rows of one node. Raises DataError for a row of the fabric profile that is not valid.

    interface: the network interface that NCCL uses on this node. scratch: the folder on a local disk. master_suffix: what is
    added to a host name to get the name of that host on the fast network ("i" on JUWELS).
    """
    own = of_fabric(fabric)
    rows = [replace(r, value=r.value + master_suffix) if r.value == "@first_host" else r for r in ROWS]
    rows += [*of_interface(interface), *of_scratch(scratch), *rail_only(not crosses_rails)]
    named = {r.name for r in own}
    return (*(r for r in rows if r.name not in named), *own)
