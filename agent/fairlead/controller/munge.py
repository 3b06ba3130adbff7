"""Makes and checks munge credentials, by the programs munge(1) and unmunge(1). munged vouches for the user who made one."""

from __future__ import annotations

import os
import re
import subprocess

from msgspec import Struct

from fairlead.errors import HostError

CREDENTIAL_MAX_BYTES = 2 << 20
_SECONDS = 5.0


class Opened(Struct, frozen=True):
    """Holds who made a credential, and its data. user: the name of the user on this machine, or "" if it has none."""

    uid: int
    user: str
    data: bytes


class NoCredential(HostError):
    """Is raised for bytes that are no credential for this user, or that were used before."""


def made(data: bytes, *, for_uid: int | None = None, program: str = "munge") -> bytes:
    """Return a credential with ``data``. for_uid: only this user can open it. Raises HostError."""
    words = [program, *(["--restrict-uid", str(for_uid)] if for_uid is not None else [])]
    done = _run(words, data)
    if done.returncode:
        raise HostError(f"munge: {_said(done)}", hint="is munged running on this machine?")
    return done.stdout.strip() + b"\n"


def opened(credential: bytes, *, program: str = "unmunge") -> Opened:
    """Return what is in a credential. munged refuses a credential that it has seen before, that is older
    than its time to live, or that is for another user. Raises NoCredential, HostError."""
    if not re.fullmatch(rb"MUNGE:[A-Za-z0-9+/=]{1,2800000}:\s*", credential):
        raise NoCredential("what was received is no munge credential")
    done = _run([program, "--keys", "UID"], credential)
    if done.returncode:
        raise NoCredential(f"unmunge: {_said(done)}")
    head, _, data = done.stdout.partition(b"\n\n")
    found = re.search(rb"^UID:\s+([A-Za-z0-9_.@-]*)[^\n]*\(([0-9]{1,10})\)\s*$", head, re.MULTILINE)
    if found is None:
        raise NoCredential("unmunge has not named the user")
    return Opened(int(found[2]), found[1].decode("ascii"), data)


def _run(words: list[str], data: bytes) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            words, input=data, capture_output=True, timeout=_SECONDS, check=False, env={**os.environ, "LC_ALL": "C"}
        )
    except subprocess.TimeoutExpired:
        raise HostError(f"{words[0]} gave no answer in {_SECONDS:g} s", hint="is munged running on this machine?") from None
    except OSError as e:
        raise HostError(f"{words[0]}: {e.strerror}", hint="fairlead job needs munge, as Slurm does") from None


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    return " ".join(done.stderr.decode("utf-8", "replace").split())[-200:] or f"ended with {done.returncode}"
