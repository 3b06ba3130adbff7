"""Gives a file that fairlead has written the SELinux label of its place, as restorecon(8) does.

A new file gets the label of its folder. Some places have labels of their own in the policy of the distribution, for example units
of systemd and programs in a folder ``bin``. fairlead makes each temporary file in the folder in which the file ends, so no file
keeps a label of /tmp. Source: restorecon(8), file_contexts(5); /sys/fs/selinux exists only where SELinux is in the kernel and not
switched off (selinux(8)).
"""

from __future__ import annotations

import os
import subprocess

ENFORCE = "/sys/fs/selinux/enforce"
#: Files elsewhere (/run, /var/lib/fairlead) need no label other than that of their folder, and some are written each second.
RELABELLED = ("/etc/", "/usr/", "/opt/", "/boot/")
SECONDS = 30.0


def restore(path: str) -> None:
    """Give ``path`` the label of its place where SELinux is in use. A failure is not an error: the file is there as written, and
    SELinux reports in the audit log what it refuses."""
    if not path.startswith(RELABELLED) or not os.path.exists(ENFORCE):
        return
    try:
        words = ["restorecon", "--", path]
        subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return
