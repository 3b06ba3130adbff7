"""Writes the PartitionName lines of slurm.conf (slurm.conf(5), PartitionName)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fairlead.model.nodelist import fold


def partition_line(name: str, nodes: Collection[str], options: Mapping[str, str | bool | int]) -> str:
    """Return the line of a partition. A true or false value becomes YES or NO, as slurm.conf has it."""
    words = [f"{key}={'YES' if value is True else 'NO' if value is False else value}" for key, value in options.items()]
    return " ".join([f"PartitionName={name}", f"Nodes={fold(nodes)}", *words]) + "\n"
