"""What was measured, each figure with the load of the machine: printed, and written to FAIRLEAD_SCALE_JSON if that is set."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from tests.scale.many_nodes import ManyNodes
from tests.slurm.crowd import OURS, rpcs


class Figures:
    """Keeps the figures of one run, by scene."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.scenes: dict[str, dict[str, Any]] = {}

    def add(self, scene: str, **figures: Any) -> None:
        rounded = {key: round(value, 3) if isinstance(value, float) else value for key, value in figures.items()}
        self.scenes.setdefault(scene, {}).update(rounded, load=round(os.getloadavg()[0], 1))
        print(f"\n{self.nodes} nodes, {scene}: {json.dumps(self.scenes[scene])}", flush=True)
        if path := os.environ.get("FAIRLEAD_SCALE_JSON", ""):
            Path(f"{path}.{scene}").write_text(json.dumps({"nodes": self.nodes, **self.scenes[scene]}, indent=1) + "\n")


class Window:
    """What slurmctld and the network did in some ``seconds``: ``counts`` by message type, ``ours``, ``moved`` bytes."""

    def __init__(self, cluster: ManyNodes) -> None:
        self._cluster = cluster
        self._bytes = cluster.network_bytes()
        cluster.run(["/usr/bin/sdiag", "--reset"])
        self._began = time.monotonic()

    def end(self) -> None:
        self.seconds = time.monotonic() - self._began
        self.moved = self._cluster.network_bytes() - self._bytes
        self.counts = {name: count for name, (count, _) in rpcs(self._cluster).items() if name != "REQUEST_STATS_INFO"}
        self.ours = sum(self.counts.get(name, 0) for name in OURS)
