"""The queries that docs/how-to/monitoring.md shows for other exporters find, in a real Prometheus, what they say they find."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.dashboards import prometheus

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/monitoring.md"
RECIPES = re.findall(r"```promql\n(.*?)\n```", PAGE.read_text(), re.DOTALL)
END = 1_790_000_000
#: GPU a is lost, GPU b has two ECC errors and the job 7, GPU c is well and has the job 8.
SERIES = (
    *(f'fairlead_gpu_lost{{instance="n1:9477",pci="{gpu}",uuid="GPU-{gpu}"}} {int(gpu == "a")}' for gpu in "abc"),
    *(f'DCGM_FI_DEV_GPU_TEMP{{instance="n1:9400",gpu="{n}",UUID="GPU-{gpu}"}} 40' for n, gpu in enumerate("abc")),
    'gpu:fairlead_gpu_ecc_uncorrected:increase1d{instance="n1:9477",pci="b",uuid="GPU-b"} 2',
    'gpu:fairlead_gpu_ecc_uncorrected:increase1d{instance="n1:9477",pci="c",uuid="GPU-c"} 0',
    'nvidia_gpu_duty_cycle{instance="n1:9445",uuid="GPU-a",jobid=""} 0',
    'nvidia_gpu_duty_cycle{instance="n1:9445",uuid="GPU-b",jobid="7",userid="1000"} 55',
    'nvidia_gpu_duty_cycle{instance="n1:9445",uuid="GPU-c",jobid="8",userid="1000"} 0',
)
FOUND = {"DCGM_FI_DEV_GPU_TEMP": [("GPU-a", "", 1.0)], "nvidia_gpu_duty_cycle": [("GPU-b", "7", 2.0)]}


def test_each_recipe_is_tried() -> None:
    assert len(RECIPES) == len(FOUND)
    assert all(sum(name in recipe for name in FOUND) == 1 for recipe in RECIPES)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("recipes")
    prometheus.blocks(folder, (f"{series} {END - 60 * ago}" for series in SERIES for ago in range(5, -1, -1)))
    with prometheus.running(folder) as up:
        yield up


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_finds_what_the_page_says(recipe: str, server: prometheus.Server) -> None:
    found = server.instant(recipe, END)
    shown = [(s["metric"]["uuid"], s["metric"].get("jobid", ""), float(s["value"][1])) for s in found]
    assert shown == next(expected for name, expected in FOUND.items() if name in recipe)
