"""Reads a folder with the recorded history of a fleet (``fleet-folder/1``), and the store, as the input of ``fairlead report``.

format                  one line: fleet-folder/1; may be missing
nodes/NODE/*.json       service records of the node, any number of them
nodes/NODE/audit.jsonl, audit.jsonl.1, status.json    of an agent that writes no service record
jobs.psv                SLURM_TIME_FORMAT=%s sacct -a -D -X -P -o with the columns of ``job_run.SACCT_COLUMNS``
events.psv              SLURM_TIME_FORMAT=%s sacctmgr -P show event format=NodeName,TimeStart,TimeEnd,State,Reason
nodes.psv               sinfo -a -N -o '%N|%P|%G'
groups.psv              lines NODE|KIND NAME, such as gpu001|switch leaf3

All but ``nodes`` may be missing. What a file would say is then not known, and never 0.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from fairlead.controller.fleet_jobs import recorded_jobs
from fairlead.controller.fleet_store import FleetStore
from fairlead.controller.service_files import records_of
from fairlead.controller.table_file import table_lines
from fairlead.errors import DataError, InputMissing
from fairlead.fleet.early_warning import without_still_values
from fairlead.fleet.fleet_report import FleetInput
from fairlead.fleet.job_exposure import FleetJob
from fairlead.fleet.node_events import NodeOut, out_of_service
from fairlead.fleet.service_merge import merged
from fairlead.fleet.service_record import RECORD_MAX_BYTES, ServiceRecord
from fairlead.model.nodelist import is_name
from fairlead.model.plain_text import one_line

FORMAT = "fleet-folder/1"
NODES_MAX = 100_000
FILES_MAX = 1000  # of one node


def from_store(folder: str) -> FleetInput:
    """Return what the store has. Raises InputMissing, DataError, HostError."""
    with FleetStore(folder, write=False) as store:
        events = store.events()
        has_events = store.kept("events_until") is not None
        groups: dict[str, list[str]] = store.kept("groups") or {}
        owned: list[str] | None = store.kept("nodes")
        return FleetInput(
            records=tuple(map(without_still_values, store.records())),
            events=events if has_events else None,
            owned=tuple(owned) if owned is not None else None,
            groups={node: tuple(of) for node, of in groups.items()},
        )


def from_folder(folder: str) -> FleetInput:
    """Return what a folder has, without its jobs. Raises InputMissing if the folder has no ``nodes``, DataError for a folder of
    another format."""
    mistakes: list[str] = []
    _check_format(folder)
    nodes = os.path.join(folder, "nodes")
    try:
        names = sorted(os.listdir(nodes))
    except (OSError, ValueError) as e:
        hint = "fairlead report --help says what the folder has"
        raise InputMissing(f"{nodes}: {getattr(e, 'strerror', None) or e}", hint=hint) from None
    found: list[ServiceRecord] = []
    for name in names[:NODES_MAX]:
        if not is_name(name):
            mistakes.append(f"nodes/{one_line(name, 80)}: is not a NodeName")
            continue
        found += _of_node(os.path.join(nodes, name), name, mistakes)
    return FleetInput(
        records=tuple(found),
        events=_events(folder, mistakes),
        owned=_owned(folder, mistakes),
        groups=_groups(folder, mistakes),
        troubles=tuple(mistakes),
    )


def jobs_in(folder: str, mistakes: list[str]) -> Iterator[FleetJob]:
    """Yield the runs of jobs.psv. If there is no such file, yield none."""
    lines = table_lines(folder, "jobs.psv", mistakes)
    if lines is not None:
        yield from recorded_jobs(lines, mistakes)


def _check_format(folder: str) -> None:
    try:
        said = _content(os.path.join(folder, "format"))[0].decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return
    except OSError as e:
        raise InputMissing(f"{os.path.join(folder, 'format')}: {e.strerror}") from None
    if said != FORMAT:
        raise DataError(
            f'{os.path.join(folder, "format")}: is "{one_line(said, 40)}", and this fairlead reads "{FORMAT}"',
            hint="read the folder with the fairlead that wrote it",
        )


def _of_node(folder: str, node: str, mistakes: list[str]) -> Iterator[ServiceRecord]:
    """Yield one record for each machine that had this NodeName."""
    files: dict[str, bytes] = {}
    written = 0.0
    try:
        for name in sorted(os.listdir(folder))[:FILES_MAX]:
            path = os.path.join(folder, name)
            if name.endswith((".json", ".jsonl", ".jsonl.1")):
                files[name], at = _content(path)
                written = max(written, at)
    except OSError as e:
        mistakes.append(f"nodes/{node}: {e.strerror}")
    by_machine: dict[str, list[ServiceRecord]] = {}
    for record in records_of(node, files, written, mistakes):
        by_machine.setdefault(record.machine, []).append(record)
    for of in by_machine.values():
        yield without_still_values(merged(*of))


def _content(path: str) -> tuple[bytes, float]:
    """Return the content of a regular file and its time of modification. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, f"{os.path.basename(path)} is not a regular file")
        return file.read(RECORD_MAX_BYTES + 1), found.st_mtime


def _events(folder: str, mistakes: list[str]) -> tuple[NodeOut, ...] | None:
    lines = table_lines(folder, "events.psv", mistakes)
    if lines is None:
        return None
    before = len(mistakes)
    events = tuple(out_of_service(lines, mistakes))
    unread = any("the first line" in mistake for mistake in mistakes[before:])
    return None if unread else events


def _owned(folder: str, mistakes: list[str]) -> tuple[str, ...] | None:
    lines = table_lines(folder, "nodes.psv", mistakes)
    if lines is None:
        return None
    found = dict.fromkeys(line.partition("|")[0].strip() for line in lines if not line.startswith("NODELIST"))
    wrong = [name for name in found if not is_name(name)]
    if wrong:
        mistakes.append(f"nodes.psv: {len(wrong)} lines have no NodeName")
    return tuple(name for name in found if is_name(name))


def _groups(folder: str, mistakes: list[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    wrong = 0
    for line in table_lines(folder, "groups.psv", mistakes) or ():
        node, _, group = line.rstrip("\n").partition("|")
        if is_name(node) and " " in group:
            found[node] = (*found.get(node, ()), one_line(group, 80))
        elif line.strip():
            wrong += 1
    if wrong:
        mistakes.append(f"groups.psv: {wrong} lines are not NODE|KIND NAME")
    return found
