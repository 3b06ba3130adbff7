"""Says that a hardware profile is for another GPU than the node has, in one line, and which profile fits.

The agent, `fairlead apply` and `fairlead provision` use the same rule: every GPU of the node has another PCI ID than the profile
lists. The values of such a profile are not judged, and none of its settings is applied.

This module imports the standard library only. The bundle has a copy of it for Ansible's action plugin, because the Python that
runs Ansible need not have fairlead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class KnownProfile(NamedTuple):
    """Names the GPUs of a hardware profile. gpus: their PCI IDs. gpu_count: how many its board carries, or 0 for any number."""

    name: str
    gpus: Sequence[str]
    gpu_count: int


class Declared(NamedTuple):
    """Holds what is declared for a node: its hardware profile, the PCI IDs of the profile's GPU, and the node's classes."""

    node: str
    profile: str
    pci_ids: Sequence[str]
    classes: Sequence[str] = ()


def is_another_gpu(here: Iterable[str], pci_ids: Sequence[str]) -> bool:
    """Return whether there are GPUs and none of them has a PCI ID of the profile. Without PCI IDs a profile is for every GPU."""
    found = set(here)
    return bool(found and pci_ids) and not found & set(pci_ids)


def refusal(declared: Declared, here: Mapping[str, int], known: Iterable[KnownProfile]) -> tuple[str, str]:
    """Return one line that says why the node's profile is refused, and one line that says what to do.

    here: how many GPUs of the node have each PCI ID. known: the profiles to choose from.
    """
    node, profile, pci_ids, classes = declared
    kinds = " and ".join(f"{pci_id} ({count} of them)" for pci_id, count in here.items())
    of_class = f" (class {', '.join(classes)})" if classes else ""
    named = f"the profile {profile}" if profile else "its document"
    words = f"{node}{of_class}: every GPU is {kinds}, and {named} is for {', '.join(pci_ids)}"
    believed = f"if {named} does suit these GPUs, declare their PCI IDs in checks.gpu_count.pci_ids"
    return words, f"{_advice(here, known)}; {believed}"


def _advice(here: Mapping[str, int], known: Iterable[KnownProfile]) -> str:
    count = sum(here.values())
    same = [profile for profile in known if set(here) <= set(profile.gpus)]
    fitting = [profile for profile in same if profile.gpu_count in (0, count)]
    if fitting:
        names = " or ".join(profile.name for profile in fitting)
        return f"the profile {names} fits these GPUs: give it to the node's class, or put the node into another class"
    if same:
        names, counts = (" and ".join(words) for words in zip(*((p.name, str(p.gpu_count)) for p in same), strict=True))
        plural = "s" * (len(same) > 1)
        return f"the profile{plural} {names} {'are' if plural else 'is'} for these GPUs, and for {counts} of them"
    return "no profile of fairlead is for these GPUs: `fairlead profile draft` makes one from a snapshot of a good node"
