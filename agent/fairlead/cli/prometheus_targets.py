"""Makes the file from which Prometheus learns its targets (``file_sd_configs``), from the nodes that the site declares."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairlead.errors import HostError, InputMissing, next_step
from fairlead.host.atomic_file import write_if_changed

if TYPE_CHECKING:
    from fairlead.provision.inventory import Target

NODE_EXPORTER_PORT = 9100


def targets_text(found: Sequence[Target]) -> str:
    """Return the text of the file: one group of targets for each profile, with the label of the alert for missing agents.

    The port is that of ``agent.metrics_listen``, else that of node_exporter, which reads the agent's text file.
    """
    groups: dict[str, list[str]] = {}
    for target in found:
        listen = target.document.agent.metrics_listen
        port = listen.rpartition(":")[2] if listen and not _is_local(listen) else str(NODE_EXPORTER_PORT)
        host = f"[{target.address}]" if ":" in target.address else target.address
        groups.setdefault(target.document.profile, []).append(f"{host}:{port}")
    data = [
        {"targets": hosts, "labels": {"fairlead": "expected", **({"profile": profile} if profile else {})}}
        for profile, hosts in groups.items()
    ]
    return json.dumps(data, indent=1) + "\n"


def _is_local(listen: str) -> bool:
    return listen.rpartition(":")[0] in ("127.0.0.1", "localhost", "[::1]")


def write(file: str, text: str) -> bool:
    """Write the file by rename, so that Prometheus never reads half of it. Return False if it has this text already. Raises
    HostError, InputMissing."""
    folder = os.path.dirname(os.path.abspath(file))
    if not os.path.isdir(folder):
        raise InputMissing(f"{folder}: no such folder", hint="make it, or name another file")
    try:
        return write_if_changed(file, text.encode())
    except OSError as e:
        raise HostError(f"{file}: {e.strerror}", hint=next_step(e)) from None
