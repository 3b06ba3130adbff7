"""What the recording rules make of three nodes in a real Prometheus: counts with zeros, sums, rules that read other rules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dashboards import prometheus

END = 1_790_000_000
NODES = ("n1", "n2", "n3")  # n3 is silent


def _samples() -> Iterator[str]:
    for ago in range(150, -1, -1):
        at = END - 60 * ago
        for node in NODES:
            labels = f'instance="{node}:9477"'
            yield f"fairlead_sweep_timestamp_seconds{{{labels}}} {at if node != 'n3' else END - 7200} {at}"
            for state in ("ok", "drain"):
                value = int((state == "drain") == (node == "n2"))
                yield f'fairlead_verdict_state{{{labels},state="{state}"}} {value} {at}'
            for gpu in "ab":
                card = f'{labels},pci="{gpu}",index="0",uuid="GPU-{node}{gpu}"'
                yield f"fairlead_gpu_info{{{card}}} 1 {at}"
                yield f"fairlead_gpu_power_draw_watts{{{card}}} 100 {at}"
                yield f"fairlead_gpu_pcie_link_width_max_lanes{{{card}}} 16 {at}"
                yield f"fairlead_gpu_pcie_link_width_lanes{{{card}}} {8 if (node, gpu) == ('n2', 'b') else 16} {at}"
                yield f'fairlead_gpu_row_remap_state{{{card},state="failed"}} {int((node, gpu) == ("n1", "a"))} {at}'
                yield f'fairlead_gpu_row_remap_state{{{card},state="pending"}} {int((node, gpu) == ("n1", "a"))} {at}'
                yield f"fairlead_gpu_pcie_replays_total{{{card}}} {min(150 - ago, 100) if (node, gpu) == ('n1', 'b') else 0} {at}"
                busy = 60 * (150 - ago) if (node, gpu) == ("n1", "a") else 0
                yield f"fairlead_gpu_busy_seconds_total{{{card}}} {busy} {at}"
                yield f"fairlead_gpu_measured_seconds_total{{{card}}} {60 * (150 - ago)} {at}"
            if node == "n1":
                for gpu in "ab":
                    yield f'fairlead_job_gpu{{{labels},pci="{gpu}",job="7"}} 1 {at}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[prometheus.Server]:
    folder: Path = tmp_path_factory.mktemp("rules")
    prometheus.blocks(folder, _samples())
    with prometheus.serving(folder, END - 1800, END) as up:
        yield up


@pytest.mark.parametrize(
    ("name", "by", "values"),
    [
        ("instance:fairlead_gpus:count", "instance", {"n1:9477": 2, "n2:9477": 2, "n3:9477": 2}),
        ("instance:fairlead_gpus_with_job:count", "instance", {"n1:9477": 2, "n2:9477": 0, "n3:9477": 0}),
        ("instance:fairlead_gpus_with_unfinished_remap:count", "instance", {"n1:9477": 1, "n2:9477": 0, "n3:9477": 0}),
        ("instance:fairlead_gpus_with_narrow_link:count", "instance", {"n1:9477": 0, "n2:9477": 1, "n3:9477": 0}),
        ("instance:fairlead_gpu_power_draw_watts:sum", "instance", {"n1:9477": 200, "n2:9477": 200, "n3:9477": 200}),
        ("state:fairlead_nodes:count", "state", {"ok": 1, "drain": 1, "silent": 1}),
        ("gpu:fairlead_gpu_narrow_link:lanes", "uuid", {"GPU-n2b": 8}),
        ("gpu:fairlead_gpu_pcie_replays:increase1d > 0", "uuid", {"GPU-n1b": 100}),
        ("job:fairlead_gpu_busy:ratio1h", "job", {"7": 0.5}),
    ],
)
def test_a_rule_records(server: prometheus.Server, name: str, by: str, values: dict[str, float]) -> None:
    found = server.instant(name, END)
    assert {s["metric"][by]: float(s["value"][1]) for s in found} == pytest.approx(values, rel=0.02)
