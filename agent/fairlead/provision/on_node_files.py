"""The node's side of `fairlead provision`, first part: whole files, links, units. See on_node.py, which is sent with it."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import subprocess
import sys
from typing import Any

MARK = "FAIRLEAD-REPLY "
SYSTEMCTL_SECONDS = 60
SLURM_CONF = ("/etc/slurm/*.conf", "/run/slurm/conf/*.conf")  # with the files that slurm.conf includes


class Stop(Exception):
    """Something an operator can act on: message, and what to do next."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def next_step(error: OSError) -> str:
    """As fairlead.errors.next_step, which may not be there yet."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "make room there"
    if error.errno == errno.EROFS:
        return "that is mounted read-only: see in the kernel log whether its disk failed, then mount it read-write"
    return ""


def reply(data: dict[str, Any]) -> None:
    sys.stdout.write("\n" + MARK + json.dumps(data) + "\n")
    sys.stdout.flush()


def read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as f:
            return f.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def write(path: str, content: bytes, mode: int) -> None:
    """Whole or not at all, durable; as fairlead.host.change.write_file, which may not be there yet."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, "." + name + ".fairlead-new")
    try:
        os.makedirs(folder, mode=0o755, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as f:
            f.write(content)
            f.flush()
            os.fchmod(f.fileno(), mode)
            os.fsync(f.fileno())
        os.rename(temporary, path)
    except OSError as e:  # a full disk does not say of which file it is
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise OSError(e.errno, e.strerror, path if e.filename in (None, temporary) else e.filename) from None


def link(path: str, target: str) -> None:
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    temporary = path + ".fairlead-new"
    try:
        os.unlink(temporary)
    except FileNotFoundError:
        pass
    os.symlink(target, temporary)
    os.rename(temporary, path)


def link_target(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def differs(entry: dict[str, Any]) -> str:
    """Why a file of ours is not as it should be, or ""."""
    try:
        status = os.lstat(entry["path"])
    except OSError:
        return "missing"
    content = read(entry["path"])
    if content is None or hashlib.sha256(content).hexdigest() != entry["sha256"]:
        return "content"
    if status.st_mode & 0o7777 != entry["mode"] or status.st_uid != 0:
        return "mode or owner"
    return ""


def systemctl(*arguments: str) -> tuple[int, str, str]:
    try:
        done = subprocess.run(
            ["systemctl", "--no-ask-password", *list(arguments)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SYSTEMCTL_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise Stop("systemctl: not installed", "fairlead needs a node that runs systemd") from None
    except subprocess.TimeoutExpired:
        raise Stop("systemctl {}: no answer within {} s".format(" ".join(arguments), SYSTEMCTL_SECONDS)) from None
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace").strip()


def systemctl_or_stop(*arguments: str) -> None:
    code, _, words = systemctl(*arguments)
    if code:
        raise Stop("systemctl {}: {}".format(" ".join(arguments), (words.splitlines() or [f"exit code {code}"])[0]))


def scratch_units(document: str) -> list[dict[str, Any]]:
    """The units of the node's local disk (jobenv.scratch), instances by its path as systemd.unit(5) escapes it."""
    base = json.loads(document)["jobenv"]["scratch"] if '"scratch"' in document else ""
    if not base:
        return []
    plain = ":_.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    path = base.strip("/")
    instance = "".join(
        "-" if c == "/" else c if c in plain and (i or c != ".") else f"\\x{ord(c):02x}" for i, c in enumerate(path)
    )
    return [{"name": f"fairlead-scratch@{instance}.{kind}", "start": True} for kind in ("path", "timer")]


def enabled_scratch_units() -> list[str]:
    """Those that are enabled here, whatever is declared."""
    found = glob.glob("/etc/systemd/system/*.wants/fairlead-scratch@*")
    return sorted(os.path.basename(path) for path in found)


def unit_states(names: list[str]) -> dict[str, tuple[bool, bool, bool]]:
    """name -> (enabled, active) of units, one call."""
    _, text, _ = systemctl("show", "--property=Id,UnitFileState,ActiveState,NeedDaemonReload", *names)
    states = {}
    for block in text.split("\n\n"):
        fields = dict(line.partition("=")[::2] for line in block.splitlines())
        if fields.get("Id"):
            states[fields["Id"]] = (
                fields.get("UnitFileState") == "enabled",
                fields.get("ActiveState") in ("active", "activating", "reloading"),
                fields.get("NeedDaemonReload") == "yes",
            )
    return states
