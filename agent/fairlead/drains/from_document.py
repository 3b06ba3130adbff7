"""Makes the drain protocol that a node's document describes, with its adapter to slurmctld, its rules and its ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fairlead.config import Document, SlurmOptions
from fairlead.drains.cluster_limits import ClusterLimits
from fairlead.drains.ledger import Ledger
from fairlead.drains.node_state import NodeDrainState
from fairlead.drains.protocol import DrainProtocol
from fairlead.errors import SlurmError
from fairlead.host import log
from fairlead.host.process import slurmd_names
from fairlead.host.slurmd import Slurmd
from fairlead.slurm.client import NodeState
from fairlead.slurm.identity import disagreement
from fairlead.slurm.leftovers import Leftovers
from fairlead.slurm.scontrol import Scontrol

if TYPE_CHECKING:
    from fairlead.slurm.pyslurm_adapter import Pyslurm


def drain_protocol(
    document: Document, ledger: Ledger, *, barred: Callable[[], str] = lambda: "", boot_id: str = ""
) -> DrainProtocol:
    """Return the drain protocol of the document's node, with the Slurm adapter that the document names. ``barred``, ``boot_id``:
    see ``NodeDrainState``."""
    options, name = document.slurm, document.slurm_node
    hidden = Leftovers(options.conf, name)
    client = slurm_client(options)
    # The topology always comes from scontrol, because pyslurm does not know it.
    ask = Scontrol(conf=options.conf, bin_dir=options.bin_dir, deadline_seconds=options.deadline_seconds)
    limits = ClusterLimits(document.policy, ask.topology)
    state = NodeDrainState(
        client,
        ledger,
        name,
        document.policy,
        hidden=hidden.since,
        stranger=_stranger,
        barred=barred,
        limits=limits,
        boot_id=boot_id,
        reconfigured=lambda: Slurmd().reconfigured(),
        not_after=client.not_after,
    )
    return DrainProtocol(state)


def _stranger(mine: NodeState) -> str:
    return disagreement(mine, slurmd_names())


def slurm_client(options: SlurmOptions) -> Scontrol | Pyslurm:
    """Return the Slurm adapter that the document names, or scontrol if pyslurm does not fit this node's Slurm."""
    if options.adapter == "pyslurm":
        from fairlead.slurm.pyslurm_adapter import Pyslurm

        try:
            return Pyslurm(
                conf=options.conf,
                bin_dir=options.bin_dir,
                python=options.pyslurm_python,
                deadline_seconds=options.deadline_seconds,
            )
        except SlurmError as e:
            log.line(log.WARNING, "pyslurm does not fit", instead="scontrol", why=str(e))
    return Scontrol(conf=options.conf, bin_dir=options.bin_dir, deadline_seconds=options.deadline_seconds)
