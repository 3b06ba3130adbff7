"""The inventory of kept files is complete: each module that writes files is in it, and the measured sizes are true."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from fairlead.controller.event_store import EventStore
from fairlead.controller.fleet_store import FleetStore
from fairlead.controller.job_store import JobStore
from fairlead.fleet.fleet_events import FleetEvent
from fairlead.fleet.service_record import ServiceRecord, VersionSeen, encoded
from fairlead.jobs.usage_record import encoded as usage_encoded
from tests.fleet.made_records import DAY, HOUR, NOW, PCI, drained, record, resumed
from tests.jobs.job_reports import BEGIN, record_of, run_of
from tests.kept_files import AGENT, HOSTS, IN_MEMORY, KEEPS_NOTHING, ON_CONTROLLER, KeptFile, writing_modules

ROOT = AGENT.parents[1]
FILES = [file for _, _, files in HOSTS for file in files]
VALUES = (
    *(
        "rows.uncorrected",
        "banks.used_spare_rows",
        "pcie.replays",
        "pcie.lanes",
        "pcie.lanes_max",
        "nvlink.active",
        "load.seconds",
    ),
    *("load.slowed_seconds", "power.cap_watts"),
)


def test_each_module_that_writes_files_is_in_the_inventory() -> None:
    named = {module for file in FILES for module in file.writers} | KEEPS_NOTHING.keys()
    missing = [module for module in writing_modules() if module not in named]
    assert not missing, f"{missing}: add a row to tests/kept_files.py (path, limit, retention), or a line to KEEPS_NOTHING"


def test_what_the_inventory_names_is_there() -> None:
    writing = set(writing_modules())
    for module in KEEPS_NOTHING:
        assert module in writing, f"{module} writes nothing any more: take it out of KEEPS_NOTHING"
    for file in FILES:
        for module in file.writers:
            place = ROOT / module if module.startswith("slurm/") else AGENT / module
            assert place.is_file(), f"{file.path}: there is no {module}"
        assert file.limit and file.keeps and file.mode and file.erase and file.backup and file.each_bytes


def test_each_unit_writes_only_below_folders_of_the_inventory() -> None:
    """StateDirectory of each unit on the controller is a folder of the page."""
    folders = {file.path.split("/")[3] for file in FILES if file.path.startswith("/var/lib/")}
    for unit in sorted((ROOT / "slurm").glob("*/fairlead-*.service")):
        for line in unit.read_text().splitlines():
            if line.startswith("StateDirectory="):
                assert {name.partition("/")[0] for name in line.partition("=")[2].split()} <= folders, unit.name


def of(end: str, files: tuple[KeptFile, ...] = ON_CONTROLLER) -> KeptFile:
    (found,) = [file for file in files if file.path.endswith(end)]
    return found


def yearly(number: int, days: int = 365, drains: int = 12) -> ServiceRecord:
    """A node with 8 GPUs after some days: a drain each month, a value of each kind each week."""
    begin = NOW - days * DAY
    times = [begin + k * days * DAY / drains for k in range(drains)]
    more = {"serials": f"{PCI}=1654322006161", "jobs": "123456,123457"}
    entries = [each for t in times for each in (drained(t, **more), resumed(t + HOUR))]
    points = tuple((day, float(day * 3)) for day in range(20_000 - days, 20_000, 7))
    from tests.fleet.test_rma_sheet import DETAILS, XID

    return record(
        *entries,
        node=f"n{number}",
        machine=f"{number:036}",
        values={f"16543220061{gpu:02}": dict.fromkeys(VALUES, points) for gpu in range(8)},
        watched=tuple((begin + week * 7 * DAY, begin + week * 7 * DAY + 6 * DAY) for week in range(days // 7)),
        versions=tuple(
            VersionSeen(since_unix=begin + n * 30 * DAY, driver="570.86.15", agent_version="0.1.0") for n in range(days // 30)
        ),
        details=tuple(replace(DETAILS, pci=f"0000:{gpu:02x}:00.0") for gpu in range(8)),
        xids=tuple(replace(XID, boot=f"{boot:036}") for boot in range(12)),
    )


def test_the_measured_sizes(tmp_path: Path) -> None:
    """A unit is within a quarter of what the page says."""
    with FleetStore(str(tmp_path), write=True) as fleet:
        fleet.add([yearly(number) for number in range(50)], 0.0)
    with EventStore(str(tmp_path), write=True) as store:
        made = [
            FleetEvent(
                kind="drained", node=f"n{n % 100}", at_unix=NOW + n, by="fairlead", cause="xid", device=PCI, serial="16543220",
                summary="Xid 79 on GPU 0000:1b:00.0 (GPU has fallen off the bus)", node_class="hgx-h100", machine="m" * 36,
                jobs=(123456, 123457), token=f"{n:012}",
            )
            for n in range(4000)
        ]  # fmt: skip
        store.add([(each, True) for each in made], {}, NOW, {"drained": ("command", "webhook")})
    with JobStore(str(tmp_path), write=True) as jobs:
        runs = [run_of(job=100 + n, begin_unix=BEGIN + n) for n in range(1000)]
        jobs.add_runs(runs, 100)
        for run in runs:
            jobs.put_records(run, [record_of("gpu001", job=run.job, begin_unix=run.begin_unix)], [])
    sizes = {
        name: os.path.getsize(tmp_path / f"{name}.sqlite") / count
        for name, count in (("fleet", 50), ("events", 4000), ("jobs", 1000))
    }
    for name, size in sizes.items():
        assert size == pytest.approx(of(f"{name}.sqlite").each_bytes, rel=0.25), f"{name}.sqlite: correct tests/kept_files.py"
    assert len(usage_encoded(record_of("gpu001"))) == pytest.approx(of("fairlead-running/").each_bytes, rel=0.25)
    thirty = len(encoded(yearly(1, days=30, drains=3)))
    assert thirty == pytest.approx(of("service-record.json", IN_MEMORY).each_bytes, rel=0.25)
    assert msgspec.json.decode(encoded(yearly(1)))["node"] == "n1"
