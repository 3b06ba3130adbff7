"""Reads what a running job has used so far, by a step in the job itself: Slurm decides who may start one.

Each node prints its records in short lines, because srun cuts long lines of several tasks into pieces that can mix.
"""

from __future__ import annotations

import base64
import re
import subprocess
import zlib
from collections.abc import Iterable, Iterator

from msgspec import Struct

from fairlead.controller.record_reader import FRAME_MAX, records_in
from fairlead.errors import SlurmError, SlurmUnavailable
from fairlead.jobs.job_run import JobRun
from fairlead.jobs.usage_record import UsageRecord

CHARACTERS = 600  # of one line
_LINE = re.compile(r"fairlead ([A-Za-z0-9_.-]{1,64}) ([0-9]{1,6}) ([0-9]{1,6}) ([A-Za-z0-9+/=]*)")
_DENIED = re.compile(r"fairlead-denied ([A-Za-z0-9_.-]{1,64})")


def in_lines(node: str, answer: bytes) -> Iterator[str]:
    """Yield the lines in which a node prints an answer: node, number of the line, number of lines, part of the answer."""
    text = base64.b64encode(zlib.compress(answer)).decode("ascii")
    parts = [text[at : at + CHARACTERS] for at in range(0, len(text), CHARACTERS)]
    for number, part in enumerate(parts):
        yield f"fairlead {node} {number} {len(parts)} {part}"


def denied_line(node: str) -> str:
    """Return the line in which a node says that the user may not read the job's record there."""
    return f"fairlead-denied {node}"


def from_lines(lines: Iterable[str]) -> dict[str, bytes]:
    """Return the answer of each node whose lines are all there. Other lines are left out."""
    parts: dict[str, dict[int, str]] = {}
    whole: dict[str, int] = {}
    for line in lines:
        if (found := _LINE.fullmatch(line.rstrip("\n"))) is not None:
            parts.setdefault(found[1], {})[int(found[2])] = found[4]
            whole[found[1]] = int(found[3])
    answers = {}
    for node, of_node in parts.items():
        if set(of_node) == set(range(whole[node])):
            try:
                answers[node] = zlib.decompressobj().decompress(
                    base64.b64decode("".join(of_node[n] for n in sorted(of_node))), FRAME_MAX
                )
            except (ValueError, zlib.error):
                continue
    return answers


class RunningRecords(Struct, frozen=True, kw_only=True):
    """Holds the records of a running job. denied: the nodes on which its owner may not read the record."""

    records: tuple[UsageRecord, ...]
    denied: tuple[str, ...] = ()


def step_options(job: int, nodes: int) -> list[str]:
    """Return srun's options for a step with one task on each node of a running job. The step takes no GPU and no memory from the
    job."""
    count = str(nodes)
    words = ["--overlap", f"--jobid={job}", "--nodes", count, "--ntasks", count, "--ntasks-per-node=1", "--cpus-per-task=1"]
    words += ["--mem=0", "--gres=none", "--cpu-bind=none", "--mpi=none", "--quiet", "--input=none", "--kill-on-bad-exit=0"]
    return words


def records_of(run: JobRun, *, srun: str, program: str, conf: str, seconds: float) -> RunningRecords:
    """Return the records of a running job from its nodes. Raises SlurmUnavailable, SlurmError with srun's own words."""
    words = [srun, *step_options(run.job, len(run.nodes)), program, "usage-records", "--lines", str(run.job)]
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", **({"SLURM_CONF": conf} if conf else {})}
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False, env=env)
    except subprocess.TimeoutExpired:
        raise SlurmUnavailable(f"srun gave no answer in {seconds:g} s", hint="are the job's nodes well? fairlead fleet") from None
    except OSError as e:
        raise SlurmError(f"{srun}: {e.strerror}", hint="name the folder of Slurm's commands: --bin-dir DIR") from None
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    answers = from_lines(lines)
    if done.returncode and not answers:
        why = " ".join(done.stderr.decode("utf-8", "replace").split())[-300:]
        raise SlurmError(f"srun: {why or f'ended with {done.returncode}'}")
    said = {found[1] for line in lines if (found := _DENIED.fullmatch(line))}
    return RunningRecords(
        records=tuple(r for node, answer in answers.items() for r in records_in(answer).records if r.node == node),
        denied=tuple(node for node in run.nodes if node in said),
    )
