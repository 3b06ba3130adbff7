"""Mechanical distances with the day of their projection, and the score card beside counting incidents."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.fleet.early_warning import distances, growth, possible
from fairlead.fleet.mechanical_values import values_of, with_values
from fairlead.fleet.score_card import NodeWeek, score_card
from fairlead.fleet.service_record import DAY_SECONDS
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.model.device import device_of
from fairlead.model.facts import NvLink
from tests.checks.nodes import gpu as fact_gpu
from tests.checks.nodes import node
from tests.lab.machines import read_nvml
from tests.lab.trees import MACHINES

DAY = 20_000
Point = tuple[int, float]


def weekly(first: float, step: float, weeks: int = 8) -> tuple[Point, ...]:
    return tuple((DAY - 7 * (weeks - 1 - n), first + n * step) for n in range(weeks))


def gpu(**changes: Any) -> dict[str, tuple[Point, ...]]:
    values = {
        "rows.uncorrected": weekly(0, 0),
        "pcie.replays": weekly(10, 0),
        "pcie.lanes": weekly(16, 0),
        "pcie.lanes_max": weekly(16, 0),
        "nvlink.active": weekly(18, 0),
        "nvlink.errors": weekly(40, 0),
        "load.seconds": weekly(0, 4e5),
        "load.slowed_seconds": weekly(0, 0),
        "power.cap_watts": weekly(700, 0),
    }
    return {**values, **{name.replace("__", "."): points for name, points in changes.items()}}


def found(**changes: Any) -> list[tuple[str, str]]:
    node = {f"G{n}": gpu() for n in range(1, 8)} | {"G0": gpu(**changes)}
    assert possible(node) or not changes
    return [(d.device, d.signal) for d in distances("n1", node, DAY)]


def test_a_healthy_node_has_no_distance() -> None:
    assert found() == [] and not possible({"G0": gpu()}) and distances("n1", {}, DAY) == []


@pytest.mark.parametrize(
    ("changes", "signal"),
    [
        ({"rows__uncorrected": weekly(0, 7)}, "rows"),
        ({"pcie__lanes": (*weekly(16, 0)[:-1], (DAY, 8.0))}, "lanes"),
        ({"nvlink__active": (*weekly(18, 0)[:-1], (DAY, 17.0))}, "lanes"),
        ({"pcie__replays": weekly(0, 5000)}, "replays"),
        ({"nvlink__errors": weekly(0, 5000)}, "link_errors"),
        ({"load__slowed_seconds": weekly(0, 1e5)}, "throttle"),
        ({"link__ber": tuple((day, 1e-8 * 10 ** (n / 4)) for n, (day, _) in enumerate(weekly(0, 0)))}, "ber"),
        ({"nvlink__effective_ber": tuple((day, 1e-16 * 10 ** (n / 4)) for n, (day, _) in enumerate(weekly(0, 0)))}, "ber"),
    ],
)
def test_each_signal(changes: dict[str, Any], signal: str) -> None:
    assert found(**changes) == [("G0", signal)]


def test_the_day_on_which_a_line_reaches_its_limit() -> None:
    node = {"G0": gpu(rows__uncorrected=weekly(100, 7))}  # one row a day, 149 now
    (distance,) = distances("n1", node, DAY)
    assert distance.value == 149 and distance.slope == pytest.approx(1) and distance.used == pytest.approx(149 / 512)
    assert distance.reaches_unix == pytest.approx((DAY + 512 - 149) * DAY_SECONDS)
    slow = {"G0": gpu(rows__uncorrected=weekly(1, 0.1))}
    assert distances("n1", slow, DAY)[0].reaches_unix is None, "years away is no date"
    old = {"G0": gpu(rows__uncorrected=weekly(5, 0))}
    assert distances("n1", old, DAY) == [], "a value that does not move is no warning"


def test_throttling_of_all_siblings_or_at_another_cap_is_none() -> None:
    slowed = weekly(0, 1e5)
    assert distances("n1", {f"G{n}": gpu(load__slowed_seconds=slowed) for n in range(8)}, DAY) == []
    node = {f"G{n}": gpu() for n in range(1, 8)} | {"G0": gpu(load__slowed_seconds=slowed, power__cap_watts=weekly(400, 0))}
    assert distances("n1", node, DAY) == [], "no sibling has its cap"
    few = {"G0": gpu(load__slowed_seconds=slowed), "G1": gpu()}
    assert distances("n1", few, DAY) == [], "fewer than three siblings say nothing"


def test_a_counter_that_begins_again_and_one_without_values() -> None:
    assert growth([(1, 5.0), (2, 9.0), (3, 1.0), (4, 2.0)]) == 6.0 and growth([(1, 5.0)]) is None and growth([]) is None


def test_values_are_kept_once_a_week_or_when_they_change() -> None:
    known: dict[str, dict[str, tuple[Point, ...]]] = {}
    for day in range(20):
        new = [("G0", "pcie.lanes", 16.0 if day < 15 else 8.0), ("G0", "load.seconds", float(day))]
        known = with_values(known, iter(new), (DAY + day) * DAY_SECONDS + 5)
        known = with_values(known, iter(new), (DAY + day) * DAY_SECONDS + 50)
    assert [day - DAY for day, _ in known["G0"]["pcie.lanes"]] == [0, 7, 14, 15]
    assert [day - DAY for day, _ in known["G0"]["load.seconds"]] == [0, 7, 14]


def test_a_clock_that_went_back_a_year_for_a_while_costs_no_value() -> None:
    def added(day: int) -> None:
        nonlocal known
        known = with_values(known, iter([("G0", "pcie.lanes", 16.0 - (DAY + day) % 2)]), (DAY + day) * DAY_SECONDS + 5)

    known: dict[str, dict[str, tuple[Point, ...]]] = {}
    for day in range(4):
        added(day)
    before = known["G0"]["pcie.lanes"]
    added(3 - 365)
    added(3 - 365)
    assert len(known["G0"]["pcie.lanes"]) == len(before) + 1
    added(4)
    assert known["G0"]["pcie.lanes"] == (*before, (DAY + 4, 16.0 - (DAY + 4) % 2))


def test_the_errors_of_all_links_are_summed_or_none_are() -> None:
    """A link that cannot be read once must not make the sum seem to fall and to grow again."""
    newer = [NvLink(link=n, active=True, effective_errors=3) for n in range(2)]
    older = [NvLink(link=n, active=True, crc_errors=2, replay_errors=5) for n in range(2)]
    unread = NvLink(link=2, active=True)
    for links, errors in ((newer, 6.0), (older, 14.0), ([*newer, unread], None), ([*older, unread], None), ([unread], None)):
        gpu1 = fact_gpu(1, nvlinks=tuple(links))
        of = {name: value for device, name, value in values_of(node(gpu1)) if device == device_of(gpu1)}
        assert of.get("nvlink.errors") == errors and of["nvlink.active"] == len(links)


def rates(*values: float) -> tuple[Point, ...]:
    """One value a week, the last one today."""
    return tuple((DAY - 7 * (len(values) - 1 - n), value) for n, value in enumerate(values))


LEAST = 15e-255


def test_a_link_without_errors_has_no_distance() -> None:
    """NVML says 15e-255 then. A step from there to a small rate is not 240 powers of ten in a week."""
    for values in ((LEAST,) * 5, (LEAST, LEAST, 1e-15), (1e-15, LEAST), (1e-15, 1e-14, LEAST), (1e-14, 1e-15)):
        node = {"G0": gpu(nvlink__effective_ber=rates(*values))}
        assert distances("n1", node, DAY) == [], values
    assert not possible({"G0": gpu(nvlink__effective_ber=rates(LEAST, LEAST, LEAST))})


def test_the_rate_after_correction_has_a_limit_of_its_own() -> None:
    (distance,) = distances("n1", {"G0": gpu(nvlink__effective_ber=rates(LEAST, 1e-16, 1e-15, 1e-14))}, DAY)
    assert (distance.signal, distance.value, distance.limit) == ("ber", pytest.approx(1e-14), 1e-12)
    assert distance.reaches_unix == pytest.approx((DAY + 14) * DAY_SECONDS) and "after correction" in distance.text
    (over,) = distances("n1", {"G0": gpu(nvlink__effective_ber=rates(LEAST, 3e-12))}, DAY)
    assert over.used >= 1 and over.reaches_unix == DAY * DAY_SECONDS, "above the limit it is listed at once"
    assert possible({"G0": gpu(nvlink__effective_ber=rates(LEAST, 3e-12))})


def test_the_worst_link_gives_the_rate_or_no_link_does() -> None:
    good = NvLink(link=0, active=True, effective_ber=LEAST, symbol_ber=LEAST)
    bad = NvLink(link=1, active=True, effective_ber=2e-14, symbol_ber=1e-15)
    down, unread = NvLink(link=2, active=False), NvLink(link=3, active=True)
    for links, rate in (((good, bad), 2e-14), ((good, bad, down), 2e-14), ((good, bad, unread), None), ((down,), None)):
        gpu1 = fact_gpu(1, nvlinks=links)
        of = {name: value for device, name, value in values_of(node(gpu1)) if device == device_of(gpu1)}
        assert of.get("nvlink.effective_ber") == rate and of.get("nvlink.symbol_ber") == (rate and 1e-15)


def test_machines_give_the_rates_that_their_generation_has() -> None:
    """From nvml.json to the values of the service record: Blackwell has the rates, Hopper has none, and never 0."""
    for tree, rate in (("hgx-b200", LEAST), ("hgx-h200", None)):
        of = [(name, value) for _, name, value in values_of(gather(Root(str(MACHINES / tree)), read_nvml(MACHINES / tree)))]
        assert sum(name == "nvlink.active" for name, _ in of) == 8
        assert [value for name, value in of if name.endswith("_ber")] == ([rate] * 16 if rate else [])


# -- score card ----------------------------------------------------------------------------------------


def rows(*, announced: bool, repairs: int = 30, nodes: int = 100, weeks: int = 60) -> list[NodeWeek]:
    """A fleet in which another node is repaired each second week; ``announced``: its rows had grown before."""
    made = [NodeWeek(node=f"n{n}", week=week, incidents=n % 3) for week in range(weeks) for n in range(nodes)]
    for number in range(repairs):
        week, node = 2 * number, 3 + number % 90
        at = week * nodes + node
        scores = {"rows": 0.8} if announced else {}
        made[at] = replace(made[at], repaired_for="xid", scores=scores)
        if not announced:  # the score is high elsewhere
            other = week * nodes + (node + 50) % nodes
            made[other] = replace(made[other], scores={"rows": 0.8})
    return made


def test_a_score_that_announces_repairs_is_shown() -> None:
    card = score_card(rows(announced=True))
    assert card.enough and card.better and card.score is not None
    assert (card.score.name, card.score.hits, card.score.alerts, card.repairs) == ("rows", 15, 15, 15)
    assert card.counting.hits < 15 and card.random_hits < 1
    first = card.score.precision[0]
    assert first is not None and first.low == pytest.approx(0.796, abs=0.001)  # Wilson, 15 of 15


def test_a_score_that_says_nothing_is_not_shown() -> None:
    assert not score_card(rows(announced=False)).better
    few = score_card(rows(announced=True, repairs=8))
    assert not few.enough and not few.better
    assert score_card([]).score is None


def test_a_check_does_not_predict_its_own_finding() -> None:
    own = [replace(row, repaired_for="row_remap") if row.repaired_for else row for row in rows(announced=True)]
    assert score_card(own).score is None


def test_what_somebody_acted_on_is_neither_hit_nor_miss() -> None:
    made = rows(announced=True)
    week = max(row.week for row in made) - 6
    for at, row in enumerate(made):
        if row.node == "n99" and row.week in (week, week + 2):
            made[at] = replace(row, scores={"rows": 0.9}, acted=row.week == week)
    card = score_card(made)
    assert card.score is not None and card.score.treated == 1 and card.score.alerts == 17
    unknown, hits, misses = card.score.precision
    assert unknown is not None and hits is not None and misses is not None and hits.low > misses.low
