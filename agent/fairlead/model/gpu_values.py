"""Collects the same facts of every GPU of a node, for settings that are set on each GPU."""

from __future__ import annotations

from typing import Any

from fairlead.model.device import field
from fairlead.model.facts import Missing, Node, Why, unreadable

Values = dict[str, tuple[Any, ...]]


def of_gpus(node: Node, what: str, *names: str) -> Values | Missing:
    """Return the values of the facts ``names`` (dotted fields of ``Gpu``) of each GPU by PCI address. ``what``: the words for
    these facts in the text of a Missing.

    Lost GPUs are left out, because the check gpu_count reports them. A GPU that does not have these facts by its profile
    (UNSUPPORTED) is left out too. If a fact of one GPU cannot be read, the whole result is Missing.
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
