"""Measures all-reduce over all GPUs of the node (nccl-tests), which data-parallel training waits for. NCCL uses NVLS for it if
the NVSwitches can do so.

Source: NVIDIA/nccl-tests, README.md and doc/PERFORMANCE.md (busbw).
"""

from __future__ import annotations

from fairlead.measure import collective

tool = collective.of("all_reduce", "All-reduce over all GPUs of the node")
