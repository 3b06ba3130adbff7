"""Decides which part of a changed document a running agent uses."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.config import Document


def take_over(old: Document, new: Document) -> tuple[Document, list[str]]:
    """Return the document that a running agent can use, and the keys whose change it ignores. Those keys keep their old
    values."""
    ignored = []
    for name in ("state_dir", "run_dir"):
        was = getattr(old.agent, name)
        if getattr(new.agent, name) != was:
            ignored.append(f"agent.{name}")
            new = replace(new, agent=replace(new.agent, **{name: was}))
    if new.slurm_node != old.slurm_node:  # the ledger belongs to one node
        ignored.append("slurm.node_name" if new.node == old.node else "node")
        new = replace(new, node=old.node, slurm=replace(new.slurm, node_name=old.slurm.node_name))
    return new, ignored
