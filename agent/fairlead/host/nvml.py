"""Controls the NVML worker, a child process that calls NVML.

The parent requests sweeps from the worker. It never waits longer than the deadline, and never loads NVML itself.

A call that hangs leaves the worker in a state that perhaps not even SIGKILL ends (D: the driver sleeps uninterruptibly). So a
late worker is reported with the call that hangs, and a new worker is started only after the old one has ended.

An answer that comes late is used like any other. So a worker that hangs is left alone for ``KILL_SECONDS``. Then it is killed,
because the fault may be in the worker process. After ``hurry()`` it is killed sooner. To start a worker costs as much as fifty
sweeps. So after two workers in a row have died, a pause precedes each further start (``BACKOFF_SECONDS``).
"""

from __future__ import annotations

import errno
import mmap
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

import msgspec

from fairlead.errors import HostError
from fairlead.host.gpu_reader import return_text
from fairlead.host.nvml_frames import BEAT, FRAME, FRAME_MAX_BYTES, after
from fairlead.model.facts import Missing, StuckCall, unreadable
from fairlead.model.json_text import NOT_JSON

KILL_SECONDS = 60.0  # nvmlInit without persistence mode initialises every GPU, and even that takes less time
KILL_FACTOR = 3  # after ``hurry()``, a worker is killed if it has not answered for this many deadlines
BACKOFF_SECONDS = (0.0, 60.0)  # the pause before a worker is started: after the first death, after each further death in a row
_QUIT_SECONDS = 2.0
_READ_BYTES = 65536  # what a pipe holds (pipe(7))
_PACKAGE_PARENT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# With -I neither the environment nor the current folder can replace the worker's modules.
_START = "import sys; sys.path.insert(0, sys.argv[1]); from fairlead.host.nvml_worker import main; main(int(sys.argv[2]))"


