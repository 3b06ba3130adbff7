"""Multiply matrices on one GPU until the time is over or SIGTERM comes, to put a load on it. A process of its own.

python -m tests.gpu.matrix_product PCI SECONDS [SIZE]  ->  one JSON object a line: {"running": true} at the first product, and at
the end products, flops_per_second, and whether the product is right.

The program needs only the driver's libcuda.so.1: the kernel is PTX, NVIDIA's portable machine code, which the driver compiles.
A is in rows and B in columns, both of 16 bit floating point numbers, and C = A B of 32 bit ones. Every number of row i of A is
i % 8, and every number of column j of B is j % 4. So C[i][j] must be SIZE * (i % 8) * (j % 4), which 32 bits hold exactly.
Sources: CUDA driver API reference; PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions" (wmma).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

TILE = 16  # rows and columns of one wmma tile
TILES = 4  # one warp computes TILES * TILES tiles of C
WARPS = 4  # of one block, side by side
STEP = TILE * TILES * WARPS  # SIZE must be a multiple of it
SIZE = 8192
BATCH_SECONDS = 0.2  # how long the program waits for the GPU at most before it sees SIGTERM
UNAVAILABLE = 69


class CudaError(Exception):
    """A call of the driver API failed. The text names the call and the error."""


def kernel() -> str:
    """Return the PTX text of ``product(a, b, c, size)``. It runs on every GPU from compute capability 7.0 on."""

    def fragment(name: str, tile: object) -> str:
        return "{" + ", ".join(f"%{name}{tile}_{i}" for i in range(8)) + "}"

    tiles = range(TILES)
    pairs = [(row, column) for row in tiles for column in tiles]
    inputs = [f"%{name}{tile}_{i}" for name in "ab" for tile in tiles for i in range(8)]
    sums = [f"%c{row}{column}_{i}" for row, column in pairs for i in range(8)]
    shape = "m16n16k16.global"
    bands = f"mul.lo.u32 %band, %size, {2 * TILE}; cvt.u64.u32 %next, %band;"  # bytes from one band of 16 rows to the next
    loads = [
        f"add.u64 %at, %row, %step; wmma.load.a.sync.aligned.row.{shape}.f16 {fragment('a', 0)}, [%at], %size;",
        f"add.u64 %to, %column, %step; wmma.load.b.sync.aligned.col.{shape}.f16 {fragment('b', 0)}, [%to], %size;",
    ]
    for tile in tiles[1:]:
        loads += [
            f"add.u64 %at, %at, %next; wmma.load.a.sync.aligned.row.{shape}.f16 {fragment('a', tile)}, [%at], %size;",
            f"add.u64 %to, %to, %next; wmma.load.b.sync.aligned.col.{shape}.f16 {fragment('b', tile)}, [%to], %size;",
        ]
    multiply = [
        f"wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {fragment('c', f'{row}{column}')}, {fragment('a', row)},"
        f" {fragment('b', column)}, {fragment('c', f'{row}{column}')};"
        for row, column in pairs
    ]
    store = [
        f"add.u32 %i, %y, {row * TILE}; add.u32 %j, %x, {column * TILE}; mad.lo.u32 %i, %i, %size, %j;"
        f" mul.wide.u32 %at, %i, 4; add.u64 %at, %at, %out;"
        f" wmma.store.d.sync.aligned.row.{shape}.f32 [%at], {fragment('c', f'{row}{column}')}, %size;"
        for row, column in pairs
    ]
    return "\n".join([
        ".version 6.3", ".target sm_70", ".address_size 64",
        ".visible .entry product(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 size) {",
        ".reg .pred %more; .reg .b32 %x, %y, %i, %j, %k, %size, %band, %warp;",
        ".reg .b64 %row, %column, %out, %at, %to, %next, %step;",
        f".reg .b32 {', '.join(inputs)}; .reg .f32 {', '.join(sums)};",
        "ld.param.u64 %row, [a]; ld.param.u64 %column, [b]; ld.param.u64 %out, [c]; ld.param.u32 %size, [size];",
        f"mov.u32 %warp, %tid.x; shr.u32 %warp, %warp, 5; mov.u32 %x, %ctaid.x; mad.lo.u32 %x, %x, {WARPS}, %warp;",
        f"mul.lo.u32 %x, %x, {TILES * TILE}; mov.u32 %y, %ctaid.y; mul.lo.u32 %y, %y, {TILES * TILE};",
        "mul.lo.u32 %i, %y, %size; mul.wide.u32 %at, %i, 2; add.u64 %row, %row, %at;",
        "mul.lo.u32 %i, %x, %size; mul.wide.u32 %at, %i, 2; add.u64 %column, %column, %at;",
        bands, "mov.u32 %k, 0; mov.u64 %step, 0;",
        *(f"mov.f32 {name}, 0f00000000;" for name in sums),
        "again:", *loads, *multiply,
        f"add.u64 %step, %step, {2 * TILE}; add.u32 %k, %k, {TILE}; setp.lt.u32 %more, %k, %size; @%more bra again;",
        *store, "ret;", "}", "",
    ])  # fmt: skip


class Product:
    """The matrices of one product on one GPU. ``size``: rows and columns, a multiple of STEP."""

    def __init__(self, pci: str, size: int) -> None:
        self.size = size
        self._cuda = ctypes.CDLL("libcuda.so.1")
        device, context, module, self._kernel = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGetByPCIBusId", ctypes.byref(device), pci.encode())
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._device = device
        self._call("cuCtxSetCurrent", context)
        self._call("cuModuleLoadData", ctypes.byref(module), kernel().encode())
        self._call("cuModuleGetFunction", ctypes.byref(self._kernel), module, b"product")
        rows = b"".join(struct.pack("<e", i % 8) * size for i in range(8)) * (size // 8)
        columns = b"".join(struct.pack("<e", j % 4) * size for j in range(4)) * (size // 4)
        self._a, self._b = self._copied(rows), self._copied(columns)
        self._c = self._reserved(4 * size * size)

    def launch(self) -> None:
        """Start one product. The GPU computes it after those started before."""
        values = (self._a, self._b, self._c, ctypes.c_uint(self.size))
        arguments = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        columns, rows = self.size // STEP, self.size // (TILE * TILES)
        self._call("cuLaunchKernel", self._kernel, columns, rows, 1, 32 * WARPS, 1, 1, 0, None, arguments, None)

    def wait(self) -> None:
        """Wait until the GPU has computed all products."""
        self._call("cuCtxSynchronize")

    def is_right(self) -> bool:
        """Compare 19 rows of C with what they must be. They are spread over C and begin with each number that A has."""
        for row in sorted({*range(8), *(n * (self.size // 8) + n for n in range(8)), *range(self.size - 4, self.size)}):
            found, length = ctypes.create_string_buffer(4 * self.size), ctypes.c_size_t(4 * self.size)
            self._call("cuMemcpyDtoH_v2", found, ctypes.c_ulonglong(self._c.value + length.value * row), length)
            wanted = b"".join(struct.pack("<f", self.size * (row % 8) * j) for j in range(4)) * (self.size // 4)
            if found.raw != wanted:
                return False
        return True

    def close(self) -> None:
        """Release the GPU."""
        self._call("cuDevicePrimaryCtxRelease_v2", self._device)

    def _reserved(self, size: int) -> ctypes.c_ulonglong:
        pointer = ctypes.c_ulonglong()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer

    def _copied(self, content: bytes) -> ctypes.c_ulonglong:
        pointer = self._reserved(len(content))
        self._call("cuMemcpyHtoD_v2", pointer, content, ctypes.c_size_t(len(content)))
        return pointer

    def _call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._cuda, name)(*arguments):
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(f"{name} answers {(text.value or b'error').decode()} ({code})")


def multiply(product: Product, seconds: float, ended: Callable[[], bool]) -> dict[str, Any]:
    """Multiply until ``seconds`` are over or ``ended()``. Return their number, the rate, and whether C is right."""
    product.launch()
    product.wait()
    print(json.dumps({"running": True}), flush=True)
    start = time.monotonic()
    count, batch = 0, 1
    while (now := time.monotonic()) < start + seconds and not ended():
        for _ in range(batch):
            product.launch()
        product.wait()
        count += batch
        batch = max(1, min(1000, int(batch * BATCH_SECONDS / max(1e-6, time.monotonic() - now))))
    spent = max(1e-6, time.monotonic() - start)
    rate = 2 * product.size**3 * count / spent
    return {"products": count, "seconds": round(spent, 3), "flops_per_second": rate, "right": product.is_right()}


def main(pci: str, seconds: float, size: int = SIZE) -> int:
    """Print the two objects, or one line of error on stderr. Return 69 if there is no libcuda.so.1, 1 if a call fails."""
    if size % STEP:
        print(f"matrix_product: {size} is not a multiple of {STEP}", file=sys.stderr)
        return 64
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # the GPU is named by its address
    ends: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ends.append(number))
    try:
        product = Product(pci, size)
        found = multiply(product, seconds, lambda: bool(ends))
        product.close()
    except (CudaError, OSError, AttributeError) as e:
        print(f"matrix_product: {e}", file=sys.stderr)
        return 1 if isinstance(e, CudaError) else UNAVAILABLE
    print(json.dumps(found), flush=True)
    return 0 if found["right"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), *map(int, sys.argv[3:])))
