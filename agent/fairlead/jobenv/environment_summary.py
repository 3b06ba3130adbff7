"""Says in one line what fairlead has set in a task: how many variables, which CPUs, and what the user has turned off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from fairlead.jobenv.environment_text import ExplainedVariable
from fairlead.model.cpulist import format_cpulist, parse_cpumask
from fairlead.model.plain_text import printable

MASKS_MAX = 1024  # tasks of a step on one node


class CpuBinding(Struct, frozen=True, kw_only=True):
    """Holds the CPUs of a task, and the CPUs that Slurm assigned to it, as lists such as "0-3,8"; "" where this is not known.

    by: "user" (srun's --cpu-bind chose them), "slurm" (they are as Slurm assigned them), "fairlead" (Slurm assigned others, so
    fairlead's task prolog or the program itself changed them), or "" (not known).
    """

    cpus: str
    slurm: str = ""
    by: str = ""


def cpu_binding(environment: Mapping[str, str], cpus: tuple[int, ...]) -> CpuBinding:
    """Return who chose the CPUs ``cpus`` of the task with this environment.

    Slurm gives a task the masks of all tasks of its step on this node in SLURM_CPU_BIND_LIST, in the order of SLURM_LOCALID
    (srun(1), "--cpu-bind"; seen on 22.05, 24.11 and 26.05).
    """
    now = format_cpulist(cpus)
    if environment.get("FAIRLEAD_CPU_BIND") == "user":
        return CpuBinding(cpus=now, by="user")
    assigned = _assigned(environment)
    if not now or not assigned:
        return CpuBinding(cpus=now, slurm=format_cpulist(assigned))
    by = "slurm" if set(assigned) == set(cpus) else "fairlead"
    return CpuBinding(cpus=now, slurm=format_cpulist(assigned), by=by)


def _assigned(environment: Mapping[str, str]) -> tuple[int, ...]:
    """Return the CPUs that Slurm assigned to this task, or () if the environment does not say so in a clear way."""
    if environment.get("SLURM_CPU_BIND_TYPE") != "mask_cpu:":
        return ()
    masks = environment.get("SLURM_CPU_BIND_LIST", "").split(",")
    rank = environment.get("SLURM_LOCALID", "")
    if not (rank.isascii() and rank.isdecimal() and len(rank) < 5) or not int(rank) < len(masks) <= MASKS_MAX:
        return ()
    try:
        return parse_cpumask(masks[int(rank)].removeprefix("0x"))
    except ValueError:
        return ()


def summary(variables: Iterable[ExplainedVariable], environment: Mapping[str, str], binding: CpuBinding) -> str:
    """Return the line: "9 variables set, 2 of yours kept; off: FAIRLEAD_SKIP=TMPDIR; CPUs 0-7, bound by fairlead"."""
    rows = list(variables)
    ours = sum(row["origin"] in ("fairlead", "measured result", "nccl.conf") for row in rows)
    kept = sum(row["origin"] == "user" for row in rows)
    parts = [f"{ours} variable{'s' * (ours != 1)} set, {kept} of yours kept"]
    profile, skipped = environment.get("FAIRLEAD_PROFILE", ""), environment.get("FAIRLEAD_SKIP", "")
    off = [f"FAIRLEAD_PROFILE={profile}"] if profile in ("off", "minimal") else []
    off += [f"FAIRLEAD_SKIP={printable(skipped)}"] if skipped else []
    if off:
        parts.append("off: " + ", ".join(off))
    if binding.cpus:
        parts.append(f"CPUs {binding.cpus}{_who(binding)}")
    return "; ".join(parts)


def _who(binding: CpuBinding) -> str:
    words = {
        "user": ", as you chose with --cpu-bind",
        "slurm": ", as Slurm bound them",
        "fairlead": f" in place of Slurm's {binding.slurm}: fairlead's task prolog or your program bound them",
    }
    return words.get(binding.by, "")
