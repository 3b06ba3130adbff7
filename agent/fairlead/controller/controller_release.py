"""Notes in the store which release of fairlead the controller's programs are, so that `fairlead provision` can keep the order.

`fairlead collect` writes the note at each round. An older controller refuses usage records of a newer release, so the controller
comes first (docs/how-to/upgrade.md).
"""

from __future__ import annotations

import os
import re
import time

import msgspec
from msgspec import Struct

from fairlead import __version__
from fairlead.assets import running_release
from fairlead.errors import HostError, next_step
from fairlead.host.atomic_file import write_atomic
from fairlead.model.json_text import NOT_JSON
from fairlead.model.plain_text import one_line

FILE = "controller-release.json"
SCHEMA = 1
UNKNOWN = "unknown"
_VERSION = re.compile(r"(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?")


class ControllerRelease(Struct, frozen=True, kw_only=True):
    """Describes the release that ran last. version: "unknown" for a store that has no note. unix: when it ran."""

    schema: int = SCHEMA
    version: str = UNKNOWN
    release: str = ""
    unix: float = 0.0

    @property
    def words(self) -> str:
        return one_line(self.release or self.version, 80)


def write_note(folder: str) -> None:
    """Write the note. Raises HostError."""
    path = os.path.join(folder, FILE)
    made = ControllerRelease(version=__version__, release=running_release(), unix=round(time.time(), 3))
    try:
        write_atomic(path, msgspec.json.encode(made) + b"\n", mode=0o644)
    except OSError as e:
        raise HostError(f"{path}: {e.strerror}", hint=next_step(e)) from None


def read_note(folder: str) -> ControllerRelease | None:
    """Return the note in the store, or None if this machine has no store. A store without a note, or with an unreadable one,
    gives the version "unknown". Raises HostError if the folder cannot be read."""
    path = os.path.join(folder, FILE)
    try:
        with open(path, "rb") as f:
            return msgspec.json.decode(f.read(4096), type=ControllerRelease)
    except FileNotFoundError:
        pass
    except NOT_JSON:
        return ControllerRelease()
    except OSError as e:
        raise HostError(f"{path}: {e.strerror}") from None
    return ControllerRelease() if os.path.exists(os.path.join(folder, "jobs.sqlite")) else None


def older(found: ControllerRelease, version: str = __version__) -> bool:
    """Return whether the controller's programs are of an older version than ``version``. Builds with the same version count as
    equal, because nothing says which of them is newer. An unknown version is not older."""
    theirs, ours = _VERSION.match(found.version), _VERSION.match(version)
    return theirs is not None and ours is not None and _numbers(theirs) < _numbers(ours)


def _numbers(found: re.Match[str]) -> tuple[int, ...]:
    return tuple(int(number or 0) for number in found.groups())
