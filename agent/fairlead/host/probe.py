"""Asks questions that may never be answered, each in a process of its own: statfs of a mount, systemd's list of units.

The process is exec'd, inherits none of our descriptors, and writes into memory, so it blocks nobody if it hangs. A process
that hangs (in state D on a dead server it cannot even be killed) is waited for over several sweeps, and never started a second
time. A mount is asked for by ``stat -f``, which is statfs(2) and nothing else, in PID 1's view of the file system: the agent's
own view has no /home (ProtectHome in its unit). systemd is asked by ``systemctl list-units``: one call for all units.
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
_STALE_SECONDS = 60.0  # an older answer does not count; systemctl itself gives up after 25 s (sd_bus_set_method_call_timeout(3))


class Question:
    """Asks one command line again and again. ``answer``: that of the last question that ended, or None before that."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._output = -1
        self._asked = 0.0
        self.answer: str | Missing | None = None

    def ask(self) -> None:
        """Ask, unless the last question still waits for its answer."""
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
        """Take the answer if there is one. Return for how many seconds the question has waited, or 0 when it does not wait."""
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
        """Kill the process and wait for it for a moment. A process in state D stays until it wakes, and nobody waits for it
        any more."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
            self._close()


class Probes:
    """Holds all questions of one machine. ``first_wait_seconds``: how long the first answers are waited for. Later ones are
    not waited for at all."""

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
        """Wait once, and within the bound, for the questions that were never answered."""
        until = time.monotonic() + self._wait_seconds
        self._wait_seconds = 0.0
        while any(q.waiting_seconds() and q.answer is None for q in self._questions) and time.monotonic() < until:
            time.sleep(0.005)

    def spaces(self) -> tuple[Space, ...]:
        """Return the last answer for each mount, and for how long the next one has been waited for."""
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
    """Return what is known of a mount that has never answered."""
    return Space(
        path=path, total_bytes=why, available_bytes=why, total_inodes=why, free_inodes=why, waiting_seconds=waited_seconds
    )


def parse_units(text: str) -> tuple[UnitState, ...]:
    """Return UNIT, LOAD, ACTIVE and SUB of each line. Descriptions are not read."""
    lines = (line.split(None, 4) for line in text.splitlines())
    return tuple(UnitState(name=w[0], load=w[1], active=w[2], sub=w[3]) for w in lines if len(w) >= 4)
