"""Show GPUs, NICs, NUMA nodes and the paths between them, in NCCL's words and in nvidia-smi's, with an audit of the layout.

The command reads sysfs and, for NVLink, NVML if this machine has it. It never reads NVML's affinity, because that is limited to
the caller's cpuset.
"""

from __future__ import annotations

import argparse

from fairlead.cli import read_machine
from fairlead.cli.machine_tree import machine, recorded_nvml
from fairlead.cli.output import print_json
from fairlead.errors import ExitCode, HostError
from fairlead.host.gather import gather
from fairlead.host.recorded_tree import refuse_broken
from fairlead.topology.picture.machine_report import matrix, report

SLOW = "reading the machine"  # patience.py says it


def register(parser: argparse.ArgumentParser) -> None:
    read_machine.register(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--svg", default="", metavar="FILE", help="also draw the machine and what the audit found to FILE")


def run(args: argparse.Namespace) -> ExitCode:
    document = read_machine.document_for(args)
    root = machine(args.root)
    refuse_broken(root)
    raw = read_machine.live_nvml(document.agent.nvml_deadline_seconds)[0] if root.is_live else recorded_nvml(args.root)
    node = gather(root, raw, reads=("/proc/cpuinfo",), unsupported=document.unsupported)
    if args.svg:
        from fairlead.topology.picture.machine_svg import draw

        try:
            with open(args.svg, "w", encoding="utf-8") as out:
                out.write(draw(node))
        except OSError as e:
            raise HostError(f"{args.svg}: {e.strerror}", hint="name a file that can be written") from None
    if args.json:
        print_json(report(node))
    else:
        print(matrix(node))
    return ExitCode.OK


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    from fairlead.topology.picture.machine_report import MachineReport

    return {"": MachineReport}
