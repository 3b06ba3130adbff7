"""Contains the main function: it reads a request from standard input, makes the visit, and answers with one line of JSON.

Before the admin host sends this program, a shell has found a Python that is new enough (``FIND`` and ``START`` in
provision/node_python.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

from .managed_files import read
from .node_visit import NodeVisit
from .other_gpus import other_gpus
from .package_cache import lacking
from .request_stream import receive
from .stop import Stop, next_step

MARK = "FAIRLEAD-REPLY "
LOCK_SECONDS = 30.0  # a run whose connection broke may still be working


def main() -> None:
    try:
        answer = visit(sys.stdin.buffer)
    except Stop as e:
        answer = {"failed": True, "msg": str(e), "hint": e.hint}
    except OSError as e:
        answer = {"failed": True, "msg": "{}: {}".format(e.filename or "node", e.strerror or e), "hint": next_step(e)}
    sys.stdout.write("\n" + MARK + json.dumps(answer) + "\n")
    sys.stdout.flush()


def visit(stream: BinaryIO) -> dict[str, Any]:
    """Return the answer to the request in ``stream``. Raises Stop and OSError."""
    request, payload = receive(stream)
    if os.geteuid() != 0:
        raise Stop("not root on this node", "let [ansible] user be root or a user who may sudo without a password")
    os.umask(0o022)
    with locked(request):
        return answer_to(request, payload)


@contextlib.contextmanager
def locked(request: dict[str, Any]) -> Iterator[None]:
    """Let one run at a time change this node. The kernel releases the lock when the process ends. A check takes no lock and
    does not wait. Raises Stop if another run still has the lock after LOCK_SECONDS."""
    if request["check"] or (request["state"] == "absent" and not os.path.isdir(request["opt"])):
        yield
        return
    os.makedirs(request["opt"], mode=0o755, exist_ok=True)
    end = time.monotonic() + LOCK_SECONDS
    lock = os.open(os.path.join(request["opt"], ".lock"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise Stop(
                        "another `fairlead provision` is running on this node", "run it again when that has ended"
                    ) from None
                time.sleep(0.05)
        yield
    finally:
        os.close(lock)


def answer_to(request: dict[str, Any], payload: dict[str, Any] | None) -> dict[str, Any]:
    """Do what the request asks for, and return what was changed. If the node lacks something that was not sent, change
    nothing and return what the node needs. If its hardware profile is for another GPU, change nothing and return the GPUs."""
    hostname = os.uname().nodename
    node = NodeVisit(request, payload)
    need = ["name"] if named_otherwise(request, hostname) else []
    if request["state"] == "absent" and not need:
        undone = node.absent()
        return {"changed": bool(node.changes), "changes": node.changes, "undone": undone}
    if request["state"] == "present" and not need and (here := other_gpus(request.get("gpu_pci_ids", ()))):
        return {"other_gpus": here}
    need += node.needs() if request["state"] == "present" else []
    if need and payload is None:
        import platform

        asked = {"need": need, "packages": lacking(request) if "packages" in need else [], "hostname": hostname}
        return {**asked, "python": node.release.python, "machine": platform.machine(), "libc": platform.libc_ver()}
    applied = node.present()
    changed = bool(node.changes) or bool(applied and applied["changed"])
    return {"changed": changed, "changes": node.changes, "apply": applied, "python": node.release.python}


def named_otherwise(request: dict[str, Any], hostname: str) -> bool:
    """Return whether this machine's hostname is not the name of the requested node, and its document is not of that node either.

    In that case the admin host compares the hostname with the names of its other nodes. A hostname that is not the name of any
    node is the site's own choice.
    """
    name = request.get("node", "")
    if not name or request.get("named") or {hostname, hostname.split(".", maxsplit=1)[0]} & {name, name.split(".")[0]}:
        return False
    try:
        return bool(json.loads(read(request["documents"][0]["path"]) or b"{}").get("node") != name)
    except (ValueError, AttributeError):
        return True
