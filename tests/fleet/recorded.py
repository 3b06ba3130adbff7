"""Writes a simulated year as a folder of recorded inputs (``fleet-folder/1``)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fairlead.fleet.job_exposure import FleetJob
from fairlead.fleet.service_record import ServiceRecord, encoded
from fairlead.jobs.job_run import SACCT_NEEDED
from fairlead.model.nodelist import fold
from tests.fleet.simulated_year import Year, jobs, records


def write_folder(folder: Path, made: Year, *, hours: float = 8.0) -> Path:
    """Write everything that the fleet of a year would have left. hours: the mean length of a job."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "format").write_text("fleet-folder/1\n")
    write_records(folder, records(made))
    write_jobs(folder / "jobs.psv", jobs(made, hours=hours))
    names = [made.name(node) for node in range(made.nodes)]
    (folder / "nodes.psv").write_text("NODELIST|PARTITION|GRES\n" + "".join(f"{name}|gpu*|gpu:h100:8\n" for name in names))
    (folder / "groups.psv").write_text("".join(f"{made.name(node)}|{made.leaf(node)}\n" for node in range(made.nodes)))
    return folder


def write_records(folder: Path, found: Iterable[ServiceRecord]) -> None:
    for record in found:
        own = folder / "nodes" / record.node
        own.mkdir(parents=True, exist_ok=True)
        (own / f"{int(record.written_unix)}.json").write_bytes(encoded(record))


def write_jobs(path: Path, found: Iterable[FleetJob]) -> None:
    with path.open("w") as file:
        file.write("|".join(SACCT_NEEDED) + "\n")
        for job in found:
            end = "Unknown" if job.end_unix is None else f"{job.end_unix:.0f}"
            cells = {
                "JobIDRaw": str(job.job),
                "User": job.user,
                "Account": "lab",
                "Partition": "gpu",
                "State": job.state,
                "Start": f"{job.begin_unix:.0f}",
                "End": end,
                "TimelimitRaw": "2880",
                "AllocTRES": f"cpu=8,gres/gpu={job.gpus}",
                "NodeList": fold(job.nodes),
            }
            file.write("|".join(cells[name] for name in SACCT_NEEDED) + "\n")
