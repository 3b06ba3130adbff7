"""SlurmClient over pyslurm (GPL-2.0, built against exactly one Slurm release): chosen by ``slurm.adapter = "pyslurm"``.

NOT RUN by this project's tests so far: no release of pyslurm fits the Slurm releases that Debian packages unmodified.
The calls follow pyslurm 25.11's documented API (``pyslurm.Node``, ``pyslurm.Nodes``, ``pyslurm.Jobs``). The deadline of
a call is slurm.conf's MessageTimeout here: libslurm's RPCs cannot be cut short from outside.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from fairlead.errors import ConfigError, SlurmError, SlurmUnavailable
from fairlead.slurm.client import JobOn, NodeState
from fairlead.slurm.scontrol import CONF_PATHS, NO_ANSWER


class Pyslurm:
    """See the module's text. Raises ConfigError when pyslurm is not there or does not fit the site's Slurm."""

    def __init__(self, *, conf: str = "", deadline_seconds: float = 10.0) -> None:
        self.deadline_seconds = deadline_seconds
        found = conf or next((path for path in CONF_PATHS if os.path.exists(path)), "")
        os.environ.pop("SLURM_CLUSTERS", None)
        if found:
            os.environ["SLURM_CONF"] = found
        try:
            import pyslurm
        except ImportError as e:
            raise ConfigError(
                "node.json",
                "slurm.adapter",
                f"pyslurm cannot be used: {e}",
                hint='set it to "scontrol", which fits every release',
            ) from None
        self._pyslurm: Any = pyslurm

    def node(self, name: str) -> NodeState:
        return _state(self._call(lambda: self._pyslurm.Node.load(name)))

    def nodes(self, names: Sequence[str] = ()) -> tuple[NodeState, ...]:
        loaded = self._call(self._pyslurm.Nodes.load)
        return tuple(_state(node) for name, node in loaded.items() if not names or name in names)

    def jobs_on(self, name: str) -> tuple[JobOn, ...]:
        jobs = self._call(self._pyslurm.Jobs.load)
        return tuple(
            JobOn(id=str(job.id), state=str(job.state), nodes=int(job.num_nodes or 0))
            for job in jobs.values()
            if name in (job.allocated_nodes or "") and str(job.state) in {"RUNNING", "COMPLETING", "SUSPENDED"}
        )

    def drain(self, name: str, reason: str) -> None:
        self._modify(name, state="DRAIN", reason=reason)

    def update_reason(self, name: str, reason: str) -> None:
        self._modify(name, reason=reason)

    def resume(self, name: str) -> None:
        self._modify(name, state="UNDRAIN")

    def _modify(self, name: str, **changes: str) -> None:
        self._call(lambda: self._pyslurm.Node(name).modify(self._pyslurm.Node(**changes)))

    def _call(self, act: Any) -> Any:
        try:
            return act()
        except Exception as e:  # pyslurm.RPCError, whose class moved between releases
            said = " ".join(str(e).split())
            kind = SlurmUnavailable if any(text in said.lower() for text in NO_ANSWER) else SlurmError
            raise kind(f"pyslurm: {said}") from None


def _state(node: Any) -> NodeState:
    return NodeState(
        name=str(node.name),
        states=frozenset(word for word in str(node.state).upper().split("+") if word),
        reason=node.reason or "",
        reason_user=node.reason_user or "",
        reason_time=int(node.reason_time or 0),
        hostname=node.hostname or "",
        partitions=tuple(node.partitions or ()),
    )
