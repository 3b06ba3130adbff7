"""Defines the error that ends a visit with a message, and the advice for errors of the operating system."""

from __future__ import annotations

import errno


class Stop(Exception):
    """Ends the visit for a reason that an operator can act on. ``str()`` is the message, ``hint`` says what to do next."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def next_step(error: OSError) -> str:
    """Return what a person should do about this error, or "". The texts are those of fairlead.errors.next_step, because that
    module may not be on the node."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "make room there"
    if error.errno == errno.EROFS:
        return "that is mounted read-only: see in the kernel log whether its disk failed, then mount it read-write"
    return ""
