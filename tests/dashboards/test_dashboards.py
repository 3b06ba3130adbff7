"""Each panel of each dashboard asks a query that a real Prometheus answers with what a scripted hour of real agents contains."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import dashboard as models
from promql_parser import parse

from release.dashboards.__main__ import DASHBOARDS, FOLDER
from release.dashboards.panel import Panel, as_json
from tests.dashboards import fleet_of_series, hour, prometheus

PANELS = [(dashboard, panel) for dashboard in DASHBOARDS for row in dashboard.rows for panel in row.panels]
IDS = [f"{dashboard.name}: {panel.kind} {panel.title}" for dashboard, panel in PANELS]
#: What no fault of the hour causes, as the agent would export it (tests/daemon/publishing hold that form).
MADE_UP = (
    'fairlead_drain_limited{limit="partition",name="gpu",instance="n3:9477"} 1',
    'fairlead_ladder_step{fault="row_remap.failed/1651578323412",step="contact_support",instance="n4:9477"} 1',
    'fairlead_source_timestamp_seconds{source="made_up",instance="n4:9477"} 1000',
)
GPU = "index"
#: What the recorded driver of the machine tree does not give; panels of one node read it.
NOT_IN_THE_TREE = {f"fairlead_gpu_{name}_seconds_total" for name in ("busy", "measured", "sm_active", "gpm")}


class Expected(NamedTuple):
    """What a panel shows: the value of each series, by these of its labels. ``node``: of which node a node's panel is asked.
    ``most``: the highest value over the hour counts, else the last one. ``near``: the part by which a value may differ."""

    by: tuple[str, ...]
    values: Mapping[tuple[str, ...], float]
    node: str = "n3"
    most: bool = False
    near: float = 0.0


def one(value: float, **words: Any) -> Expected:
    return Expected((), {(): value}, **words)


def each_gpu(*values: float, **words: Any) -> Expected:
    return Expected((GPU,), {(str(n),): value for n, value in enumerate(values)}, **words)


STATES = {("ok",): 0, ("warn",): 1, ("drain",): 2, ("unknown",): 0, ("silent",): 1}
CHECKS = {("ecc",): 1, ("gpu_clocks",): 2, ("pcie_link",): 1, ("row_remap",): 1, ("setting.numa_balancing",): 1, ("xid",): 1}
EXPECTED: dict[str, Expected] = {
    "fleet: stat Nodes by verdict": Expected(("state",), STATES),
    "fleet: stat Drained by fairlead": one(2),
    "fleet: stat Findings held": one(3),
    "fleet: stat Agents silent": one(1),
    "fleet: stat Agents missing": one(1),
    "fleet: lines Verdicts": Expected(("state",), STATES),
    "fleet: table Drained nodes and what was found": Expected(
        ("node", "check", "device"),
        {("n2", "xid", "0000:43:00.0"): 1, ("n4", "row_remap", "0000:52:00.0"): 1, ("n4", "ecc", "0000:52:00.0"): 1},
    ),
    "fleet: table Would drain, and does not": Expected(("node",), {("n1",): 8, ("n3",): 3, ("n4",): 1}),
    "fleet: table Drain limits": Expected(("limit", "name"), {("partition", "gpu"): 1}),
    "fleet: lines Findings by check": Expected(("check",), CHECKS),
    "fleet: table Silent agents": Expected(("instance",), {("n1:9477",): 1260}, near=0.1),
    "fleet: table Sources that do not answer": Expected(("source",), {("made_up",): 1.8e9}, near=0.2),
    "fleet: table Nodes by class": Expected(("profile",), {("hgx-h100",): 4}),
    "fleet: table Not ok by class": Expected(("profile", "state"), {("hgx-h100", "warn"): 2, ("hgx-h100", "drain"): 2}),
    "fleet: table Agents by version": Expected((), {(): 4}),
    "fleet: table Drivers": Expected(("module",), {("570.172.08",): 4}),
    "node: states Verdict": Expected(("state",), {("ok",): 1, ("warn",): 1}),
    "node: states Findings": Expected(
        ("check", "level"),
        {("gpu_clocks", "drain"): 2, ("pcie_link", "drain"): 1, ("setting.numa_balancing", "warn"): 1},
    ),
    "node: table Findings now": Expected(("check", "device"), {("xid", "0000:43:00.0"): 1}, node="n2"),
    "node: table Escalation": Expected(("step",), {("contact_support",): 1}, node="n4"),
    "node: lines Busy": each_gpu(1, 1, 0, 0, 0, 0, 0, 0, near=0.01),
    "node: lines SM active": each_gpu(0.01, 0.01, 0, 0, 0, 0, 0, 0, near=0.01),
    "node: lines Temperature": each_gpu(*[34] * 8),
    "node: lines Power": each_gpu(120, 120, *[100] * 6),
    "node: lines SM clock": each_gpu(*[345e6] * 8),
    "node: lines Throttled": Expected((GPU, "reason"), {("7", "thermal"): 3.0}, most=True, near=0.35),
    "node: lines Memory used": each_gpu(*[0] * 8),
    "node: lines Jobs on GPUs": Expected((GPU, "job"), {("0", "13"): 1, ("1", "13"): 1}),
    "node: lines NVLinks up": each_gpu(*[18] * 8),
    "node: lines NVLink errors": Expected((GPU, "kind"), {("5", "crc"): 500}, most=True, near=0.15),
    "node: lines PCIe link width": each_gpu(16, 16, 16, 16, 16, 16, 8, 16),
    "node: lines PCIe replays": each_gpu(0, 0, 0, 0, 0, 0, 40, 0, most=True, near=0.15),
    "node: lines ECC errors": Expected((GPU, "kind"), {("2", "volatile_uncorrected"): 2}, node="n4", most=True, near=0.15),
    "node: lines Xids": Expected((GPU, "xid"), {("1", "79"): 1}, node="n2", most=True),
    "node: lines NIC ports up": Expected(("device",), {(f"mlx5_{n}",): 1 for n in range(10)}),
    "node: lines Sweep": one(30, near=1.0),
    "gpu-health: stat GPUs": one(32),
    "gpu-health: stat Lost": one(0),
    "gpu-health: stat Remap failed or pending": one(1),
    "gpu-health: stat Narrow PCIe links": one(1),
    "gpu-health: table Xids of the last day": Expected(("instance", GPU, "xid"), {("n2:9477", "1", "79"): 1}),
    "gpu-health: table Uncorrected ECC errors of the last day": Expected(("instance", GPU), {("n4:9477", "2"): 2}, near=0.1),
    "gpu-health: table Remapped rows": Expected(("instance", GPU), {("n4:9477", "2"): 3}),
    "gpu-health: table Banks without spare rows": Expected(("instance", GPU), {("n4:9477", "2"): 2}),
    "gpu-health: table Nearest to slowdown": one(55),
    "gpu-health: table Most throttled": Expected(("instance", GPU), {("n3:9477", "7"): 0.25}, near=0.1),
    "gpu-health: table NVLink errors of the last day": Expected(("instance", GPU), {("n3:9477", "5"): 500}, near=0.1),
    "gpu-health: table PCIe replays of the last day": Expected(("instance", GPU), {("n3:9477", "6"): 40}, near=0.1),
    "gpu-health: table Narrow PCIe links": Expected(("instance", GPU), {("n3:9477", "6"): 8}),
    "gpu-health: table Strikes": Expected(("instance",), {("n2:9477",): 1, ("n4:9477",): 1}),
    "gpu-health: table Wants hardware": Expected(("instance", "step"), {("n4:9477", "contact_support"): 1}),
    "jobs: stat GPUs with a job": one(6),
    "jobs: stat GPUs without a job": one(18),
    "jobs: stat Busy, of GPUs with a job": one(1 / 3, near=0.02),
    "jobs: stat GPUs with a job and no kernel for an hour": one(4),
    "jobs: table Least busy jobs": Expected(("job",), {("11",): 1, ("12",): 0, ("13",): 1}, near=0.01),
    "jobs: table Busy, but few SMs active": Expected(("job",), {("11",): 0.8, ("13",): 0.01}, near=0.01),
    "jobs: table Most GPUs without a kernel for an hour": Expected(("job",), {("12",): 4}),
    "jobs: table Energy of the last hour": Expected(("job",), {("11",): 3.2, ("12",): 0.4, ("13",): 0.24}, near=0.1),
    "jobs: lines Busy by job": Expected(("job",), {("11",): 1, ("12",): 0, ("13",): 1}, near=0.01),
    "jobs: lines GPUs with a job": one(14, most=True),
    "jobs: lines Power of all GPUs": one(8 * 600 + 8 * 100 + 2 * 120 + 6 * 100 + 8 * 100, most=True),
    "drift: stat Nodes with drift": one(1),
    "drift: stat Settings that drifted": one(1),
    "drift: stat Documents behind": one(0),
    "drift: stat Driver versions": one(1),
    "drift: table Drift by setting": Expected(("check",), {("setting.numa_balancing",): 1}),
    "drift: table Drift by node": Expected(("instance", "check"), {("n3:9477", "setting.numa_balancing"): 1}),
    "drift: lines Nodes with drift": Expected(("check",), {("setting.numa_balancing",): 1}),
    "drift: table Documents": Expected(("profile",), {("hgx-h100",): 4}),
    "drift: table Drivers": Expected(("module",), {("570.172.08",): 4}),
}


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.name)
def test_what_is_shipped_is_what_the_code_describes(dashboard: Any) -> None:
    assert (FOLDER / f"{dashboard.name}.json").read_text() == as_json(dashboard), "run `make dashboards`"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_each_panel_says_what_it_shows_and_where_it_asks(path: Path) -> None:
    made = json.loads(path.read_text())
    assert made["uid"] == f"fairlead-{path.stem}" and made["templating"]["list"][0]["type"] == "datasource"
    ids = [panel["id"] for panel in made["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in made["panels"]:
        if panel["type"] != "row":
            assert panel["description"].endswith(".") or "`" in panel["description"]
            assert panel["fieldConfig"]["defaults"]["unit"] and panel["datasource"]["uid"] == "${source}"
            assert all(target["datasource"]["uid"] == "${source}" for target in panel["targets"])


@pytest.mark.parametrize("panel", [panel for _, panel in PANELS], ids=IDS)
def test_each_query_can_be_parsed(panel: Panel) -> None:
    parse(panel.query.replace("$instance", "gpu1:9477"))


def test_every_panel_is_expected_to_show_something() -> None:
    assert sorted(EXPECTED) == sorted(IDS)


@pytest.mark.parametrize("panel", [panel for _, panel in PANELS], ids=IDS)
def test_no_query_reads_more_than_10_000_series_of_1_000_nodes(panel: Panel) -> None:
    """A query that reads more needs a recording rule (templates/usr/share/fairlead/alerts.yml)."""
    read = fleet_of_series.touched(panel.query)
    assert read <= 10_000
    assert read or {s.name for s in fleet_of_series.selectors(panel.query)} <= NOT_IN_THE_TREE


def test_series_are_counted_once_and_by_their_labels() -> None:
    assert fleet_of_series.touched("fairlead_gpu_info or 0 * count(fairlead_gpu_info)") == 8000
    assert (
        fleet_of_series.touched('rate(fairlead_gpu_remapped_rows{kind=~"unc.*"}[1h] offset 1d) + topk(3, fairlead_gpu_info)')
        == 16000
    )
    assert fleet_of_series.touched('fairlead_gpu_remapped_rows{kind!="uncorrected"}') >= 8000
    assert fleet_of_series.touched('fairlead_gpu_info{instance="$instance"}') == 8
    assert fleet_of_series.touched("fairlead_gpu_row_remap_state == 1") == 16000, "both states are read"


class Hour(NamedTuple):
    server: prometheus.Server
    begin_unix: float
    end_unix: float


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hour]:
    if os.geteuid():
        pytest.skip("needs root: the nodes are namespaces, with real Slurm")
    folder = tmp_path_factory.mktemp("prometheus")
    recorded = hour.record()
    made_up = [f"{sample} {recorded.begin_unix + 60 * minute:.3f}" for sample in MADE_UP for minute in range(61)]
    prometheus.blocks(folder, [*recorded.samples, *made_up])
    with prometheus.serving(folder, recorded.begin_unix, recorded.end_unix) as server:
        yield Hour(server, recorded.begin_unix, recorded.end_unix)


@pytest.mark.slurm
@pytest.mark.one_release
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "panel"), list(zip(IDS, (panel for _, panel in PANELS), strict=True)), ids=IDS)
def test_a_panel_shows_what_the_hour_contains(name: str, panel: Panel, played: Hour) -> None:
    expected = EXPECTED[name]
    query = panel.query.replace("$instance", f"{expected.node}:9477")
    if panel.kind in ("lines", "states"):
        series = played.server.over(query, played.begin_unix, played.end_unix, 60)
        shown = {_labels(s, expected.by): _value([float(v) for _, v in s["values"]], most=expected.most) for s in series}
    else:
        series = played.server.instant(query, played.end_unix)
        shown = {_labels(s, expected.by): float(s["value"][1]) for s in series}
    assert shown.keys() == expected.values.keys(), shown
    for labels, value in expected.values.items():
        assert shown[labels] == pytest.approx(value, rel=expected.near, abs=1e-6), (labels, shown)


@pytest.mark.slurm
@pytest.mark.one_release
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("node", "minute"), [("n2", 10), ("n4", 20), ("n3", None)])
def test_each_drain_is_marked_once_at_its_time(node: str, minute: int | None, played: Hour) -> None:
    query = next(dashboard.drains for dashboard in DASHBOARDS if dashboard.drains).replace("$instance", f"{node}:9477")
    series = played.server.over(query, played.begin_unix, played.end_unix, 60)
    marks = [(float(at) - played.begin_unix) / 60 for s in series for at, _ in s["values"]]
    assert len(marks) == (minute is not None)
    if minute is not None:
        assert minute <= marks[0] <= minute + 4, "the drain, and the scrape after it"


def _labels(series: dict[str, Any], by: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(series["metric"].get(label, "") for label in by)


def _value(values: list[float], *, most: bool) -> float:
    return max(values) if most else values[-1]


def test_a_prometheus_without_our_series_shows_no_number(tmp_path: Path) -> None:
    """What nobody has reported is not 0 faults."""
    prometheus.blocks(tmp_path, ['up{job="other",instance="x"} 1 1790000000.000'])
    with prometheus.serving(tmp_path, 1789999900, 1790000000) as server:
        shown = {
            name: found
            for name, panel in zip(IDS, (panel for _, panel in PANELS), strict=True)
            if (found := server.instant(panel.query.replace("$instance", "n1:9477"), 1790000000))
        }
    assert shown == {}


def lost(text: str) -> list[str]:
    """Return the keys and values that are not there any more after Grafana's own library has read a dashboard by the types of its
    release, and written it again. (It adds the defaults of a panel.)"""
    register_default_plugins()
    again = json.loads(JSONEncoder().encode(models.Dashboard.from_json(json.loads(text))))
    return list(_missing(json.loads(text), again, "$"))


def _missing(wanted: Any, there: Any, at: str) -> Iterator[str]:
    if isinstance(wanted, dict) and isinstance(there, dict):
        for key, value in wanted.items():
            yield from _missing(value, there.get(key), f"{at}.{key}")
    elif isinstance(wanted, list) and isinstance(there, list) and len(wanted) == len(there):
        for n, value in enumerate(wanted):
            yield from _missing(value, there[n], f"{at}[{n}]")
    elif wanted != there:
        yield at


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_the_types_of_that_grafana_release_have_every_key(path: Path) -> None:
    assert lost(path.read_text()) == []


def test_a_key_that_the_release_does_not_know_is_found() -> None:
    data = json.loads((FOLDER / "fleet.json").read_text())
    data["panels"][1]["titel"] = "x"
    assert lost(json.dumps(data)) == ["$.panels[1].titel"]
