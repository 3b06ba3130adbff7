"""GPUs, NICs, NUMA nodes and the paths between them, in NCCL's words and in nvidia-smi's; and an audit of the layout.

Reads sysfs (and NVML for NVLink, where it is there); never NVML's affinity, which is computed inside the caller's cpuset.
"""

from __future__ import annotations

import argparse

from fairlead.cli import look
from fairlead.cli.show import print_json
from fairlead.errors import ExitCode
from fairlead.host.gather import gather
from fairlead.topology.report import matrix, report


def register(parser: argparse.ArgumentParser) -> None:
    look.register(parser)
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> ExitCode:
    document = look.document_for(args)
    root = look.machine(args.root)
    raw = look.live_nvml(document.agent.nvml_deadline_seconds)[0] if root.is_live else look.recorded_nvml(args.root)
    node = gather(root, raw, reads=("/proc/cpuinfo",), unsupported=document.unsupported)
    if args.json:
        print_json(report(node))
    else:
        print(matrix(node))
    return ExitCode.OK
