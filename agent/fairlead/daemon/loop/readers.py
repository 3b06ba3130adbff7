"""Reads a node: NVML through its worker, the kernel log, and everything else through ``Gatherer``.

A machine tree has NVML's values in nvml.json and the kernel log in dev/kmsg. No NVML worker runs for a tree, unless the caller
requests one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from fairlead.config import Document
from fairlead.host.boot_clock import boot_id, boottime
from fairlead.host.gather import Gatherer
from fairlead.host.kmsg import Follower
from fairlead.host.nvml import Worker
from fairlead.host.root import Root
from fairlead.judge import quick_reads, reads, wanted
from fairlead.model.check_definition import KernelRecord
from fairlead.model.facts import Missing, Node, StuckCall, unreadable
from fairlead.model.json_text import NOT_JSON


class Readers:
    """Starts to read the node in ``start_sweep()``, and returns the node from ``poll()`` once it has been read. Neither waits.

    ``answered``: the time of the last good answer of each source (nvml, kernel_log, host), in CLOCK_BOOTTIME seconds.
    """

    def __init__(self, document: Document, root: Root, *, ask_nvml: bool = False) -> None:
        self.root = root
        self.boot_id = boot_id(root)
        self.worker = Worker(document.agent.nvml_deadline_seconds) if root.is_live or ask_nvml else None
        self.follower: Follower | None = None
        self.answered: dict[str, float] = {}
        self.records_lost = 0  # the number of kernel records that were overwritten before they were read
        self._asked = False
        self._module: object = None
        self._gatherer: Gatherer | None = None
        self.change(document)

    def change(self, document: Document) -> None:
        """Use another document, which says what to read, what the hardware does not have, and the deadlines."""
        if self._gatherer is not None:
            self._gatherer.end()
        self._gatherer = Gatherer(
            self.root,
            reads=reads(document),
            quick_reads=quick_reads(document),
            unsupported=document.unsupported,
            wanted=wanted(document),
        )
        if self.worker is not None:
            self.worker.deadline_seconds = document.agent.nvml_deadline_seconds

    def follow(self, document: Document, cursor: int | None) -> None:
        """Open the kernel log. Start at ``cursor`` if it was saved in this boot."""
        configured = document.agent.kmsg_path
        # A machine tree has its own kernel log, unless the document names another file, such as the FIFO of the lab.
        path = configured if self.root.is_live or configured != "/dev/kmsg" else os.path.join(self.root.path, "dev/kmsg")
        if self.follower is not None:
            if self.follower.path == path:
                return
            self.follower.close()
        self.follower = Follower(path, self.boot_id, cursor)

    def descriptors(self) -> list[int]:
        """Return the descriptors to wait on."""
        sources = [self.worker.fileno() if self.worker else -1, self.follower.fileno() if self.follower else -1]
        return [fd for fd in sources if fd >= 0]

    def next_poll(self) -> float:
        """Return the latest time for the next ``poll()``, in CLOCK_MONOTONIC seconds."""
        if self.worker is None:
            return 0.0 if self._asked else float("inf")
        return self.worker.next_poll()

    def read_thoroughly(self) -> None:
        """Make the next sweep read everything, and try a hung driver again soon."""
        if self._gatherer is not None:
            self._gatherer.read_thoroughly()
        if self.worker is not None:
            self.worker.hurry()

    def release_nvml(self, wanted: bool) -> bool:
        """Release NVML, so that no worker runs and no library is loaded, or attach NVML again at the next sweep. Return whether
        this changes anything."""
        if self.worker is None or wanted == self.worker.released:
            return False
        if wanted:
            self.worker.release()
        else:
            self.worker.reattach()
        return True

    def start_sweep(self, *, shown: bool) -> bool:
        """Start a sweep, and return whether NVML is asked for all values: in a thorough sweep, and with ``shown``, which says
        that metrics are due. Such a reading costs as much as several others, so thorough sweeps should make the metrics."""
        closely = shown or self._gatherer is None or self._gatherer.is_due()
        self._asked = True
        if self.worker is not None:
            self.worker.start_sweep(closely=closely)
        return closely

    def poll(self) -> Node | None:
        """Return the node once per sweep, else None. All other facts are read after NVML has answered or failed."""
        if self.worker is None:
            if not self._asked:
                return None
            raw: dict[str, Any] | Missing = _recorded(self.root.path)
            stuck: StuckCall | None = None
            closely = True
        else:
            result = self.worker.poll()
            if result is None:
                return None
            raw, stuck, closely = result.raw, result.stuck, result.closely
        self._asked = False
        if self._gatherer is None:
            return None
        node = self._gatherer.gather(raw, closely=closely, stuck=stuck)
        if self.worker is not None and self.worker.released:
            node = replace(node, nvml_released=True)
        now = boottime()
        self.answered["host"] = now
        if not isinstance(node.gpus, Missing):
            self.answered["nvml"] = now
        if self.worker is not None and node.driver.module_version != self._module:  # the driver was loaded again
            self._module = node.driver.module_version
            self.worker.hurry()
        return node

    def kernel_log_ready(self, ready: Sequence[int]) -> bool:
        """Return whether the kernel log may have new records. ``ready``: the descriptors that select(2) returned. If the log is a
        regular file, it has no descriptor for select(2), and this returns True."""
        return self.follower is None or self.follower.fileno() < 0 or self.follower.fileno() in ready

    def read_kernel_log(self) -> list[KernelRecord]:
        """Return the kernel records that have come since the last call."""
        if self.follower is None:
            return []
        before = self.follower.overruns
        records = self.follower.read()
        self.records_lost += self.follower.overruns - before
        if self.follower.state is None:
            self.answered["kernel_log"] = boottime()
        return records

    @property
    def log_cursor(self) -> int | None:
        """Return how far the kernel log has been read, or None if the log was never open."""
        return self.follower.cursor if self.follower is not None else None

    def close(self) -> None:
        if self.follower is not None:
            self.follower.close()
        if self.worker is not None:
            self.worker.close()
        if self._gatherer is not None:
            self._gatherer.end()


def _recorded(tree: str) -> dict[str, Any] | Missing:
    path = os.path.join(tree, "nvml.json")
    try:
        with open(path, "rb") as f:
            data = msgspec.json.decode(f.read(16 << 20))
    except OSError as e:
        return unreadable(f"{path}: {e.strerror}")
    except NOT_JSON as e:
        return unreadable(f"{path}: not JSON: {e}")
    return data if isinstance(data, dict) else unreadable(f"{path}: not a JSON object")
