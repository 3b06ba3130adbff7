"""Defines what the NVML worker and its parent exchange: the shared page, the frames, and what need not be sent twice."""

from __future__ import annotations

import struct
from typing import Any

Json = dict[str, Any]

# number, CLOCK_MONOTONIC seconds, call, PCI address. An empty call means that no call is being made.
BEAT = struct.Struct("<Qd48s24s")
# length of the payload, kind: S snapshot, D what differs from the one before (``SentParts``), R result of ``set``
FRAME = struct.Struct("<IB")
FRAME_MAX_BYTES = 8 << 20


class SentParts:
    """Remembers what the parent has been sent. A GPU has some forty parts, and only a few change from one second to the next.

    A snapshot must not be changed after it was sent: the same object counts as the same value.
    """

    def __init__(self) -> None:
        self._rest: Json = {}
        self._gpus: list[Json] = []

    def frame(self, snapshot: Json) -> tuple[bytes, Json]:
        """Return kind and payload of the frame for a snapshot. Kind S has all of it, when other GPUs are listed or other parts
        of them are reported. Else kind D has what has changed: ``{"gpus": {POSITION: {PART: VALUE}}}``."""
        rest = {key: value for key, value in snapshot.items() if key != "gpus"}
        entries = snapshot.get("gpus", [])
        before, self._gpus = self._gpus, entries
        news: dict[str, Json] = {}
        alike = rest == self._rest and len(entries) == len(before) > 0
        for position, (entry, known) in enumerate(zip(entries, before, strict=True)) if alike else ():
            if entry is known:
                continue
            if entry.keys() != known.keys():
                alike = False
                break
            if changed := {part: value for part, value in entry.items() if value is not known[part] and value != known[part]}:
                news[str(position)] = changed
        if alike:
            return b"D", {"gpus": news}
        self._rest = rest
        return b"S", snapshot


def after(last: Json, news: Json) -> Json:
    """Return the snapshot that frame D means after the snapshot ``last``. What has not changed is the very same object.

    Raises LookupError, TypeError, ValueError or AttributeError for a frame that no worker sends after that snapshot.
    """
    gpus = list(last["gpus"])
    for position, parts in news["gpus"].items():
        gpus[int(position)] = {**gpus[int(position)], **parts}
    return {**last, "gpus": gpus}
