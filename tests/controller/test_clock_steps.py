"""A clock of the controller that is a year wrong for a while: nothing that was collected is lost, and all of it is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.controller import round_clock
from fairlead.controller.collection import Collection
from fairlead.controller.fleet_collection import EACH_SECONDS, FleetCollection
from fairlead.controller.fleet_store import FleetStore
from fairlead.controller.job_store import JobStore
from fairlead.fleet.service_record import encoded
from fairlead.jobs.job_run import JobRun
from tests.controller.test_fleet_store import Nodes, Slurm
from tests.fleet.made_records import NOW, drained, record
from tests.jobs.job_reports import run_of

DAY, YEAR = 86400, 365 * 86400
DAYS = 400


class Slurmdbd:
    """slurmdbd as a test says it is."""

    def __init__(self, *runs: JobRun) -> None:
        self.runs = list(runs)

    def ended(self, since_unix: int, until_unix: int, mistakes: list[str]) -> list[JobRun]:
        return [run for run in self.runs if run.end_unix is not None and since_unix <= run.end_unix < until_unix]

    def kinds(self, jobs: list[int]) -> dict[int, str]:
        return {}


class Records:
    """Nodes that have no usage records. ``off``: no node answers."""

    def __init__(self) -> None:
        self.asked = 0
        self.off = False

    def fetch(self, nodes: list[str], jobs: list[int]) -> dict[str, tuple[bytes, str]]:
        self.asked += 1
        if self.off:
            return dict.fromkeys(nodes, (b"", "no route to host"))
        return dict.fromkeys(nodes, (b"", ""))


class Controller:
    """The rounds of `fairlead collect`, with a clock that a test sets."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now, self.said = str(folder), NOW, list[str]()
        self.slurm, self.nodes, self.slurmdbd, self.records = Slurm(), Nodes(), Slurmdbd(), Records()
        self.nodes.files["n2"] = {"service-record.json": encoded(record(node="n2", machine="m2"))}
        self.round()

    def round(self) -> None:
        with FleetStore(self.folder, write=True) as store:
            how = {"say": self.said.append, "clock": lambda: self.now, "days": DAYS}
            FleetCollection(store, self.slurm, self.nodes, **how).round()  # type: ignore[arg-type]
        with JobStore(self.folder, write=True) as jobs:
            Collection(jobs, self.slurmdbd, self.records, write=False, **how).round()  # type: ignore[arg-type]

    def runs(self) -> int:
        with JobStore(self.folder, write=False) as store:
            return store.counts()["runs"]

    def entries(self) -> int:
        with FleetStore(self.folder, write=False) as store:
            return sum(len(each.entries) for each in store.records())


def ended(unix: float, job: int = 17) -> JobRun:
    return replace(run_of(), job=job, label=str(job), begin_unix=int(unix) - 3600, end_unix=int(unix), nodes=("n1",))


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    return Controller(tmp_path)


def test_a_year_ahead_and_back_forgets_nothing(controller: Controller) -> None:
    """What ended 100 days ago would be too old by a clock that is a year ahead."""
    old = NOW - 100 * DAY
    controller.nodes.files["n1"] = {"service-record.json": encoded(record(drained(old)))}
    with JobStore(controller.folder, write=True) as store:
        store.add_runs([ended(old)], int(NOW) + 60)
    controller.now += EACH_SECONDS
    controller.round()
    assert (controller.runs(), controller.entries()) == (1, 1)
    controller.now += YEAR
    controller.round()
    controller.round()
    controller.now += DAY
    controller.round()
    assert (controller.runs(), controller.entries()) == (1, 1)
    assert [line for line in controller.said if "nothing is forgotten" in line] == [
        "the clock is 365.0 days ahead of the last round: nothing is forgotten for 30 days, and everything is asked for again"
    ] * 2, "once from each store"
    controller.now -= YEAR + DAY
    controller.round()
    controller.round()
    assert (controller.runs(), controller.entries()) == (1, 1)
    assert sum("days behind" in line for line in controller.said) == 2


def test_retention_goes_on_when_the_clock_was_right(controller: Controller) -> None:
    """A controller that was off for a year forgets a month later."""
    with JobStore(controller.folder, write=True) as store:
        store.add_runs([ended(NOW - 100 * DAY)], int(NOW) + 60)
    controller.now += YEAR
    for _ in range(round_clock.WAIT_DAYS - 1):
        controller.round()
        controller.now += DAY
    assert controller.runs() == 1
    controller.now += DAY
    controller.round()
    assert controller.runs() == 0


def test_a_clock_that_went_back_does_not_stop_the_rounds(controller: Controller) -> None:
    """By the times of before, no node would be asked and no ended job be found for a year."""
    controller.now -= YEAR
    asked = len(controller.nodes.asked)
    controller.nodes.files["n1"] = {"service-record.json": encoded(record(drained(controller.now - 60)))}
    controller.slurmdbd.runs.append(ended(controller.now - 120))
    controller.round()
    assert controller.nodes.asked[asked:] == [["n1", "n2"]] and controller.entries() == 1
    assert controller.runs() == 1
    controller.round()
    assert len(controller.nodes.asked) == asked + 1, "and not in every round"
    controller.now += YEAR + 60
    controller.slurmdbd.runs.append(ended(controller.now - 30, job=18))
    controller.round()
    assert controller.runs() == 2, "the jobs of the true time are found when it is back"


def test_a_node_that_was_to_be_asked_later_is_asked_now(controller: Controller) -> None:
    controller.records.off = True
    controller.slurmdbd.runs.append(ended(NOW - 120))
    controller.round()
    asked = controller.records.asked
    assert asked == 1
    controller.round()
    assert controller.records.asked == asked, "it waits a minute"
    controller.now -= YEAR
    controller.round()
    assert controller.records.asked > asked, "and not a year"


@pytest.mark.parametrize(
    ("passed", "stepped"), [(60, False), (-60, False), (3 * DAY, False), (-2 * 3600, True), (8 * DAY, True), (YEAR, True)]
)
def test_what_is_a_step(passed: float, stepped: bool) -> None:
    before = round_clock.RoundClock(last_unix=NOW)
    assert bool(round_clock.step_seconds(before, NOW + passed)) is stepped
    after = round_clock.after_round(before, NOW + passed, 7)
    assert after.forgets_unix == (NOW + passed + 7 * DAY if stepped else 0.0), "a retention of a week is not made a month"
    assert round_clock.decoded(round_clock.encoded(after)) == after and round_clock.decoded("{") == round_clock.RoundClock()
    assert not round_clock.step_seconds(round_clock.RoundClock(), NOW), "the first round"
