"""What one hostile node writes changes neither whether nor how the others are judged, and costs little time."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.measure import job_output, run_judgement
from fairlead.measure.acceptance_plan import AcceptancePlan, PlannedNode
from fairlead.measure.job_output import ToolRun
from fairlead.measure.job_script import ToolStep
from fairlead.measure.judge_figure import judge
from fairlead.measure.results_store import ResultStore, StoredResult
from fairlead.measure.run_judgement import RunResult, judge_run
from fairlead.measure.tool import Figure, MeasuredOutcome, ToolReading
from fairlead.measure.tools import copy, ib_write_bw, load

P, W, F, U = MeasuredOutcome.PASS, MeasuredOutcome.WARN, MeasuredOutcome.FAIL, MeasuredOutcome.UNKNOWN
STEP = ToolStep(name="copy", command=copy.tool.command, seconds=600)


def output(pairs: int, value: object, *, ranks: int = 8, rows: int = 1) -> str:
    """An output of nvbandwidth, of ``pairs`` x ``pairs`` between GPUs and one row of ``ranks`` for the host's copies."""
    host = [["50"] * ranks] * rows
    matrices = (host, host, [[str(value)] * pairs for _ in range(pairs)])
    cases = [{"name": n, "status": "Passed", "bandwidth_matrix": m} for n, m in zip(copy.NAMES, matrices, strict=True)]
    return json.dumps({"nvbandwidth": {"version": "0.8", "testcases": cases}})


def said(pairs: int, value: object, *, ranks: int = 8, rows: int = 1, gpus: int | None = 8) -> ToolReading:
    return job_output.said(
        copy.tool, STEP, ToolRun(out=output(pairs, value, ranks=ranks, rows=rows), status=0, begun=True), gpus, "ended"
    )


def pairs_of(*values: float) -> tuple[Figure, ...]:
    return tuple(Figure(name="device_to_device", value=v, unit="GB/s", device=f"gpu{at}") for at, v in enumerate(values))


def judged(store: ResultStore, run: str, nodes: Mapping[str, tuple[Figure, ...]]) -> RunResult:
    """A run of these figures, put into the store as they stand, and judged."""
    targets = tuple(PlannedNode(node=node, class_name="h100", gpus=8, steps=(STEP,), needed=("copy",)) for node in nodes)
    plan = AcceptancePlan(run=run, mark="#m", folder="/f", max_wait_seconds=1, targets=targets)
    store.begin(run, user="root", host="h", folder="/f", plan=msgspec.json.encode(plan), fairlead="0")
    for node, figures in nodes.items():
        result = StoredResult(tool="copy", command=STEP.command, outcome=P, figures=figures)
        store.submitted(run, node, "h100", 1)
        store.measured(run, node, U, "not judged yet", kind="8 x H100", driver="580", gpus=(), results=[result])
    return judge_run(store, run)


@pytest.fixture
def store(tmp_path: Path) -> ResultStore:
    return ResultStore(str(tmp_path / "store"))


# --- impossible figures ---


@pytest.mark.parametrize("value", ["5e-324", "1e-7", "9.99e-7", "1e15", "1e400"])
def test_a_figure_that_none_can_be_makes_the_tool_unknown(value: str) -> None:
    """An output with such a figure is not known, and none of its figures is stored."""
    found = said(8, value)
    assert found.outcome is U and not found.figures and "impossible" in found.why


def test_the_smallest_figures_that_can_be_are_read() -> None:
    assert said(8, "1e-6").outcome is P and said(8, "0").outcome is P


@pytest.mark.parametrize("value", [5e-324, 1e-320, 1e-7, math.inf, -math.inf])
def test_a_figure_of_one_node_never_ends_the_judging_of_the_others(store: ResultStore, value: float) -> None:
    """Whatever is in the store: each healthy node is judged, in this run and in later ones."""
    healthy = {f"n{n}": pairs_of(390, 391, 392) for n in range(4)}
    found = judged(store, "r1", {**healthy, "evil": pairs_of(value, value, value)})
    assert [n.outcome for n in found.nodes] == [P, P, P, P, U], [n.why for n in found.nodes]
    assert found.ended is not None
    (one,) = judged(store, "r2", {"m": pairs_of(390, 391, 392)}).nodes
    assert one.outcome is P and one.tools[0].figures[0].judgement is not None
    assert one.tools[0].figures[0].judgement.nodes == 4


@given(st.lists(st.floats(min_value=0, max_value=1e-5, allow_subnormal=True), min_size=5, max_size=9))
def test_tiny_figures_raise_nothing(values: list[float]) -> None:
    for value in values:
        judgement = judge(value, siblings=[[v] for v in values])
        assert judgement.mad is None or judgement.mad > 0


