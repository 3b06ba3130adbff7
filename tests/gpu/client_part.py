"""The part of the proof that compares the agent's metrics with nvidia-smi and nvitop."""

from __future__ import annotations

import errno
import importlib.util
import sys
import tempfile
from pathlib import Path

from tests.gpu import children, outside_clients
from tests.gpu.agent_process import AgentProcess
from tests.gpu.proof import Proof
from tests.gpu.report import Part, Result


def compare_clients(proof: Proof, part: Part) -> None:
    """Compare the agent's metrics with nvidia-smi and nvitop."""
    compared = 0
    for program, ask in (("nvidia-smi", _smi), ("nvitop", _nvitop)):
        with tempfile.TemporaryDirectory() as folder:
            agent = AgentProcess(Path(folder), proof.root, proof.interval_seconds)
            try:
                before = outside_clients.metrics_of(agent.once(60.0), proof.target.pci)
                values, which = ask(proof)
                after = outside_clients.metrics_of(agent.once(60.0), proof.target.pci)
            except OSError as e:
                part.lines.append(f"{program}: not compared: it cannot be run: {e.strerror}")
                continue
            except ValueError as e:
                part.lines.append(f"{program}: not compared: {e}")
                part.differs(f"{program} was not compared: {e}")
                continue
        rows = part.data[program] = outside_clients.compare(before, after, values, which)
        compared += sum(row["agrees"] is not None for row in rows)
        for row in rows:
            word = {True: "agrees", False: "DIFFERS", None: "no value"}[row["agrees"]]
            part.lines.append(f"{program} {word:8} {row['metric']:42} {row['ours']}, {row['name']} says {row['theirs']}")
            if row["agrees"] is False:
                part.differs(f"{program} says {row['theirs']} for {row['metric']}, the agent {row['ours']}")
    if not compared and part.result is Result.AGREES:
        part.result, part.why = Result.NOT_RUN, "neither nvidia-smi nor nvitop could be compared"
    part.why = part.why or f"{compared} values of {' and '.join(part.data)}"


def _smi(proof: Proof) -> tuple[dict[str, float | None], outside_clients.Name]:
    """Ask nvidia-smi, without the names that its release does not know. Raises OSError, or ValueError if it fails."""
    names = [value.smi for value in outside_clients.VALUES if value.smi]
    for _ in range(len(names)):
        query = f"--query-gpu={','.join(names)}"
        ended = children.ended([proof.smi, "-i", proof.target.pci, query, "--format=csv,noheader,nounits"], 30.0)
        unknown = [name for name in names if f'"{name}"' in ended.output + ended.errors]
        if ended.code == 0 or not unknown:
            break
        names = [name for name in names if name not in unknown]
    if ended.code:
        raise ValueError(f"nvidia-smi {ended.how}")
    return outside_clients.smi_values(names, ended.output), lambda value: (value.smi, value.smi_factor)


def _nvitop(proof: Proof) -> tuple[dict[str, float | None], outside_clients.Name]:
    """Ask nvitop. Raises FileNotFoundError where it is not installed, or ValueError if it fails."""
    if importlib.util.find_spec("nvitop") is None:
        raise FileNotFoundError(errno.ENOENT, "not installed", "nvitop")
    words = [value.nvitop for value in outside_clients.VALUES if value.nvitop]
    ended = children.ended([sys.executable, "-c", outside_clients.NVITOP, str(proof.target.values["uuid"]), *words], 30.0)
    if ended.code:
        raise ValueError(f"nvitop {ended.how}")
    return outside_clients.nvitop_values(ended.output), lambda value: (value.nvitop, value.nvitop_factor)
