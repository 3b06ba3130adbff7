"""A synchronous job of one task on each node, which drives the simulated GPU by what it really does.

ring_job.py SECONDS NAME... Each step it computes on the CPU (its GPU has nothing to do), works on the GPU for a fixed time, and
passes data around the ring of all nodes. While it waits for others its GPU is busy, as NCCL's kernels are.
"""

from __future__ import annotations

import os
import socket
import sys
import time

CONTROL = "/etc/fairlead-sim/nvml.control"
PORT = 7070
CHUNK = 32 * 1024
GPU_SECONDS = 0.15
CPU_SECONDS = 0.01  # of processor time in each step
BUSY = (100, 80, 40, 50, 600_000, 1_000_000_000, 100_000_000_000)  # as tests/lab/faults.py, LOADS["busy"]


def connected(names: list[str], rank: int) -> tuple[socket.socket, socket.socket]:
    """The sockets to the next task and from the one before."""
    listener = socket.create_server(("", PORT), reuse_port=True)
    deadline = time.monotonic() + 120
    while True:
        try:
            to = socket.create_connection((names[(rank + 1) % len(names)], PORT), timeout=60)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    of, _ = listener.accept()
    for each in (to, of):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        each.settimeout(120)
    return to, of


def compute() -> None:
    until = time.thread_time() + CPU_SECONDS
    while time.thread_time() < until:
        pass


def passed(to: socket.socket, of: socket.socket, flag: bytes) -> bytes:
    """Send a chunk with a flag, and return the flag of the chunk that has come."""
    to.sendall(flag + b"x" * (CHUNK - 1))
    got = b""
    while len(got) < CHUNK:
        more = of.recv(CHUNK - len(got))
        if not more:
            raise SystemExit("the task before has gone")
        got += more
    return got[:1]


def show(idle_part: float) -> None:
    """Let the simulated GPU be idle for this part of each second from now on."""
    on = max(1, min(1000, round(1000 * (1 - idle_part)))) * 1000
    words = ("work", 0, "-", time.time_ns() // 1000, *BUSY, *((0, 0) if on >= 1_000_000 else (on, 1_000_000)))
    with open(CONTROL, "a", encoding="ascii") as control:
        control.write(" ".join(map(str, words)) + "\n")


def main() -> None:
    seconds, names = float(sys.argv[1]), sys.argv[2:]
    rank = int(os.environ["SLURM_PROCID"])
    to, of = connected(names, rank)
    begin = last = time.monotonic()
    idle, steps, stop = 0.0, 0, b"0"
    while stop == b"0":
        host = time.monotonic()
        compute()
        idle += time.monotonic() - host
        time.sleep(GPU_SECONDS)
        stop = b"1" if rank == 0 and time.monotonic() - begin > seconds else b"0"
        for _ in names:
            stop = max(stop, passed(to, of, stop))
        steps += 1
        if (now := time.monotonic()) - last >= 1:
            show(idle / (now - last))
            idle, last = 0.0, now
    with open(CONTROL, "a", encoding="ascii") as control:
        control.write(f"work 0 - {time.time_ns() // 1000} 0 0 0 0 100000 0 0 0 0\n")
    print(f"rank {rank}: {steps} steps")


main()
