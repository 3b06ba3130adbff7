"""A value that was there yesterday and is not today is a finding, never skipped and never a crash: every value, every file.

Each value of NVML's answer about one GPU (nvml.json) and each kind of file that gathering opens is spoiled, one at a time, and
the node judged again. What may be spoiled without a word is named here, with its reason.
"""

from __future__ import annotations

import copy
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli.machine_tree import recorded_nvml
from fairlead.daemon.loop import history_update
from fairlead.host.gather import Gatherer
from fairlead.host.root import Root
from fairlead.judge import judge, reads, wanted
from fairlead.model.check_definition import Past
from fairlead.model.device import gpu_cards_of, readable_fields
from fairlead.model.finding import Level
from fairlead.policy.policy_state import identity
from tests.checks.test_sources import BESIDE, TREES, UNJUDGED, Watched, declared, kind, sources, sweep

pytestmark = pytest.mark.trees

GPU = 2
GONE = object()
OTHERWISE = {
    "not supported": {"error": 3},
    "null": None,
    "no number": "N/A",
    "a list": [],
    "a table": {},
    "not there": GONE,
    "a fraction": 1.5,
}
#: Values of nvml.json that are no facts, or that something else says too.
NO_FACT = {
    r"index|pci": "display; a GPU that does not say its address is found on the bus",
    r"pci_(device|subsystem)_id": "sysfs says which device it is",
    r"compute_capability\..*": "the major number is a detail of the model, which name and architecture say too",
    r"memory\.reserved_bytes|bar1\.used_bytes|power\.energy_millijoules|clocks\.memory_hertz": "no fact",
    r"utilization\.memory_percent|pcie\.(transmit|receive)_bytes": "no fact",
    r"sram\.(volatile|aggregate)_.*": "no fact: NVIDIA's own threshold is (sram.threshold_exceeded)",
    r"retired_pages.*": "GPUs that remap rows have none",
    r"nvlink\.\d+\.remote": "an empty or odd far end is no error of the call",
}
#: A list that is empty, or shorter, is an answer.
LISTS = r"processes|mig\.(instances|profiles)|remap\.histogram.*|compute_capability"


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The place of every value, and of every group of values; of long lists the first two."""
    parts = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, part in parts:
        if not (isinstance(part, dict) and "error" in part):
            yield (*path, key)
            yield from leaves(part, (*path, key))


def silent(name: str, ways: dict[str, Any]) -> list[str]:
    """The values of which nothing is said when they are spoiled in one of these ways."""
    tree = TREES / name
    document, raw = declared(tree), recorded_nvml(str(tree))
    assert isinstance(raw, dict)
    gatherer = Gatherer(
        Root(str(tree)), reads=reads(document), unsupported=document.unsupported, slow_seconds=3600.0, wanted=wanted(document)
    )
    base = gatherer.gather(raw)
    known = readable_fields(base) | {f"{history_update.DRIVER}{base.driver.library_version}"}
    past = Past(available=True, readable=known, gpu_cards=gpu_cards_of(base))

    def said(answer: Any) -> set[str]:
        return {identity(f) for f in judge(document, gatherer.gather(answer), past) if f.level is not Level.OK}

    usual, found = said(raw), []
    for place in leaves({k: v for k, v in raw["gpus"][GPU].items() if (k, v) != ("nvlink", [])}):  # a kind of GPU without any
        name = ".".join(map(str, place))
        for way, value in ways.items():
            spoiled = copy.deepcopy(raw)
            group = spoiled["gpus"][GPU]
            for key in place[:-1]:
                group = group[key]
            if value is GONE:
                del group[place[-1]]
            else:
                group[place[-1]] = value
            listed = value in ([], GONE) if not isinstance(value, float) else False
            text = value == "N/A" and isinstance(raw["gpus"][GPU].get(name), str)  # any text is a name
            if text or (listed and re.fullmatch(LISTS, name)):
                said(spoiled)  # not a crash either
            elif not said(spoiled) - usual and not any(re.fullmatch(pattern, name) for pattern in NO_FACT):
                found.append(f"{name}: {way}")
    return found


@pytest.mark.parametrize(
    ("machine", "ways"),
    [
        ("hgx-h100", {"an error": {"error": 999}}),
        pytest.param("hgx-h100", OTHERWISE, marks=pytest.mark.slow, id="hgx-h100-otherwise"),
        pytest.param("hgx-a100", OTHERWISE, marks=pytest.mark.slow, id="hgx-a100-otherwise"),
        pytest.param("l40s-pcie", OTHERWISE, marks=pytest.mark.slow, id="l40s-pcie-otherwise"),
    ],
)
def test_no_value_of_nvml_goes_dark_in_silence(machine: str, ways: dict[str, Any]) -> None:
    assert silent(machine, ways) == []


#: Files whose content may be any text, or none: other ports are enough; the modules and records that there are; a state.
ANY_TEXT = r"/nic/infiniband/\w+/ports/N/(link_layer|state|phys_state)|/proc/modules|/dev/kmsg|/nvml.json|/host.json"
#: A number of the wrong size is not among them: no such file says that.
SPOILED = {"empty": b"", "N/A": b"N/A\n", "no text": b"\xff\xfe\x00\x80", "words": b"lorem ipsum\n"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hgx-h100.tuned", "l40s-pcie"])
def test_no_file_is_spoiled_in_silence(name: str, tmp_path: Path) -> None:
    tree = Path(shutil.copytree(TREES / name, tmp_path / name, symlinks=True)).resolve()
    document, root = declared(tree), Watched(str(tree))
    before, usual = sweep(tree, document, root, None)
    files = {path: kind(tree, path) for path in sources(tree, root)}
    quiet = []
    for path, what in files.items():
        if any(what == f"/{beside}" for beside in BESIDE):
            continue
        kept = path.read_bytes()
        for way, content in SPOILED.items():
            path.write_bytes(content)
            _, found = sweep(tree, document, Root(str(tree)), before)
            excused = re.fullmatch(ANY_TEXT, what) or any(re.fullmatch(pattern, what) for pattern in UNJUDGED)
            if not found - usual and not excused:
                quiet.append(f"{what}: {way}")
        path.write_bytes(kept)
    assert quiet == []
