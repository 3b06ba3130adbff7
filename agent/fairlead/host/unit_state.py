"""Reads the state of a systemd unit: loaded, enabled, active, and which units trigger it (``systemctl show``, systemctl(1)).

Checks and settings read the output under the path ``/@unit/NAME``, and a machine tree can have a file of this name.
``systemctl`` is run again only when the unit has started or ended (``/run/systemd/units/invocation:NAME``), when a unit file was
enabled or written, or a minute after it has not answered.
"""

from __future__ import annotations

import os
import subprocess

from fairlead.host.kept_answers import KeptAnswers
from fairlead.host.root import Root
from fairlead.model.facts import Missing, unreadable

PREFIX = "/@unit/"
PROPERTIES = "LoadState,ActiveState,UnitFileState,TriggeredBy"
SECONDS = 10.0
_FOLDERS = ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")


def text(root: Root, path: str) -> str | Missing | None:
    """Return lines ``PROPERTY=VALUE``, or Missing if systemd does not answer."""
    if not root.is_live:
        return root.read_text(path)
    name = path.removeprefix(PREFIX)
    return _answers.answer(name, _stamp(name))


def _stamp(name: str) -> tuple[object, ...]:
    found: list[object] = []
    for path in (f"/run/systemd/units/invocation:{name}", *_FOLDERS, *_wants()):
        try:
            info = os.lstat(path)
            found.append((path, info.st_ino, info.st_mtime_ns))
        except OSError:
            found.append(path)
    return tuple(found)


def _wants() -> list[str]:
    try:
        return [e.path for e in os.scandir(_FOLDERS[0]) if e.name.endswith((".wants", ".requires"))]
    except OSError:
        return []


def _ask(name: str) -> str | Missing:
    try:
        done = subprocess.run(
            ["systemctl", "show", f"--property={PROPERTIES}", "--", name],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        return unreadable("systemctl: not installed")
    except (OSError, subprocess.TimeoutExpired) as e:
        return unreadable(f"systemctl show {name}: {type(e).__name__}")
    if done.returncode:
        return unreadable(f"systemctl show {name}: {done.stderr.decode('utf-8', 'replace').strip()[:120]}")
    return done.stdout.decode("utf-8", "replace")


_answers = KeptAnswers(_ask)
