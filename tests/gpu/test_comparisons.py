"""The comparisons themselves: metrics with clients, a recorded tree with a written one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import outside_clients as clients
from tests.gpu import tree_differences
from tests.lab.trees import MACHINES

METRICS = """fairlead_gpu_power_draw_watts{index="0",pci="0000:1b:00.0",uuid="GPU-1"} 70.0
fairlead_gpu_power_draw_watts{index="1",pci="0000:43:00.0",uuid="GPU-2"} 90.0
fairlead_gpu_ecc_errors_total{index="0",kind="volatile_corrected",pci="0000:1b:00.0",uuid="GPU-1"} 3.0
"""


def test_metrics_are_those_of_one_gpu() -> None:
    assert clients.metrics_of(METRICS, "0000:1b:00.0") == {
        "power_draw_watts": 70.0,
        "ecc_errors_total volatile_corrected": 3.0,
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [("P8", 8.0), (" 34", 34.0), ("700.00", 700.0), ("Enabled", 1.0), ("[N/A]", None), ("N/A", None), ("", None), ("-3", -3.0)],
)
def test_what_programs_print(text: str, value: float | None) -> None:
    assert clients.number(text) == value


@pytest.mark.parametrize(
    ("before", "after", "outside", "agrees"),
    [
        (70.0, 70.0, 71.0, True),
        (70.0, 300.0, 200.0, True),  # it has moved in between
        (70.0, 70.0, 91.0, False),
        (70.0, 70.0, None, None),
    ],
)
def test_a_value_lies_between_two_readings(before: float, after: float, outside: float | None, agrees: bool | None) -> None:
    key = "power_draw_watts"
    rows = clients.compare({key: before}, {key: after}, {"power.draw": outside}, lambda value: (value.smi, value.smi_factor))
    assert {row["metric"]: row["agrees"] for row in rows}[key] is agrees


def test_each_metric_that_is_compared_exists() -> None:
    names = {value.metric.partition(" ")[0] for value in clients.VALUES}
    page = (Path(__file__).resolve().parents[2] / "docs/reference/metrics.md").read_text()
    assert [name for name in sorted(names) if f"fairlead_gpu_{name}" not in page] == []


def gpu(tree: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MACHINES / tree / "nvml.json").read_text())["gpus"][0]
    return found


def test_a_tree_does_not_differ_from_itself_and_the_nearest_one_is_that_of_the_architecture() -> None:
    for tree in ("hgx-h100", "hgx-a100", "l40s-pcie"):
        assert tree_differences.differences(MACHINES / tree, MACHINES / tree) == []
        assert tree_differences.nearest(gpu(tree), MACHINES).name == tree


def test_values_errors_and_keys_that_differ_are_listed_and_identities_are_not() -> None:
    written = gpu("hgx-h100")
    recorded = json.loads(json.dumps(written)) | {"uuid": "GPU-other", "new_part": 1}
    recorded["power"]["limit_milliwatts"] = {"error": 3}
    del recorded["compute_mode"]
    assert tree_differences.nvml_differences(recorded, written) == [
        f"nvml compute_mode: only written by hand: {written['compute_mode']!r}",
        "nvml new_part: only recorded: 1",
        "nvml power.limit_milliwatts: recorded {'error': 3}, written by hand 700000",
    ]


def test_a_name_that_redaction_left_is_found(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    (tmp_path / "sys/information").write_text("GPU UUID: GPU-1234\n")
    assert tree_differences.readable_names(tmp_path, ["GPU-1234", "5678"]) == ["sys/information"]
    assert tree_differences.readable_names(tmp_path, ["5678"]) == []
