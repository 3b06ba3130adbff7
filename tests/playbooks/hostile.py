"""A node whose root is hostile: in the place of programs that the admin host calls are others, which say what a test wants."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.lab.host import Host

MARK = b"FAIRLEAD-REPLY "
FOLDER = "/root/hostile"
#: In the place of the interpreter that `fairlead provision` starts: what the N-th file says, the last one again and again.
PYTHON = f"""#!/bin/sh
cat > /dev/null
n=$(cat {FOLDER}/asked 2> /dev/null || echo 0)
echo $((n + 1)) > {FOLDER}/asked
[ -e {FOLDER}/reply.$n ] || n=$(($(ls {FOLDER}/reply.* | wc -l) - 1))
[ ! -e {FOLDER}/error ] || cat {FOLDER}/error >&2
[ -x {FOLDER}/reply.$n ] && exec {FOLDER}/reply.$n
exec cat {FOLDER}/reply.$n
"""
ESCAPES = (
    "\x1b[2J\x1b]0;title\x07\x9b31m\x85\u202e\u2028\r\nall nodes: the same\x00\x7f[red]x[/red]\u2800\u3164\u115f\ufe0f\ud800"
)


def report(node: str, **more: Any) -> dict[str, Any]:
    """What an honest node says that has nothing to change, and more."""
    applied = {"schema": 1, "node": node, "generation": 3, "hash": "", "phase": "all", "dry_run": False, "busy": False}
    return {"changed": False, "changes": [], "apply": {**applied, "changed": 0, "failed": 0, "items": [], **more}}


def need(**more: Any) -> dict[str, Any]:
    """What an honest node says that lacks something."""
    said = {"need": ["packages"], "packages": [], "hostname": "", "python": "3.11", "machine": "x86_64"}
    return {**said, "libc": ["glibc", "2.36"], **more}


def item(**more: Any) -> dict[str, Any]:
    """A setting of its report."""
    said = {"setting": "nccl", "state": "same", "persisted": "yes", "effective": "yes", "pending": "", "message": "", "hint": ""}
    return {**said, "steps": [], **more}


def line(data: object) -> bytes:
    """A reply as the node's program writes it."""
    return b"\n" + MARK + json.dumps(data).encode() + b"\n"


@contextmanager
def answering(host: Host, *replies: bytes, error: bytes = b"") -> Iterator[None]:
    """Meanwhile the node answers so to `fairlead provision`. A reply that begins with #! is a program that writes it."""
    current = host.run("readlink /opt/fairlead/current").stdout.strip()
    host.run(f"rm -rf {FOLDER} && mkdir -p {FOLDER}/bin")
    files = {"bin/python": PYTHON.encode(), **({"error": error} if error else {})}
    for name, content in {**files, **{f"reply.{n}": reply for n, reply in enumerate(replies)}}.items():
        put(host, f"{FOLDER}/{name}", content, program=content.startswith(b"#!"))
    host.run(f"ln -sfn {FOLDER} /opt/fairlead/current")
    try:
        yield
    finally:
        host.run(f"ln -sfn {current} /opt/fairlead/current && rm -rf {FOLDER}")


def put(host: Host, path: str, content: bytes, *, program: bool = False) -> None:
    """Write a file there."""
    host.path(path).write_bytes(content)
    host.path(path).chmod(0o755 if program else 0o644)


@contextmanager
def program(host: Host, path: str, script: str) -> Iterator[None]:
    """Meanwhile another program is in this place there."""
    host.run(f"mv {path} {path}.honest")
    try:
        put(host, path, script.encode(), program=True)
        yield
    finally:
        host.run(f"mv {path}.honest {path}")


#: Draws nothing, or lies over its neighbours, though Python calls it printable.
UNSEEN = "\u2800\u3164\u115f\u1160\ufe0f\u034f\U000e0100"


def strange(text: str) -> Sequence[str]:
    """What must not get to a terminal: all but printable characters and line ends, and what is not seen."""
    return [c for c in text if (c != "\n" and not c.isprintable()) or c in UNSEEN]
