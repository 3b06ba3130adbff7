"""The newest records of running jobs come into a folder, those of ended jobs go, and no old record counts as fresh."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead.controller.records_folder import read_records
from fairlead.controller.running_pull import pull_running
from fairlead.errors import HostError
from fairlead.jobs.idle_rule import IdleOptions, RunningJob
from fairlead.jobs.usage_record import UsageRecord, encoded
from tests.controller.played_idle import FileChannel
from tests.controller.played_idle import poll as idle_poll
from tests.jobs.idle_fleet import BEGIN, Played, a_run, idle_batch

ENDING = b"==> /dev/null <==\n"


class Nodes:
    """Answers as nodes do: each has the files of some records, and some are down."""

    def __init__(self, *records: UsageRecord, down: Sequence[str] = ()) -> None:
        self.records, self.down = records, down
        self.asked: list[tuple[str, int]] = []

    def fetch(self, nodes: Sequence[str], jobs: Sequence[int]) -> Mapping[str, tuple[bytes, str]]:
        self.asked += [(node, job) for node in nodes for job in jobs]
        return {node: (b"", "no answer in 10 s") if node in self.down else (self.answer(node, jobs), "") for node in nodes}

    def answer(self, node: str, jobs: Sequence[int]) -> bytes:
        mine = [record for record in self.records if record.node == node and record.job in jobs]
        return b"".join(b"==> /usage/x.json <==\n" + encoded(record) + b"\n" for record in mine) + ENDING


IDLE = Played(a_run(1), idle_batch, False)
TWO = a_run(2, nodes=("n2", "n3"))


def record(job: RunningJob, node: str, seconds: int = 600) -> UsageRecord:
    return replace(Played(job, idle_batch, False).record(seconds), node=node)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_each_node_of_a_running_job_has_a_file(tmp_path: Path) -> None:
    nodes = Nodes(record(IDLE.job, "n1"), record(TWO, "n2"), record(TWO, "n3"))
    done = pull_running(str(tmp_path), [IDLE.job, TWO], nodes, None)
    assert (done.jobs, done.nodes, done.records, done.removed, done.without) == (2, 3, 3, 0, {})
    assert names(tmp_path) == ["1-n1.json", "2-n2.json", "2-n3.json"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o640}
    found = read_records(str(tmp_path), mistakes := [])
    assert [each for _, each in found] == list(nodes.records) and mistakes == []


def test_records_of_ended_jobs_and_torn_files_go(tmp_path: Path) -> None:
    pull_running(str(tmp_path), [IDLE.job, TWO], Nodes(record(IDLE.job, "n1"), record(TWO, "n2"), record(TWO, "n3")), None)
    (tmp_path / "1-n1.json.4711.tmp").write_bytes(b"{")
    (tmp_path / "README").write_text("of somebody else")
    done = pull_running(str(tmp_path), [replace(TWO, nodes=("n2",))], Nodes(record(TWO, "n2", 660)), None)
    assert done.removed == 3 and names(tmp_path) == ["2-n2.json", "README"]


def test_a_node_that_does_not_answer_is_named_and_its_record_is_soon_too_old(tmp_path: Path) -> None:
    folder, channel = tmp_path / "running", FileChannel(tmp_path)
    options = IdleOptions(mode="notify", signed_off="2026-11-01")

    def judged(seconds: int, *, down: bool) -> tuple[str, int]:
        done = pull_running(str(folder), [IDLE.job], Nodes(IDLE.record(seconds), down=["n1"] if down else []), None)
        assert bool(done.without) == down and names(folder) == ["1-n1.json"]
        records = [each for _, each in read_records(str(folder), [])]
        found = idle_poll(tmp_path, [IDLE], seconds, channel, options=options, records=records)
        return found.rows[0].judgement.word, found.nodes_fresh

    assert judged(1200, down=False) == ("unknown", 1)
    assert judged(4800, down=False) == ("idle", 1)
    assert len(channel.got()) == 1
    assert judged(4800 + 200, down=True)[1] == 1, "the record is still no 5 minutes old"
    for seconds in range(4800 + 301, 12000, 1200):
        assert judged(seconds, down=True) == ("unknown", 0)
    assert len(channel.got()) == 1, "nobody is told by an old record"


@pytest.mark.parametrize(
    "changes",
    [
        {"job": 2},
        {"node": "n9"},
        {"end_unix": BEGIN + 600},
        {"begin_unix": BEGIN - 7200.0},
    ],
)
def test_a_record_that_was_not_asked_for_is_not_written(tmp_path: Path, changes: dict[str, object]) -> None:
    class Strange(Nodes):
        def answer(self, node: str, jobs: Sequence[int]) -> bytes:
            return encoded(replace(IDLE.record(600), **changes)) + b"\n" + ENDING

    done = pull_running(str(tmp_path), [IDLE.job], Strange(), None)
    assert done.records == 0 and set(done.without) == {"n1"} and names(tmp_path) == []


@settings(max_examples=10)  # each starts a process, which reads twenty answers
@given(st.lists(st.binary(max_size=300), min_size=20, max_size=20))
def test_no_answer_of_a_node_breaks_the_pull(tmp_path_factory: pytest.TempPathFactory, answers: list[bytes]) -> None:
    all_of_them = {f"n{number}": answer for number, answer in enumerate(answers)}

    class Hostile(Nodes):
        def answer(self, node: str, jobs: Sequence[int]) -> bytes:
            return all_of_them[node]

    folder = tmp_path_factory.mktemp("running")
    done = pull_running(str(folder), [replace(IDLE.job, nodes=tuple(all_of_them))], Hostile(), None)
    assert (done.records, set(done.without)) == (0, set(all_of_them))
    assert names(folder) == []


def test_only_nodes_with_an_agent_are_asked(tmp_path: Path) -> None:
    nodes = Nodes(record(TWO, "n3"))
    done = pull_running(str(tmp_path), [IDLE.job, TWO], nodes, frozenset({"n3"}))
    assert nodes.asked == [("n3", 2)] and (done.nodes, done.records) == (1, 1)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HostError, match="file"):
        pull_running(os.fspath(tmp_path / "file"), [IDLE.job], Nodes(record(IDLE.job, "n1")), None)
