"""Reads from the published topology which GPU has which GRES index (RUN_DIR/topology).

The file survives a restart of the agent. ``topology.binding.published_files`` describes its rows. If a GPU of the node is in MIG
mode, no GPU has an index there, and the job records name the devices by UUID.
"""

from __future__ import annotations

import os

TOPOLOGY_MAX_BYTES = 1 << 20


def pci_by_gres_index(run_dir: str) -> dict[int, str]:
    """Return the PCI addresses of the GPUs by GRES index, or {} if the file cannot be read or has no index."""
    try:
        with open(os.path.join(run_dir, "topology"), encoding="ascii", errors="replace") as f:
            lines = f.read(TOPOLOGY_MAX_BYTES).splitlines()
    except OSError:
        return {}
    rows = [line.split("\t") for line in lines if line.startswith("gpu\t")]
    return {int(row[1]): row[4] for row in rows if len(row) > 4 and row[1].isascii() and row[1].isdigit() and len(row[1]) <= 9}
