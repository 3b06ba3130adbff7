"""One job: which deviations name a node, and which name nobody."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.fleet.slow_node_rule import SIGNALS, NodeSigns, NodesJudgement, judged, single_signs
from fairlead.fleet.small_group_statistics import compared, few, histogram_median, median

GPU = {"clock": 1980.0, "throttle": 0.0, "utilisation": 97.0, "activity": 60.0, "power": 600.0}
HOST = {
    "cpu_pressure": 3.0,
    "io_pressure": 0.0,
    "memory_pressure": 0.0,
    "link_errors": 0.0,
    "queue_drops": 0.0,
    "retransmits": 50.0,
}


def job(
    host: Mapping[str, float] | None = None,
    gpu: Mapping[str, float] | None = None,
    *,
    nodes: int = 4,
    slow: int = 1,
    on: str = "3",
) -> NodesJudgement:
    """The judgement of a job of nodes with 8 GPUs, of which ``slow`` have other values (of their GPU ``on``)."""
    made = []
    for number in range(nodes):
        mine = number < slow
        gpus = {str(i): {**GPU, **(gpu or {} if mine and str(i) == on else {})} for i in range(8)}
        made.append(NodeSigns(node=f"n{number}", kind="8 x H100", host={**HOST, **(host or {} if mine else {})}, gpus=gpus))
    return judged(made)


def test_equal_nodes() -> None:
    found = job()
    assert found.accused == () and found.uneven == () and set(found.least) == {signal.name for signal in SIGNALS}


@pytest.mark.parametrize(
    ("host", "gpu", "cause", "on"),
    [
        ({}, {"clock": 1400.0, "throttle": 80.0}, "slow GPU", "3"),
        ({}, {"clock": 1400.0, "throttle": 80.0, "activity": 90.0}, "slow GPU", "3"),
        ({"cpu_pressure": 60.0}, {"utilisation": 60.0}, "slow host", "3"),
        ({"io_pressure": 60.0}, {"utilisation": 60.0}, "slow host", "3"),
        ({"queue_drops": 90000.0, "retransmits": 90000.0}, {}, "slow network link", ""),
        ({"link_errors": 500.0, "retransmits": 90000.0}, {}, "slow network link", ""),
    ],
)
def test_two_signals_name_the_node(host: dict[str, float], gpu: dict[str, float], cause: str, on: str) -> None:
    found = job(host, gpu)
    assert [(each.node, each.cause, each.gpu) for each in found.accused] == [("n0", cause, on)]
    assert len(found.accused[0].evidence) == 2


@pytest.mark.parametrize(
    ("host", "gpu"),
    [
        ({}, {"clock": 1400.0}),  # a low clock without a reason
        ({}, {"throttle": 80.0}),
        ({"cpu_pressure": 60.0}, {}),
        ({}, {"utilisation": 50.0}),  # the victim of another, or a rank that loads data
        ({"retransmits": 90000.0}, {}),  # the receiver may be slow
        ({"link_errors": 500.0}, {}),
        ({}, {"activity": 90.0, "power": 700.0}),  # a heavy rank
        ({}, {"clock": 1400.0, "throttle": 80.0, "activity": 30.0}),  # slowed because it has little to do
        ({"queue_drops": 90000.0, "retransmits": 90000.0}, {"utilisation": 50.0}),  # a host that does not keep up
    ],
)
def test_anything_less_names_nobody_and_is_shown(host: dict[str, float], gpu: dict[str, float]) -> None:
    found = job(host, gpu)
    assert found.accused == () and {each.node for each in found.uneven} == {"n0"}


def test_one_signal_is_told_apart_from_uneven_work() -> None:
    assert [d.signal for d in single_signs(job({"cpu_pressure": 60.0}))] == ["cpu_pressure"]
    assert single_signs(job(gpu={"activity": 90.0})) == ()


def test_two_gpus_with_one_signal_each_do_not_add_up() -> None:
    nodes = [
        NodeSigns(
            node=f"n{n}",
            gpus={
                "0": {**GPU, **({"clock": 1400.0} if n == 0 else {})},
                "1": {**GPU, **({"throttle": 80.0} if n == 0 else {})},
            },
        )
        for n in range(4)
    ]
    assert judged(nodes).accused == ()


@pytest.mark.parametrize(("nodes", "slow", "named"), [(4, 2, 0), (8, 2, 0), (24, 2, 2), (24, 3, 0)])
def test_if_too_many_nodes_deviate_the_work_is_uneven(nodes: int, slow: int, named: int) -> None:
    found = job({"cpu_pressure": 60.0}, {"utilisation": 60.0}, nodes=nodes, slow=slow)
    assert len(found.accused) == named
    assert bool(found.uneven) == (not named)


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_fewer_than_four_nodes_are_not_compared(nodes: int) -> None:
    found = job({"cpu_pressure": 99.0}, {"clock": 300.0, "throttle": 100.0}, nodes=nodes)
    assert found.accused == () and not found.least
    assert set(found.not_judged.values()) == {f"{nodes} nodes of its kind, and 4 are needed"}


def test_nodes_of_another_kind_are_not_compared_with_each_other() -> None:
    nodes = [NodeSigns(node=f"n{n}", kind="a" if n < 4 else "b", host={"cpu_pressure": 2.0 + 60 * (n >= 4)}) for n in range(6)]
    found = judged(nodes)
    assert found.accused == () and set(found.not_judged) == {"n4", "n5"}


def test_a_missing_value_is_never_zero() -> None:
    """The node that does not know its clock is neither slow, nor does it make the others fast."""
    nodes = [NodeSigns(node=f"n{n}", gpus={"0": {} if n == 0 else {"clock": 1980.0, "throttle": 0.0}}) for n in range(5)]
    assert judged(nodes).uneven == ()
    old = NodeSigns(node="n9", lacking="its record has no histograms", readings=0)
    found = judged([*nodes, old])
    assert found.not_judged == {"n9": "its record has no histograms"}


def test_too_few_readings() -> None:
    nodes = [NodeSigns(node=f"n{n}", host={"cpu_pressure": 2.0}, readings=5 if n == 0 else 8) for n in range(5)]
    assert judged(nodes).not_judged == {"n0": "5 readings so far, and 8 are needed"}


def test_what_could_have_been_seen_follows_the_spread() -> None:
    values = [1980, 1965, 1995, 1950, 2010, 1980, 1935, 2025]
    wide = judged([NodeSigns(node=f"n{i}", gpus={"0": {"clock": float(v)}}) for i, v in enumerate(values)])
    equal = judged([NodeSigns(node=f"n{i}", gpus={"0": {"clock": 1980.0}}) for i in range(8)])
    assert equal.least["clock"] == pytest.approx(0.04 * 1980)
    assert wide.least["clock"] > 150


@pytest.mark.parametrize(("size", "most"), [(4, 0.02), (8, 0.008), (16, 0.004), (64, 0.002)])
def test_how_often_one_comparison_flags_an_equal_member(size: int, most: float) -> None:
    """Normal values with a spread of 2 %, and a floor of 5 %: what the reference has for 5 x 1.48 MAD."""
    rng = random.Random(size)
    flagged = 0
    rounds = 4000 // size * 4
    for _ in range(rounds):
        found = compared({str(i): rng.gauss(100, 2) for i in range(size)}, 5.0)
        assert found is not None
        flagged += len(found.high)
    assert flagged / (rounds * size) <= most


@pytest.mark.parametrize(
    ("histogram", "found"), [({}, None), ({0: 5.0}, 0.0), ({3: 10.0}, 3.0), ({3: 5.0, 4: 5.0}, 3.5), ({0: 9.0, 20: 1.0}, 0.0556)]
)
def test_the_median_of_a_histogram(histogram: dict[int, float], found: float | None) -> None:
    assert histogram_median(histogram) == (None if found is None else pytest.approx(found, abs=0.001))


@given(st.lists(st.integers(0, 200), min_size=1, max_size=50))
def test_the_median_of_a_histogram_is_that_of_its_values(values: list[int]) -> None:
    histogram: dict[int, float] = {}
    for value in values:
        histogram[value] = histogram.get(value, 0.0) + 1
    found = histogram_median(histogram)
    ordered = sorted(values)
    assert found is not None
    assert ordered[(len(ordered) - 1) // 2] - 0.5 <= found <= ordered[len(ordered) // 2] + 0.5
    assert min(values) - 0.5 <= found <= max(values) + 0.5 and median(values) is not None


@given(st.dictionaries(st.text("abcdefgh", min_size=1, max_size=2), st.floats(-1e6, 1e6), max_size=12), st.floats(0.1, 100))
def test_no_member_is_on_both_sides_and_few_are_on_one(values: dict[str, float], floor: float) -> None:
    found = compared(values, floor)
    if found is None:
        assert len(values) < 4
        return
    assert not found.high & found.low and found.least >= floor
    assert len(found.high) <= len(values) / 2 and few(len(values)) >= 1
