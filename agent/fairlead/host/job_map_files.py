"""Writes which job has which GPU for tools that fairlead is no part of: jobstats' GPU exporter, and dcgm-exporter.

jobstats' exporter (plazonic/nvidia_gpu_prometheus_exporter, main.go) reads ``/run/gpustat/UUID``, else ``/run/gpustat/INDEX``, or
``INDEX.GI`` for a MIG device: one line ``JOB UID``. dcgm-exporter (option ``--hpc-job-mapping-dir``) reads files named INDEX, or
``INDEX.GI``: one job id in each line. INDEX is NVML's index of the GPU, and GI the id of the GPU instance.

The file LIST in the run directory names every file that fairlead has written. So an agent that starts after a crash removes what
the earlier one left. A file whose content is not fairlead's stays.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from fairlead.host.atomic_file import replace, write_atomic
from fairlead.model.json_text import NOT_JSON

LIST = "job_map_files.json"
LIST_MAX_BYTES = 1 << 20
FILE_MAX_BYTES = 1 << 16


class JobMapFiles:
    """Writes the files of one node. ``trouble``: why the last write failed, in one line, or ""."""

    def __init__(self, run_dir: str) -> None:
        self._list = os.path.join(run_dir, LIST)
        self._written = _listed(self._list)
        self._checked = False
        self.trouble = ""

    def publish(self, wanted: Mapping[str, str]) -> None:
        """Make the files in ``wanted`` (content by path), and remove the other files that fairlead has written. The first call
        also writes files again that somebody else has removed or changed."""
        if wanted == self._written and self._checked and not self.trouble:
            return
        self.trouble = ""
        for path, text in tuple(self._written.items()):
            if wanted.get(path) != text:
                self._remove(path)
        new = {path: text for path, text in wanted.items() if not self._checked or self._written.get(path) != text}
        self._written |= wanted
        try:  # the list comes first, so that a killed agent never leaves a file that the list does not have
            write_atomic(self._list, msgspec.json.encode(self._written), mode=0o600)
            for path, text in new.items():
                folder, name = os.path.split(path)
                os.makedirs(folder, mode=0o755, exist_ok=True)
                replace(path, text.encode(), temporary=os.path.join(folder, f".{name}.fairlead-new"), mode=0o644, sync=False)
        except OSError as e:
            self.trouble = f"job map files: {e.filename or self._list}: {e.strerror}"
        self._checked = not self.trouble

    def _remove(self, path: str) -> None:
        if _content(path) == self._written.pop(path):
            with suppress(OSError):
                os.unlink(path)


def _listed(path: str) -> dict[str, str]:
    try:
        with open(path, "rb") as f:
            return msgspec.json.decode(f.read(LIST_MAX_BYTES), type=dict[str, str])
    except (OSError, *NOT_JSON):
        return {}


def _content(path: str) -> str | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(fd, "rb") as f:
        try:
            return f.read(FILE_MAX_BYTES).decode("ascii", "replace")
        except OSError:
            return None
