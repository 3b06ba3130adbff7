"""Warns in a run of apply if the agent cannot write its metrics. The agent writes only to folders that exist and that its systemd
unit can see."""

from __future__ import annotations

import os

from fairlead.apply.apply_report import Item
from fairlead.config import Document
from fairlead.host.root import Root

HIDDEN = ("/tmp", "/var/tmp", "/home", "/root", "/run/user")
HINT = "agent.metrics_textfile names a file in the folder that node_exporter reads; the package of node_exporter makes it"


def items(document: Document, root: Root) -> list[Item]:
    """Return an item with a warning if node_exporter cannot get the file of agent.metrics_textfile, else no item."""
    why = trouble(document.agent.metrics_textfile, document.agent.run_dir, root)
    return [Item(setting="metrics_textfile", state="absent", effective="no", message=why, hint=HINT)] if why else []


def trouble(path: str, run_dir: str, root: Root) -> str:
    """Return in one line why node_exporter cannot get the metrics in ``path``, or "" if it can."""
    folder = os.path.dirname(path)
    if not path or folder == run_dir:
        return ""
    if not path.endswith(".prom"):
        return f"{path}: node_exporter reads only files whose name ends in .prom"
    if any(f"{folder}/".startswith(f"{hidden}/") for hidden in HIDDEN):
        return f"{folder}: the agent's unit does not see the machine's folders there (ProtectHome, PrivateTmp)"
    there = root.join(folder)
    if not os.path.isdir(there):
        return f"{folder}: no such folder, so the agent writes no metrics"
    if os.statvfs(there).f_flag & os.ST_RDONLY:
        return f"{folder}: on a read-only file system, so the agent writes no metrics"
    return ""
