"""Connects the main loop with Slurm: it passes orders to the courier, and returns the node's state in slurmctld.

On a machine tree without a declared cluster there is no courier. fairlead then sends nothing to Slurm.
"""

from __future__ import annotations

from functools import partial

from fairlead.config import Document
from fairlead.daemon.slurmctld.courier import Courier
from fairlead.daemon.slurmctld.slurm_state import CourierOrder, SlurmState
from fairlead.drains.acknowledgement import KnownEvidence
from fairlead.drains.admin_hold import DISABLED, AdminHold, barred
from fairlead.drains.from_document import drain_protocol
from fairlead.drains.ledger import Ledger
from fairlead.drains.protocol import DrainProtocol
from fairlead.host import log
from fairlead.host.bounded_disk import Disk
from fairlead.host.root import Root
from fairlead.host.slurmd import Slurmd


class SlurmLink:
    """Owns the courier and the courier's disk. ``state``: the node's state in Slurm at the last ``take_news()``. ``ledger``: the
    file with what fairlead has written to slurmctld."""

    def __init__(self, document: Document, root: Root, *, machine: str, boot_id: str) -> None:
        agent, slurm = document.agent, document.slurm
        self._boot_id = boot_id
        self._disabled = root.join(DISABLED)
        self._disk = Disk("courier's disk")  # a separate one, so that a drain does not wait for the loop's disk
        self._hold = AdminHold(self._disk)
        self.ledger = Ledger(agent.state_dir, agent.run_dir, node=document.slurm_node, machine=machine, disk=self._disk)
        self.slurmd = Slurmd("/proc" if root.is_live else "")
        self.state = SlurmState()
        self._courier: Courier | None = None
        if root.is_live or slurm.conf:
            splay, seconds = slurm.splay_seconds, slurm.reconcile_seconds
            self._courier = Courier(self._protocol(document), splay_seconds=splay, reconcile_seconds=seconds)
            self.state = self._courier.take()

    def _protocol(self, document: Document) -> DrainProtocol:
        why = partial(barred, self._hold, document.agent.state_dir, document.agent.run_dir, self._disabled)
        return drain_protocol(document, self.ledger, barred=why, boot_id=self._boot_id)

    @property
    def connected(self) -> bool:
        """Return whether there is a courier."""
        return self._courier is not None

    def start(self) -> None:
        """Start the courier."""
        if self._courier is not None:
            self._courier.start()

    def stop(self) -> None:
        """Tell the courier to take no further step."""
        if self._courier is not None:
            self._courier.stop()

    def change(self, document: Document) -> None:
        """Use another document."""
        if self._courier is not None:
            options = document.slurm
            splay, seconds = options.splay_seconds, options.reconcile_seconds
            self._courier.change(self._protocol(document), splay_seconds=splay, reconcile_seconds=seconds)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the state has changed, or -1 without a courier."""
        return self._courier.fileno() if self._courier is not None else -1

    def take_news(self) -> tuple[SlurmState, SlurmState] | None:
        """If the state has changed since the last call, return the state before and the state now, else None."""
        if self._courier is None or (now := self._courier.take()) == self.state:
            return None
        before, self.state = self.state, now
        return before, now

    def order(self, want: CourierOrder, known: KnownEvidence) -> None:
        """Pass an order to the courier. ``known``: the evidence that is known now."""
        if self._courier is not None:
            self._courier.want(want, known)

    def reconcile(self) -> None:
        """Compare slurmctld's state with the ledger soon, because a person has changed the ledger."""
        if self._courier is not None:
            self._courier.reconcile()

    def expect_prolog_mark(self, refused: frozenset[int]) -> None:
        """Tell the courier that fairlead's prolog has refused these jobs. slurmctld then drains the node with "Prolog error". The
        courier lifts that drain once jobs may run."""
        if self._courier is not None:
            log.line(log.NOTICE, "prolog refused jobs", jobs=",".join(map(str, sorted(refused))))
            self._courier.refused()

    @property
    def refusal_pending(self) -> bool:
        """Return whether slurmctld's drain "Prolog error" for a refused job may still come or is still set."""
        return self._courier is not None and self._courier.refusal_pending

    def watch_slurmd(self) -> None:
        """Tell the courier whether slurmctld has contacted slurmd. Do so only while changes by somebody else to the node in Slurm
        matter (``Courier.waits``)."""
        if self._courier is not None and self._courier.waits:
            stirred = self.slurmd.stirred()
            self._courier.stirred(watched=self.slurmd.watched, stirred=stirred)

    @property
    def topology(self) -> str:
        """Return what is known of slurmctld's topology, in one line."""
        return self._courier.topology if self._courier is not None else ""
