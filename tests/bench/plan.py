"""A binding plan, cold: 288 CPUs, 36 NUMA nodes, in a fresh interpreter each time."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from msgspec.structs import replace

from fairlead.model.facts import NumaNode
from fairlead.topology.binding import binding_plan, published_files
from tests.bench.rows import Row, median
from tests.lab.sites import write_site
from tests.topology.build import hgx
from tests.topology.topology_nodes import MEMORY

RUNS = 20
TASKS = 16
CHILD = """
import sys, time
start = time.perf_counter()
sys.path[:0] = [sys.argv[1]]
from fairlead.topology.binding import binding_plan
text = open(sys.argv[2]).read()
said = binding_plan.answer_lines(text, sys.argv[3], "0,1,2,3", allowed=(1 << 288) - 1, cpus_on_node="")[4]
print((time.perf_counter() - start) * 1000, said)
"""


def rows() -> list[Row]:
    """Four sockets of 72 cores, 4 GPUs, 32 NUMA nodes of GPU memory; 16 tasks that Slurm dealt socket by socket, while
    the programs choose GPU rank modulo 4."""
    node = hgx(sockets=4, cores=72, gpus=4)
    memory = tuple(NumaNode(id=4 + i, cpus=(), memory_bytes=0) for i in range(32))
    masks = [((1 << 18) - 1) << ((task // 4) * 72 + (task % 4) * 18) for task in range(TASKS)]
    bind_list = ",".join(f"0x{mask:072X}" for mask in masks)
    inside, outside = [], []
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "topology")
        text.write_text(published_files.render_topology(replace(node, numa=node.numa + memory)))
        room = str(Path(binding_plan.__file__).parents[3])
        for _ in range(RUNS):
            start = time.perf_counter()
            argv = [sys.executable, "-I", "-S", "-E", "-c", CHILD, room, str(text), bind_list]
            done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30)
            outside.append((time.perf_counter() - start) * 1000)
            took, *said = done.stdout.split()
            assert said == ["18-35", "18"], said
            inside.append(float(took))
    beside = f"with interpreter start {median(outside):.1f} ms"
    return [
        Row("binding plan, 288 CPUs and 36 NUMA nodes, cold", median(inside), 50, "ms", beside, f"{RUNS} runs"),
        bind_row(),
    ]


BIND = """
import sys, time
start = time.perf_counter()
from fairlead.cli import main
main(["bind", "--root", sys.argv[1], "--tasks", "8", "--json"])
print((time.perf_counter() - start) * 1000, file=sys.stderr)
"""
PLAN = """
import sys, time
from fairlead.host.gather import gather
from fairlead.host.root import Root
node = gather(Root(sys.argv[1]), None)
start = time.perf_counter()
from fairlead.topology.binding.node_binding import plan_binding
plan_binding(node, 8)
print((time.perf_counter() - start) * 1000, file=sys.stderr)
"""


def bind_row() -> Row:
    """`fairlead bind` on the tree of such a machine: the plan alone, and the whole command from a fresh interpreter."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        tree = str(write_site(Path(folder) / "alps-gh200", "alps-gh200"))

        def run(code: str) -> float:
            argv = [sys.executable, "-c", code, tree]
            done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30)
            return float(done.stderr.split()[-1])

        made = [run(PLAN) for _ in range(RUNS)]
        command = [run(BIND) for _ in range(RUNS)]
    beside = f"the whole command, reading sysfs and printing: {median(command):.0f} ms"
    return Row("fairlead bind, the plan, 288 CPUs and 36 NUMA nodes, cold", median(made), 50, "ms", beside, f"{RUNS} runs")


if __name__ == "__main__":
    print(rows())
