"""Finds out who gave a command. Writes two lines into the audit trail: one before the command begins, one with its outcome."""

from __future__ import annotations

import os
import pwd
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from msgspec import Struct
from msgspec.structs import replace

from fairlead.daemon.requests.audit_trail import AuditEntry, Trail, new_id
from fairlead.errors import FairleadError

_UNSET = 0xFFFFFFFF  # (uid_t) -1: nobody logged in (proc_pid_loginuid(5), pam_loginuid(8))
_CLIENT = re.compile(r"[0-9A-Fa-f.:]{2,45}(%\w{1,15})?")
_ANCESTORS = 16


class Actor(Struct, frozen=True, kw_only=True):
    """Describes who gave a command. See ``AuditEntry`` for the fields."""

    who: str
    uid: int
    tty: str
    client: str


class AuditOutcome:
    """Holds the outcome for the second line of the trail. The command sets it."""

    outcome = "done"
    detail = ""


def actor() -> Actor:
    """Return who runs this process: the login that the kernel remembers over su and sudo, else SUDO_USER (sudo(8)), else the
    uid."""
    tty = ""
    for fd in (0, 1, 2):
        with suppress(OSError):
            tty = tty or os.ttyname(fd)
    return Actor(
        who=_login() or os.environ.get("SUDO_USER", "") or _name(os.getuid()), uid=os.getuid(), tty=tty, client=_client()
    )


@contextmanager
def audited(
    state_dir: str, run_dir: str, what: str, *, why: str = "", args: dict[str, str] | None = None
) -> Iterator[AuditOutcome]:
    """Write two lines into the audit trail: one before the body runs, one with its outcome.

    If the trail cannot be written, the command goes on, and one line on standard error reports it.
    """
    trail = Trail(state_dir, run_dir)
    by = actor()
    entry = AuditEntry(
        unix=time.time(),
        id=new_id(),
        what=what,
        who=by.who,
        uid=by.uid,
        tty=by.tty,
        client=by.client,
        args=args or {},
        why=why,
    )
    trail.add(entry)
    note = AuditOutcome()
    try:
        yield note
    except FairleadError as e:
        note.outcome, note.detail = "failed", str(e)
        raise
    except BaseException as e:
        note.outcome, note.detail = "interrupted", type(e).__name__
        raise
    finally:
        trail.add(replace(entry, outcome=note.outcome, detail=note.detail))
        if trail.trouble:
            print(f"fairlead {what.split(maxsplit=1)[0]}: {trail.trouble}", file=sys.stderr)


def _login() -> str:
    try:
        with open("/proc/self/loginuid", encoding="ascii") as f:
            uid = int(f.read(32))
    except (OSError, ValueError):
        return ""
    return "" if uid == _UNSET else _name(uid)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _client() -> str:
    """Return the ssh client's address, or "" (ssh(1), SSH_CONNECTION). sudo removes the variable from the environment, but the
    parent processes still have it."""
    pid = os.getpid()
    for _ in range(_ANCESTORS):
        with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as f:
            for variable in f.read(1 << 20).split(b"\0"):
                name, _, value = variable.partition(b"=")
                first = value.split(b" ")[0].decode("ascii", "replace")
                if name in (b"SSH_CONNECTION", b"SSH_CLIENT") and _CLIENT.fullmatch(first):
                    return first
        pid = _parent(pid)
        if pid <= 1:
            break
    return ""


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            return int(f.read(4096).rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
