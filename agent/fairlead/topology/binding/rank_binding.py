"""Plans the binding of one rank among several ranks in one task: which of the task's CPUs and which memory the rank should have.

torchrun and mpirun start several ranks inside one Slurm task, and all these ranks have the task's whole mask. Each rank computes
the same equal parts of that mask (core_assignment.py, with /run/fairlead/topology), and uses its own part. Rank i uses the i-th
visible GPU. If the input is not clear, the functions raise Doubt, and the rank's binding is not changed. The functions get the
environment variables as a mapping.

The launchers' documents name the variables:

- torchrun: LOCAL_RANK and LOCAL_WORLD_SIZE (PyTorch, torch.distributed.run, "Environment Variables")
- Open MPI: OMPI_COMM_WORLD_LOCAL_RANK and _SIZE (its documentation, "Environment variables")
- Intel MPI and MPICH's Hydra: MPI_LOCALRANKID and MPI_LOCALNRANKS
- MVAPICH2: MV2_COMM_WORLD_LOCAL_RANK and _SIZE
- Cray PALS: PALS_LOCAL_RANKID and PALS_LOCAL_SIZE
- Slurm: SLURM_LOCALID and SLURM_GTIDS (srun(1), "OUTPUT ENVIRONMENT VARIABLES")

CUDA_VISIBLE_DEVICES is in the CUDA C++ Programming Guide, "CUDA Environment Variables".
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.topology.binding import binding_plan
from fairlead.topology.binding.binding_plan import Doubt, GpuLocation, Machine
from fairlead.topology.binding.core_assignment import assign_cores

Env = Mapping[str, str]

#: Each launcher's variables of the rank and of the number of ranks on this node, the innermost launcher first.
LAUNCHERS = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    ("PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
)
SLURM = "SLURM_LOCALID"
VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


class LocalRank:
    """Holds the number of one rank (from 0), the number of ranks on this node, and the environment variable with that number."""

    __slots__ = ("number", "ranks", "source")

    def __init__(self, number: int, ranks: int, source: str) -> None:
        self.number = number
        self.ranks = ranks
        self.source = source


class RankBinding:
    """Holds the binding of one rank. cpus: the CPU set of the rank. If Slurm assigned a CPU set to the rank, it is that set.
    memory: the NUMA node whose memory the rank prefers, or None."""

    __slots__ = ("cpus", "gpus", "memory")

    def __init__(self, cpus: int, gpus: list[GpuLocation], memory: int | None) -> None:
        self.cpus = cpus
        self.gpus = gpus
        self.memory = memory


def wanted_bindings(env: Env) -> tuple[bool, bool]:
    """Return whether the user wants the CPUs bound, and whether the user wants the memory bound.

    FAIRLEAD_PROFILE, and the words CPUS and MEMORY in FAIRLEAD_SKIP, decide this. If their text is malformed, both are False.
    """
    skip = env.get("FAIRLEAD_SKIP", "")
    if env.get("FAIRLEAD_PROFILE", "") not in ("", "full", "minimal") or skip.strip(_NAMES):
        return False, False
    names = skip.split(",")
    return "CPUS" not in names, "MEMORY" not in names


_NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_,"


def local_rank(env: Env) -> LocalRank:
    """Return the rank of this process, from the variables of the innermost launcher. Raise Doubt if no launcher has set its
    variables, or has set only some of them."""
    for name, size in LAUNCHERS:
        if name in env:
            return _rank(name, env[name], _number(size, env.get(size, "")))
    if SLURM in env:
        return _rank(SLURM, env[SLURM], len(env.get("SLURM_GTIDS", "").split(",")) if env.get("SLURM_GTIDS") else 0)
    raise Doubt("no launcher says which local rank this is (LOCAL_RANK, OMPI_COMM_WORLD_LOCAL_RANK, ...)")


def _rank(name: str, text: str, ranks: int) -> LocalRank:
    number = _number(name, text)
    if not 0 <= number < ranks <= binding_plan.TASKS_MAX:
        raise Doubt(f"{name}={number} of {ranks} local ranks is not a valid rank")
    return LocalRank(number, ranks, name)


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise Doubt(f"{name} is {'not set' if not text else 'not a number'}")
    return int(text)


def in_step(env: Env) -> bool:
    """Return whether this process is in a step of srun and not in the batch script, where SLURM_STEP_ID is unset, -5 or
    4294967291."""
    step = env.get("SLURM_STEP_ID", "")
    return step.isascii() and step.isdigit() and not step.startswith("42949672")


def job_gpus(machine: Machine, env: Env, *, published: bool) -> list[GpuLocation]:
    """Return the GPUs of this step or job in PCI order, as CUDA counts them. Outside Slurm these are all GPUs of the node.

    Raise Doubt if it is not clear which GPUs these are. ``published``: whether the machine was read from /run/fairlead/topology,
    so that its indices are Slurm's. If the machine was read from the PCI bus, Slurm's order is not known.
    """
    if "SLURM_JOB_ID" not in env:
        return machine.gpus
    listed = env.get("SLURM_STEP_GPUS" if in_step(env) else "SLURM_JOB_GPUS", "")
    if not listed:
        raise Doubt("Slurm names no GPUs of this step")
    indices = binding_plan.parse_indices(listed)
    found = [gpu for gpu in machine.gpus if gpu.index in indices]
    if len(found) != len(indices):
        raise Doubt("the step has GPUs that are not published for this node")
    if not published and len(found) != len(machine.gpus):
        raise Doubt("the job has part of the node's GPUs, and no published topology says which GPUs Slurm means")
    return found


def visible_gpus(machine: Machine, uuids: Mapping[str, str], env: Env, *, published: bool) -> list[GpuLocation]:
    """Return the GPUs that the program sees, in the program's order. ``uuids``: PCI address by UUID. Raise Doubt if not clear.

    If the job's cgroup constrains devices, an index counts from the job's first GPU, else from the node's first GPU. If the two
    GPUs that an index can mean are in different NUMA domains, fairlead cannot know which GPU is right, and raises Doubt.

    On a node with a GPU in MIG mode, only UUIDs of GPUs and MIG devices are clear. If gres.conf lists the devices there, the
    step's own list of indices is clear too.
    """
    chosen = next((env[name] for name in VISIBLE if name in env), None)
    if chosen is not None and not machine.indexed:
        listed = env.get("SLURM_STEP_GPUS" if in_step(env) else "SLURM_JOB_GPUS", "")
        if machine.listed and listed and "-" not in chosen and not _each_task_has_own_gpus(env):
            return binding_plan.gpus_by_list(machine, binding_plan.parse_indices(listed), chosen)
        return binding_plan.gpus_by_uuid(machine, chosen)
    mine = job_gpus(machine, env, published=published)
    if chosen is None:
        return mine
    if not chosen.startswith("GPU-") and _each_task_has_own_gpus(env):
        raise Doubt("each task has GPUs of its own, and this process cannot know which")
    found = []
    for word in chosen.split(","):
        hits = _by_index(machine, mine, int(word)) if word.isascii() and word.isdigit() and len(word) < 6 else []
        if word.startswith("GPU-"):
            hits = [g for g in mine for uuid, pci in uuids.items() if pci == g.pci and uuid.startswith(word)]
        if not hits or any((g.near, g.numa) != (hits[0].near, hits[0].numa) for g in hits):
            raise Doubt(f"the GPU that {word[:60]!r} of the visible devices means is not known here")
        found.append(hits[0])
    return found


def _each_task_has_own_gpus(env: Env) -> bool:
    """Return whether Slurm assigned to each of several tasks its own GPUs. In that case an index of a constrained device counts
    from the task's first GPU."""
    by_option = env.get("SLURM_GPUS_PER_TASK") or env.get("SLURM_NTASKS_PER_GPU") or "gpu" in env.get("SLURM_TRES_PER_TASK", "")
    bound = env.get("SLURM_GPU_BIND", "") not in ("", "none")
    return in_step(env) and "," in env.get("SLURM_GTIDS", "") and bool(by_option or bound)


