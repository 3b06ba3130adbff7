"""Reads slurm.conf as data: enough of its grammar (slurm.conf(5)) to review it. Nothing here asks slurmctld.

Keys are case-insensitive. A line may hold several ``Key=Value``. ``\\`` at the end continues a line. ``#`` starts a comment
unless it is escaped. ``Include FILE`` is followed. Later values replace earlier ones, as in Slurm.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fairlead.errors import InputMissing

PAIR = re.compile(r"\b(\w++)\s*+=\s*(\"[^\"]*\"|\S+)")  # possessive, so that a long word without = takes linear time
_LINES = {"nodename", "partitionname", "nodeset", "downnodes", "switchname", "frontendname", "include"}
TCP_TIMEOUT_SECONDS = 2  # slurm.conf(5), TCPTimeout
INCLUDES_DEEP, INCLUDES_MAX = (
    32,
    1000,
)  # files in each other, and files in all: two lines that include their own file would not end


@dataclass(frozen=True)
class SlurmConf:
    """Holds a configuration. ``values``: the values by lower-case key. ``nodes``: the values of each NodeName line by lower-case
    key. ``path``: the main file, which may include others."""

    path: str
    values: dict[str, str] = field(default_factory=dict)
    nodes: tuple[dict[str, str], ...] = ()

    def get(self, key: str, default: str = "") -> str:
        return self.values.get(key.lower(), default)

    def options(self, key: str) -> frozenset[str]:
        """Return a comma-separated value as lower-case words."""
        return frozenset(w.strip().lower() for w in self.get(key).split(",") if w.strip())


def parse(path: str, read: Callable[[str], str | None]) -> SlurmConf:
    """Return a slurm.conf as data. ``read``: the function that returns a file's text, or None if there is no such file.

    Raises InputMissing if the main file is missing.
    """
    text = read(path)
    if text is None:
        raise InputMissing(f"{path}: no such file", hint="name the file with --slurm-conf")
    values: dict[str, str] = {}
    nodes: list[dict[str, str]] = []
    for line in _lines(path, text, read, 0, iter(range(INCLUDES_MAX))):
        pairs = {k.lower(): v.strip('"') for k, v in PAIR.findall(line)}
        first = line.split("=", 1)[0].strip().lower()
        if first == "nodename":
            nodes.append(pairs)
        elif first not in _LINES:
            key, _, value = line.partition("=")
            if len(pairs) > 1:
                values.update(pairs)
            else:
                values[key.strip().lower()] = value.strip().strip('"')
    return SlurmConf(path=path, values=values, nodes=tuple(nodes))


def is_slurmds_copy(path: str) -> bool:
    """Return whether a file of Slurm's configuration is a copy that slurmd has fetched from slurmctld ("configless"). slurmd
    writes it into ``conf-cache`` in SlurmdSpoolDir and links that folder to /run/slurm/conf."""
    return path.startswith("/run/slurm/") or os.path.basename(os.path.dirname(path)) == "conf-cache"


def controllers(text: str) -> tuple[str, ...]:
    """Return the values of the SlurmctldHost lines in the text of a slurm.conf: the primary first, then the backups."""
    found = re.findall(r"^[ \t]*SlurmctldHost[ \t]*=[ \t]*([^\s#]+)", text, re.M | re.I)
    return tuple(each.strip('"') for each in found)


def controller_wait_seconds(text: str) -> float:
    """Return how long a command of Slurm waits for controllers that do not answer before it reaches the last one: TCPTimeout for
    each SlurmctldHost but the last (slurm_open_controller_conn in src/common/slurm_protocol_api.c)."""
    found = re.findall(r"^[ \t]*TCPTimeout[ \t]*=[ \t]*(\d{1,4})\b", text, re.M | re.I)
    return max(0, len(controllers(text)) - 1) * float(found[-1] if found else TCP_TIMEOUT_SECONDS)


def lines_beside(path: str, name: str, read: Callable[[str], str | None]) -> Iterator[str]:
    """Yield the lines of the file ``name`` in the folder of slurm.conf, such as gres.conf, without comments. Yield none if there
    is no such file. ``path``: of slurm.conf."""
    beside = os.path.join(os.path.dirname(path), name)
    yield from _lines(beside, read(beside) or "", read, 0, iter(range(INCLUDES_MAX)))


def _lines(path: str, text: str, read: Callable[[str], str | None], depth: int, left: Iterator[int]) -> Iterator[str]:
    for raw in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"(?<!\\)#.*", "", raw).strip()
        if line.lower().startswith("include "):
            target = line.split(None, 1)[1].strip()
            target = target if target.startswith("/") else os.path.join(os.path.dirname(path), target)
            included = read(target) if depth < INCLUDES_DEEP and next(left, None) is not None else None
            if included is not None:
                yield from _lines(target, included, read, depth + 1, left)
        elif line:
            yield line
