"""Random interleavings on the model of slurmctld: 2,000 in `make test`, ten thousand in `make test-all`."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from tests.slurm import model
from tests.slurm.interleave import sequence

SEED = 20260805
FEW, SEQUENCES = 2_000, 10_000


class Modelled:
    """One node of a model."""

    events = (
        *(
            "mark",
            "silent",
            "register",
            "register",
            "invalid",
            "reboots",
            "booted",
            "restart",
            "killed",
            "job",
            "job",
            "no job",
            "completing",
        ),
        *("maintenance", "away", "back", "back", "reboot asap", "reboot asap words", "reboot"),
    )

    def __init__(self, release: str) -> None:
        self.node = "n1"
        self.ctld = model.Ctld(release, ("n1", "n2"))
        self.client = self.watch = self.ctld
        self.away = False
        self.steady = False
        self._time = 0.0

    def passed(self, seconds: float) -> None:
        self._time += seconds
        self.ctld.passed(int(self._time))
        self._time -= int(self._time)

    def rest(self) -> AbstractContextManager[None]:
        return nullcontext()

    def update(self, state: str, reason: str) -> None:
        self.ctld.update("n1", state, reason)

    def event(self, what: str) -> bool:
        ctld = self.ctld
        if what == "mark":  # a job was given the node, and a prolog refused it
            if ctld.start_job("n1"):
                ctld.mark("n1", "Prolog error")
                ctld.end_job("n1")
        elif what == "silent":
            ctld.silent("n1")
        elif what in ("register", "invalid", "booted"):
            ctld.register("n1", valid=what != "invalid", booted=what == "booted")
        elif what == "reboots":
            ctld.issue_reboots()
        elif what in ("away", "back"):
            self.away = what == "away"
        elif what == "restart":
            ctld.restart()
        elif what == "killed":
            ctld.killed()
        elif what == "job":
            return ctld.start_job("n1")
        elif what in ("no job", "completing"):
            ctld.end_job("n1", completing=what == "completing")
        elif what == "maintenance":
            ctld.records["n1"].flags ^= {"MAINTENANCE"}
        elif what.startswith("reboot "):
            ctld.reboot("n1", asap=True, next_state="RESUME", reason="ann: kernel" if what.endswith("words") else "")
        elif what == "reboot":
            ctld.reboot("n1")
        return True

    def settle(self) -> None:
        self.ctld.end_job("n1")
        self.ctld.issue_reboots()
        self.ctld.register("n1", booted=True)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder for ledgers: in memory where there is /dev/shm, since each of them is written with fsync."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("sequences", [FEW, pytest.param(SEQUENCES, marks=pytest.mark.slow)])
@pytest.mark.parametrize("release", ["22", "24", "26"])
@pytest.mark.timeout(900)
def test_interleavings_on_the_model(memory: Path, release: str, sequences: int, capsys: pytest.CaptureFixture[str]) -> None:
    counts: Counter[str] = Counter()
    began = time.monotonic()
    for number in range(sequences // 3 + 1):
        chance = random.Random(f"{SEED} {release} {number}")
        random.seed(number)
        folder = memory / str(number)
        sequence(Modelled(release), folder, chance, counts, length=45, stale=number % 5 == 0)
        shutil.rmtree(folder)
    with capsys.disabled():
        print(f"\nmodel of {release}: {dict(sorted(counts.items()))} in {time.monotonic() - began:.0f} s, seed {SEED}")
