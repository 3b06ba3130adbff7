"""The ledger: what is on disk, and what happens when it is not as it should be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead.drains.ledger import Ledger, LedgerEntry, Phase
from fairlead.errors import SlurmUnavailable
from fairlead.policy.ownership import build

ENTRY = LedgerEntry(node="n1", phase=Phase.DRAINED, token=build("xid", "abcdef012345", "GPU gone"), since=1.0, machine="m")


def ledger_of(folder: Path, **changes: str) -> Ledger:
    for sub in ("state", "run"):
        (folder / sub).mkdir(exist_ok=True)
    return Ledger(str(folder / "state"), str(folder / "run"), node=changes.get("node", "n1"), machine=changes.get("machine", "m"))


def test_ledger_comes_back(tmp_path: Path) -> None:
    ledger_of(tmp_path).save(ENTRY)
    assert ledger_of(tmp_path).load() == ENTRY
    ledger_of(tmp_path).save(None)
    assert ledger_of(tmp_path).load() is None or ledger_of(tmp_path).load() == ENTRY


def test_a_lock_that_a_stopped_command_holds_is_waited_for_in_bounds(tmp_path: Path) -> None:
    ledger, other = ledger_of(tmp_path), ledger_of(tmp_path)
    with other.locked(), pytest.raises(SlurmUnavailable, match="another fairlead command has held"), ledger.locked(0.05):
        pass
    with ledger.locked(0.05):
        pass


def test_ledger_forgets_what_was_cleared(tmp_path: Path) -> None:
    first = ledger_of(tmp_path)
    first.save(ENTRY)
    first.save(None)
    assert ledger_of(tmp_path).load() is None


@pytest.mark.parametrize("changes", [{"node": "n2"}, {"machine": "other"}])
def test_ledger_of_another_node_or_machine(tmp_path: Path, changes: dict[str, str]) -> None:
    ledger_of(tmp_path).save(ENTRY)
    other = ledger_of(tmp_path, **changes)
    assert other.load() is None and "not ours" in other.trouble


@pytest.mark.parametrize("damage", [b"", b"{", b'{"entry": {"node": 3}}', b"\xff\xfe", b"[]"])
def test_damaged_ledger_is_moved_aside(tmp_path: Path, damage: bytes) -> None:
    ledger = ledger_of(tmp_path)
    (tmp_path / "state/ledger.json").write_bytes(damage)
    assert ledger.load() is None and "moved aside" in ledger.trouble
    assert (tmp_path / "state/ledger.json.bad").exists()
    ledger.save(ENTRY)
    assert ledger_of(tmp_path).load() == ENTRY


def test_ledger_on_a_full_disk_goes_to_the_run_directory(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path)
    ledger.save(None)
    os.rename(tmp_path / "state", tmp_path / "gone")
    (tmp_path / "state").write_text("not a folder")
    ledger.save(ENTRY)
    assert ledger.trouble == "" or "state" in ledger.trouble
    again = Ledger(str(tmp_path / "state"), str(tmp_path / "run"), node="n1", machine="m")
    assert again.load() == ENTRY


def test_ledger_newest_wins_when_the_disk_is_back(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path)
    ledger.save(ENTRY)
    os.rename(tmp_path / "state", tmp_path / "gone")
    ledger.save(None)
    os.rename(tmp_path / "gone", tmp_path / "state")
    assert ledger_of(tmp_path).load() is None


NEWER = (
    b'{"schema":2,"sequence":9,"more":1,"entry":{"node":"n1","phase":%s,"since":1.0,"machine":"m","colour":"red",'
    b'"token":{"check":"xid","token":"abcdef012345","summary":"GPU gone"}}}\n'
)


def test_a_ledger_of_a_newer_release_counts_and_is_kept(tmp_path: Path) -> None:
    """After a rollback the agent still knows its drain, and the newer file is not lost when the agent saves."""
    ledger, path = ledger_of(tmp_path), tmp_path / "state/ledger.json"
    content = NEWER % b'"drained"'
    path.write_bytes(content)
    assert ledger.load() == ENTRY
    assert "was written by a newer fairlead (schema 2)" in ledger.trouble
    assert ledger.load() == ENTRY
    ledger.save(None)
    assert (tmp_path / "state/ledger.json.schema2").read_bytes() == content and ledger.trouble == ""
    assert ledger_of(tmp_path).load() is None
    path.write_bytes(other := NEWER.replace(b'"sequence":9', b'"sequence":99999999999') % b'"drained"')
    assert ledger_of(tmp_path).load() == ENTRY
    assert (tmp_path / "state/ledger.json.schema2").read_bytes() == other


@pytest.mark.parametrize(
    "content",
    [
        NEWER % b'"floating"',
        b'{"schema":3,"entry":{"node":"n1"}}',
        b'{"schema":2,"entry":{"node":"n1","token":7,"phase":"drained"}}',
    ],
)
def test_a_newer_ledger_that_cannot_be_read_is_kept_under_another_name(tmp_path: Path, content: bytes) -> None:
    ledger, path = ledger_of(tmp_path), tmp_path / "state/ledger.json"
    path.write_bytes(content)
    assert ledger.load() is None and "`fairlead resume --adopt`" in ledger.trouble
    ledger.save(ENTRY)
    (kept,) = (tmp_path / "state").glob("ledger.json.schema*")
    assert kept.read_bytes() == content and ledger_of(tmp_path).load() == ENTRY
