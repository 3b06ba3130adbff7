"""The matrix product: the kernel is valid PTX for every GPU that it is for, and a wrong number is seen."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.gpu import matrix_product

PTXAS = shutil.which("ptxas")


@pytest.mark.skipif(PTXAS is None, reason="needs ptxas of the CUDA toolkit; the driver has its own compiler")
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_the_kernel_is_valid_and_needs_no_memory_for_registers(target: str, tmp_path: Path) -> None:
    (tmp_path / "kernel.ptx").write_text(matrix_product.kernel())
    words = [str(PTXAS), "-v", f"-arch={target}", str(tmp_path / "kernel.ptx"), "-o", str(tmp_path / "kernel.cubin")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "0 bytes spill stores, 0 bytes spill loads" in done.stderr


def test_the_kernel_writes_each_tile_of_a_warp_once() -> None:
    text = matrix_product.kernel()
    assert text.count("wmma.mma") == text.count("wmma.store") == matrix_product.TILES**2
    assert text.count("wmma.load.a") == text.count("wmma.load.b") == matrix_product.TILES
