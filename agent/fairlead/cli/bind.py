"""Show which CPUs, memory and NICs each of N tasks on this node should have: those nearest its GPU.

The command changes nothing. Rank i has GPU i. Every task gets an equal number of whole cores of the allocation, chosen so that
the sum of the distances to the GPUs is smallest. The command reads only sysfs and never NVML, because NVML's affinity is limited
to the caller's cpuset inside a job.
"""

from __future__ import annotations

import argparse

import msgspec

from fairlead.cli.machine_tree import machine, recorded_nvml
from fairlead.cli.output import columns, print_json
from fairlead.errors import ExitCode, UsageError
from fairlead.host.allowed import allowed_cpus
from fairlead.host.gather import gather
from fairlead.host.recorded_tree import refuse_broken
from fairlead.model.cpulist import as_cpu_set, parse_cpulist
from fairlead.topology.binding.node_binding import BindingPlan, plan_binding

SLOW = "reading the machine"  # patience.py says it


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", default="/", metavar="TREE", help="read a machine tree instead of this machine")
    parser.add_argument("--tasks", type=int, required=True, metavar="N", help="how many tasks the node runs")
    parser.add_argument(
        "--gpus", default="", metavar="LIST", help="the allocation's GPUs by index, PCI address or UUID (default: all)"
    )
    parser.add_argument(
        "--cpus", default="", metavar="LIST", help="the allocation's CPUs, 0-55,112-167 (default: those this process may use)"
    )
    parser.add_argument(
        "--threads-per-core",
        type=int,
        nargs="?",
        const=1,
        metavar="N",
        help="use at most N hardware threads of a core (without N: one)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    root = machine(args.root)
    refuse_broken(root)
    node = gather(root, None if root.is_live else recorded_nvml(args.root))
    allowed = _cpus(args.cpus) if args.cpus else allowed_cpus(root)
    made = plan_binding(
        node,
        args.tasks,
        gpus=_gpus(args.gpus),
        allowed=None if allowed is None else as_cpu_set(allowed),
        threads_per_core=args.threads_per_core,
    )
    if args.json:
        print_json(msgspec.to_builtins(made))
    else:
        print(_text(made))
    return ExitCode.OK


def _cpus(text: str) -> tuple[int, ...]:
    try:
        found = parse_cpulist(text)
    except ValueError as e:
        raise UsageError(f"--cpus: {e}", hint="a list such as 0-3,8") from None
    if not found:
        raise UsageError("--cpus: an empty list", hint="a list such as 0-3,8")
    return found


def _gpus(text: str) -> tuple[str, ...]:
    """Return the GPUs that --gpus names. Indices may be ranges, as in SLURM_STEP_GPUS. PCI addresses may have any form that NVML
    writes."""
    from fairlead.host.pci import normal_address

    words: list[str] = []
    for part in (p.strip() for p in text.split(",") if p.strip()):
        first, dash, last = part.partition("-")
        if part.isascii() and part.isdigit():
            words.append(str(int(part)))
        elif dash and first.isdigit() and last.isdigit() and int(first) <= int(last) < 1024:
            words += [str(i) for i in range(int(first), int(last) + 1)]
        elif ":" in part:
            try:
                words.append(normal_address(part))
            except ValueError as e:
                raise UsageError(f"--gpus: {e}") from None
        else:
            words.append(part)
    return tuple(words)


def _text(made: BindingPlan) -> str:
    rows = [
        (
            str(t.rank),
            ",".join(t.gpus) or "-",
            t.cpus,
            ",".join(map(str, t.numa)) or "-",
            ",".join(t.nics) or "-",
            t.memory,
        )
        for t in made.tasks
    ]
    table = columns(rows, ("rank", "gpus", "cpus", "numa", "nics", "memory"))
    notes = "".join(f"\nnote: {note}" for note in made.notes)
    return f"{table}\n\ndistance {made.distance}{notes}"


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    from fairlead.topology.binding.node_binding import BindingPlan

    return {"": BindingPlan}
