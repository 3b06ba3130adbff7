"""Makes one float32 all-reduce with NCCL and compares every sum with the known one. It runs as one process for each rank:

    srun -n 16 python3 -I float_sums.py FOLDER

FOLDER is shared by the nodes and new for each launch. The ranks meet there. Each rank prints one line with the largest error of
its sums and with the largest error that rounding can explain. The program uses libnccl.so.2, libcuda.so.1 and only Python's
standard library, so that it runs in a container too. Sources: nccl.h (2.30.7); CUDA driver API reference; Higham, Accuracy and
Stability of Numerical Algorithms, 4.2 (the bound).
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import time
from array import array

COUNT = (1 << 20) + 13  # 4 MiB and a few numbers more, so that no rank gets an even part
PERIOD = 1021
MEET_SECONDS = 120.0
FLOAT32, SUM = 7, 0  # nccl.h: ncclFloat32, ncclSum
UNIT_ROUNDOFF = 2.0**-24


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * 128),)


def values(rank: int) -> array[float]:
    """Return the numbers of a rank that repeat: between -1 and 1, as 32 bit numbers."""
    return array("f", [((i * 7919 + rank * 104_729 + 1) % 2_000_003) / 1_000_001.5 - 1 for i in range(PERIOD)])


def known(ranks: int) -> tuple[list[float], list[float]]:
    """Return the exact sums over all ranks, and the sums of the absolute values."""
    columns = list(zip(*(values(rank) for rank in range(ranks)), strict=True))
    return [math.fsum(column) for column in columns], [math.fsum(map(abs, column)) for column in columns]


def worst_error(found: array[float], ranks: int) -> float:
    """Return the largest error as a part of the sum of the absolute values. A number that is not finite gives infinity."""
    sums, sizes = known(ranks)
    errors = (abs(value - sums[i % PERIOD]) / sizes[i % PERIOD] for i, value in enumerate(found))
    return max(error if error == error else math.inf for error in errors)  # noqa: PLR0124  # NaN is not equal to itself


def bound(ranks: int) -> float:
    """Return the largest error that additions in any order can have. Each of them rounds once."""
    return ranks * UNIT_ROUNDOFF


def number(*names: str) -> int:
    for name in names:
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return 0


def checked(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    """Call a function of NCCL or of CUDA. End the program if it fails."""
    code = getattr(library, name)(*arguments)
    if code:
        sys.exit(f"fairlead sums: {name} returned {code}")


def meet(nccl: ctypes.CDLL, folder: str, rank: int) -> UniqueId:
    """Return the id of the communicator, which rank 0 makes and the others read."""
    unique, path = UniqueId(), os.path.join(folder, "id")
    if rank == 0:
        os.makedirs(folder, exist_ok=True)
        checked(nccl, "ncclGetUniqueId", ctypes.byref(unique))
        with open(path + ".new", "wb") as file:
            file.write(bytes(unique))
        os.rename(path + ".new", path)
        return unique
    deadline = time.monotonic() + MEET_SECONDS
    while time.monotonic() < deadline:
        try:
            with open(path, "rb") as file:
                return UniqueId.from_buffer_copy(file.read())
        except (OSError, ValueError):
            time.sleep(0.05)
    sys.exit(f"fairlead sums: rank {rank} found no {path}: do the nodes share this folder?")


def main() -> None:
    rank, ranks = (
        number("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "RANK"),
        number("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "WORLD_SIZE"),
    )
    ranks = number("SLURM_STEP_NUM_TASKS") or max(1, ranks)
    nccl, cuda = ctypes.CDLL("libnccl.so.2"), ctypes.CDLL("libcuda.so.1")
    nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
    nccl.ncclAllReduce.argtypes = [
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    ]
    devices, device, context, memory, comm = (
        ctypes.c_int(),
        ctypes.c_int(),
        ctypes.c_void_p(),
        ctypes.c_uint64(),
        ctypes.c_void_p(),
    )
    checked(cuda, "cuInit", 0)
    checked(cuda, "cuDeviceGetCount", ctypes.byref(devices))
    local = number("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK") % max(1, devices.value)
    checked(cuda, "cuDeviceGet", ctypes.byref(device), local)
    checked(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    checked(cuda, "cuCtxSetCurrent", context)
    numbers = (values(rank) * (COUNT // PERIOD + 1))[:COUNT]
    size = ctypes.c_size_t(4 * COUNT)
    checked(cuda, "cuMemAlloc_v2", ctypes.byref(memory), size)
    checked(cuda, "cuMemcpyHtoD_v2", memory, ctypes.c_char_p(numbers.tobytes()), size)
    checked(nccl, "ncclCommInitRank", ctypes.byref(comm), ranks, meet(nccl, sys.argv[1], rank), rank)
    checked(nccl, "ncclAllReduce", memory.value, memory.value, COUNT, FLOAT32, SUM, comm, None)
    checked(cuda, "cuCtxSynchronize")
    back = ctypes.create_string_buffer(4 * COUNT)
    checked(cuda, "cuMemcpyDtoH_v2", back, memory, size)
    error = worst_error(array("f", back.raw), ranks)
    sys.stdout.write(f"fairlead sums: rank {rank} of {ranks}: worst {error:.6g} bound {bound(ranks):.6g}\n")


if __name__ == "__main__":
    main()
