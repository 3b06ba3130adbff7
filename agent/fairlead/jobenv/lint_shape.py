"""Reads the nodes, tasks, CPUs and GPUs that a batch script requests, as sbatch reads its #SBATCH lines (sbatch(1))."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

_NUMBER = r"(\d{1,9})(?![\w:])"
_OPTIONS = (
    ("nodes", re.compile(r"(?:--nodes[=\s]\s*|(?<![\w-])-N[=\s]?\s*)(\d{1,9})(?![\w:])")),
    ("tasks", re.compile(rf"(?:--ntasks[=\s]\s*|(?<![\w-])-n[=\s]?\s*){_NUMBER}")),
    ("tasks_per_node", re.compile(r"--n?tasks-per-node[=\s]\s*(\d{1,9})\b")),
    ("cpus_per_task", re.compile(r"(?:--cpus-per-task[=\s]\s*|(?<![\w-])-c[=\s]?\s*)(\d{1,9})\b")),
    ("cpus_per_gpu", re.compile(rf"--cpus-per-gpu[=\s]\s*{_NUMBER}")),
    ("gpus_per_node", re.compile(rf"--gpus-per-node[=\s]\s*(?:[A-Za-z][\w.-]*:)?{_NUMBER}")),
    ("gpus_per_task", re.compile(rf"--gpus-per-task[=\s]\s*(?:[A-Za-z][\w.-]*:)?{_NUMBER}")),
    ("gpus_of_job", re.compile(rf"(?:--gpus[=\s]\s*|(?<![\w-])-G[=\s]?\s*)(?:[A-Za-z][\w.-]*:)?{_NUMBER}")),
    ("gpus_per_node", re.compile(r"--gres[=\s]\s*[\"']?(?:[\w:.-]+,)*gpu(?::[A-Za-z][\w.-]*)?(?::(\d{1,4}))?(?![\w:])")),
)

_HERE = re.compile(r"<<-?\s*[\"'\\]?([A-Za-z_]\w*)")


class JobShape(Struct, frozen=True, kw_only=True):
    """Holds the size of the job that a script requests. A field is None if the file does not set it.

    batch: the file has #SBATCH lines outside here-documents. lines: the line number of each option.
    """

    batch: bool = False
    exclusive: bool = False
    nodes: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    cpus_per_task: int | None = None
    cpus_per_gpu: int | None = None
    gpus_per_node: int | None = None
    gpus_per_task: int | None = None
    gpus_of_job: int | None = None
    lines: dict[str, int] = {}

    @property
    def several_nodes(self) -> bool:
        return (self.nodes or 1) > 1

    @property
    def tasks_on_node(self) -> int:
        """Return the number of tasks on a node. Slurm's own default is one task on each node."""
        return self.tasks_per_node or -(-(self.tasks or 1) // (self.nodes or 1))

    @property
    def gpus(self) -> int | None:
        """Return the number of GPUs on a node, or None if the file does not say it."""
        if self.gpus_per_node is not None:
            return self.gpus_per_node
        if self.gpus_per_task is not None:
            return self.gpus_per_task * self.tasks_on_node
        return None if self.gpus_of_job is None else -(-self.gpus_of_job // (self.nodes or 1))


def shape_of(raw: tuple[str, ...]) -> JobShape:
    """Return the size of the job that these lines request. If no #SBATCH line sets the tasks or the CPUs, the first srun, salloc
    or sbatch command that sets them counts."""
    told: dict[str, int] = {}
    lines: dict[str, int] = {}
    exclusive = batch = False
    inside = here_documents(raw)
    for at, text in directives(raw):
        batch |= at not in inside
        exclusive |= "--exclusive" in text
        for name, pattern in _OPTIONS:
            if match := pattern.search(text):
                told[name], lines[name] = int(match[1] or 1), at
    for name, pattern in _OPTIONS:
        if name in {"cpus_per_task", "tasks_per_node"} and name not in told:
            commands = (x for x in raw if x[:1] != "#" and re.search(r"\b(?:srun|salloc|sbatch)\b", x))
            if found := next((m for x in commands if (m := pattern.search(x))), None):
                told[name] = int(found[1])
    return JobShape(batch=batch, exclusive=exclusive, lines=lines, **told)


def here_documents(raw: tuple[str, ...]) -> frozenset[int]:
    """Return the numbers of the lines in here-documents, which another program reads."""
    inside = set()
    ends: list[str] = []  # the words that end the open here-documents
    for number, text in enumerate(raw, 1):
        if ends:
            inside.add(number)
            if text.strip() == ends[0]:
                ends.pop(0)
        # `<<` begins a here-document if it is neither a here-string nor a shift
        elif "<<" in text and "<<<" not in text and "((" not in text and text[:1] != "#":
            ends = _HERE.findall(text)
    return frozenset(inside) if not ends else frozenset()


def directives(raw: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Yield the line number and the options of each #SBATCH line, without the comment behind a #."""
    for at, text in enumerate(raw, 1):
        if text.startswith("#SBATCH"):
            yield at, " " + text.removeprefix("#SBATCH").partition(" #")[0]
