"""Writes the script of the job that measures a node. The job runs each tool in turn with a deadline, and prints a line with a
mark before and after each tool. It also prints one if Slurm suspended the job and let it go on, because a tool that stood still
looks slow, or as if it hung.

Tools write directly to the job's output. Therefore the output also has the text of a tool that hangs, crashes or is killed with
the job. The mark is random for each run, so that no line of a tool is mistaken for a line of the job. Nothing is set up for the
tools. They run with the same limits and environment as any user's job on the node.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from msgspec import Struct

INVENTORY_SECONDS = 60
GRACE_SECONDS = 15  # from SIGTERM to SIGKILL
INVENTORY = "nvidia-smi --query-gpu=index,uuid,serial,pci.bus_id,name,driver_version --format=csv,noheader"


class ToolStep(Struct, frozen=True, kw_only=True):
    """Describes a tool of a job: its shell command and its deadline in seconds."""

    name: str
    command: str
    seconds: int


def limit_minutes(steps: Sequence[ToolStep]) -> int:
    """Return the job's time limit in whole minutes: the sum of all deadlines, and two minutes for the rest."""
    return -(-(sum(step.seconds + GRACE_SECONDS for step in steps) + INVENTORY_SECONDS + 120) // 60)


def script(mark: str, node: str, steps: Sequence[ToolStep], *, gpus: int | None = None, prelude: str = "") -> str:
    """Return the job's script. ``gpus``: the number of GPUs that the node should have, or None to use all that it has.
    ``prelude``: shell commands that run before the tools."""
    count = str(gpus) if gpus else '$(nvidia-smi -L 2>/dev/null | grep -c "^GPU ")'
    lines = [
        "#!/bin/sh",
        f"# fairlead accept: measures {node}. Nothing of the node is changed.",
        f"mark={shlex.quote(mark)}",
        "say() {",
        '\tprintf \'\\n%s %s\\n\' "$mark" "$*"',
        '\tprintf \'\\n%s %s\\n\' "$mark" "$*" >&2',
        "}",
        "seconds() {",
        '\tread -r up _ </proc/uptime && echo "${up%%.*}"',
        "}",
        "run() { # name, deadline, command",
        "\tbegan=$(seconds)",
        '\tsay begin "$1"',
        f'\ttimeout -k {GRACE_SECONDS} "$2" /bin/sh -c "$3" </dev/null',
        "\tstatus=$?",
        '\tsay end "$1" "$status" $(($(seconds) - began))',
        "}",
        "trap 'say suspended' CONT",  # the shell runs this when the tool has ended, and before the line of its end
        'say node "$SLURMD_NODENAME"',
        *prelude.splitlines(),
        f"GPUS={count}",
        "export GPUS",
        f"run inventory {INVENTORY_SECONDS} {shlex.quote(INVENTORY)}",
        *(f"run {step.name} {step.seconds} {shlex.quote(step.command)}" for step in steps),
        "say done",
    ]
    return "\n".join(lines) + "\n"
