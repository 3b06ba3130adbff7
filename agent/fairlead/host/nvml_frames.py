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


class Told:
    """What the parent has been told. Of a GPU with some forty parts a few say something new from one second to the next."""

    def __init__(self) -> None:
        self._rest: Json = {}
        self._gpus: list[Json] = []

    def frame(self, snapshot: Json) -> tuple[bytes, Json]:
        """Kind and payload of the frame for a snapshot: S, all of it, where other GPUs are listed or other things are said of
        them; else D, ``{"gpus": {POSITION: {PART: VALUE}}}`` of what has changed."""
        rest = {key: value for key, value in snapshot.items() if key != "gpus"}
        entries = snapshot.get("gpus", [])
        news: dict[str, Json] = {}
        alike = rest == self._rest and len(entries) == len(self._gpus) > 0
        for position, (entry, known) in enumerate(zip(entries, self._gpus, strict=True)) if alike else ():
            if entry.keys() != known.keys():
                alike = False
                break
            if changed := {part: value for part, value in entry.items() if value != known[part]}:
                news[str(position)] = changed
                known.update({part: _copy(value) for part, value in changed.items()})
        if alike:
            return b"D", {"gpus": news}
        self._rest, self._gpus = rest, [{part: _copy(value) for part, value in entry.items()} for entry in entries]
        return b"S", snapshot


def _copy(part: Any) -> Any:
    """Of a part that is filled in again and again: what it holds is only replaced."""
    if isinstance(part, list):
        return [dict(each) if isinstance(each, dict) else each for each in part]
    return dict(part) if isinstance(part, dict) else part


def after(told: Json, news: Json) -> Json:
    """The snapshot that frame D means after the snapshot ``told``; what has not changed are the very same objects.

    Raises LookupError, TypeError, ValueError, AttributeError for what no worker says after that snapshot.
    """
    gpus = list(told["gpus"])
    for position, parts in news["gpus"].items():
        gpus[int(position)] = {**gpus[int(position)], **parts}
    return {**told, "gpus": gpus}
