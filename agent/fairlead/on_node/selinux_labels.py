"""Gives files that were written the SELinux labels of their places, as restorecon(8) does.

This is like fairlead.host.selinux_label, because that module may not be on the node. Without it, systemd may refuse to start the
programs below /opt/fairlead, because a folder ``bin`` that was made under another name keeps the label of /opt.
"""

from __future__ import annotations

import os
import subprocess

ENFORCE = "/sys/fs/selinux/enforce"
SECONDS = 120.0


def restore(path: str) -> None:
    """Give ``path``, and all that is below it, the labels of their places where SELinux is in use. A failure is not an error:
    SELinux reports in the audit log what it refuses."""
    if not os.path.exists(ENFORCE):
        return
    try:
        words = ["restorecon", "-R", "--", path]
        subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return
