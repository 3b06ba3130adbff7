"""Time float32 all-reduces of several sizes, and print them as all_reduce_perf of nccl-tests does. A process for each rank.

nccl-tests needs a CUDA toolkit to be built, and this program needs only libnccl.so.2 and libcuda.so.1. The sums of every size are
compared with the known ones (fairlead.measure.float_sums). Started by tests.gpu.two_ranks.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from array import array

from fairlead.measure.float_sums import FLOAT32, PERIOD, SUM, UniqueId, bound, checked, meet, values, worst_error

SIZES = (8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20)
WARM_UP, TIMED = 3, 10


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    nccl, cuda = ctypes.CDLL("libnccl.so.2"), ctypes.CDLL("libcuda.so.1")
    nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
    pointers = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    nccl.ncclAllReduce.argtypes = list(pointers)
    device, context, comm, version = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
    source, target = ctypes.c_uint64(), ctypes.c_uint64()
    checked(cuda, "cuInit", 0)
    checked(cuda, "cuDeviceGet", ctypes.byref(device), 0)
    checked(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    checked(cuda, "cuCtxSetCurrent", context)
    for memory in (source, target):
        checked(cuda, "cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(SIZES[-1]))
    numbers = (values(rank) * (SIZES[-1] // 4 // PERIOD + 1))[: SIZES[-1] // 4]
    checked(cuda, "cuMemcpyHtoD_v2", source, ctypes.c_char_p(numbers.tobytes()), ctypes.c_size_t(SIZES[-1]))
    checked(nccl, "ncclGetVersion", ctypes.byref(version))
    checked(nccl, "ncclCommInitRank", ctypes.byref(comm), ranks, meet(nccl, os.environ["TWO_RANKS_MEET"], rank), rank)
    if rank == 0:
        number = version.value
        say(f"# nccl-tests version 0 nccl-headers={number} nccl-library={number}\n# Collective test starting: all_reduce_perf")
        say(
            f"# nThread 1 nGpus 1 minBytes {SIZES[0]} maxBytes {SIZES[-1]} step: 4(factor) warmup iters: {WARM_UP} iters: {TIMED}"
        )
        for each in range(ranks):
            where = f"on {os.uname().nodename:>10} device  0 [0000:00:00] one GPU"
            say(f"#  Rank {each:2d} Group  0 Pid {os.getpid() + each:6d} {where}")
    total = 0
    for size in SIZES:
        count = size // 4

        def run(times: int, count: int = count) -> float:
            began = time.monotonic()
            for _ in range(times):
                checked(nccl, "ncclAllReduce", source.value, target.value, count, FLOAT32, SUM, comm, None)
            checked(cuda, "cuCtxSynchronize")
            return (time.monotonic() - began) / times

        run(WARM_UP)
        took = run(TIMED) * 1e6
        back = ctypes.create_string_buffer(size)
        checked(cuda, "cuMemcpyDtoH_v2", back, target, ctypes.c_size_t(size))
        wrong = int(worst_error(array("f", back.raw), ranks) > bound(ranks))
        total += wrong
        if rank == 0:
            speed = size / took / 1000
            busbw = speed * 2 * (ranks - 1) / ranks
            side = f"  {took:9.2f}  {speed:6.2f}  {busbw:6.2f}  {wrong:6d}"
            say(f"{size:12d}  {count:12d}     float     sum      -1{side}")
    if rank == 0:
        say(f"# Out of bounds values : {total} {'FAILED' if total else 'OK'}\n# Avg bus bandwidth    : 0\n#")


if __name__ == "__main__":
    main()
