"""Fills a collector's store with what a recorded folder has."""

from __future__ import annotations

from pathlib import Path

from fairlead.controller.job_store import JobStore
from fairlead.controller.records_folder import read_folder


def as_store(folder: Path) -> str:
    """The store of a collector that has taken up the jobs and records of a folder."""
    found = read_folder(str(folder))
    store = folder / "store"
    with JobStore(str(store), write=True) as made:
        made.add_runs(found.runs, 0)
        for run in found.runs:
            made.put_records(run, [record for _, record in found.records if record.job == run.job], [])
    return str(store)
