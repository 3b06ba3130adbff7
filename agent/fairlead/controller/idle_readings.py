"""Keeps what the polls of running jobs read, so that sums can be compared over a window. One file for each poll."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress

from fairlead.errors import HostError, next_step
from fairlead.host.atomic_file import write_atomic
from fairlead.jobs.idle_rule import START_SECONDS, IdleOptions, RunningJob
from fairlead.jobs.usage_record import BadRecord, UsageRecord, decoded, encoded

_NAME = re.compile(r"poll-([0-9]{1,12})\.jsonl")
FILE_MAX_BYTES = 1 << 30


class IdleReadings:
    """Holds the polls in a folder. Nothing is lost if the folder is removed: the next window begins anew."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def add(self, records: Iterable[UsageRecord], now: float, options: IdleOptions) -> None:
        """Write a poll, and remove the polls that no window reaches any more. Raises HostError."""
        path = os.path.join(self.folder, f"poll-{now:.0f}.jsonl")
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            write_atomic(path, b"".join(encoded(record) for record in records), mode=0o600)
            for name in os.listdir(self.folder):
                found = _NAME.fullmatch(name)
                if found and not now - 180 * options.window_minutes <= float(found[1]) <= now:
                    with suppress(FileNotFoundError):
                        os.unlink(os.path.join(self.folder, name))
        except OSError as e:
            raise HostError(f"{path}: {e.strerror}", hint=next_step(e)) from None

    def records(self) -> list[UsageRecord]:
        """Return the records of all polls. A file that cannot be read counts as no poll."""
        found: list[UsageRecord] = []
        names = sorted(os.listdir(self.folder)) if os.path.isdir(self.folder) else []
        for name in names:
            if not _NAME.fullmatch(name):
                continue
            with suppress(OSError, BadRecord), open(os.path.join(self.folder, name), "rb") as file:
                found += [decoded(line) for line in file.read(FILE_MAX_BYTES).splitlines(keepends=True)]
        return found


def windows(
    jobs: Iterable[RunningJob], records: Iterable[UsageRecord], options: IdleOptions
) -> dict[int, dict[str, list[UsageRecord]]]:
    """Return for each job and node the records of the last window, the oldest first: from the latest record that is a whole
    window older than the last one. If there is none, the window is as long as the records are."""
    known = {job.job: job for job in jobs}
    found: dict[int, dict[str, dict[float, UsageRecord]]] = {}
    for record in records:
        job = known.get(record.job)
        if job is not None and record.node in job.nodes and abs(record.begin_unix - job.begin_unix) <= START_SECONDS:
            found.setdefault(job.job, {}).setdefault(record.node, {})[record.written_unix] = record
    return {
        job: {node: _window([times[at] for at in sorted(times)], options) for node, times in nodes.items()}
        for job, nodes in found.items()
    }


def _window(records: list[UsageRecord], options: IdleOptions) -> list[UsageRecord]:
    least = 60 * options.window_minutes * 0.98
    first = max((i for i, r in enumerate(records) if records[-1].written_unix - r.written_unix >= least), default=0)
    return records[first:]
