"""A simulated node that is broken step by step while its agent runs, and mended again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path

from fairlead import config
from fairlead.daemon.requests import spool
from fairlead.policy.state_requests import Clear
from tests.lab import kmsg
from tests.lab.roots import LabError
from tests.scorecard import entry
from tests.scorecard.running import Running

REMEMBER_SWEEPS = 18  # daemon.loop notes it every 16 sweeps


class ScoreNode(Running):
    """See ``Running``; everything that a step changes is put back by ``heal``."""

    # -- breaking and mending ---------------------------------------------------------------------

    def take(self, step: entry.Step) -> None:
        """Let one step happen."""
        match step:
            case entry.Kernel():
                self._kernel(step)
            case entry.Nvml():
                value = dict(step.value) if isinstance(step.value, Mapping) else step.value
                self._unsupported_heard = (
                    self._unsupported_heard or value == {"error": 3} or step.key == "inforom_valid"
                )  # asked every ten minutes
                self.faults.set(step.gpu, step.key, value)
            case entry.Call():
                getattr(self.faults, step.verb)(*step.arguments)
                self._unsupported_heard = self._unsupported_heard or (step.verb == "error" and step.arguments[2] in (3, 13))
            case entry.File():
                self._file(self._with_paths(step.path), step.text)
            case entry.Job():
                self._record(step.id, f"1\trunning\t{step.uid}\t{step.gpus}\t5\t-\t-\t.\n")
            case entry.Ended():
                self._record(step.id, f"1\tended\t1000\t0-7\t5\t{int(self._boottime())}\t-\t.\n")
            case entry.Elapse():
                self.stop()
                self.uptime += step.seconds
                self.start()
            case entry.Anew():
                self._anew()
            case entry.Fast() if self.speed >= step.speed:
                pass
            case entry.Fast():
                self.stop()
                self.speed = step.speed
                self.write_document(self._changed)
                self._anew()
            case entry.Clock():
                self._file("/etc/fairlead-sim/clock", f"{step.code} {step.maximum} {step.estimated} {step.step}\n")
            case entry.Document():
                config.document.merge(self._changed, step.changes, "", {})
                self.write_document(self._changed)
                self.reload()
                self.sweeps(2)
            case entry.Sweeps():
                self.sweeps(step.count, thorough=step.thorough)
            case entry.Run():
                self._undo.append(step.undo)
                self.command(step.command)

    def _kernel(self, step: entry.Kernel) -> None:
        lines = []
        for _ in range(step.times):
            self._sequence += 1
            moment = int((self._boottime() - step.seconds_ago) * 1e6)
            text = self._with_paths(step.text)
            lines.append(kmsg.record(text, self._sequence, moment, level=step.level, facility=step.facility))
        with open(self.kmsg, "w") as out:
            out.write("".join(lines))

    def _inside(self, path: str) -> Path:
        """Where a path of the node is written from outside: /proc's files are bound one by one."""
        if path.startswith("/proc/"):
            return self.folder / "hw" / path.lstrip("/")
        return self.root / path.lstrip("/")

    def _file(self, path: str, text: str | bytes | None) -> None:
        outside = self._inside(path)
        if not outside.parent.exists():  # a device that is not there: its folder goes with it again
            self._before.setdefault(os.path.dirname(path), None)
        if path not in self._before:
            self._before[path] = self._kept(outside)
        if text is None:
            if outside.is_dir() and not outside.is_symlink():
                shutil.rmtree(outside)
            else:
                outside.unlink()
            return
        outside.parent.mkdir(parents=True, exist_ok=True)
        outside.write_bytes(text if isinstance(text, bytes) else text.encode())

    def _kept(self, outside: Path) -> bytes | Path | None:
        if outside.is_symlink():
            return Path(os.readlink(outside))
        if outside.is_dir():
            copy = self.folder / f"kept/{len(self._before)}"
            shutil.copytree(outside, copy, symlinks=True)
            return copy
        return outside.read_bytes() if outside.exists() else None

    def _put_back(self, path: str, before: bytes | Path | None) -> None:
        outside = self._inside(path)
        if isinstance(before, bytes):
            outside.parent.mkdir(parents=True, exist_ok=True)
            outside.write_bytes(before)
        elif before is None and outside.is_dir() and not outside.is_symlink():
            shutil.rmtree(outside)
        elif before is None:
            outside.unlink(missing_ok=True)
        elif before.is_relative_to(self.folder):
            shutil.copytree(before, outside, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(before)
        elif not outside.is_symlink():
            outside.symlink_to(before)

    def _record(self, job: int, text: str) -> None:
        folder = self.run_dir / "jobs"
        (folder / f".{job}").write_text(text)
        (folder / f".{job}").rename(folder / str(job))

    def restore(self) -> None:
        """Put back everything that steps have changed: the machine as its tree describes it."""
        self.faults.clear()
        for path, before in reversed(self._before.items()):
            self._put_back(path, before)
        self._before.clear()
        for undo in reversed(self._undo):
            if undo:
                self.command(undo, check=False)
        self._undo.clear()
        for record in (self.run_dir / "jobs").glob("[0-9]*"):
            record.unlink(missing_ok=True)

    def heal(self, *, fresh: bool = False, seconds: float = 12) -> None:
        """Nothing is wrong and nothing is known of what was: in service, verdict ok. ``fresh``: with an empty history."""
        self.restore()
        fresh, self._unsupported_heard = fresh or self._unsupported_heard, False
        if self._changed or self.speed != self._usual:
            fresh = fresh or self.speed != self._usual
            if fresh:
                self.stop()
            self._changed, self.speed = {}, self._usual
            self.write_document()
            if self._agent is not None and not fresh:
                self.reload()
        if not fresh and self._agent is not None:
            try:
                self._cleared(seconds)
            except LabError:
                fresh = True
        if fresh or self._agent is None:
            self._anew()
            self.until(lambda: self.verdict().state.value == "ok", "first verdict that is ok")
            self.until((self.run_dir / "status.json").exists, "first status")
            self._remember()
        self._old_status = (self.run_dir / "status.json").stat().st_mtime_ns

    def _remember(self) -> None:
        """Wait until it is noted what can be read; at most for so long as it takes to be noted again."""
        begin = self._sequence_now()
        self.until(lambda: self._remembers() or self._sequence_now() > begin + REMEMBER_SWEEPS, "further verdicts")

    def _remembers(self) -> bool:
        """Whether the agent has noted what can be read of every GPU: what goes dark after that was readable."""
        with contextlib.closing(sqlite3.connect(f"file:{self.state_dir}/history.sqlite?mode=ro", uri=True)) as db:
            found = db.execute("SELECT value FROM kept WHERE key = 'readable'").fetchone()
        return found is not None and found[0].count(b"temperature_celsius") >= len(self.gpus)

    def _cleared(self, seconds: float) -> None:
        """As an admin does it: `fairlead clear` on the whole node, then resume."""
        request = Clear(id=f"score-{time.time_ns():x}", everything=True, who="scorecard", why="the next row", sequence=-1)
        spool.put(str(self.state_dir), str(self.run_dir), request)
        if self.verdict().state.value == "drain":
            self.cluster.scontrol("update", f"nodename={self.name}", "state=resume")
        self.reload()
        self._signal(signal.SIGUSR1)
        self.until(lambda: self.verdict().state.value == "ok", "word that all is well again", seconds)
        self.sweeps(2)  # one of them began after that
        if self.verdict().state.value != "ok":
            raise LabError(f"node {self.name}: not well again\n{self.log_end()}")

    def _anew(self) -> None:
        self.stop()
        for folder in (self.state_dir, self.run_dir):
            shutil.rmtree(folder)
            folder.mkdir()
        if self.drained():
            self.cluster.scontrol("update", f"nodename={self.name}", "state=resume")
        self.start()
