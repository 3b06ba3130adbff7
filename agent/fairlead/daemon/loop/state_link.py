"""Makes the agent's state folder, finds out whether a reboot loses it, and links it below the run folder.

Other hosts read a node's audit trail over ssh, and know neither its document nor its ``state_dir``. So ``RUN_DIR/state`` leads to
the folder, unless it is the usual one.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial

from fairlead.config.document import AgentOptions
from fairlead.host import log
from fairlead.host.bounded_disk import Storage
from fairlead.host.root import Root
from fairlead.host.volatile_folder import lost_at_reboot

NAME = "state"
USUAL = AgentOptions().state_dir


def prepare(agent: AgentOptions, root: Root, disk: Storage) -> str:
    """Make the folder and the link. Return the file system in memory that has the folder, or ""."""
    try:
        disk.do(partial(os.makedirs, agent.state_dir, mode=0o755, exist_ok=True))
    except OSError as e:
        log.line(log.ERROR, "cannot create the state directory", error=f"{agent.state_dir}: {e.strerror}")
        return ""
    with suppress(OSError):
        _link(os.path.join(agent.run_dir, NAME), "" if agent.state_dir == USUAL else agent.state_dir)
    memory = ""
    with suppress(OSError):
        memory = disk.do(partial(lost_at_reboot, root, agent.state_dir)) if root.is_live else ""
    if memory:
        log.line(log.NOTICE, "a reboot loses the agent's state", folder=agent.state_dir, file_system=memory)
    return memory


def _link(path: str, target: str) -> None:
    """Let the link lead to ``target``, or remove it if that is ""."""
    if (os.readlink(path) if os.path.islink(path) else "") == target:
        return
    with suppress(FileNotFoundError):
        os.unlink(path)
    if target:
        os.symlink(target, path)
