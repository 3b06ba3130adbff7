"""Defines how the NVML worker and its parent exchange data: by a shared page, and by frames (messages) without values that the
parent already has."""

from __future__ import annotations

import struct
from typing import Any

Json = dict[str, Any]

# The shared page: the number of the call, its start (CLOCK_MONOTONIC seconds), its name, the PCI address of the GPU. An empty
# name means that no call is being made.
BEAT = struct.Struct("<Qd48s24s")
# The head of a frame: the length of the payload, and its kind. S is a whole snapshot, D the parts that differ from the snapshot
# before (``SentParts``), R the result of ``set``.
FRAME = struct.Struct("<IB")
FRAME_MAX_BYTES = 8 << 20


class SentParts:
    """Remembers which values were sent to the parent. Of some forty parts of a GPU only a few change from second to second.

    A snapshot must not be changed after it was sent, because the same object counts as an unchanged value.
    """

    def __init__(self) -> None:
        self._rest: Json = {}
        self._gpus: list[Json] = []

    def frame(self, snapshot: Json) -> tuple[bytes, Json]:
        """Return the kind and the payload of the frame for a snapshot.

        If only values of the same parts of the same GPUs have changed, the kind is D, and the payload has the changed parts:
        ``{"gpus": {POSITION: {PART: VALUE}}}``. Otherwise the kind is S, and the payload is the whole snapshot.
        """
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
    """Return the snapshot ``last`` with the changed parts of a D frame. Unchanged parts are the same objects as in ``last``.

    Raises LookupError, TypeError, ValueError or AttributeError if ``news`` does not fit ``last``. No worker sends such a frame.
    """
    gpus = list(last["gpus"])
    for position, parts in news["gpus"].items():
        gpus[int(position)] = {**gpus[int(position)], **parts}
    return {**last, "gpus": gpus}
