"""What an agent that runs takes from a new document, and what a running `fairlead apply` asks of it."""

from __future__ import annotations

import os

from msgspec.structs import replace

from fairlead.config import Document
from fairlead.host.clock import boottime


def keeping(old: Document, new: Document) -> tuple[Document, list[str]]:
    """A document for an agent that runs: what it cannot change while it runs stays as it was, and is named."""
    later = []
    for name in ("state_dir", "run_dir"):
        was = getattr(old.agent, name)
        if getattr(new.agent, name) != was:
            later.append(f"agent.{name}")
            new = replace(new, agent=replace(new.agent, **{name: was}))
    if new.slurm_node != old.slurm_node:  # the ledger is of one node
        later.append("slurm.node_name" if new.node == old.node else "node")
        new = replace(new, node=old.node, slurm=replace(new.slurm, node_name=old.slurm.node_name))
    return new, later


def applying(run_dir: str) -> bool:
    """Whether `fairlead apply` runs: RUN_DIR/applying, ``1 PID EXPIRES`` with CLOCK_BOOTTIME seconds. One that was killed left
    its mark, and no process."""
    pid = _asked(run_dir, "applying")
    return pid is not None and os.path.exists(f"/proc/{pid}")


def nvml_released(run_dir: str) -> bool:
    """Whether NVML is to be let go of, for the module to be unloaded or a GPU reset: RUN_DIR/nvml-release, of the same form."""
    return _asked(run_dir, "nvml-release") is not None


def _asked(run_dir: str, name: str) -> int | None:
    """The process that wrote a mark which has not expired; None: there is none."""
    try:
        with open(os.path.join(run_dir, name), encoding="ascii", errors="replace") as f:
            fields = f.read(256).strip().split("\t")
    except OSError:
        return None
    valid = len(fields) == 3 and fields[1].isdigit() and fields[2].isdigit() and int(fields[2]) >= boottime()
    return int(fields[1]) if valid else None
