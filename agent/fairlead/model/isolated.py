"""Reads the answer of one node so that an error in this answer does not affect other nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fairlead.errors import FairleadError

T = TypeVar("T")
ODD = "what it said could not be read"


def isolated(read: Callable[[], T], failed: Callable[[str], T]) -> T:
    """Return the result of ``read``. If ``read`` raises any exception, call ``failed`` with the exception in one line, and return
    its result.

    Readers already raise NotAnAnswerError or DataError for the errors that they expect. This function also catches exceptions
    that nobody has foreseen.
    """
    try:
        return read()
    except FairleadError as e:
        return failed(str(e))
    except Exception as e:
        return failed(f"{ODD}: {type(e).__name__}; please report this with `fairlead version`")
