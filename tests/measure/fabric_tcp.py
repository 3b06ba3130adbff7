#!/usr/bin/python3
"""Stands in for sendrecv_perf of nccl-tests: measures TCP between two network namespaces, without NCCL and without a GPU.

Started by srun as two tasks, one on each node of a pair. Each task enters the network namespace of its node, and both send to
each other at the same time. The figure is what the slower direction carried: bytes that really arrived, by the time that they
really took. The output has the form of nccl-tests, so that fairlead's parser of nccl-tests reads it.

Its Python is that of the lab's root: nothing but the standard library. The folder above has ns/NODE (a process in the node's
namespace), address/NODE, and gpus (how many ranks each node lists). $RAIL picks one of several addresses of a node.
"""

import os
import selectors
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "..")
NODE = os.environ["SLURMD_NODENAME"]
RANK = int(os.environ["SLURM_PROCID"])
RAIL = os.environ.get("RAIL", "")
PORT = 5600
SECONDS, WARM_SECONDS, START_SECONDS = 2.0, 0.4, 25.0


def text(name: str) -> str:
    with open(os.path.join(HERE, name)) as file:
        return file.read().strip()


def peers() -> tuple[str, str]:
    """The nodes of ranks 0 and 1: srun gives each task a number by the order of the step's nodes."""
    listed = expand(os.environ["SLURM_STEP_NODELIST"])
    return listed[0], listed[1]


def expand(nodelist: str) -> list[str]:
    """n[1,5-6] of Slurm; the lab's nodes are n and a number."""
    if "[" not in nodelist:
        return nodelist.split(",")
    numbers = nodelist[nodelist.index("[") + 1 : -1].split(",")
    spans = [(part.split("-")[0], part.split("-")[-1]) for part in numbers]
    return [f"n{k}" for first, last in spans for k in range(int(first), int(last) + 1)]


def connected(address: str) -> socket.socket:
    """Rank 1 listens, rank 0 connects. The other side may begin some seconds later."""
    until = time.monotonic() + START_SECONDS
    if RANK:
        with socket.create_server((address, PORT)) as server:
            server.settimeout(START_SECONDS)
            return server.accept()[0]
    while True:
        try:
            return socket.create_connection((address, PORT), timeout=3)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def exchange(link: socket.socket) -> float:
    """Send and receive at once for SECONDS. Return the received byte/s without the first part."""
    link.setblocking(False)
    selector = selectors.DefaultSelector()
    selector.register(link, selectors.EVENT_READ | selectors.EVENT_WRITE)
    block, began = bytes(1 << 14), time.monotonic()
    first = last = 0.0
    received = 0
    while (now := time.monotonic()) - began < SECONDS:
        for _, ready in selector.select(0.2):
            if ready & selectors.EVENT_READ:
                count = len(link.recv(1 << 18))
                if not count:
                    raise OSError("the other side has ended")
                last = time.monotonic()
                if not first and now - began > WARM_SECONDS:
                    first = last
                elif first:
                    received += count
            if ready & selectors.EVENT_WRITE:
                link.send(block)
    return received / (last - first) if last > first else 0.0


def swap(link: socket.socket, value: float) -> float:
    """Tell the other side one figure after the data, and return its own."""
    link.setblocking(True)
    link.settimeout(START_SECONDS)
    tail = b""
    link.sendall(f"\n{value:.6f}\n".encode())
    link.shutdown(socket.SHUT_WR)
    while chunk := link.recv(1 << 18):
        tail = (tail + chunk)[-64:]
    return float(tail.split(b"\n")[-2])


def carried(address: str) -> float:
    """The byte/s of the slower direction of one rail."""
    with connected(address) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)
        mine = exchange(link)
        return min(mine, swap(link, mine))


def main() -> None:
    nodes = peers()
    assert nodes[RANK] == NODE, (nodes, RANK, NODE)
    addresses = text(f"address/{nodes[1]}").split()
    rails = [addresses[int(RAIL)]] if RAIL else addresses
    with ThreadPoolExecutor(len(rails)) as pool:
        # as a collective over all rails, which waits for its slowest rail
        slower = len(rails) * min(pool.map(carried, rails))
    if RANK:
        return
    ranks = 2 if RAIL else 2 * int(text("gpus"))
    gbps = slower / 1e9
    print("# fabric_tcp stands in for sendrecv_perf: TCP between network namespaces, no GPU")
    print("# nccl-tests version 2.17.9 nccl-headers=22903 nccl-library=22903\n# Collective test starting: sendrecv_perf")
    for rank in range(ranks):
        print(f"#  Rank {rank:2d} Group  0 Pid {os.getpid() + rank} on {nodes[rank * 2 // ranks]} device 0 [0000:1b:00] none")
    print("#  size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong")
    row = f"{SECONDS * 1e6:.1f} {gbps:.6f} {gbps:.6f} 0"
    print(f"1048576 262144 float sum -1 {row} {row}")
    print(
        f"# Out of bounds values : 0 OK\n# Avg bus bandwidth    : {gbps:g}\n# Collective test concluded: sendrecv_perf",
        flush=True,
    )


main()
