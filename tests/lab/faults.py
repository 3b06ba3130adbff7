"""Break the simulated GPUs of a node while its daemons run: lines of the library's append-only control file.

Every process that has the library loaded sees a new line within a millisecond of its next call. `call` is the name of
a library function; without its version (`nvmlDeviceGetMemoryInfo`) it means every version, and `*` means all calls.
Command line: `python -m tests.lab.faults CONTROL VERB [ARGUMENT ...]`, for example `... lost 3`.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import time
from pathlib import Path
from typing import NamedTuple

DEFAULT_CONTROL = Path("/etc/fairlead-sim/nvml.control")


class Load(NamedTuple):
    """What a GPU does while a load is on: percent of time, watts, and bytes per second in each direction."""

    percent: int
    sm_percent: int
    tensor_percent: int
    dram_percent: int
    watts: int
    pcie_bytes: int
    nvlink_bytes: int


#: "fake": a script that keeps a kernel on one SM, so that the utilisation is 100 % although nothing is computed.
LOADS = {
    "idle": Load(0, 0, 0, 0, 100, 0, 0),
    "busy": Load(100, 80, 40, 50, 600, 1_000_000_000, 100_000_000_000),
    "fake": Load(100, 1, 0, 0, 120, 0, 0),
}


class Faults:
    """Writes to one node's control file. Raises ValueError for what the library would not understand."""

    def __init__(self, control: Path | str = DEFAULT_CONTROL) -> None:
        self.control = Path(control)

    def set(self, gpu: int, key: str, value: int | str | dict[str, int]) -> None:
        """Give a key of nvml.json, as `ecc.volatile_corrected`, another value; `{"error": 999}` makes it unreadable."""
        text = f"error {_whole(value['error'])}" if isinstance(value, dict) else str(value)
        self._write("set", f"gpu.{_whole(gpu)}.{_word(key)}", _line(text))

    def system(self, key: str, value: str) -> None:
        """Give a key of nvml.json that is no GPU's, as `driver_version`, another value."""
        self._write("set", _word(key), _line(value))

    def step(self, gpu: int, key: str, by: int = 1) -> None:
        """Add to a counter."""
        self._write("step", f"gpu.{_whole(gpu)}.{_word(key)}", str(int(by)))

    def work(  # noqa: PLR0917
        self,
        gpu: int,
        load: str | Load = "busy",
        on_milliseconds: int = 0,
        period_milliseconds: int = 0,
        gi: int | None = None,
        since_microseconds: int = 0,
    ) -> None:
        """The GPU, or its GPU instance `gi`, does this (of LOADS) from now on: all the time, or a part of each period.

        since_microseconds: from another time on, of Unix time by the node's own clock. It may lie ahead.
        """
        does = LOADS[load] if isinstance(load, str) else load
        whose = "-" if gi is None else _whole(gi)
        times = (on_milliseconds * 1000, period_milliseconds * 1000)
        since = since_microseconds or _now_microseconds()
        self._write("work", _whole(gpu), whose, *map(_whole, (since, *does._replace(watts=does.watts * 1000), *times)))

    def reload(self, gpu: int | None = None) -> None:
        """The driver is loaded again now: its counters of energy and bytes begin at 0, and its buffer of samples is empty."""
        self._write("reload", _gpu(gpu), _whole(_now_microseconds()))

    def lost(self, gpu: int) -> None:
        """The GPU fell off the bus: its handle remains, all calls but its identity answer GPU_IS_LOST (15)."""
        self._write("lost", _whole(gpu))

    def handle_lost(self, gpu: int) -> None:
        """As `lost`, and a new process does not even get its handle."""
        self._write("handle-lost", _whole(gpu))

    def error(self, gpu: int | None, call: str, code: int) -> None:
        """The call returns this code, on one GPU or (None) on all and for calls without a GPU. 0 takes it back."""
        self._write("error", _call(call), _whole(code), _gpu(gpu))

    def delay(self, call: str, milliseconds: int, gpu: int | None = None) -> None:
        """The call takes this much longer. 0 takes it back."""
        self._write("delay", _call(call), _whole(milliseconds), _gpu(gpu))

    def hang(self, call: str, gpu: int | None = None) -> None:
        """The call does not return until `lift` (an interruptible sleep: SIGKILL ends it)."""
        self._write("hang", _call(call), _gpu(gpu))

    def dstate(self, call: str, path: Path | str, gpu: int | None = None) -> None:
        """The call writes to `path`. On a frozen file system that is a true D state, which only thawing ends."""
        self._write("dstate", _call(call), _word(str(path)), _gpu(gpu))

    def lift(self) -> None:
        """End all hangs, and let no further call go into D state."""
        self._write("lift")

    def crash(self, call: str, gpu: int | None = None) -> None:
        """The process that makes the call aborts in it."""
        self._write("crash", _call(call), _gpu(gpu))

    def xid(self, gpu: int, code: int) -> None:
        """An Xid event for nvmlEventSetWait (the kernel log is another matter: see the lab's kernel records)."""
        self._write("xid", _whole(gpu), _whole(code))

    def clear(self) -> None:
        """Take back every fault and every changed value, setters' too: the machine as its tree describes it."""
        self._write("clear")

    def _write(self, *words: str) -> None:
        line = (" ".join(words) + "\n").encode()
        descriptor = os.open(self.control, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.write(descriptor, line) != len(line):
                raise OSError(f"{self.control}: no room for a fault")
        finally:
            os.close(descriptor)


def _now_microseconds() -> int:
    return time.time_ns() // 1000


def _line(text: str) -> str:
    if "\n" in text or not text:
        raise ValueError(f"{text!r}: must be one line that is not empty")
    return text


def _word(text: str) -> str:
    if not re.fullmatch(r"\S+", text):
        raise ValueError(f"{text!r}: must be one word")
    return text


def _call(name: str) -> str:
    if name != "*" and not re.fullmatch(r"nvml\w+", name):
        raise ValueError(f"{name!r}: not the name of a library function")
    return name


def _whole(number: int) -> str:
    if int(number) < 0:
        raise ValueError(f"{number}: must not be negative")
    return str(int(number))


def _gpu(gpu: int | None) -> str:
    return "*" if gpu is None else _whole(gpu)


def main(arguments: list[str]) -> int:
    """Run one fault from the command line; 64 for usage."""
    verbs = {name.replace("_", "-"): name for name in vars(Faults) if not name.startswith("_")}
    if len(arguments) < 2 or arguments[1] not in verbs:
        print("usage: faults CONTROL VERB [ARGUMENT ...]\n\nCONTROL is sim/nvml.control of the node. The verbs:", file=sys.stderr)
        for verb, name in sorted(verbs.items()):
            words = list(inspect.signature(getattr(Faults, name)).parameters)[1:]
            print(f"  {' '.join((verb, *(word.upper() for word in words)))}", file=sys.stderr)
        return 64
    method = getattr(Faults(arguments[0]), verbs[arguments[1]])
    kinds = [parameter.annotation for parameter in inspect.signature(method).parameters.values()]
    try:
        values = [_argument(word, kind) for word, kind in zip(arguments[2:], kinds, strict=False)]
        if len(arguments) - 2 > len(kinds):
            raise ValueError(f"{arguments[1]} takes no more than {len(kinds)} arguments")
        method(*values)
    except (ValueError, TypeError) as problem:
        print(f"faults: {arguments[1]}: {problem}", file=sys.stderr)
        return 64
    return 0


def _argument(word: str, kind: str) -> int | str | dict[str, int] | None:
    if kind.startswith("int | None"):
        return None if word in ("*", "-") else int(word)
    if kind == "int":
        return int(word)
    if "dict" in kind and word.startswith("error:"):
        return {"error": int(word.removeprefix("error:"))}
    return word


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
