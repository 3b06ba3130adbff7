"""Reads the parameters of an installed kernel module, loaded or not: ``modinfo -F parm NAME`` (modinfo(8)).

Parameters without permission bits, such as all NVreg_ parameters, are not in sysfs. Only the module file lists them. Settings
read the text of modinfo under the path ``/@modinfo/NAME``, and a machine tree can have a file of this name.
"""

from __future__ import annotations

import subprocess

from fairlead.host.kept_answers import KeptAnswers
from fairlead.host.root import Root
from fairlead.model.facts import Missing, unreadable

PREFIX = "/@modinfo/"
SECONDS = 10.0


def text(root: Root, path: str) -> str | Missing | None:
    """Return lines ``NAME:DESCRIPTION (TYPE)``, or None if no such module is installed. modinfo runs again after depmod has
    run."""
    if not root.is_live:
        return root.read_text(path)
    release = root.value("/proc/sys/kernel/osrelease")
    stamp = root.stamp(f"/lib/modules/{release}/modules.dep") if isinstance(release, str) else None
    return _answers.answer(path.removeprefix(PREFIX), stamp)


def _ask(name: str) -> str | Missing | None:
    try:
        done = subprocess.run(
            ["modinfo", "-F", "parm", "--", name], stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
        )
    except FileNotFoundError:
        return unreadable("modinfo: not installed; install kmod")
    except (OSError, subprocess.TimeoutExpired) as e:
        return unreadable(f"modinfo {name}: {type(e).__name__}")
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        return None if "not found" in said else unreadable(f"modinfo {name}: {said[:120]}")
    return done.stdout.decode("utf-8", "replace")


_answers = KeptAnswers(_ask)
