"""nvlink: links that are down, links that cannot be read, and errors as rates, older counters and NVLink 5's."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.checks.nvlink import OLDER, Params, check
from fairlead.model.check_definition import Past, Sample
from fairlead.model.facts import Node, NvLink
from fairlead.model.finding import Action, Finding, Level, Mode, Service
from tests.checks.hosts import judged as judged_node
from tests.checks.nodes import ADDRESSES, LINKS, NA, UNSUPPORTED, gpu, node


def judged(machine: Node, past: Past | None = None, **params: object) -> list[Finding]:
    return list(check.findings(machine, past or Past(available=True), Params(**params)))


def with_link(number: int, **changes: object) -> tuple[NvLink, ...]:
    return tuple(replace(link, **changes) if link.link == number else link for link in LINKS)


def past(name: str, *points: tuple[float, float], link: int = 3) -> Past:
    found = (Sample(device="1651223002", name=f"nvlink.{link}.{name}", seconds=s, value=v) for s, v in points)
    return Past(available=True, samples=tuple(found))


def test_healthy() -> None:
    assert judged(node()) == judged(node(), links=18) == []


def test_a_link_that_is_down() -> None:
    machine = node(gpu(2, nvlinks=with_link(3, active=False)))
    for links in (18, None):
        (finding,) = judged(machine, links=links)
        assert (finding.level, finding.device, finding.action) == (Level.DRAIN, ADDRESSES[2], Action.CHECK_FABRIC)
        assert "17 of 18 NVLinks" in finding.summary and finding.evidence == ("down: 3, NVML lists 18",)


def test_links_that_nvml_does_not_list_at_all() -> None:
    machine = node(gpu(2, nvlinks=LINKS[:12]))
    (finding,) = judged(machine, links=18)
    assert finding.level is Level.DRAIN and "12 of 18" in finding.summary
    assert judged(machine) == []  # without a declaration nothing says that there should be more: gpu_readings remembers


def test_no_link_at_all_of_a_card_of_which_nothing_is_declared() -> None:
    """A PCIe card without a bridge; of one with a profile it is a fault."""
    links = tuple(replace(link, active=False) for link in LINKS)
    (finding,) = judged(node(gpu(2, nvlinks=links)))
    assert (finding.level, finding.service) == (Level.WARN, Service.KEEP)
    assert [f.level for f in judged(node(gpu(2, nvlinks=links)), links=18)] == [Level.DRAIN]
    assert [f for f in judged(node(gpu(2, nvlinks=links)), links=0) if f.device == ADDRESSES[2]] == []
    one = (replace(LINKS[0], active=True), *links[1:])
    assert [f.level for f in judged(node(gpu(2, nvlinks=one)))] == [Level.DRAIN]


def test_links_are_off_under_mig_and_that_is_right() -> None:
    links = tuple(replace(link, active=False) for link in LINKS)
    assert judged(node(gpu(2, nvlinks=links, mig_current=True)), links=18) == []
    assert judged(node(gpu(2, nvlinks=links, mig_current=False)), links=18) != []


def test_more_links_than_declared_is_a_wrong_profile() -> None:
    found = judged(node(), links=12)
    assert {f.level for f in found} == {Level.WARN} and len(found) == 8


def test_unreadable_is_unknown_and_excused_is_silent() -> None:
    (whole,) = judged(node(gpu(2, nvlinks=NA)))
    assert whole.level is Level.UNKNOWN
    assert judged(node(gpu(2, nvlinks=UNSUPPORTED))) == []
    none = node(*(gpu(place, nvlinks=NA) for place in range(8)))
    assert judged(none, links=0) == []  # none declared: that there are none is right
    (state,) = judged(node(gpu(2, nvlinks=with_link(3, active=NA))), links=18)
    assert state.level is Level.UNKNOWN and "state" in state.summary
    (errors,) = judged(node(gpu(2, nvlinks=with_link(3, **dict.fromkeys(OLDER, NA)))))
    assert errors.level is Level.UNKNOWN and "error counters" in errors.summary and errors.evidence == ("link 3",)


def test_nvlink_5_counts_otherwise() -> None:
    newer = {"malformed_packets": 0, "receive_errors": 0, "recoveries_failed": 0, "recoveries": 0, "effective_errors": 0}
    links = tuple(replace(link, **{**dict.fromkeys(OLDER, NA), **newer}) for link in LINKS)
    assert judged(node(gpu(2, nvlinks=links))) == []


@pytest.mark.parametrize(
    ("name", "points", "value", "level"),
    [
        ("crc_errors", ((9000.0, 0.0),), 100_000, Level.DRAIN),  # 100 a second
        ("crc_errors", ((9000.0, 0.0),), 99_000, None),
        ("crc_errors", ((9000.0, 100_000.0),), 100_000, None),  # long ago
        ("crc_errors", ((9950.0, 0.0),), 10**6, None),  # samples too close together
        ("crc_errors", ((9000.0, 10**7),), 10, None),  # the driver was loaded anew
        ("recovery_errors", ((7000.0, 0.0),), 3, Level.WARN),
        ("recovery_errors", ((6500.0, 0.0), (9000.0, 0.0)), 1, None),
        ("replay_errors", ((9000.0, 0.0),), 1000, Level.WARN),
        ("replay_errors", ((9000.0, 0.0),), 900, None),
        ("recoveries_failed", ((7000.0, 0.0),), 1, Level.DRAIN),
        ("recoveries", ((7000.0, 0.0),), 3, Level.WARN),
        ("receive_errors", ((7000.0, 0.0),), 100, Level.WARN),
        ("malformed_packets", ((7000.0, 0.0),), 100, Level.WARN),
        ("effective_errors", ((7000.0, 0.0),), 1000, Level.WARN),
        ("effective_errors", ((7000.0, 0.0),), 10, None),
    ],
)
def test_errors_are_a_rate(name: str, points: tuple[tuple[float, float], ...], value: int, level: Level | None) -> None:
    machine = node(gpu(2, nvlinks=with_link(3, **{name: value})))
    found = judged(machine, past(name, *points))
    assert [f.level for f in found] == ([level] if level else [])
    if level:
        assert "link 3" in found[0].summary and found[0].device == ADDRESSES[2]
        assert found[0].service is (Service.DRAIN_AFTER_JOB if level is Level.DRAIN else Service.KEEP)


def test_limits_are_the_site_s() -> None:
    machine = node(gpu(2, nvlinks=with_link(3, recovery_errors=3)))
    history = past("recovery_errors", (7000.0, 0.0))
    assert judged(machine, history) and not judged(machine, history, recoveries_per_hour_max=0)
    assert not judged(machine, history, recoveries_per_hour_max=10)


def test_the_worst_link_is_named_and_the_others_counted() -> None:
    links = tuple(replace(link, recovery_errors=5 + link.link) if link.link in (3, 7) else link for link in LINKS)
    samples = (*past("recovery_errors", (7000.0, 0.0)).samples, *past("recovery_errors", (7000.0, 0.0), link=7).samples)
    (finding,) = judged(node(gpu(2, nvlinks=links)), Past(available=True, samples=samples))
    assert "link 7 and 1 more" in finding.summary


def test_samples_are_kept_by_serial_and_link() -> None:
    assert check.samples is not None
    found = set(check.samples(node(gpu(2, nvlinks=with_link(3, crc_errors=7)))))
    assert ("1651223002", "nvlink.3.crc_errors", 7.0) in found and len(found) == 8 * 18 * 3
    assert list(check.samples(node(gpus=NA))) == []


def test_it_observes_and_waits_for_training() -> None:
    assert (check.mode, check.confirm, check.boot_grace_seconds) == (Mode.OBSERVE, 3, 300)
    assert [f.level for f in judged(node(gpus=NA))] == [Level.UNKNOWN]
    assert judged(node(gpu(2, lost=True, nvlinks=NA))) == []


def test_links_that_count_nothing_where_the_profile_excuses_one_of_two_ways() -> None:
    older = dict.fromkeys(("crc_errors", "replay_errors", "recovery_errors"), NA)
    newer = dict.fromkeys(
        ("malformed_packets", "receive_errors", "recoveries_failed", "recoveries", "effective_errors"), UNSUPPORTED
    )
    blind = tuple(replace(link, **older, **newer) for link in LINKS)
    assert [f.level for f in judged_node("nvlink", node(gpu(5, nvlinks=blind)))] == [Level.UNKNOWN]
    excused = tuple(replace(link, **dict.fromkeys(older, UNSUPPORTED), **newer) for link in LINKS)
    assert judged_node("nvlink", node(gpu(5, nvlinks=excused))) == []
