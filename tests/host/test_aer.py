"""AER counts of a tree: of the GPU and the port above it; absent, broken and made-up files."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.host import aer
from fairlead.host.gather import Gatherer
from fairlead.host.root import Root
from fairlead.model.facts import Missing
from fairlead.model.gpu_health import AerCounts
from tests.host.conftest import write
from tests.host.test_gather import nvml
from tests.lab.machines import write_machine

AT = "/sys/bus/pci/devices/0000:1b:00.0"


def files(tree: Path, correctable: str, nonfatal: str = "TOTAL_ERR_NONFATAL 0\n", fatal: str = "TOTAL_ERR_FATAL 0\n") -> None:
    for name, text in (("correctable", correctable), ("nonfatal", nonfatal), ("fatal", fatal)):
        write(tree, f"{AT}/aer_dev_{name}", text)


def test_the_sum_is_read(tree: Path) -> None:
    files(tree, "RxErr 3\nBadTLP 4\nTOTAL_ERR_COR 7\n", fatal="DLP 1\nTOTAL_ERR_FATAL 1\n")
    assert aer.counts(Root(str(tree)), "0000:1b:00.0") == AerCounts(correctable=7, nonfatal=0, fatal=1)


def test_no_files_is_no_counts_and_not_zero(tree: Path) -> None:
    assert aer.counts(Root(str(tree)), "0000:1b:00.0") is None


@pytest.mark.parametrize("text", ["", "RxErr 3\n", "TOTAL_ERR_COR\n", "TOTAL_ERR_COR -1\n", "TOTAL_ERR_COR 0x7\n", "\0\xff"])
def test_what_is_no_count_is_missing(tree: Path, text: str) -> None:
    files(tree, text)
    found = aer.counts(Root(str(tree)), "0000:1b:00.0")
    assert isinstance(found, AerCounts) and isinstance(found.correctable, Missing) and found.fatal == 0


def test_one_file_that_is_not_there(tree: Path) -> None:
    files(tree, "TOTAL_ERR_COR 0\n")
    (tree / AT.lstrip("/") / "aer_dev_fatal").unlink()
    found = aer.counts(Root(str(tree)), "0000:1b:00.0")
    assert isinstance(found, AerCounts) and isinstance(found.fatal, Missing) and found.correctable == 0


def test_of_the_gpu_and_the_port_above_it_on_thorough_looks(tmp_path: Path) -> None:
    tree = write_machine(tmp_path / "tree", "hgx-h100", cpus=2, tuned=True)
    looker = Gatherer(Root(str(tree)), slow_seconds=3600.0)
    first = looker.gather(nvml("hgx-h100")).gpus
    assert isinstance(first, tuple)
    assert all(g.aer == g.port_aer == AerCounts(correctable=0, nonfatal=0, fatal=0) for g in first)
    here = (tree / "sys/bus/pci/devices" / first[2].pci).resolve()
    (here / "aer_dev_correctable").write_text("TOTAL_ERR_COR 5\n")
    (here.parent / "aer_dev_fatal").write_text("TOTAL_ERR_FATAL 2\n")
    again = looker.gather(nvml("hgx-h100")).gpus
    assert again == first or (isinstance(again, tuple) and again[2].aer == first[2].aer)  # only on thorough looks
    fresh = Gatherer(Root(str(tree)), slow_seconds=0).gather(nvml("hgx-h100")).gpus
    assert isinstance(fresh, tuple) and isinstance(fresh[2].aer, AerCounts) and isinstance(fresh[2].port_aer, AerCounts)
    assert (fresh[2].aer.correctable, fresh[2].port_aer.fatal) == (5, 2)
    assert fresh[1].aer == first[1].aer
