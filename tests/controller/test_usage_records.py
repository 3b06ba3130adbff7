"""A node prints the records of the jobs that it is asked for, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cli import main
from fairlead.controller.record_reader import records_in
from fairlead.controller.running_report import from_lines, in_lines
from fairlead.jobs.usage_record import encoded
from fairlead.provision.record_ssh import command
from fairlead.provision.ssh_fetch import parts_of
from tests.jobs.job_reports import record_of


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "usage"
    folder.mkdir()
    for job in (17, 18, 170):
        (folder / f"{job}-1790000000.json").write_bytes(encoded(record_of(job=job)))
    (folder / "secret").write_text("a secret\n")
    (folder / "17-1.json").symlink_to(folder / "secret")
    return tmp_path


def jobs_in(answer: bytes) -> list[int]:
    assert parts_of(answer) is not None
    return [record.job for record in records_in(answer).records]


def test_only_the_jobs_that_were_named(state: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["usage-records", "17,18", "--state-dir", str(state)]) == 0
    out = capfdbinary.readouterr().out
    assert jobs_in(out) == [17, 18] and b"secret" not in out


@pytest.mark.parametrize("asked", [command([17, 5]), "usage-records 17,5", "17,5"])
def test_a_limited_key_prints_what_ssh_was_asked(
    state: Path, asked: str, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_ORIGINAL_COMMAND", asked)
    assert main(["usage-records", "--asked", "--state-dir", str(state)]) == 0
    assert jobs_in(capfdbinary.readouterr().out) == [17]


@pytest.mark.parametrize("asked", ["", "cat /etc/shadow", "usage-records ../17", "17;id", "usage-records 17,", "1" * 11])
def test_a_limited_key_does_nothing_else(state: Path, asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_ORIGINAL_COMMAND", asked)
    assert main(["usage-records", "--asked", "--state-dir", str(state)]) == 64


def test_a_node_without_records_gives_an_answer_without_records(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["usage-records", "17", "--state-dir", str(tmp_path)]) == 0
    assert jobs_in(capfdbinary.readouterr().out) == []


@given(st.dictionaries(st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True), st.binary(max_size=4000), max_size=4), st.randoms())
@settings(max_examples=60)
def test_short_lines_of_many_nodes_may_come_in_any_order(answers: dict[str, bytes], chance: object) -> None:
    lines = [line for node, answer in answers.items() for line in in_lines(node, answer)]
    assert all(len(line) < 1000 for line in lines)
    chance.shuffle(lines)  # type: ignore[attr-defined]
    assert from_lines(["noise", *lines, "fairlead x 1 2 !"]) == answers


def test_a_node_whose_lines_are_not_all_there_gave_no_answer() -> None:
    lines = list(in_lines("gpu001", encoded(record_of()) * 3 + bytes(range(256)) * 9))
    assert len(lines) > 1 and from_lines(lines[1:]) == {} and from_lines(lines[:-1]) == {}
