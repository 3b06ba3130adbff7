"""What the NVML worker and its parent agree on: the shared page, the frames, and what need not be said twice."""

from __future__ import annotations

import struct
from typing import Any

Json = dict[str, Any]

# number, CLOCK_MONOTONIC seconds, call, PCI address. An empty call: nothing is being called.
BEAT = struct.Struct("<Qd48s24s")
# length of the payload, kind: S snapshot, D what differs from the one before (``Told``), R result of ``set``
FRAME = struct.Struct("<IB")
FRAME_MAX_BYTES = 8 << 20


class SentParts:
    """What the parent has been told. Of a GPU with some forty parts a few say something new from one second to the next. What
    it is given is not changed afterwards: what is the same object says the same."""

    def __init__(self) -> None:
        self._rest: Json = {}
        self._gpus: list[Json] = []

    def frame(self, snapshot: Json) -> tuple[bytes, Json]:
        """Kind and payload of the frame for a snapshot: S, all of it, where other GPUs are listed or other things are said of
        them; else D, ``{"gpus": {POSITION: {PART: VALUE}}}`` of what has changed."""
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
    """The snapshot that frame D means after the snapshot ``told``; what has not changed are the very same objects.

    Raises LookupError, TypeError, ValueError, AttributeError for what no worker says after that snapshot.
    """
    gpus = list(last["gpus"])
    for position, parts in news["gpus"].items():
        gpus[int(position)] = {**gpus[int(position)], **parts}
    return {**last, "gpus": gpus}
