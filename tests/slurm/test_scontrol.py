"""The scontrol adapter: its environment, its reading of text. What every adapter does is in test_client.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import SlurmError, SlurmUnavailable
from fairlead.slurm.scontrol import Scontrol, parse_gres_indices, parse_jobs, parse_nodes
from tests.slurm.conftest import NODES


@pytest.mark.slurm
def test_the_callers_environment_does_not_choose_the_cluster(client: Scontrol, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SLURM_CLUSTERS": "other", "SINFO_FORMAT": "x", "SLURM_CONF": "/nowhere", "SINFO_STATES": "down"}.items():
        monkeypatch.setenv(name, value)
    assert len(client.nodes()) == len(NODES)


def test_a_command_that_is_ended_by_a_signal_may_have_done_its_work(tmp_path: Path) -> None:
    """Not answered, which is asked again: never "slurmctld said no". And Ctrl-C in the terminal is not for it."""
    leader = "[ \"$(cut -d' ' -f6 /proc/$$/stat)\" = $$ ] && echo own"
    for tool, what in (("scontrol", "kill -9 $$"), ("sinfo", leader)):
        (tmp_path / tool).write_text(f"#!/bin/sh\n{what}\n")
        (tmp_path / tool).chmod(0o755)
    client = Scontrol(bin_dir=str(tmp_path))
    with pytest.raises(SlurmUnavailable, match="scontrol was ended by signal 9"):
        client.drain("n1", "reason")
    assert client.ask(["sinfo"]) == "own\n"  # the leader of a session


def test_commands_missing() -> None:
    with pytest.raises(SlurmError, match="/nowhere/sinfo: No such file") as error:
        Scontrol(bin_dir="/nowhere").nodes()
    assert "slurm.bin_dir" in error.value.hint


@pytest.mark.parametrize("name", ["", "-n1", "n[1-3]", "n1,n2", "n1 Reason=x", "n1\n", "ALL/"])
def test_what_is_not_a_node_name(name: str) -> None:
    with pytest.raises(SlurmError, match="not a node name"):
        Scontrol(bin_dir="/nowhere").drain(name, "x")


MARK = "@00112233445566778899aabb@"


@given(st.text(alphabet=st.characters(blacklist_characters="@", blacklist_categories=("Cs",))))
def test_any_reason_is_kept(reason: str) -> None:
    row = f"n1{MARK}host{MARK}idle+drain{MARK}root{MARK}17{MARK}main*{MARK}{reason}{MARK}\n"
    second = f"n2{MARK}host{MARK}down*{MARK}Unknown{MARK}Unknown{MARK}main{MARK}none{MARK}\n"
    one, two = parse_nodes(row + second, MARK)
    assert (one.name, one.reason, one.reason_time, one.partitions) == ("n1", reason, 17, ("main",))
    assert (two.name, two.states, two.reason, two.reason_user) == ("n2", {"DOWN", "NOT_RESPONDING"}, "", "")


@given(st.text())
def test_other_text_is_an_error_or_nothing(text: str) -> None:
    try:
        assert parse_nodes(text, MARK) == ()
    except SlurmError:
        pass


@given(st.text())
def test_job_lines_never_crash(text: str) -> None:
    parse_jobs(text)


@pytest.mark.parametrize("digits", ["²", "9" * 5000, "-1", "", "1.5"])
def test_what_only_looks_like_a_number(digits: str) -> None:
    """str.isdigit() holds for "²", and int() refuses more than 4300 digits."""
    assert parse_jobs(f"7 R {digits}\n9 CG 1\n")[-1].id == "9"
    (node,) = parse_nodes(f"n1{MARK}host{MARK}idle{MARK}root{MARK}{digits}{MARK}main{MARK}x{MARK}\n", MARK)
    assert node.reason_time == 0


DETAIL = "Nodes={nodes} CPU_IDs=0-1 Mem=0 GRES={gres} MinCPUsNode=1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DETAIL.format(nodes="n1", gres="gpu:3g.40gb:1(IDX:0),gpu:1g.10gb:2(IDX:3-4),mps:9(IDX:7)"), {0, 3, 4}),
        (
            DETAIL.format(nodes="n[2-3]", gres="gpu:2(IDX:5-6)") + " " + DETAIL.format(nodes="n[1,4]", gres="gpu:2(IDX:1,3)"),
            {1, 3},
        ),
        (DETAIL.format(nodes="n1", gres=""), set()),
        (DETAIL.format(nodes="n1", gres="gpu:0(IDX:)"), set()),
        (DETAIL.format(nodes="n2", gres="gpu:2(IDX:0-1)"), None),
        (DETAIL.format(nodes="n1", gres="gpu:a:1(IDX:0-)"), None),
        (DETAIL.format(nodes="n[1-", gres="gpu:a:1(IDX:0)"), None),
        ("", None),
    ],
)
def test_the_gpus_of_a_job_on_a_node(text: str, expected: set[int] | None) -> None:
    for line in (
        f"JobId=7 JobName=x {text}",
        f"JobId=8 ArrayJobId=7 {DETAIL.format(nodes='n1', gres='gpu:1(IDX:9)')}\nJobId=7 {text}",
    ):
        assert parse_gres_indices(f"{line}\n", 7, "n1") == expected


def test_the_name_of_a_job_hides_no_gpu() -> None:
    name = DETAIL.format(nodes="n1", gres="gpu:1(IDX:8)")
    assert parse_gres_indices(f"JobId=7 JobName={name} {DETAIL.format(nodes='n1', gres='gpu:1(IDX:0)')}", 7, "n1") == {0, 8}


@given(st.text())
def test_details_never_crash(text: str) -> None:
    parse_gres_indices(f"JobId=7 {text}", 7, "n1")
    parse_gres_indices("JobId=7 " + DETAIL.format(nodes="n1", gres=text), 7, "n1")


def test_only_jobs_that_hold_the_node() -> None:
    assert [j.id for j in parse_jobs("7 R 2\n8 CD 1\n9 CG 1\n10 PD 4\nx\n")] == ["7", "9"]


@pytest.mark.parametrize(
    ("compact", "words"),
    [
        ("idle", {"IDLE"}),
        ("down*", {"DOWN", "NOT_RESPONDING"}),
        ("allocated@", {"ALLOCATED", "REBOOT_REQUESTED"}),
        ("reboot^", {"REBOOT", "REBOOT_ISSUED"}),
        ("idle~", {"IDLE", "POWERED_DOWN"}),
        ("idle%", {"IDLE", "POWERING_DOWN"}),
        ("mixed!", {"MIXED", "POWER_DOWN"}),
        ("idle#", {"IDLE", "POWERING_UP"}),
        ("idle$", {"IDLE", "MAINTENANCE"}),
        ("idle-", {"IDLE", "PLANNED"}),
        ("mixed+drain+reboot_requested", {"MIXED", "DRAIN", "REBOOT_REQUESTED"}),
    ],
)
def test_marks_of_sinfo_are_flags(compact: str, words: set[str]) -> None:
    """sinfo(1), NODE STATE CODES; ``@`` and ``^`` as 26.05 shows them on real nodes."""
    row = f"n1{MARK}host{MARK}{compact}{MARK}root{MARK}17{MARK}main{MARK}x{MARK}\n"
    assert parse_nodes(row, MARK)[0].states == words
