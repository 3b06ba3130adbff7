"""Reads what the kernel's watch for hung tasks says (kernel/hung_task.c), and finds the tasks whose trace shows that they wait
for FUSE.

A user who serves a FUSE mount and does not answer makes their own tasks hang. That is no fault of the node. The trace comes as
records of its own after "INFO: task ... blocked". Whoever follows the kernel log adds a record of ours for it
(``host.hung_trace``), which is remembered as long as the kernel's. The host of a virtual machine serves virtiofs by the same
kernel functions and is no user. So on a node with such a mount, and where the mount table cannot be read, every such task
counts.
"""

from __future__ import annotations

import re

from fairlead.model.check import Past
from fairlead.model.facts import Missing, Node

#: A task's name is at most 15 characters long. The pattern must not find its end by the text that follows: that may be another
#: name.
HUNG = re.compile(r"INFO: task .{0,15}:(\d{1,10}) blocked (?:in I/O wait )?for more than \d+ seconds")
WAITS = re.compile(r"INFO: task waits for FUSE: record (\d{1,20}), process (\d{1,10})")
_FUSE = re.compile(r"(__)?(fuse_[a-z0-9_]+|request_wait_answer)(\.[a-z0-9_.]+)?")
#: Functions of a server that reads or writes /dev/fuse, and of files that FUSE reads from a disk (Linux 6.9).
_NOT_A_WAIT = re.compile(r"fuse_(dev|copy|passthrough|backing)_[a-z0-9_.]+")


def waits_for_server(function: str) -> bool:
    """Say whether a stack has a function of FUSE in which a task waits for the server's answer."""
    return _FUSE.fullmatch(function) is not None and _NOT_A_WAIT.fullmatch(function) is None


def is_of_fuse_itself(function: str) -> bool:
    """Say whether a stack has a function of FUSE in which the server answers, or which reads from the disk below."""
    return _NOT_A_WAIT.fullmatch(function) is not None


def record_text(sequence: int, pid: str) -> str:
    """Return the text of the record that is added to the log for record ``sequence``, and that ``WAITS`` reads."""
    return f"INFO: task waits for FUSE: record {sequence}, process {pid}"


def waiting_for_fuse(node: Node, past: Past) -> frozenset[int]:
    """Return the sequence numbers of records about a wait for FUSE, and of the records of ours that say so. None of them
    counts."""
    host = node.host
    if isinstance(host, Missing) or isinstance(host.mounts, Missing) or any(m.kind == "virtiofs" for m in host.mounts):
        return frozenset()
    said = {r.sequence: int(m[1]) for r in past.records if (m := WAITS.match(r.text))}
    return frozenset((*said, *said.values()))
