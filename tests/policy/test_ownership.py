"""Whose drain is it: exact match, and nothing else, is ours."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fairlead.errors import DataError
from fairlead.policy import Rules
from fairlead.policy.ownership import (
    REASON_MAX,
    SUFFIXES,
    Owner,
    build,
    classify,
    in_maintenance,
    keep_off,
    parse,
    strip_suffixes,
)

RULES = Rules()
OURS = build("xid", "k3v9q2", "Xid 79 on GPU 0000:1b:00.0 (fallen off the bus): reboot_node")
DRAINED = frozenset({"IDLE", "DRAIN"})


def owner(reason: str = OURS.text, user: str = "root", states: frozenset[str] = DRAINED, **more: bool) -> Owner:
    return classify(states, reason, user, OURS, RULES, **more)


def test_the_reason_is_the_contract_s() -> None:
    assert OURS.text == "fairlead:xid:k3v9q2 Xid 79 on GPU 0000:1b:00.0 (fallen off the bus): reboot_node"
    assert build("xid", "k3v9q2", "x", job=12).text == "fairlead:xid:k3v9q2 x job=12"


@pytest.mark.parametrize("suffix", ["", *SUFFIXES, SUFFIXES[0] * 3, SUFFIXES[1] + SUFFIXES[0], SUFFIXES[1] + SUFFIXES[3]])
@pytest.mark.parametrize("user", ["root", "slurm"])
@pytest.mark.parametrize(
    "states", [{"IDLE", "DRAIN"}, {"DOWN", "DRAIN", "NOT_RESPONDING"}, {"MIXED+DRAIN"}, {"drained*"}, {"DOWN"}]
)
def test_ours_with_what_slurmctld_appends(suffix: str, user: str, states: set[str]) -> None:
    assert owner(OURS.text + suffix, user, frozenset(states)) is Owner.OURS


@pytest.mark.parametrize(
    ("reason", "user", "expected"),
    [
        (OURS.text, "alice", Owner.FOREIGN),
        (OURS.text + " ", "root", Owner.FOREIGN),
        (OURS.text + " : reboot complete by ann", "root", Owner.FOREIGN),
        (OURS.text + ", broken fan too", "root", Owner.FOREIGN),
        ("broken fan; " + OURS.text, "root", Owner.FOREIGN),
        (OURS.text.replace("k3v9q2", "k3v9q3"), "root", Owner.ORPHAN),
        (OURS.text.replace("k3v9q2", "k3v9q3"), "alice", Owner.FOREIGN),
        ("", "root", Owner.FOREIGN),
        ("Prolog error", "root", Owner.FOREIGN),
        ("NHC: check_fs", "root", Owner.FOREIGN),
    ],
)
def test_anything_else_is_not(reason: str, user: str, expected: Owner) -> None:
    assert owner(reason, user) is expected


def test_prolog_error_is_ours_only_when_the_ledger_says_so_and_no_other_prolog_is_there() -> None:
    assert owner("Prolog error", prolog_refused=True) is Owner.PROLOG_ERROR
    assert owner("Prolog error", "alice", prolog_refused=True) is Owner.FOREIGN
    assert owner("Prolog error: mine", prolog_refused=True) is Owner.FOREIGN
    assert classify(DRAINED, "Prolog error", "root", None, Rules(foreign_prolog=True), prolog_refused=True) is Owner.FOREIGN


def test_free_and_down_and_fail() -> None:
    assert owner("old reason", states=frozenset({"IDLE"})) is Owner.FREE
    assert owner("", states=frozenset({"MIXED", "MAINTENANCE"})) is Owner.FREE
    assert owner("Not responding", "slurm", frozenset({"DOWN", "NOT_RESPONDING"})) is Owner.FOREIGN
    assert owner(states=frozenset({"FAIL", "DRAIN"})) is Owner.FOREIGN
    assert classify(DRAINED, OURS.text, "root", None, RULES) is Owner.ORPHAN


@pytest.mark.parametrize(
    ("states", "why"),
    [
        ({"IDLE"}, ""),
        ({"ALLOCATED"}, ""),
        ({"MIXED", "PLANNED"}, ""),
        ({"IDLE", "RESERVED"}, ""),
        ({"IDLE", "MAINTENANCE"}, ""),
        ({"IDLE+DRAIN"}, ""),
        ({"DOWN", "DRAIN"}, ""),
        ({"DOWN"}, "down"),
        ({"DOWN", "NOT_RESPONDING"}, "down"),
        ({"IDLE", "POWERED_DOWN"}, "powered down"),
        ({"IDLE", "POWERING_UP"}, "powering up"),
        ({"IDLE~"}, ""),
        ({"IDLE", "REBOOT_REQUESTED"}, "rebooting"),
        ({"DOWN", "DRAIN", "REBOOT_ISSUED"}, "rebooting"),
        ({"FUTURE"}, "a future node"),
        ({"UNKNOWN"}, "not registered yet"),
        ({"FAIL"}, "set to fail by an admin"),
    ],
)
def test_states_in_which_nothing_is_written(states: set[str], why: str) -> None:
    assert keep_off(states) == why


def test_maintenance() -> None:
    assert in_maintenance({"IDLE+MAINTENANCE"}) and in_maintenance({"MAINT"}) and not in_maintenance({"IDLE", "RESERVED"})


@pytest.mark.parametrize(
    ("check", "token"), [("x id", "k3v9q2"), ("xid", "K3"), ("xid", ""), ("", "k3v9q2"), ("xid:a", "k3v9q2")]
)
def test_a_malformed_token_is_an_error(check: str, token: str) -> None:
    with pytest.raises(DataError):
        build(check, token, "x")


@given(st.text(max_size=600), st.none() | st.integers(0, 2**31))
def test_a_reason_is_one_capped_line_that_parses_back(summary: str, job: int | None) -> None:
    made = build("setting.pcie_acs", "0123456789ab", summary, job=job)
    assert len(made.text) <= REASON_MAX and made.text.isascii() and made.text.isprintable()
    assert not set('[]"\\') & set(made.text)
    assert parse(made.text) == made
    for suffix in SUFFIXES:
        assert parse(made.text + suffix) == made and strip_suffixes(made.text + suffix) == made.text
        assert classify(DRAINED, made.text + suffix, "slurm", made, RULES) is Owner.OURS


@given(st.data())
def test_a_changed_reason_is_never_ours(data: st.DataObject) -> None:
    text = OURS.text + data.draw(st.sampled_from(["", *SUFFIXES]))
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    mutated = text[:start] + data.draw(st.text(max_size=12)) + text[end:]
    rest = mutated
    while rest.endswith(SUFFIXES):
        rest = strip_suffixes(rest)
    assume(rest != OURS.text)
    assert owner(mutated) is not Owner.OURS


@given(st.text(), st.text(max_size=10), st.sets(st.text(max_size=12), max_size=4))
def test_no_foreign_text_is_ours(reason: str, user: str, states: set[str]) -> None:
    assert classify(states, reason, user, OURS, RULES, prolog_refused=True) in {Owner.FREE, Owner.FOREIGN}


@pytest.mark.parametrize(
    "words",
    [
        "gres/gpu count reported lower than configured (7 < 8)",
        "gres/gpu:h100 count too low (0 < 8)",
        "gres/gpu count too low (7 < 8), Low RealMemory (reported:1000 < 100.00% of configured:2000)",
        "Low socket*core*thread count, Low CPUs",
    ],
)
def test_slurmctlds_words_about_the_registration_in_place_of_ours(words: str) -> None:
    """It puts them over the reason of a drained node, whosever that was."""
    assert owner(words) is owner(words + " : Not responding") is Owner.COVERED
    assert owner(words + ", ann looks") is Owner.FOREIGN
    assert classify(DRAINED, words, "root", None, RULES) is Owner.FOREIGN
    assert classify(DRAINED, words, "ann", OURS, RULES) is Owner.FOREIGN
