"""How the admin host's ssh is told to reach the nodes: never by asking, never for long, and by connections that are kept."""

from __future__ import annotations

import os
import shlex
import subprocess

# ssh takes the first value that it is given, so these come after the site's own. A node that dies ends its own task in a minute.
# A node is handed nothing of the admin's: no agent that would log in elsewhere, no display, no port of this host.
SSH_ARGS = (
    "-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 -o ServerAliveCountMax=4"
    " -o ForwardAgent=no -o ForwardX11=no -o PermitLocalCommand=no -o ClearAllForwardings=yes"
)
_SHARED = "-o ControlMaster=auto -o ControlPersist=60"


def shared_connections(ssh_args: str, address: str) -> str:
    """ssh's options that keep a connection for the next minute's run, where the admin's own configuration says nothing of it."""
    if "control" in ssh_args.lower():
        return ""
    try:
        words = ["ssh", *shlex.split(ssh_args), "-G", address]
        said = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ""  # the run itself will say what is wrong
    settings = dict(line.partition(" ")[::2] for line in said.splitlines())
    if settings.get("controlmaster") != "false" or settings.get("controlpath", "none") != "none":
        return ""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    home = runtime if os.path.isdir(runtime) else os.path.expanduser("~/.ssh")
    return f"{_SHARED} -o ControlPath={home}/fairlead-%C" if os.path.isdir(home) and " " not in home and len(home) < 40 else ""
