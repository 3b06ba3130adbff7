"""Measures all-gather over all GPUs of the node (nccl-tests). NCCL runs it as a ring, so its bus bandwidth can be compared with
the bandwidth of the links.

Source: NVIDIA/nccl-tests, README.md and doc/PERFORMANCE.md (busbw).
"""

from __future__ import annotations

from fairlead.measure import collective

tool = collective.of("all_gather", "All-gather over all GPUs of the node")
