"""Runs the return-to-service command on a drained node that has no reason to stay drained, as a child process of the agent. The
command never starts while jobs run.

Exit code 0 within the deadline is the proof that the node may be resumed. After any other result, the command is tried again
later. The loop never waits for the command: ``poll()`` notices its end. The command's process id and start time are on disk
before the command starts. If the agent is killed, the next agent reads them, and ends the processes that are left of that run
before it begins another run. A process in uninterruptible sleep (state D in /proc/PID/stat, proc(5)) cannot be ended. While
such a process is left, no other run starts.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import msgspec
from msgspec import Struct

from fairlead.host import log
from fairlead.host.atomic_file import write_atomic
from fairlead.host.bounded_disk import Direct, Storage
from fairlead.model.json_text import NOT_JSON
from fairlead.model.verdict import one_line
from fairlead.policy import Proof, Rules

FILE = "return.json"
GRACE_SECONDS = 5.0  # from SIGTERM to SIGKILL
TAIL_BYTES = 4096
SAID_MAX = 200
OUTCOMES = ("passed", "failed", "deadline", "given up")
MARK = "FAIRLEAD_RETURN"
#: The shell waits until the agent reports that the record is on disk. If memory runs out, the kernel kills the command before
#: the agent.
_START = 'read -r go || exit 0; { echo 500 >/proc/self/oom_score_adj; } 2>/dev/null; exec "$@" </dev/null'
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root"}


class Record(Struct, frozen=True, kw_only=True):
    """Describes the last run.

    drain: the reason of the drain that the command ran for. ticks: the start time of the process (/proc/PID/stat, field 22).
    ended_unix: when the run ended (Unix time), or 0.0 while it goes on. outcome: how the run ended. said: the last line of the
    command's output.
    """

    token: str
    boot_id: str
    drain: str
    pid: int = 0
    ticks: int = 0
    ended_unix: float = 0.0
    outcome: str = ""
    said: str = ""


class Proving:
    """Runs the command if a decision requires its proof (``follow()``). ``state``: the state of that proof."""

    def __init__(
        self, state_dir: str, boot_id: str, *, busy: Callable[[], bool] = lambda: False, disk: Storage | None = None
    ) -> None:
        self._disk = disk or Direct()
        self.path = os.path.join(state_dir, FILE)
        self.boot_id = boot_id
        self.busy = busy
        self.state = Proof.NONE
        self.outcomes = Counter(dict.fromkeys(OUTCOMES, 0))
        self.record: Record | None = self._load()
        self.next_unix = 0.0  # the Unix time at which the command is tried again
        self._rules = Rules()
        self._process: subprocess.Popen[bytes] | None = None
        self._reader = -1
        self._tail = b""
        self._deadline = self._killed_at = 0.0
        self._why_killed = ""
        self._not_before = 0.0
        self._left = self.record is not None and not self.record.ended_unix and self.record.boot_id == boot_id
        if self._left:
            self._end_what_was_left()

    def fileno(self) -> int:
        """Return the descriptor that is readable when the command has printed something or has ended. Return -1 if no command
        runs."""
        return self._reader

    def follow(self, wanted: bool, drain: str, rules: Rules) -> None:
        """Begin a run, let the present run continue, or end it.

        ``wanted``: True if only the proof is missing before the node is resumed. ``drain``: the reason of the present drain.
        """
        self._rules = rules
        if not wanted:
            if self._process is not None and not self._why_killed:
                self._kill("given up")
            self.state = Proof.NONE
            return
        if self.record is not None and self.record.drain != drain and self._process is None:
            self._not_before = 0.0  # an earlier failure belongs to another drain and does not count
            self.next_unix = 0.0
            self.state = Proof.NONE
        if self.state in (Proof.PASSED, Proof.RUNNING) or time.monotonic() < self._wait_until(drain):
            return
        if self._left and self._end_what_was_left():
            self.state = Proof.FAILED
            return
        if self._process is not None:
            self.state = Proof.FAILED  # a run that was given up has not ended yet
        elif not self.busy():
            self._start(drain)

    def poll(self) -> bool:
        """Check the run. Return whether ``state`` has changed."""
        before = self.state
        if self._process is not None:
            self._read()
            ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            now = time.monotonic()
            if ended is not None:
                self._after_end(self._process, now)
            elif now >= self._deadline and not self._why_killed:
                self._kill("deadline")
            elif self._why_killed and now - self._killed_at >= GRACE_SECONDS:
                self._signal(signal.SIGKILL)
                if self.state is Proof.RUNNING:
                    self.state = Proof.FAILED  # the process may never end, and the node stays drained until it ends
        return self.state is not before

    def close(self) -> None:
        """Kill a run that has not ended. The next agent runs the command again."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=1.0)
        self._close_reader()

    def account(self) -> dict[str, object]:
        """Return the command's part of status.json."""
        last = self.record
        return {
            "state": self.state.value,
            "outcome": last.outcome if last else "",
            "said": last.said if last else "",
            "ended_unix": last.ended_unix if last else 0.0,
            "next_unix": self.next_unix,
        }

    @property
    def said(self) -> str:
        """Return how the last run ended and the last line that it printed, for the log and `fairlead why`. No reason in Slurm
        contains this text."""
        last = self.record
        return f"{last.outcome}: {last.said}".rstrip(": ") if last is not None else ""

    def _wait_until(self, drain: str) -> float:
        """Return the time before which the command is not tried again, in CLOCK_MONOTONIC seconds. After a restart of the agent,
        the time is computed from the record of the last run."""
        last = self.record
        if not self._not_before and last is not None and last.ended_unix and last.drain == drain and last.outcome != "passed":
            wait = min(
                max(0.0, last.ended_unix + self._rules.return_retry_seconds - time.time()), self._rules.return_retry_seconds
            )
            if last.outcome != "given up" and wait > 0:
                self._not_before = time.monotonic() + wait
                self.next_unix = time.time() + wait
                self.state = Proof.FAILED
        return self._not_before

    def _start(self, drain: str) -> None:
        token = secrets.token_hex(8)
        reader, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reader, False)
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _START, "fairlead-return", *self._rules.return_command],
                stdin=subprocess.PIPE,
                stdout=writer,
                stderr=writer,
                cwd="/",
                env={**_ENVIRONMENT, MARK: token},
                start_new_session=True,
            )
        except (OSError, ValueError) as e:
            os.close(reader)
            os.close(writer)
            self._fail(drain, f"cannot be started: {e}")
            return
        os.close(writer)
        self._process, self._reader, self._tail = process, reader, b""
        self._why_killed, self._killed_at = "", 0.0
        self._deadline = time.monotonic() + self._rules.return_deadline_seconds
        found = _stat(process.pid)
        record = Record(token=token, boot_id=self.boot_id, drain=drain, pid=process.pid, ticks=found[3] if found else 0)
        self.state = Proof.RUNNING
        recorded = self._save(record)
        with suppress(OSError):
            if process.stdin is not None:
                if recorded:
                    process.stdin.write(b"go\n")
                process.stdin.close()
        if not recorded:  # without a record, an agent that starts after this agent was killed would start a second run
            self._kill("no record")
            return
        log.line(log.NOTICE, "return command starts", pid=process.pid)

    def _read(self) -> None:
        while self._reader >= 0:
            try:
                data = os.read(self._reader, 65536)
            except BlockingIOError:
                return
            if not data:
                self._close_reader()
                return
            self._tail = (self._tail + data)[-TAIL_BYTES:]

    def _after_end(self, process: subprocess.Popen[bytes], now: float) -> None:
        """Kill the processes that the ended command has left, and record the outcome once all have ended. Such processes must not
        run on the GPUs beside the next job."""
        self._signal(signal.SIGKILL)  # the process id still belongs to the command, because the command is not reaped yet
        if left := _session(process.pid):
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if now < max(self._deadline, self._killed_at + GRACE_SECONDS):
                return
            self.state = Proof.FAILED
            if self._why_killed:
                return  # the loop already knows that this run has failed or was given up
            self._why_killed = f"left process {left[0]}, which does not end"
            return
        code = process.wait()
        self._read()
        self._close_reader()
        self._process = None
        drain = self.record.drain if self.record else ""
        if self._why_killed == "given up":
            self._note("given up", drain)
            self.state = Proof.NONE
        elif code == 0 and not self._why_killed:
            self._note("passed", drain)
            self.state = Proof.PASSED
        else:
            self._fail(drain, self._why_killed or (f"exit {code}" if code >= 0 else f"signal {-code}"))

    def _fail(self, drain: str, why: str) -> None:
        self._note(why, drain)
        self.state = Proof.FAILED
        self._not_before = time.monotonic() + self._rules.return_retry_seconds
        self.next_unix = time.time() + self._rules.return_retry_seconds

    def _note(self, outcome: str, drain: str) -> None:
        known = outcome if outcome in OUTCOMES else "failed"
        self.outcomes[known] += 1
        lines = [text for line in self._tail.decode("utf-8", "replace").splitlines() if (text := one_line(line))]
        said = lines[-1][:SAID_MAX] if lines else ""
        base = self.record or Record(token="", boot_id=self.boot_id, drain=drain)
        self._save(msgspec.structs.replace(base, drain=drain, ended_unix=time.time(), outcome=outcome, said=said))
        self._tail = b""
        log.line(log.NOTICE if known != "failed" else log.WARNING, "return command", outcome=outcome, said=said)

    def _kill(self, why: str) -> None:
        self._why_killed, self._killed_at = why, time.monotonic()
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def _close_reader(self) -> None:
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1

    def _end_what_was_left(self) -> bool:
        """Kill the processes that are left of a killed agent's run. Return whether any process was left."""
        last = self.record
        if last is None or not last.pid:
            self._left = False
            return False
        leader = _stat(last.pid)
        own = leader is not None and leader[3] == last.ticks
        there = [] if leader is not None and not own else _session(last.pid)
        for pid in there:
            if own or _has_mark(pid, last.token):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        self._left = bool(there)
        return self._left

    def _save(self, record: Record) -> bool:
        self.record = record
        try:
            self._disk.do(lambda: write_atomic(self.path, msgspec.json.encode(record) + b"\n", mode=0o600, sync=True))
        except OSError as e:
            log.line(log.ERROR, "return command not recorded", error=f"{self.path}: {e.strerror}")
            return False
        return True

    def _load(self) -> Record | None:
        def content() -> bytes:
            with open(self.path, "rb") as f:
                return f.read(65536)

        try:
            return msgspec.json.decode(self._disk.do(content), type=Record)
        except (*NOT_JSON, OSError):
            return None


def _stat(pid: int) -> tuple[str, int, int, int] | None:
    """Return state, process group, session and start time of a process, or None if there is no such process. This reads only
    /proc/PID/stat, because a read of other files of a hanging process may hang too."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            fields = f.read(4096).rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[2]), int(fields[3]), int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def _session(session: int) -> list[int]:
    """Return the processes of a session, without those that have ended and wait to be reaped."""
    pids = (int(name) for name in os.listdir("/proc") if name.isascii() and name.isdecimal())
    return [pid for pid in pids if (found := _stat(pid)) is not None and found[2] == session and found[0] not in "ZX"]


def _has_mark(pid: int, token: str) -> bool:
    found = _stat(pid)
    if found is None or found[0] == "D":
        return False
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            return f"{MARK}={token}".encode() in f.read(1 << 20).split(b"\0")
    except OSError:
        return False
