"""Refuses a document whose hardware profile is for another GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fairlead import config
from fairlead.checks import gpu_count
from fairlead.config import Document
from fairlead.errors import WrongProfile
from fairlead.model.another_gpu import Declared, is_another_gpu, refusal
from fairlead.model.facts import Node


def another_gpu(document: Document, node: Node, classes: Sequence[str] = ()) -> tuple[str, str] | None:
    """Return one line that refuses the document's hardware profile and one line that says what to do if every GPU of the node has
    another PCI ID than the profile lists, else None. ``classes``: the node's classes."""
    pci_ids = document.gpu_pci_ids
    here = Counter(gpu_count.compute_gpus(node)) if pci_ids else {}
    if not is_another_gpu(here, pci_ids):
        return None
    return refusal(Declared(document.node, document.profile, pci_ids, classes), here, config.known_profiles())


def refuse_another_gpu(document: Document, node: Node) -> None:
    """Raise WrongProfile if the document's hardware profile is for another GPU.

    All settings of the document are refused, also those that suit every node. A person who has chosen the wrong class has chosen
    all of its settings by mistake.
    """
    if refused := another_gpu(document, node):
        words, hint = refused
        raise WrongProfile(f"{words}; nothing was changed", hint=hint)
