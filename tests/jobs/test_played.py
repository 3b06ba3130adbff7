"""Jobs with a known truth, through real agents: nobody innocent is told, and each rule finds its job and not the twin."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.jobs.advice import RULES
from tests.jobs import played_advice, played_fleet
from tests.jobs.played_page import PAGE, SPEED
from tests.lab.hardware import simulated_nvml
from tests.lab.nvml.library import NAME


def test_each_rule_has_a_job_and_a_twin() -> None:
    assert {case.rule for case in played_advice.CASES if case.finds} == set(RULES)
    assert {case.rule for case in played_advice.CASES if not case.finds} == set(RULES)


def test_the_page_has_all_jobs() -> None:
    if not PAGE.exists():
        pytest.skip("the page was not written yet: python -m tests.jobs.played_page")
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    names = {row[0].removeprefix("| ") for row in rows}
    assert {each.name for each in played_fleet.FLEET} <= names
    assert {f"`{rule}`" for rule in RULES} <= names


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.timeout(1200)
def test_nobody_innocent_is_told(tmp_path: Path) -> None:
    found = {each.name: each for each in played_fleet.played(tmp_path, simulated_nvml() / NAME, SPEED)}
    assert [each.name for each in found.values() if each.innocent and each.notices] == []
    measured = [each for each in found.values() if not each.innocent and each.coverage > 0.97]
    assert measured, "the machine was too busy: no idle job was measured for 97 % of its time"
    assert [each.name for each in measured if not each.notices] == []
    fake = found["fake load"]
    assert fake.judged == "active" and "fake_load" in fake.advised


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.timeout(1200)
def test_each_rule_finds_its_job_and_not_the_twin(tmp_path: Path) -> None:
    advised = played_advice.played(tmp_path, simulated_nvml() / NAME, SPEED)
    assert all(each.coverage >= 0.95 for each in advised), "the machine was too busy: some jobs were measured too little"
    assert [each.case for each in advised if each.case.finds != (each.case.rule in each.found)] == []
