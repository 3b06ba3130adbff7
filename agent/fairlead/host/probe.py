"""Runs commands that may never end, each in a separate process: statfs of a mount, systemd's list of units.

The process inherits none of the agent's descriptors and writes its output into memory, so it blocks nobody if it hangs. A
process that hangs may be in state D, where it cannot even be killed. The next sweeps wait for this process, and do not start a
second one.

A mount is read by ``stat -f``, which calls only statfs(2). Its path is taken in PID 1's view of the file system, because the
agent's own view has no /home (ProtectHome in its unit). One call of ``systemctl list-units`` reads all units.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress

from msgspec.structs import replace

from fairlead.model.facts import Missing, unreadable
from fairlead.model.host_facts import Space, UnitState

_STAT = ("stat", "-f", "-c", "%S %b %a %c %d")
_UNITS = ("systemctl", "list-units", "--all", "--full", "--plain", "--no-legend", "--no-pager")
_INIT = "/proc/1/root"
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_OUTPUT_MAX_BYTES = 1 << 20
_END_SECONDS = 0.2
_STALE_SECONDS = 60.0  # an older answer is not used; systemctl gives up after 25 s (sd_bus_set_method_call_timeout(3))


class Question:
    """Runs one command again and again. ``answer``: the output of the last run that ended, Missing if that run failed, or None
    if no run has ended."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._output = -1
        self._asked = 0.0
        self.answer: str | Missing | None = None

    def ask(self) -> None:
        """Start the command, unless its last run has not ended."""
        if self._process is not None:
            return
        self._asked = time.monotonic()
        try:
            self._output = os.memfd_create("fairlead-probe")
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                cwd="/",
                env={"PATH": _PATH, "LC_ALL": "C"},
            )
        except OSError as e:
            self._close()
            self.answer = unreadable(f"{self._command[0]}: {e.strerror or e}")

    def waiting_seconds(self) -> float:
        """Store the answer if the command has ended. Return for how many seconds the command has run, or 0 if it does not
        run."""
        if self._process is None:
            return 0.0
        code = self._process.poll()
        if code is None:
            return max(time.monotonic() - self._asked, 0.001)
        text = os.pread(self._output, _OUTPUT_MAX_BYTES, 0).decode("utf-8", "replace")
        said = " ".join(text.split())[:200]
        self.answer = text if code == 0 else unreadable(f"{self._command[0]} ended with {code}: {said}")
        self._close()
        return 0.0

    def _close(self) -> None:
        if self._output >= 0:
            os.close(self._output)
        self._output, self._process = -1, None

    def end(self) -> None:
        """Kill the process and wait for its end for a moment. A process in state D ends later, and nobody waits for its end."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
            self._close()


class Probes:
    """Holds all questions of one machine. ``first_wait_seconds``: how long ``wait_once`` waits for the first answers. Nobody
    waits for later answers."""

    def __init__(self, mounts: tuple[str, ...], *, units: bool, first_wait_seconds: float) -> None:
        inside = _INIT if os.access(_INIT + "/", os.X_OK) else ""
        self._mounts = {path: Question((*_STAT, "--", inside + path)) for path in mounts}
        self._units = Question(_UNITS) if units else None
        self._wait_seconds = first_wait_seconds

    @property
    def _questions(self) -> list[Question]:
        return [*self._mounts.values(), *([self._units] if self._units else [])]

    def ask(self) -> None:
        for question in self._questions:
            question.waiting_seconds()
            question.ask()

    def wait_once(self) -> None:
        """Wait, in the first call only, until every question has an answer or ``first_wait_seconds`` have passed."""
        until = time.monotonic() + self._wait_seconds
        self._wait_seconds = 0.0
        while any(q.waiting_seconds() and q.answer is None for q in self._questions) and time.monotonic() < until:
            time.sleep(0.005)

    def spaces(self) -> tuple[Space, ...]:
        """Return for each mount the last answer, and for how long the next answer has not come."""
        return tuple(_space(path, q) for path, q in self._mounts.items())

    def units(self) -> tuple[UnitState, ...] | Missing:
        if self._units is None:
            return ()
        waited = self._units.waiting_seconds()
        answer = self._units.answer
        if answer is None or waited >= _STALE_SECONDS:
            return unreadable(f"systemctl has not answered for {waited:.0f} s")
        return answer if isinstance(answer, Missing) else parse_units(answer)

    def end(self) -> None:
        for question in self._questions:
            question.end()


def _space(path: str, question: Question) -> Space:
    waited = question.waiting_seconds()
    answer = question.answer
    if isinstance(answer, str):
        numbers = answer.split()
        if len(numbers) == 5 and all(n.isdigit() for n in numbers):
            size, total, available, inodes, free = map(int, numbers)
            return Space(
                path=path,
                total_bytes=total * size,
                available_bytes=available * size,
                total_inodes=inodes,
                free_inodes=free,
                waiting_seconds=waited,
            )
        answer = unreadable(f"stat: {' '.join(numbers)[:100]!r}")
    if answer is not None:
        return replace(unanswered(path, answer, waited), failed=answer.detail if " ended with " in answer.detail else "")
    return unanswered(path, unreadable(f"no answer for {waited:.0f} s"), waited)


def unanswered(path: str, why: Missing, waited_seconds: float = 0.0) -> Space:
    """Return the Space of a mount without an answer. Its values are Missing, with the reason ``why``."""
    return Space(
        path=path, total_bytes=why, available_bytes=why, total_inodes=why, free_inodes=why, waiting_seconds=waited_seconds
    )


def parse_units(text: str) -> tuple[UnitState, ...]:
    """Return UNIT, LOAD, ACTIVE and SUB of each line. Descriptions are not read."""
    lines = (line.split(None, 4) for line in text.splitlines())
    return tuple(UnitState(name=w[0], load=w[1], active=w[2], sub=w[3]) for w in lines if len(w) >= 4)
