"""Renders the job environment that the task prolog reads: the files /run/fairlead/env and /run/fairlead/presets/NAME."""

from __future__ import annotations

from fairlead.config import Document
from fairlead.host import scratch
from fairlead.jobenv.environment_text import render
from fairlead.jobenv.variable_table import assemble
from fairlead.model.facts import Node
from fairlead.settings import nccl


class JobTables:
    """Renders the files of the job environment for one document. ``trouble``: why the declared scratch folder cannot be used,
    or "" if there is no such trouble."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._seen: tuple[object, ...] = ()
        self._interface = ""
        self.trouble = ""

    def facts(self, node: Node) -> tuple[str, str]:
        """Return the two facts of a node that the files depend on: the network interface for NCCL, and the path of the scratch
        folder. Each is "" if the node has none that is usable."""
        want = self._document.settings.get("nccl")
        seen = (node.nics, *(node.texts.get(path) for path in nccl.NETWORK))
        if isinstance(want, nccl.NcclWant) and seen != self._seen:
            self._seen, self._interface = seen, nccl.interface(want, node)
        base = self._document.jobenv.scratch
        folder = scratch.published(self._document.agent.run_dir, base) if base else ""
        self.trouble = f"{base} is not ready: systemctl status 'fairlead-scratch@*'" if base and not folder else ""
        return self._interface, folder

    def texts(self, interface: str, folder: str) -> dict[str, str]:
        """Return the text of each file by its path below the run directory. Raises DataError for a variable that is not
        valid."""
        options = self._document.jobenv
        rows = assemble(
            fabric=options.fabric,
            interface=interface,
            scratch=folder,
            crosses_rails=not options.rail_only,
            master_suffix=options.master_suffix,
        )
        made = {"env": render(rows, skip=options.skip, extra=options.extra, notice=options.notice)}
        for name, preset in options.presets.items():
            skip = {*options.skip, *preset.skip}
            extra = {k: v for k, v in options.extra.items() if k not in preset.skip} | preset.extra
            made[f"presets/{name}"] = render(rows, skip=skip, extra=extra, notice=options.notice)
        return made
