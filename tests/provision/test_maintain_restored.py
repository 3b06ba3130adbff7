"""A journal of maintenance that was restored from a backup, older than the nodes: whatever it says, it leaves no node drained."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fairlead.provision.maintain.maintenance_journal import Journal
from fairlead.provision.maintain.maintenance_steps import MaintenancePlan, MaintenanceStep, NodeWork
from tests.provision.test_maintain_clock import Lines, turn_until
from tests.provision.test_maintain_invariants import MINE, NODES, Driver, driver


def copies_of_a_run(played: Driver, to: Path) -> list[Path]:
    """Drive a run to its end, and copy its journal after each turn, as a backup does. Copies of the same content are one."""
    found: dict[bytes, Path] = {}
    played.begin(reboot=True, seconds=(60.0, 60.0))

    def copy() -> bool:
        journal = played.folder / "m.db"
        content = journal.read_bytes()
        if content not in found:
            found[content] = to / f"{len(found)}.db"
            shutil.copy(journal, found[content])
        return played.maintenance is not None and played.maintenance._finished()

    turn_until(played, copy)
    assert {w.step for w in played.works()} == {MaintenanceStep.DONE}
    played.drop()
    return list(found.values())[:-1]


def driven_again(played: Driver, copy: Path, *, aborting: bool) -> dict[str, MaintenanceStep]:
    shutil.copy(copy, played.folder / "m.db")
    for record in played.world.records.values():
        record.flags.discard("NOT_RESPONDING")
    played.aborting = aborting
    turn_until(played, lambda: played.maintenance is not None and played.maintenance._finished())
    played.drop()
    return {w.node: w.step for w in played.works()}


@pytest.mark.parametrize("aborting", [True, False], ids=["abort", "resume"])
def test_an_older_journal_leaves_no_node_drained(tmp_path: Path, aborting: bool) -> None:
    """The nodes were done after the copy. --abort drains nobody. --resume leaves a node alone whose drain is gone, and maintains
    a node that the journal has in its queue once more."""
    with driver("24") as played:
        played.shown = Lines()
        copies = copies_of_a_run(played, tmp_path)
        assert len(copies) >= 8
        for copy in copies:
            boots = dict(played.world.boots)
            steps = driven_again(played, copy, aborting=aborting)
            assert not any(played.world.ours(name) for name in NODES), copy
            ends = {MaintenanceStep.DONE, MaintenanceStep.TAKEN, MaintenanceStep.RELEASED, MaintenanceStep.NOT_BEGUN}
            assert set(steps.values()) <= ends, (copy, steps)
            if aborting:
                assert played.world.boots == boots, "nothing is rebooted"


def test_a_persons_drain_of_after_the_copy_stays(tmp_path: Path) -> None:
    with driver("24") as played:
        for copy in copies_of_a_run(played, tmp_path):
            for aborting in (True, False):
                played.world.update("n1", "DRAIN", "psu replaced", user="ann")
                steps = driven_again(played, copy, aborting=aborting)
                record = played.world.records["n1"]
                assert "DRAIN" in record.flags and record.reason == "psu replaced", (copy, steps)
                played.world.update("n1", "UNDRAIN")


def test_a_new_run_names_the_restored_one_and_touches_none_of_its_nodes(tmp_path: Path) -> None:
    with driver("24") as played:
        first, *_ = copies_of_a_run(played, tmp_path)
        journal = Journal(str(first))
        try:
            works = [NodeWork(node=n, slurm=n) for n in MINE]
            again = journal.begin(MaintenancePlan(reason="again"), works, site="", who="")
        finally:
            journal.close()
        assert {w.step for w in again.works} == {MaintenanceStep.SKIPPED}
        assert {w.detail for w in again.works} == {f"not touched: it is in run {played.name}; resume or abort that one first"}
