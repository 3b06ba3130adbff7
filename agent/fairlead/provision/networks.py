"""Compares the networks for NCCL of the nodes of each class. It uses the ports that each node has reported in this run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from fairlead.config import Site
from fairlead.model.isolated import isolated
from fairlead.nccl.compute_ports import Port, compare
from fairlead.provision.inventory import members
from fairlead.provision.provision_report import ClassDifference, NodeResult


def differences(site: Site, results: Sequence[NodeResult]) -> tuple[ClassDifference, ...]:
    """Return the differences within each class. A node that reported no ports (not reached, or an older fairlead) is not
    compared."""
    said = {r.node: some for r in results if (some := isolated(partial(_ports, r.apply), lambda why: None)) is not None}
    found = []
    for name, nodes in members(site).items():
        found += [ClassDifference(name=name, difference=d) for d in compare({n: said[n] for n in nodes if n in said})]
    return tuple(found)


def _ports(applied: Mapping[str, object]) -> tuple[Port, ...] | None:
    try:
        return msgspec.convert(applied["ports"], tuple[Port, ...])
    except (KeyError, msgspec.ValidationError):
        return None