def _by_index(machine: Machine, mine: list[GpuLocation], index: int) -> list[GpuLocation]:
    """Return the GPUs of the job that an index in the visible devices can mean, each GPU once."""
    hits = [mine[index]] if index < len(mine) else []
    if index < len(machine.gpus) and machine.gpus[index] in mine and machine.gpus[index] not in hits:
        hits.append(machine.gpus[index])
    return hits


def gpus_of_ranks(gpus: list[GpuLocation], ranks: int, per_rank: int | None) -> list[list[GpuLocation]]:
    """Return the GPUs of each rank: GPU i (modulo the number of GPUs) for rank i, or ``per_rank`` consecutive GPUs for each rank.

    If there are fewer ranks than GPUs, some programs use one GPU for each rank, and others an equal part of the GPUs. Raise Doubt
    if the two cases need different bindings.
    """
    if per_rank is not None:
        if per_rank * ranks > len(gpus):
            raise Doubt(f"{ranks} ranks with {per_rank} GPUs each, and {len(gpus)} are visible")
        return [gpus[i * per_rank : (i + 1) * per_rank] for i in range(ranks)]
    gpus_of_rank = binding_plan.assign_gpus(gpus, ranks)
    if 1 < ranks < len(gpus):
        for first, own in zip(gpus, gpus_of_rank, strict=False):
            if {(g.near, g.numa) for g in own} != {(first.near, first.numa)}:
                raise Doubt(f"{ranks} ranks see {len(gpus)} GPUs: use --gpus-per-rank 1, or the number that each rank uses")
    return gpus_of_rank


