"""What the task prolog and the epilog read of the job environment: /run/fairlead/env, presets/ and scratch, as texts."""

from __future__ import annotations

import time

from fairlead.config import Document
from fairlead.host import scratch
from fairlead.jobenv.render import render
from fairlead.jobenv.table import assemble
from fairlead.model.facts import Node
from fairlead.settings import nccl

LOOK_SECONDS = 60.0  # a disk may be mounted after the agent started


class JobTables:
    """The texts of one document, by name below the run directory. ``trouble``: why there is no scratch folder, or ""."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._looked_at = float("-inf")
        self._seen: tuple[object, ...] = ()
        self._interface = ""
        self.trouble = ""

    def facts(self, node: Node) -> tuple[str, str]:
        """What of a node the texts depend on: NCCL's interface, and the scratch folder where it can be used."""
        want = self._document.settings.get("nccl")
        seen = (node.nics, *(node.texts.get(path) for path in nccl.NETWORK))
        if isinstance(want, nccl.NcclWant) and seen != self._seen:
            self._seen, self._interface = seen, nccl.interface(want, node)
        folder = self._document.jobenv.scratch
        if folder and time.monotonic() >= self._looked_at + LOOK_SECONDS:
            self._looked_at = time.monotonic()
            self.trouble = scratch.fault(folder)
        return self._interface, "" if self.trouble else folder

    def texts(self, interface: str, folder: str) -> dict[str, str]:
        """Raises DataError for a table that cannot be set."""
        options = self._document.jobenv
        rows = assemble(
            fabric=options.fabric,
            interface=interface,
            scratch=folder,
            crosses_rails=not options.rail_only,
            master_suffix=options.master_suffix,
        )
        made = {"env": render(rows, skip=options.skip, extra=options.extra)}
        for name, preset in options.presets.items():
            skip = {*options.skip, *preset.skip}
            extra = {k: v for k, v in options.extra.items() if k not in preset.skip} | preset.extra
            made[f"presets/{name}"] = render(rows, skip=skip, extra=extra)
        if folder:
            made["scratch"] = f"1\t{folder}\t.\n"
        return made
