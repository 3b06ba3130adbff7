"""Writes a file that a command proposes to a person. A file that exists is never replaced."""

from __future__ import annotations

import os

from fairlead.errors import HostError, InputMissing, UsageError, next_step


def refuse_existing(file: str) -> None:
    """Raise UsageError if there is such a file already, and InputMissing if its folder does not exist. A command calls this
    function before work that takes long."""
    if os.path.lexists(file):
        raise UsageError(f"{file} exists already", hint="name another file: --out FILE; or print the text: --dry-run")
    folder = os.path.dirname(os.path.abspath(file))
    if not os.path.isdir(folder):
        raise InputMissing(f"{folder}: no such folder", hint="make it, or name another file: --out FILE")


def write_new(file: str, text: str) -> None:
    """Write a new file as a whole, or leave none. Raises HostError."""
    try:
        with open(file, "x", encoding="utf-8") as f:
            try:
                f.write(text)
                f.flush()
            except OSError:
                os.unlink(file)
                raise
    except OSError as e:
        raise HostError(f"{file}: {e.strerror}", hint=next_step(e)) from None
