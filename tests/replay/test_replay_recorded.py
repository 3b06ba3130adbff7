"""fairlead replay on what was recorded: an agent's own history, and real logs."""

from __future__ import annotations

import csv
import json
import re
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.history.memory import History
from fairlead.model.check_definition import KernelRecord
from fairlead.replay.recording import read
from fairlead.replay.simulation import prefixes, replay
from fairlead.xid.decode import decode
from fairlead.xid.line import XidKind
from fairlead.xid.log_file import message
from tests.daemon.conftest import XID79, Agent
from tests.replay.test_replay import DEFAULTS, LOST, played

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def test_an_agents_own_history_gives_what_the_agent_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = Agent(tmp_path)
    try:
        agent.start()
        agent.kernel(XID79.format(n=1, us=int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)))
        agent.until(lambda: "79" in agent.verdict().text, "word of the Xid")
        text = agent.verdict().text
        history = agent.state_dir / "history.sqlite"
        before = history.read_bytes(), sorted(p.name for p in agent.state_dir.iterdir())
        assert main(["replay", str(history), "--json"]) == 0, "while the agent runs"
        assert (history.read_bytes(), sorted(p.name for p in agent.state_dir.iterdir())) == before
    finally:
        agent.end(signal.SIGTERM)
    for _ in range(2):
        (log,) = json.loads(capsys.readouterr().out)["logs"]
        (drain,) = log["events"]
        assert text == f"drain pending: {drain['text']}" and drain["at"] == time.strftime(
            "%Y-%m-%d %H:%M:%S", time.gmtime(drain["seconds"])
        )
        assert abs(drain["seconds"] - time.time()) < 600
        assert main(["replay", str(history), "--json"]) == 0


def test_a_persons_resume_in_a_history_counts(tmp_path: Path) -> None:
    history = History(str(tmp_path), "b1")
    up = time.clock_gettime(time.CLOCK_BOOTTIME)
    history.add_records([KernelRecord(sequence=1, seconds=up - 50, priority=4, text=LOST, boot_id="b1")])
    history.event("drained", "fairlead:xid:0123456789ab Xid 79")
    history.event("acknowledged", "a person resumed our drain: what stands now is known")
    history.close()
    found = replay(read(str(tmp_path / "history.sqlite"), prefixes()), DEFAULTS)
    assert [e.kind for e in found.events][:2] == ["drain", "acknowledged"] and not found.drained
    assert [text.partition(":")[0] for _, text in found.recorded] == ["drained", "acknowledged"]


def test_a_history_without_its_boot_time_counts_from_the_boot(tmp_path: Path) -> None:
    history = History(str(tmp_path), "b1")
    history.add_records([KernelRecord(sequence=1, seconds=77.5, priority=4, text=LOST, boot_id="b1")])
    history.close()
    with sqlite3.connect(tmp_path / "history.sqlite") as db:
        db.execute("DELETE FROM kept")
    db.close()
    (drain,) = replay(read(str(tmp_path / "history.sqlite"), prefixes()), DEFAULTS).drains
    assert drain.at == "77.5 s"


# Real logs --------------------------------------------------------------------------------------------------------------

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"sample data not found at {DATA}")


@needs_data
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("components-accelerator_dmesg-with-xid-119.log", [("2025-02-23 16:24:18", "Xid 119 on GPU 0000:9b:00.0")]),
        ("pkg-dmesg_dmesg-time-format-iso.log", [("2024-11-15 12:02:03", "Xid 48 on GPU 0000:19:00.0")]),
        ("components-query_dmesg.0.log", []),
        ("pkg-kmsg_kmsg.1.log", []),
        ("pkg-pstore_dmesg-erst.txt", []),
        ("pkg-dmesg_dmesg.peermem.log.0", []),
        ("pkg-dmesg_dmesg-time-format-short-iso.log", []),
    ],
)
def test_real_logs(name: str, expected: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(DATA / "dmesg" / name), "--json"]) == 0
    (log,) = json.loads(capsys.readouterr().out)["logs"]
    drains = [(e["at"], e["text"]) for e in log["events"] if e["kind"] == "drain"]
    assert [(at, said in text) for (at, text), (_, said) in zip(drains, expected, strict=True)] == [
        (at, True) for at, _ in expected
    ]


@needs_data
def test_real_lines_drain_exactly_where_the_catalogue_takes_a_node_out() -> None:
    with open(DATA / "kmsg" / "kmsg.csv", newline="", encoding="utf-8") as f:
        lines = [row["line"] for row in csv.DictReader(f) if row["provenance"] == "real"]
    judged = 0
    for line in lines:
        records = [r for r in decode([message(line)]) if r.code != 45]
        if len(records) != 1:
            continue
        judged += 1
        found = played(f"[ 110.500000] {line}")
        out = records[0].service != "keep"
        assert bool(found.drains) == out, (line, found.events)
        if out and records[0].kind is not XidKind.BUS_LOST:
            assert re.search(rf"S?Xid {records[0].code} ", found.drains[0].text)
    assert judged > 20
