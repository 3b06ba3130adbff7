"""Measure every NVML call that the agent's worker makes: how long it takes and what it answers. A process of its own.

python -m tests.gpu.calls SESSIONS SWEEPS  ->  one JSON object: "sweeps" with the seconds of each, "calls", "fields", "answers".

The worker's own session makes the calls, through a library object that times each one. Each session attaches to NVML anew and so
makes the calls of once an hour and once a minute too; its further sweeps are thorough ones.
"""

from __future__ import annotations

import ctypes
import json
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

import pynvml

from fairlead.host.nvml_worker import Session
from fairlead.host.redact import Redactor

NUMBERS = (ctypes.c_uint, ctypes.c_int)
ENTRY = struct.Struct("<II16xIIQ")  # nvmlFieldValue_t without timestamp and latency


class TimedLibrary:
    """The library, with a record of each call: its answers and their times in seconds."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.calls: dict[str, dict[int, list[float]]] = {}
        self.fields: dict[str, int] = {}

    def __getattr__(self, name: str) -> Callable[..., int]:
        function = getattr(self._library, name)

        def call(*arguments: Any) -> int:
            before = time.perf_counter()
            code = int(function(*arguments))
            seconds = time.perf_counter() - before
            self.calls.setdefault(name + scalars(arguments), {}).setdefault(code, []).append(seconds)
            if name == "nvmlDeviceGetFieldValues" and not code:
                self.fields |= {f"{field}/{scope}": answer for field, scope, _, answer, _ in ENTRY.iter_unpack(arguments[2])}
            return code

        setattr(self, name, call)
        return call


def scalars(arguments: tuple[Any, ...]) -> str:
    """Return the numbers of a call's arguments, which say what is asked: "(1)" for one kind of clock."""
    found = [str(a.value if isinstance(a, NUMBERS) else a) for a in arguments if isinstance(a, (*NUMBERS, int))]
    return f"({', '.join(found)})" if found else ""


def measured(sessions: int, sweeps: int) -> dict[str, Any]:
    """Make the sweeps, and return what the module's text describes."""
    library = pynvml.nvmlLib = TimedLibrary(ctypes.CDLL("libnvidia-ml.so.1"))
    seconds: dict[str, list[float]] = {"first": [], "thorough": [], "usual": []}
    answers: dict[str, Any] = {}
    for _ in range(sessions):
        pynvml._nvmlGetFunctionPointer_cache.clear()
        session = Session(lambda call, pci: None)
        for number in range(2 * sweeps + 1):
            kind = "first" if not number else "thorough" if number <= sweeps else "usual"
            before = time.perf_counter()
            answers = session.sweep(closely=kind != "usual")
            seconds[kind].append(time.perf_counter() - before)
        session.release()
    calls = {
        name: {str(code): {"count": len(times), "median": median(times), "longest": max(times)} for code, times in codes.items()}
        for name, codes in sorted(library.calls.items())
    }
    return {"sweeps": seconds, "calls": calls, "fields": library.fields, "answers": Redactor(answers).value(answers)}


def median(numbers: list[float]) -> float:
    """Return the middle one of the numbers, or the upper one of two."""
    return sorted(numbers)[len(numbers) // 2]


if __name__ == "__main__":
    json.dump(measured(int(sys.argv[1]), int(sys.argv[2])), sys.stdout)
