"""Reads the kernel's records about hung tasks (kernel/hung_task.c), and finds the tasks whose trace shows that they wait for
FUSE.

If a user's FUSE server does not answer, that user's own tasks hang. That is no fault of the node. The kernel prints the trace
of a task in separate records after "INFO: task ... blocked". The reader of the kernel log then adds a record of fairlead's own
(``host.hung_trace``), which is remembered as long as the kernel's record. virtiofs uses the same kernel functions, but its
server is the host of a virtual machine and no user. So every hung task counts if the node has a virtiofs mount, or if the mount
table cannot be read.
"""

from __future__ import annotations

import re

from fairlead.model.check_definition import Past
from fairlead.model.facts import Missing, Node

#: A task's name is at most 15 characters long. The pattern must not search further for the end of the name, because the text that
#: follows may contain another name.
HUNG = re.compile(r"INFO: task .{0,15}:(\d{1,10}) blocked (?:in I/O wait )?for more than \d+ seconds")
WAITS = re.compile(r"INFO: task waits for FUSE: record (\d{1,20}), process (\d{1,10})")
_FUSE = re.compile(r"(__)?(fuse_[a-z0-9_]+|request_wait_answer)(\.[a-z0-9_.]+)?")
#: Functions of a server that reads or writes /dev/fuse, and of files that FUSE reads from a disk (Linux 6.9).
_NOT_A_WAIT = re.compile(r"fuse_(dev|copy|passthrough|backing)_[a-z0-9_.]+")


def waits_for_server(function: str) -> bool:
    """Return whether this function of a stack is a function of FUSE in which a task waits for the server's answer."""
    return _FUSE.fullmatch(function) is not None and _NOT_A_WAIT.fullmatch(function) is None


def is_of_fuse_itself(function: str) -> bool:
    """Return whether this function of a stack is a function of FUSE in which the server answers, or which reads from the disk
    below."""
    return _NOT_A_WAIT.fullmatch(function) is not None


def record_text(sequence: int, pid: str) -> str:
    """Return the text of fairlead's own record about the kernel's record ``sequence``. ``WAITS`` matches this text."""
    return f"INFO: task waits for FUSE: record {sequence}, process {pid}"


def waiting_for_fuse(node: Node, past: Past) -> frozenset[int]:
    """Return the sequence numbers of the kernel's records about tasks that wait for FUSE, and of fairlead's own records about
    these tasks. None of these records counts."""
    host = node.host
    if isinstance(host, Missing) or isinstance(host.mounts, Missing) or any(m.kind == "virtiofs" for m in host.mounts):
        return frozenset()
    said = {r.sequence: int(m[1]) for r in past.records if (m := WAITS.match(r.text))}
    return frozenset((*said, *said.values()))
