"""One logfmt line per transition on stderr, with the ``<N>`` priority that journald understands (sd-daemon(3))."""

from __future__ import annotations

import sys

ERROR, WARNING, NOTICE, INFO = 3, 4, 5, 6


def line(priority: int, event: str, **fields: object) -> None:
    """``<4>event key=value key="two words"``; fields that are None or empty are left out."""
    words = [event.replace(" ", "_")]
    for key, value in fields.items():
        text = "" if value is None else str(value)
        if text:
            words.append(f"{key}={_quoted(text)}")
    try:
        sys.stderr.write(f"<{priority}>{' '.join(words)}\n")
        sys.stderr.flush()
    except OSError:
        pass  # nobody reads our log any more: that must not end the agent


def _quoted(text: str) -> str:
    clean = "".join(c if c.isprintable() else " " for c in text)
    if clean and all(c not in ' "=\\' for c in clean):
        return clean
    escaped = clean.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
