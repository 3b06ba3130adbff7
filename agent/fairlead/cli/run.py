"""Run a command as one rank of a task, on those of the task's CPUs that are nearest the rank's GPU.

For launchers that start several ranks inside one Slurm task:

    torchrun --no-python --nproc-per-node 8 fairlead run -- python train.py
    mpirun --bind-to none -n 8 fairlead run -- ./solver

The rank is read from LOCAL_RANK and similar variables. The rank's CPUs are a part of the task's CPUs, and memory is preferred on
the GPU's NUMA node. fairlead changes no choice that was made before: fewer CPUs (by taskset or mpirun's own binding), a memory
policy, FAIRLEAD_PROFILE=off, CPUS or MEMORY in FAIRLEAD_SKIP. In any doubt, the command runs without a binding, and --verbose
says why. The command replaces the fairlead process, so exit status and signals are those of the command.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import NoReturn, TypedDict

from fairlead.errors import ExitCode, UsageError
from fairlead.host import own_task
from fairlead.model.cpulist import format_cpu_set
from fairlead.topology.binding import binding_plan, rank_binding
from fairlead.topology.binding.binding_plan import Doubt

TOPOLOGY = "/run/fairlead/topology"


class BoundRank(TypedDict):
    """What a rank is bound to. source: where its number comes from. null: not known, or unchanged. notes: what was not done, and
    why."""

    rank: int | None
    ranks: int | None
    source: str | None
    gpus: list[str]
    cpus: str | None
    memory: str | None
    notes: list[str]


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--verbose", action="store_true", help="say on standard error what was bound, or why nothing was bound")
    parser.add_argument("--dry-run", action="store_true", help="say what would be bound, run nothing")
    parser.add_argument("--json", action="store_true", help="say it as JSON, run nothing")
    parser.add_argument("--gpus-per-rank", type=int, metavar="N", help="with fewer ranks than GPUs: how many each rank uses")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="[--] CMD ...", help="the command and its arguments")


def run(args: argparse.Namespace) -> ExitCode:
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if args.gpus_per_rank is not None and args.gpus_per_rank < 1:
        raise UsageError(f"--gpus-per-rank: {args.gpus_per_rank} is not a positive number")
    telling = args.dry_run or args.json
    if not command and not telling:
        raise UsageError("no command", hint="fairlead run -- CMD ...")
    result: BoundRank = {"rank": None, "ranks": None, "source": None, "gpus": [], "cpus": None, "memory": None, "notes": []}
    try:
        _bind(result, dict(os.environ), args.gpus_per_rank, apply=not telling)
    except Doubt as e:
        result["notes"].append(str(e))
    except Exception as e:  # no error of the binding may stop the command
        result["notes"].append(f"{type(e).__name__}: {e}")
    if args.json:
        import json

        print(json.dumps(result, indent=2))
    elif args.dry_run:
        print(_text(result))
    if telling:
        return ExitCode.OK
    if args.verbose:
        print(f"fairlead run: {_text(result)}", file=sys.stderr, flush=True)
    return _become(command)


def _bind(result: BoundRank, env: dict[str, str], per_rank: int | None, *, apply: bool) -> None:
    """Plan the binding and, with ``apply``, make it. ``result`` receives what is bound.

    Raise Doubt where nothing more can be bound. What was bound before stays bound.
    """
    cpus_wanted, memory_wanted = rank_binding.wanted_bindings(env)
    if not cpus_wanted and not memory_wanted:
        raise Doubt("FAIRLEAD_PROFILE or FAIRLEAD_SKIP turns it off")
    _switched_off(env)
    me = rank_binding.local_rank(env)
    result["rank"], result["ranks"], result["source"] = me.number, me.ranks, me.source
    own = own_task.affinity()
    text, published = _topology()
    machine = binding_plan.parse_topology(text)
    gpus = rank_binding.visible_gpus(machine, rank_binding.pci_by_uuid(text), env, published=published)
    binding = rank_binding.plan_rank(machine, gpus, me, env, own=own, cpuset=own_task.cpuset(), per_rank=per_rank)
    result["gpus"] = [gpu.pci for gpu in binding.gpus]
    if any(not gpu.near for gpu in binding.gpus):
        result["notes"].append("it is not known where a GPU is, so the CPUs are divided evenly")
    if cpus_wanted:
        if apply and binding.cpus != own:
            own_task.set_affinity(binding.cpus)
        result["cpus"] = format_cpu_set(binding.cpus)
    if memory_wanted and binding.memory is not None and (cpus_wanted or binding.cpus == own):
        if own_task.memory_policy() != own_task.MPOL_DEFAULT:
            raise Doubt("a memory policy is set already, and it stays")
        if apply:
            own_task.prefer_memory(binding.memory)
        result["memory"] = f"preferred:{binding.memory}"


def _switched_off(env: dict[str, str]) -> None:
    """Raise Doubt if the node's admin or the job's comment has turned fairlead off. The prolog has recorded the comment."""
    if os.path.exists("/etc/fairlead/disabled"):
        raise Doubt("/etc/fairlead/disabled exists")
    job = env.get("SLURM_JOB_ID", "")
    if job.isascii() and job.isdigit():
        try:
            fields = own_task.text(f"/run/fairlead/jobs/{job}", 4096).split("\n")[0].split("\t")
        except OSError:
            return
        if len(fields) > 7 and fields[0] == "1" and fields[7] == "." and fields[6] == "off":
            raise Doubt("the job's comment says fairlead:off")


def _topology() -> tuple[str, bool]:
    """Return the published topology and True. Where no agent publishes one, read the machine from sysfs and return it with
    False.

    Raise Doubt where sysfs cannot say which GPUs this process has.
    """
    try:
        return own_task.text(TOPOLOGY), True
    except OSError:
        pass
    from fairlead.host.gather import gather
    from fairlead.host.root import Root
    from fairlead.topology.binding.published_files import render_topology

    text = render_topology(gather(Root("/"), None))
    files = sum(1 for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit())
    if files and files != len(binding_plan.parse_topology(text).gpus):
        raise Doubt("only part of the node's GPUs is in /dev, and no published topology says which")
    return text, False


def _text(result: BoundRank) -> str:
    bound = [f"{key} {value}" for key, value in (("cpus", result["cpus"]), ("memory", result["memory"])) if value]
    who = f"rank {result['rank']} of {result['ranks']}: " if result["source"] else ""
    return who + "; ".join([", ".join(bound) or "unchanged", *result["notes"]])


def _become(command: list[str]) -> NoReturn:
    """Replace this process by the command. As a shell does, end with 127 or 126 where the command cannot be run.

    The interpreter's own changes are undone first: ignored signals (subprocess does the same), and the LC_CTYPE that PEP 538
    sets.
    """
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    env: dict[bytes, bytes] = dict(os.environb)
    try:
        if "\0LC_CTYPE=" not in "\0" + own_task.text("/proc/self/environ", 1 << 24):
            env.pop(b"LC_CTYPE", None)
    except OSError:
        pass
    try:
        os.execvpe(command[0], command, env)
    except OSError as e:
        print(f"fairlead run: {command[0]}: {e.strerror}", file=sys.stderr)
        os._exit(127 if isinstance(e, FileNotFoundError | NotADirectoryError) else 126)


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    return {"": BoundRank}