def test_what_cannot_be_judged_of_one_node_is_unknown_of_that_node_alone(
    store: ResultStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_judgement.judge

    def broken(value: float, **more: object) -> object:
        if value == 13:
            raise ZeroDivisionError
        return whole(value, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(run_judgement, "judge", broken)
    found = judged(store, "r", {**{f"n{n}": pairs_of(390, 391, 392) for n in range(4)}, "evil": pairs_of(390, 13, 390)})
    assert [n.outcome for n in found.nodes] == [P, P, P, P, U]
    assert "not judged" in found.nodes[-1].why and "ZeroDivisionError" in found.nodes[-1].why and found.ended is not None


# --- one node, one vote ---


@pytest.mark.parametrize("figures", [56, 600, 3738])
@pytest.mark.parametrize("hostile", [0.001, 300.0, 600.0, 1e9])
def test_a_node_has_one_vote_however_many_figures_it_writes(figures: int, hostile: float) -> None:
    """With it and without it, a healthy figure passes and a sick one fails."""
    honest = [[388.0 + n % 5 for n in range(56)]] * 20
    for siblings in (honest, [*honest, [hostile] * figures]):
        assert judge(390, siblings=siblings).outcome is P
        assert judge(330, siblings=siblings).outcome is F
        assert judge(365, siblings=siblings).outcome is W


def test_a_node_has_one_vote_in_a_run_and_in_the_store(store: ResultStore) -> None:
    healthy = pairs_of(*(388.0 + n % 5 for n in range(56)))
    nodes = {f"n{n}": healthy for n in range(8)} | {"evil": pairs_of(*[600.0] * 3738)}
    found = judged(store, "r1", nodes)
    assert [n.outcome for n in found.nodes] == [P] * 9
    later = judged(store, "r2", {"m": healthy, "sick": pairs_of(*[330.0] * 56)})
    assert [n.outcome for n in later.nodes] == [P, F], [n.why for n in later.nodes]


class_ = st.integers(1, 9).flatmap(
    lambda n: st.lists(st.lists(st.integers(1, 40), min_size=n, max_size=n), min_size=3, max_size=9)
)


@given(class_)
def test_nodes_of_as_many_figures_each_count_as_one_pool(siblings: list[list[int]]) -> None:
    """Median and MAD are those of all figures together, as ever: of honest nodes nothing changes."""
    from statistics import median

    pool = [float(v) for each in siblings for v in each]
    judgement = judge(20, siblings=siblings)
    centre = median(pool)
    assert judgement.median == centre
    if len(pool) >= 5:
        assert judgement.mad == max(median(abs(v - centre) for v in pool), 0.01 * centre)


# --- how many figures an output can have ---


@pytest.mark.parametrize("pairs", [1, 7, 9, 22, 62])
def test_a_matrix_of_other_than_its_gpus_is_no_output(pairs: int) -> None:
    for gpus in (8, None):
        found = said(pairs, 600, gpus=gpus)
        assert found.outcome is U and not found.figures, found.why
    assert "device_to_device" in said(9, 600).why


def test_copies_of_the_host_are_one_row() -> None:
    assert said(8, 390).outcome is P
    assert said(8, 390, rows=2).outcome is U
    data = json.loads(output(8, 390))
    data["nvbandwidth"]["testcases"][1]["bandwidth_matrix"] = [["50"] * 9]
    assert copy.read(json.dumps(data), "").outcome is U


def test_a_pair_that_cannot_reach_each_other_is_no_fault() -> None:
    data = json.loads(output(8, 390))
    data["nvbandwidth"]["testcases"][2]["bandwidth_matrix"][0][5] = "N/A"
    found = copy.read(json.dumps(data), "")
    assert found.outcome is P and len(found.figures) == 8 + 8 + 55


def test_sixteen_gpus_are_read_and_no_more_than_any_node_has() -> None:
    assert len(said(16, 390, ranks=16, gpus=16).figures) == 240 + 32
    assert said(40, 390, ranks=40, gpus=None).outcome is U
    assert job_output.FIGURES_MAX <= 600


ADAPTER = "# device {} port 1 rate 400 Gb/sec (4X NDR)\n #bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n"
ROW = " 8388608 5000 394.1 393.7 0.005866\n"


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (ADAPTER.format("a") + ROW + ADAPTER.format("b") + ROW + "# devices 2 of 2\n", P),
        (ADAPTER.format("a") + ROW + "# devices 1 of 2\n", P),
        (ADAPTER.format("a") + ROW + " 4194304 5000 394.1 393.7 0.005866\n" + "# devices 1 of 1\n", P),  # -a: all sizes
        (ADAPTER.format("a") + ROW * 2 + "# devices 1 of 1\n", U),
        ((ADAPTER.format("a") + ROW) * 2 + "# devices 2 of 2\n", U),
        ("".join(ADAPTER.format(f"a{n}") + ROW for n in range(40)) + "# devices 8 of 8\n", U),
        (ADAPTER.format("a") + ROW + "# devices 2 of 2\n", U),
        (ADAPTER.format("a") + ROW + ADAPTER.format("b") + ROW + "# devices 2 of 1\n", U),
    ],
)
def test_adapters_have_one_figure_a_size(text: str, outcome: MeasuredOutcome) -> None:
    found = ib_write_bw.read(text, "")
    assert found.outcome is outcome, found
    assert load()["ib_write_bw"].read(text, "") == found


# --- time ---


@pytest.mark.heavy
def test_as_many_figures_as_are_read_are_judged_in_time(store: ResultStore) -> None:
    """64 nodes at the bound of figures, and a second run that reads all of them from the store."""
    nodes = {f"n{n:02}": pairs_of(*(390 + (n * 7 + at) % 50 / 10 for at in range(job_output.FIGURES_MAX))) for n in range(64)}
    began = time.process_time()
    assert {n.outcome for n in judged(store, "r1", nodes).nodes} == {P}
    assert {n.outcome for n in judged(store, "r2", {"m": nodes["n00"]}).nodes} == {P}
    assert time.process_time() - began < 30
