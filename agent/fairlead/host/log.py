"""Writes one logfmt line per transition to stderr, with the ``<N>`` priority that journald understands (sd-daemon(3)).

If nobody reads the lines (journald waits for a disk that does not answer), the agent does not wait. Lines are then lost, and
their number is logged later.
"""

from __future__ import annotations

import select
import sys

from fairlead.model.plain_text import printable

ERROR, WARNING, NOTICE, INFO = 3, 4, 5, 6
_lost = 0


def line(priority: int, event: str, **fields: object) -> None:
    """Write ``<4>event key=value key="two words"``. Fields that are None or empty are left out."""
    global _lost  # noqa: PLW0603
    words = [event.replace(" ", "_")]
    for key, value in fields.items():
        text = "" if value is None else str(value)
        if text:
            words.append(f"{key}={_quoted(text)}")
    if not _takes():
        _lost += 1
        return
    before, _lost = _lost, 0
    try:
        if before:
            sys.stderr.write(f"<{WARNING}>log_lines_lost count={before}\n")
        sys.stderr.write(f"<{priority}>{' '.join(words)}\n")
        sys.stderr.flush()
    except OSError:
        pass  # nobody reads the log any more, which must not end the agent


def _takes() -> bool:
    """Return whether stderr can be written to without waiting."""
    try:
        return bool(select.select((), (sys.stderr,), (), 0)[1])
    except (OSError, ValueError):  # stderr is no file, or select cannot wait for it
        return True


def _quoted(text: str) -> str:
    clean = printable(text)
    if clean and all(c not in ' "=\\' for c in clean):
        return clean
    escaped = clean.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