class NvmlResult(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the result of one sweep. ``raw``: the answers in nvml.json form. ``stuck``: the call that has not returned.
    ``age_seconds``: the time since the worker got the request."""

    raw: dict[str, Any] | Missing
    closely: bool = True  # False if the sweep was requested without ``closely``, so that some values are older
    stuck: StuckCall | None = None
    age_seconds: float = 0.0


class Worker:
    """Owns the worker process.

    ``sweep()`` blocks. In an event loop, call ``start_sweep()``, wait until ``fileno()`` is readable or ``next_poll()`` has
    come, and then call ``poll()``, which returns the result once.
    """

    def __init__(self, deadline_seconds: float = 5.0, *, kill_after_seconds: float | None = None) -> None:
        self.deadline_seconds = deadline_seconds
        usual = max(KILL_SECONDS, KILL_FACTOR * deadline_seconds)
        self.kill_after_seconds = usual if kill_after_seconds is None else kill_after_seconds
        self.crashes = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._page: mmap.mmap | None = None
        self._buffer = bytearray()
        self._asked_at: float | None = None  # the time of the request that ``poll()`` has not answered yet
        self._sent_at: float | None = None  # the time when the worker got a request that it has not answered yet
        self._killed = self._released = self._closely = self._sent_closely = self._hurried = False
        self._stale = False  # True when the outstanding answer was already reported as late
        self._failures = 0
        self._not_before = 0.0
        self._why_down = unreadable("the NVML worker has not started")
        self._last_crash: StuckCall | None = None  # the call that the last worker died in, until a sweep is answered
        self._crashing_since: float | None = None
        self._hung: StuckCall | None = None  # the call that the last worker was killed in, until a sweep is answered
        self._hung_since = 0.0
        self._codes: list[int] = []
        self._result: NvmlResult | None = None
        self._last_snapshot: dict[str, Any] = {}  # the last snapshot of this worker

    # -- sweeps --

    def sweep(self) -> NvmlResult:
        """Return the result of one sweep within the deadline, even if the driver hangs."""
        self.start_sweep(closely=True)
        while (result := self.poll()) is None:
            self._wait(max(0.0, self.next_poll() - time.monotonic()))
        return result

    def start_sweep(self, *, closely: bool = False) -> None:
        """Request a sweep. If a sweep is under way already, ``poll()`` returns the result of that sweep. closely: the sweep also
        reads the values that are not judged in every sweep."""
        self._closely = closely
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            self._result = None
            self._advance()

    def poll(self) -> NvmlResult | None:
        """Return the result of the requested sweep once, or None while there is no result. Never blocks."""
        self._advance()
        result, self._result = self._result, None
        return result

    def fileno(self) -> int:
        """Return a descriptor that is readable when ``poll()`` may have a result, or -1 when there is no worker. A new worker
        has another descriptor."""
        process = self._process
        return -1 if process is None or process.stdout is None else process.stdout.fileno()

    def next_poll(self) -> float:
        """Return the CLOCK_MONOTONIC seconds at which ``poll()`` has to be called at the latest, or inf when no sweep is
        wanted."""
        if self._asked_at is None:
            return float("inf")
        return self._asked_at + self.deadline_seconds

    def hurry(self) -> None:
        """Start the next worker without a pause, and kill a worker that hangs sooner. This is called when something has changed,
        or when a person waits for an answer."""
        self._not_before, self._hurried = 0.0, True

    @property
    def released(self) -> bool:
        """Say whether NVML is released until ``reattach()``."""
        return self._released

    @property
    def pid(self) -> int | None:
        """Return the worker's process id, or None when there is no worker."""
        return None if self._process is None else self._process.pid

    # -- changes and release --

    def set(self, pci: str, what: str, value: int | str, *, deadline_seconds: float = 10.0) -> None:
        """Set ``what`` of the GPU at ``pci`` (``model.change.Nvml``).

        Raises HostError when NVML refuses, or does not answer in time.
        """
        end = time.monotonic() + deadline_seconds
        if self._released:
            raise HostError(f"{pci}: cannot set {what}: NVML is released")
        if self._process is None:
            self._start(time.monotonic())
        self._codes.clear()
        if not self._send(f"set {pci} {what} {value}\n"):
            raise HostError(f"{pci}: cannot set {what}: {self._why_down.detail}")
        while not self._codes:
            remaining = end - time.monotonic()
            if remaining <= 0 or self._process is None:
                beat = self._beat()
                late = f"{beat[0]} has not come back" if beat else "no answer"
                why = late if self._process is not None else self._why_down.detail
                raise HostError(f"{pci}: cannot set {what}: {why} within {deadline_seconds:g} s")
            self._wait(remaining)
            self._advance()
        if self._codes[0]:
            raise HostError(f"{pci}: cannot set {what} to {value}: {return_text(self._codes[0])}")

    def release(self) -> None:
        """Release NVML, so that a GPU can be reset or the driver be exchanged. Sweeps then return Missing until
        ``reattach()``."""
        self._released = True
        self._end_process()

    def reattach(self) -> None:
        """Attach to NVML again in the next sweep."""
        self._released, self._not_before = False, 0.0

    def close(self) -> None:
        """End the worker. This does not wait for a worker that cannot be killed."""
        self._end_process()

    # -- inside --

    def _advance(self) -> None:
        """Read the worker's answers, find out whether the worker has ended or is late, and start it or send it the request."""
        now = time.monotonic()
        self._receive()
        self._reap(now)
        if self._process is not None and self._sent_at is not None and not self._killed and self._is_overdue(now):
            self._note_hang(now)
            self._killed = True
            self._process.kill()
            self._reap(now)
        if self._asked_at is None:
            return
        if self._released:
            self._answer(unreadable("NVML is let go of on request"))
            return
        if self._process is None and now >= self._not_before:
            self._start(now)
        if self._process is None:
            self._answer(self._why_down, self._why_stuck(now))
        elif self._sent_at is None and self._send("sweep closely\n" if self._closely else "sweep\n"):
            self._sent_at, self._sent_closely = now, self._closely
        elif self._stale or now - self._asked_at >= self.deadline_seconds:
            self._stale = True
            stuck = self._stuck(now)
            self._answer(unreadable(f"NVML: {stuck.call or 'no call'} has not come back for {stuck.seconds:.0f} s"), stuck)

    def _answer(self, raw: dict[str, Any] | Missing, stuck: StuckCall | None = None) -> None:
        age = 0.0 if self._sent_at is None else time.monotonic() - self._sent_at
        self._result = NvmlResult(raw=raw, closely=self._sent_closely or isinstance(raw, Missing), stuck=stuck, age_seconds=age)
        self._asked_at = None

    def _is_overdue(self, now: float) -> bool:
        beat = self._beat()
        attaching = beat is not None and beat[0].startswith("nvmlInit")
        patience = max(self.kill_after_seconds, KILL_SECONDS) if attaching else self.kill_after_seconds
        if self._hurried and not attaching:
            patience = min(patience, KILL_FACTOR * self.deadline_seconds)
        return self._sent_at is not None and now - self._sent_at >= patience

    def _stuck(self, now: float) -> StuckCall:
        """Return the call that has not returned. If an earlier worker was killed in a call, return that call until a sweep is
        answered."""
        if self._hung is not None:
            age = max(0.0, now - self._hung_since)
            return msgspec.structs.replace(self._hung, seconds=age, process_state=self._state())
        call, gpu, since = self._beat() or ("", "", self._sent_at or now)
        return StuckCall(call=call, gpu=gpu, seconds=max(0.0, now - since), process_state=self._state())

    def _note_hang(self, now: float) -> None:
        call, gpu, since = self._beat() or ("", "", self._sent_at or now)
        if self._hung is None:
            self._hung_since = since
        self._hung = StuckCall(call=call, gpu=gpu, seconds=max(0.0, now - self._hung_since), process_state=self._state())

    def _why_stuck(self, now: float) -> StuckCall | None:
        """Return the call in which the last worker died or was killed, for the time without a worker, or None if unknown."""
        if self._last_crash is None and self._hung is not None:
            return msgspec.structs.replace(self._hung, seconds=max(0.0, now - self._hung_since))
        if self._last_crash is None or self._crashing_since is None:
            return None
        return msgspec.structs.replace(self._last_crash, seconds=max(0.0, now - self._crashing_since))

    def _note_crash(self, now: float, call: str = "", gpu: str = "") -> None:
        """Record that the worker died in ``call``. "" means that it died outside of any call, or could not be started. Then
        the driver is not to blame."""
        if self._last_crash is None or self._crashing_since is None or bool(self._last_crash.call) != bool(call):
            self._crashing_since = now
        self._last_crash = StuckCall(call=call, gpu=gpu, seconds=0.0, process_state="X")

    def _beat(self) -> tuple[str, str, float] | None:
        """Return (name, PCI address of the GPU, start in CLOCK_MONOTONIC seconds) of the call that the worker makes, or None
        between calls."""
        if self._page is None:
            return None
        for _ in range(5):  # read the page again if the worker has changed it meanwhile
            number, since, call, gpu = BEAT.unpack_from(self._page, 0)
            if BEAT.unpack_from(self._page, 0)[0] == number:
                break
        name = call.rstrip(b"\0").decode("ascii", "replace")
        return (name, gpu.rstrip(b"\0").decode("ascii", "replace"), since) if name else None

    def _state(self) -> str:
        """Return the worker's state letter (proc(5), /proc/PID/stat, the first field after the name in parentheses)."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as f:
                return f.read(1024).rpartition(b")")[2].split()[0].decode("ascii", "replace")
        except (OSError, IndexError):
            return "X"

    def _start(self, now: float) -> None:
        fd = os.memfd_create("fairlead-nvml-beat", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, mmap.PAGESIZE)
            self._page = mmap.mmap(fd, mmap.PAGESIZE)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _START, _PACKAGE_PARENT, str(fd)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(fd,),
                close_fds=True,
                bufsize=0,
                cwd="/",
            )
        except OSError as e:
            self._page = None
            self._note_crash(now)
            self._down(now, unreadable(f"the NVML worker cannot be started: {e.strerror or e}"))
            return
        finally:
            os.close(fd)
        assert self._process.stdout is not None and self._process.stdin is not None  # noqa: S101  (both are PIPE)
        os.set_blocking(self._process.stdout.fileno(), False)
        os.set_blocking(self._process.stdin.fileno(), False)
        self._buffer.clear()
        self._killed = self._stale = self._hurried = False

    def _down(self, now: float, why: Missing) -> None:
        hung = self._killed and self._hung is not None  # that worker already had KILL_SECONDS, so no pause is needed
        self._why_down = why
        self._not_before = now + (0.0 if hung else BACKOFF_SECONDS[min(self._failures, len(BACKOFF_SECONDS) - 1)])
        self._failures += not hung

    def _send(self, line: str) -> bool:
        process = self._process
        if process is None or process.stdin is None or self._killed:
            return False
        try:
            os.write(process.stdin.fileno(), line.encode())
        except OSError:  # the worker is ending, and _reap will see that
            return False
        return True

    def _receive(self) -> None:
        fd = self.fileno()
        while fd >= 0:
            try:
                data = os.read(fd, _READ_BYTES)
            except OSError as e:
                if e.errno not in (errno.EAGAIN, errno.EINTR):
                    self._kill_now()
                break
            self._buffer += data
            if len(data) < _READ_BYTES:
                break  # the pipe was empty then
        while len(self._buffer) >= FRAME.size:
            size, kind = FRAME.unpack_from(self._buffer)
            if size > FRAME_MAX_BYTES:
                self._kill_now()
                break
            if len(self._buffer) < FRAME.size + size:
                break
            payload = bytes(self._buffer[FRAME.size : FRAME.size + size])
            del self._buffer[: FRAME.size + size]
            self._take_frame(kind, payload)

    def _take_frame(self, kind: int, payload: bytes) -> None:
        try:
            value = msgspec.json.decode(payload)
            value = after(self._last_snapshot, value) if kind == ord("D") else value
        except (*NOT_JSON, LookupError, TypeError, ValueError, AttributeError):
            self._kill_now()
            return
        if kind == ord("R") and isinstance(value, dict):
            self._codes.append(int(value.get("code", 999)))
        elif kind in (ord("S"), ord("D")) and isinstance(value, dict):
            self._last_snapshot, self._failures, self._stale, self._hurried = value, 0, False, False
            self._hung = self._last_crash = None
            if self._asked_at is not None and not self._killed:
                self._answer(value)
            self._sent_at = None

    def _kill_now(self) -> None:
        if self._process is not None and not self._killed:
            self._killed = True
            self._process.kill()

    def _reap(self, now: float) -> None:
        """Find out whether the worker has ended, and why."""
        process = self._process
        if process is None or process.poll() is None:
            return
        self._receive()  # read its last answer
        beat = self._beat()
        status = process.returncode
        how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        if beat is not None:
            how += f" in {beat[0]}" + (f" of {beat[1]}" if beat[1] else "")
        self._forget()
        if status == 0 and not self._killed:  # the worker ended because it has to be started again
            self._not_before = now
            self._why_down = unreadable("the NVML worker is starting again")
            return
        if not self._killed:
            self.crashes += 1
            self._note_crash(now, *(beat[:2] if beat else ()))
        self._down(now, unreadable(f"the NVML worker {how}"))
        if self._asked_at is not None and not self._released:
            self._answer(self._why_down, self._why_stuck(now))

    def _forget(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        if self._page is not None:
            self._page.close()
            self._page = None
        self._sent_at = None
        self._buffer.clear()

    def _end_process(self) -> None:
        """Ask the worker to quit, then kill it. This does not wait for a worker that cannot be killed."""
        if (process := self._process) is None:
            return
        if self._sent_at is not None or not self._send("quit\n"):
            self._kill_now()
        end = time.monotonic() + _QUIT_SECONDS
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.005)
        if process.poll() is None:
            self._kill_now()
            time.sleep(0.05)
        if process.poll() is None and self._released:
            return  # the worker is in state D: remember it, so that no second one is started
        process.returncode = process.returncode if process.returncode is not None else -signal.SIGKILL
        self._forget()

    def _wait(self, seconds: float) -> None:
        if (fd := self.fileno()) < 0:
            time.sleep(min(seconds, 0.05))
            return
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        poller.poll(min(seconds, 60.0) * 1000)
