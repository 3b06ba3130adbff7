"""What the kernel's watch for hung tasks says (kernel/hung_task.c), and of which of them its trace says that they wait for FUSE.

Whoever serves a FUSE mount of their own and does not answer makes a task of theirs hang; that is no fault of the node's. The
trace comes as records of its own after "INFO: task ... blocked", and whoever follows the kernel log adds one of ours to it
(``host.hung_trace``), which is remembered as long. A virtual machine's host serves virtiofs by the same functions and is no
user: on a node with such a mount, and where the mount table cannot be read, every such task counts."""

from __future__ import annotations

import re

from fairlead.model.check import Past
from fairlead.model.facts import Missing, Node

#: A task's name is at most 15 characters long: where it ends must not depend on what follows, which may be another name.
HUNG = re.compile(r"INFO: task .{0,15}:(\d{1,10}) blocked (?:in I/O wait )?for more than \d+ seconds")
WAITS = re.compile(r"INFO: task waits for FUSE: record (\d{1,20}), process (\d{1,10})")
_FUSE = re.compile(r"(__)?(fuse_[a-z0-9_]+|request_wait_answer)(\.[a-z0-9_.]+)?")
#: The other side, a server that reads or writes /dev/fuse, and files that are read from a disk by FUSE (Linux 6.9).
_NOT_A_WAIT = re.compile(r"fuse_(dev|copy|passthrough|backing)_[a-z0-9_.]+")


def waits_for_server(function: str) -> bool:
    """Whether a function in a stack is of FUSE's, on the side of those who wait for an answer."""
    return _FUSE.fullmatch(function) is not None and _NOT_A_WAIT.fullmatch(function) is None


def is_of_fuse_itself(function: str) -> bool:
    """... or on the side of those who give it, or of the disk below."""
    return _NOT_A_WAIT.fullmatch(function) is not None


def record_text(sequence: int, pid: str) -> str:
    """What is added to the log of record ``sequence``, which ``WAITS`` reads."""
    return f"INFO: task waits for FUSE: record {sequence}, process {pid}"


def waiting_for_fuse(node: Node, past: Past) -> frozenset[int]:
    """The numbers of those records which tell of a wait for FUSE, and of ours that say so: none of them counts."""
    host = node.host
    if isinstance(host, Missing) or isinstance(host.mounts, Missing) or any(m.kind == "virtiofs" for m in host.mounts):
        return frozenset()
    said = {r.sequence: int(m[1]) for r in past.records if (m := WAITS.match(r.text))}
    return frozenset((*said, *said.values()))
