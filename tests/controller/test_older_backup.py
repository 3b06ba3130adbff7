"""A backup of the controller that is older than what the nodes have: the next rounds bring all of it again, and drain nobody."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.controller.all_stores import Folders, back_up, restore
from fairlead.controller.fleet_collection import EACH_SECONDS
from fairlead.controller.fleet_store import FleetStore
from fairlead.controller.job_store import JobStore
from fairlead.fleet.service_record import ServiceEntry
from fairlead.fleet.service_record import encoded as service_text
from fairlead.jobs.usage_record import UsageRecord
from fairlead.jobs.usage_record import encoded as usage_text
from tests.controller.test_clock_steps import DAY, Controller, ended
from tests.controller.test_running_pull import ENDING
from tests.fleet.made_records import NOW, drained, record, resumed
from tests.jobs.job_reports import record_of

LATER = NOW + 10 * DAY


class Node:
    """What n1 keeps: its usage records for 30 days, as `fairlead usage-records` prints them."""

    def __init__(self) -> None:
        self.records: list[UsageRecord] = []
        self.off = False

    def fetch(self, nodes: list[str], jobs: list[int]) -> dict[str, tuple[bytes, str]]:
        text = b"".join(b"==> /usage/x.json <==\n" + usage_text(each) + b"\n" for each in self.records if each.job in jobs)
        return dict.fromkeys(nodes, (b"", "no route to host") if self.off else (text + ENDING, ""))

    def ran(self, job: int, unix: float) -> None:
        begin = float(int(unix) - 3600)
        self.records.append(
            record_of("n1", 3590.0, job=job, begin_unix=begin + 1, end_unix=begin + 3591, written_unix=begin + 3591)
        )


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    """Ten days after its backup. A job ended and a drain ended before the copy was made, and one of each after that."""
    (tmp_path / "store").mkdir()
    made = Controller(tmp_path / "store")
    node = Node()
    made.records = node  # type: ignore[assignment]
    entries: list[ServiceEntry] = []
    for job, unix in ((17, NOW + 3600), (18, NOW + 3 * DAY)):
        made.now = unix + EACH_SECONDS + 60
        node.ran(job, unix)
        made.slurmdbd.runs.append(ended(unix, job=job))
        entries += [drained(unix), resumed(unix + 600)]
        made.nodes.files["n1"] = {"service-record.json": service_text(record(*entries, written_unix=unix + 900))}
        made.round()
        if job == 17:
            back_up(folders(tmp_path), str(tmp_path / "copy"))
    made.now = LATER
    made.round()
    assert kept(made) == ({17, 18}, {17, 18}, 4)
    made.said.clear()
    return made


def folders(tmp_path: Path) -> Folders:
    return Folders(store=str(tmp_path / "store"), idle=str(tmp_path / "idle"), events=str(tmp_path / "events"))


def kept(controller: Controller) -> tuple[set[int], set[int], int]:
    """The jobs, those with a record, and how many entries of audit trails."""
    with JobStore(controller.folder, write=False) as jobs, FleetStore(controller.folder, write=False) as fleet:
        runs = [each.run for label in ("17", "18") for each in jobs.runs_of(label)]
        entries = sum(len(each.entries) for each in fleet.records() if each.node == "n1")
        return {run.job for run in runs}, {run.job for run in runs if jobs.records(run)}, entries


def test_all_that_the_nodes_still_have_comes_again(controller: Controller, tmp_path: Path) -> None:
    restore(folders(tmp_path), str(tmp_path / "copy"))
    assert kept(controller) == ({17}, {17}, 2), "the copy is older"
    controller.now += 60
    controller.round()
    assert kept(controller) == ({17, 18}, {17, 18}, 4)
    told = [line for line in controller.said if "clock" in line]
    assert len(told) == len(controller.said) == 2, "one line of each store, and no other"
    assert all("everything is asked for again" in line for line in told)


def test_a_node_that_does_not_answer_then_is_asked_again(controller: Controller, tmp_path: Path) -> None:
    """The job ended more than a day before the first round that asks for it."""
    restore(folders(tmp_path), str(tmp_path / "copy"))
    node = controller.records
    node.off = True
    for minute in range(3):
        controller.now = LATER + 60 * minute
        controller.round()
    assert not [line for line in controller.said if "given up" in line]
    node.off = False
    for hour in range(3):
        controller.now = LATER + 3600 * (hour + 1)
        controller.round()
    assert kept(controller) == ({17, 18}, {17, 18}, 4)


def test_a_node_that_never_answers_is_given_up_once(controller: Controller, tmp_path: Path) -> None:
    restore(folders(tmp_path), str(tmp_path / "copy"))
    controller.records.off = True
    for hour in range(48):
        controller.now = LATER + 3600 * hour
        controller.round()
    assert [line for line in controller.said if "given up" in line] == ["job 18: no record from n1 in 24 tries: given up"]
    with JobStore(controller.folder, write=False) as jobs:
        (run,) = jobs.runs_of("18")
        assert replace(run.run, kind="") == ended(NOW + 3 * DAY, job=18), "the job itself stays"
