"""Reads what one node says so that its errors do not affect other nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fairlead.errors import FairleadError

T = TypeVar("T")
ODD = "what it said could not be read"


def isolated(read: Callable[[], T], failed: Callable[[str], T]) -> T:
    """Return what ``read`` returns. Where ``read`` raises anything, return what ``failed`` makes of it: the failure of this
    node, in one line.

    Readers refuse by themselves what they know (NotAnAnswerError, DataError). This is for errors that nobody has foreseen.
    """
    try:
        return read()
    except FairleadError as e:
        return failed(str(e))
    except Exception as e:
        return failed(f"{ODD}: {type(e).__name__}; please report this with `fairlead version`")
