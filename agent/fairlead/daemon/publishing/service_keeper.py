"""Writes the service record of this node (``fleet.service_record``) to the run directory, where the controller reads it.

The record is made again when the node's state in Slurm or a person's request has changed, and at least every ``WRITE_SECONDS``.
What no other file of the agent has is saved with the history.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping

import msgspec
from msgspec.structs import replace

from fairlead import __version__
from fairlead.config import Document
from fairlead.daemon.requests.audit_trail import ASKED, Trail
from fairlead.fleet.card_details import details_of, xids_of
from fairlead.fleet.mechanical_values import values_of
from fairlead.fleet.service_memory import WRITE_SECONDS, ServiceMemory, remembered
from fairlead.fleet.service_record import (
    DAY_SECONDS,
    FILE,
    KEEP_DAYS,
    KINDS,
    ActiveFinding,
    ServiceEntry,
    ServiceRecord,
    VersionSeen,
    encoded,
)
from fairlead.history.memory import History
from fairlead.host import log
from fairlead.host.atomic_file import write_atomic
from fairlead.model.device import gpu_cards_of
from fairlead.model.facts import Node
from fairlead.model.finding import Level
from fairlead.model.json_text import NOT_JSON
from fairlead.policy.policy_state import PolicyState

ENTRIES_MAX = 2000


class ServiceKeeper:
    """Keeps the record. ``trail``: a reader of its own for the audit trail. ``machine``: the id of this machine, as in the
    ledger. ``slots``: the chassis slots by PCI address. ``trouble``: why it cannot be written, or ""."""

    def __init__(
        self, history: History, trail: Trail, machine: str, slots: Callable[[], Mapping[str, str]] = dict[str, str]
    ) -> None:
        self._history, self._trail, self._machine, self._slots = history, trail, machine, slots
        self._memory: ServiceMemory | None = None
        self._due_at = float("-inf")
        self.trouble = ""

    def write_soon(self) -> None:
        """Write the record with the next sweep."""
        self._due_at = float("-inf")

    def add(self, node: Node, document: Document, state: PolicyState, modes: Mapping[str, str]) -> None:
        """Take in a sweep, and write the record if it is due."""
        if time.monotonic() < self._due_at:
            return
        self._due_at = time.monotonic() + WRITE_SECONDS
        unix = time.time()
        driver = node.driver.module_version
        version = VersionSeen(
            since_unix=unix,
            driver=driver if isinstance(driver, str) else "",
            agent_version=__version__,
            checks=checks_digest(document, modes),
        )
        self._memory = remembered(self._known(), unix, version, gpu_cards_of(node), values_of(node))
        self._memory = replace(
            self._memory,
            details=details_of(self._memory.details, node, self._slots(), unix),
            xids=xids_of(self._memory.xids, self._history.xids.counts, self._history.boot_id, unix),
        )
        self._history.save_service(msgspec.json.encode(self._memory))
        self._write(document, self._record(document, state, modes, unix))

    def _known(self) -> ServiceMemory:
        if self._memory is None:
            try:
                self._memory = msgspec.json.decode(self._history.service() or b"{}", type=ServiceMemory)
            except NOT_JSON as e:
                log.line(log.ERROR, "the memory of the service record is damaged and begins anew", error=e)
                self._memory = ServiceMemory()
        return self._memory

    def _record(self, document: Document, state: PolicyState, modes: Mapping[str, str], unix: float) -> ServiceRecord:
        memory = self._known()
        entries = [e for e in self._trail.read(unix - KEEP_DAYS * DAY_SECONDS) if e.what in KINDS and e.outcome != ASKED]
        findings = [
            ActiveFinding(
                check=key.partition("/")[0],
                device=key.partition("/")[2],
                serial=state.gpu_serials.get(key.partition("/")[2], ""),
                since_unix=track.since_seconds,
                enforced=modes.get(key.partition("/")[0]) == "enforce",
            )
            for key, track in sorted(state.tracks.items())
            if track.level is Level.DRAIN
        ]
        return ServiceRecord(
            node=document.slurm_node,
            machine=self._machine,
            node_class=document.profile,
            written_unix=unix,
            watched=memory.watched,
            versions=memory.versions,
            cards=memory.cards,
            findings=tuple(findings),
            strikes=dict(state.strikes),
            acknowledged=state.acknowledged,
            entries=tuple(
                ServiceEntry(
                    unix=e.unix, id=e.id, what=e.what, who=e.who, args=dict(e.args), why=e.why, outcome=e.outcome, detail=e.detail
                )
                for e in entries[-ENTRIES_MAX:]
            ),
            values=memory.values,
            details=memory.details,
            xids=memory.xids,
        )

    def _write(self, document: Document, record: ServiceRecord) -> None:
        path = f"{document.agent.run_dir}/{FILE}"
        try:
            write_atomic(path, encoded(record))
        except OSError as e:
            self.trouble = f"{path}: {e.strerror}"
        else:
            self.trouble = ""


def checks_digest(document: Document, modes: Mapping[str, str]) -> str:
    """Return a short digest of the checks that may drain this node, with their parameters."""
    enforced = {name: document.checks[name] for name in sorted(document.checks) if modes.get(name) == "enforce"}
    return hashlib.sha256(msgspec.json.encode(enforced, order="deterministic")).hexdigest()[:8]
