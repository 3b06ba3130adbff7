"""What the NVML worker and its parent agree on: the shared page and the frames."""

from __future__ import annotations

import struct

# number, CLOCK_MONOTONIC seconds, call, PCI address. An empty call: nothing is being called.
BEAT = struct.Struct("<Qd48s24s")
# length of the payload, kind: S snapshot, R result of ``set``
FRAME = struct.Struct("<IB")
FRAME_MAX_BYTES = 8 << 20