def is_slurms_mask(env: Env, own: int, cpuset: int) -> bool:
    """Return whether the process still has the mask that Slurm set for the task. taskset, mpirun or the user may have set a
    smaller mask."""
    if own == cpuset:
        return True
    masks = env.get("SLURM_CPU_BIND_LIST", "")
    if in_step(env) and masks:
        if env.get("SLURM_CPU_BIND_TYPE") != "mask_cpu:" or not all(m.startswith("0x") for m in masks.split(",")):
            return False  # masks that a user typed have no 0x
        cpu_sets = binding_plan.parse_masks(masks)
        local = _number(SLURM, env.get(SLURM, ""))
        return local < len(cpu_sets) and own.bit_count() >= cpu_sets[local].bit_count()
    return env.get("SLURM_CPUS_ON_NODE", "") == str(own.bit_count())


def plan_rank(
    machine: Machine, gpus: list[GpuLocation], rank: LocalRank, env: Env, *, own: int, cpuset: int, per_rank: int | None
) -> RankBinding:
    """Return the binding of one rank within ``own``, the CPU set that the task has. Raise Doubt if the input is not clear.

    ``gpus``: the visible GPUs. ``cpuset``: the CPU set of the cgroup. ``per_rank``: the number of GPUs of each rank, or None if
    the user did not give it. A rank that is a Slurm task with a mask of its own keeps that mask, and only its memory is planned.
    """
    if not gpus:
        raise Doubt("no GPU is visible")
    if not is_slurms_mask(env, own, cpuset):
        raise Doubt("somebody has already chosen fewer CPUs than the task has: they stay bound")
    if not own or own & ~_known(machine):
        raise Doubt("the task has CPUs that the published topology does not have")
    on_node = env.get("SLURM_CPUS_ON_NODE", "")
    if on_node.isascii() and on_node.isdigit() and binding_plan.count_cores(machine, own) > int(on_node):
        raise Doubt("the job has part of the node's CPUs, and nothing says which")
    if rank.source == SLURM and rank.ranks > 1 and len(gpus) != _number("SLURM_GPUS_ON_NODE", env.get("SLURM_GPUS_ON_NODE", "")):
        raise Doubt("Slurm has assigned each task GPUs of its own")
    gpus_of_rank = gpus_of_ranks(gpus, rank.ranks, per_rank)
    cpus = own
    if rank.source != SLURM or own == cpuset:
        if own.bit_count() < rank.ranks:
            raise Doubt(f"{rank.ranks} ranks on {own.bit_count()} CPUs")
        cpus = assign_cores(machine, [core.cpus & own for core in machine.cores], gpus_of_rank, [])[rank.number]
    return RankBinding(cpus, gpus_of_rank[rank.number], _memory_node(machine, cpus, gpus_of_rank[rank.number]))


def _known(machine: Machine) -> int:
    known = 0
    for core in machine.cores:
        known |= core.cpus
    return known


def _memory_node(machine: Machine, cpus: int, gpus: list[GpuLocation]) -> int | None:
    """Return the NUMA node of the GPUs, or None. It is None if the GPUs are on several NUMA nodes, or if none of ``cpus`` is on
    that node. So it is never a NUMA node of GPU memory, which has no CPUs."""
    homes = {g.numa for g in gpus if g.near}
    if len(homes) != 1 or any(not g.near for g in gpus):
        return None
    home = homes.pop()
    return home if home >= 0 and any(c.numa == home and c.cpus & cpus for c in machine.cores) else None


def pci_by_uuid(topology: str) -> dict[str, str]:
    """Return the PCI address of each GPU by UUID, from a topology text that binding_plan.parse_topology has accepted."""
    rows = [line.split("\t") for line in topology.splitlines() if line.startswith("gpu\t")]
    return {row[3]: row[4] for row in rows if row[3] != "-"}
