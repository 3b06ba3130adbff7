"""Collects the same values from every GPU of a node, for settings that are made GPU by GPU."""

from __future__ import annotations

from typing import Any

from fairlead.model.device import field
from fairlead.model.facts import Missing, Node, Why, unreadable

Values = dict[str, tuple[Any, ...]]


def of_gpus(node: Node, what: str, *names: str) -> Values | Missing:
    """Return by PCI address the values of the facts ``names`` (dotted fields of ``Gpu``). ``what``: how a person calls them.

    The check gpu_count reports lost GPUs. A GPU that does not have these facts, as the profile says (UNSUPPORTED), is left
    out. If one does not answer, the whole answer is Missing.
    """
    if isinstance(node.gpus, Missing):
        return node.gpus
    found: Values = {}
    for gpu in node.gpus:
        if gpu.lost:
            continue
        values = tuple(field(gpu, name) for name in names)
        missing = [v for v in values if isinstance(v, Missing)]
        if any(m.why is Why.UNREADABLE for m in missing):
            why = next(m for m in missing if m.why is Why.UNREADABLE)
            return unreadable(f"{what} of GPU {gpu.pci}: {why.detail}")
        if not missing:
            found[gpu.pci] = values
    return found
