"""Measures reduce-scatter over all GPUs of the node (nccl-tests). It is a ring, whose figure can be compared with the wire.

Source: NVIDIA/nccl-tests, README.md and doc/PERFORMANCE.md (busbw).
"""

from __future__ import annotations

from fairlead.measure import collective

tool = collective.of("reduce_scatter", "Reduce-scatter over all GPUs of the node")
