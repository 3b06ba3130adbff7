"""Every fault of the scorecard is noticed and every twin stays quiet, on real agents with everything enforced."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from fairlead import checks
from tests.scorecard import faults, table
from tests.scorecard.entry import Fault, Kernel
from tests.scorecard.play import QUIET_SWEEPS, Seen, nodes_up, play

NODES = 8
FAULTS = faults.load()
#: `make test` plays one row of each check; `make test-all` all of them.
FIRST = {fault.check: fault.name for fault in reversed(FAULTS)}
ROWS = [pytest.param(f, id=f.name, marks=[] if FIRST[f.check] == f.name else [pytest.mark.slow]) for f in FAULTS]


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest) -> Iterator[dict[str, Seen]]:
    """All rows that were asked for, played at once."""
    if os.geteuid():
        pytest.skip("needs root: the nodes are namespaces, with real Slurm")
    rows = (item for item in request.session.items if item.path == request.path and item.name.startswith("test_row["))
    wanted = {item.callspec.params["fault"].name for item in rows}  # type: ignore[attr-defined]
    with nodes_up(NODES) as nodes:
        yield {seen.fault.name: seen for seen in play([f for f in FAULTS if f.name in wanted], nodes)}


@pytest.mark.slurm
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", ROWS)
def test_row(fault: Fault, played: dict[str, Seen]) -> None:
    seen = played[fault.name]
    assert not seen.broken, seen.broken
    assert not seen.missed, f"not noticed; findings: {seen.others}"
    assert not seen.flaps, "it is there all the time, and so is the finding"
    assert not seen.twin_drained, f"false drain: {fault.twin_words}: {seen.twin_drained}"
    assert not seen.noise, f"noise: {fault.twin_words}: {seen.noise}"


def test_there_are_enough_rows_and_each_is_told_apart() -> None:
    assert len(FAULTS) >= 40
    assert max(Counter(fault.title for fault in FAULTS).values()) == 1
    for fault in FAULTS:
        assert fault.level in ("drain", "warn", "unknown"), fault.name
        assert fault.steps != fault.twin and len(fault.twin_words) > 5 and len(fault.source) > 8 and fault.says, fault.name


@pytest.mark.parametrize("name", checks.load())
def test_every_check_has_a_fault_and_a_twin_here(name: str) -> None:
    """A new check comes with a row in tests/scorecard/faults."""
    found = [fault for fault in FAULTS if fault.check == name]
    assert found, f"add a row for {name} to FAULTS of a file in tests/scorecard/faults: the fault, and a harmless twin like it"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_twin_shows_the_same_signal(fault: Fault) -> None:
    assert fault.signals() & fault.twin_signals(), f"{sorted(fault.signals())} and {sorted(fault.twin_signals())}"


def test_a_twin_is_watched_longer_than_any_check_confirms() -> None:
    assert all(check.confirm_of < QUIET_SWEEPS for check in checks.load().values())


def test_signals() -> None:
    first, second = (Kernel(f"NVRM: Xid (PCI:{{gpu{n}:bus}}): {code}, x") for n, code in ((0, 79), (3, 13)))
    assert first.signal == second.signal
    assert Kernel("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 1, x").signal == "kernel nvidia-nvswitchN: SXid"


def test_words_of_the_table() -> None:
    fault = FAULTS[0]
    assert (table.fault_word(Seen(fault)), table.twin_word(Seen(fault))) == ("MISSED", "quiet")
    found = Seen(fault, found=0.01, drained=None, noise=["x"])
    assert (table.fault_word(found), table.twin_word(found), found.good) == ("found, NO DRAIN", "noise", False)
    assert table.fault_word(Seen(fault, found=0.01, drained=0.05)) == "drain"
    assert [table.seconds(s) for s in (None, 0.0123, 3.21)] == ["-", "12 ms", "3.2 s"]
    assert "1 missed" in table.summary([Seen(fault)], [])[0]
