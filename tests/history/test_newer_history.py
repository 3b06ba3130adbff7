"""A history of a newer release, after a rollback: it is kept, said in one line, and its acknowledgements and strikes count."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import msgspec
import pytest

from fairlead.history.memory import History
from fairlead.history.sqlite_file import FILE, SCHEMA
from fairlead.model.check_definition import KernelRecord
from fairlead.policy.policy_state import PolicyState, Track, state_of

STATE = PolicyState(boot_id="b", acknowledged=("xid/0000:1b:00.0#79",), strikes={"node": (1.0,)}, tracks={"xid/": Track(clean=2)})
NEWER = SCHEMA + 7


def newer(folder: Path, *statements: str, state: bytes = b"") -> list[str]:
    """Write the history of this release, and make it one of a newer release by the statements. Return its content."""
    made = History(str(folder), "b")
    made.add_records([KernelRecord(sequence=1, seconds=1.0, priority=4, text="NVRM: x", boot_id="b")])
    made.save_state(STATE)
    made.commit()
    made.close()
    db = sqlite3.connect(folder / FILE)
    with db:
        for statement in statements:
            db.execute(statement)
        if state:
            db.execute("UPDATE kept SET value = ? WHERE key = 'state'", (state,))
        db.execute(f"PRAGMA user_version = {NEWER}")
    db.close()
    return dumped(folder / FILE)


def dumped(path: Path) -> list[str]:
    """Return all that a database has, as SQL."""
    db = sqlite3.connect(path)
    found = [*db.iterdump(), f"user_version {db.execute('PRAGMA user_version').fetchone()[0]}"]
    db.close()
    return found


@pytest.mark.parametrize(
    "statements",
    [
        (),
        ("ALTER TABLE record ADD COLUMN colour TEXT DEFAULT 'red'", "CREATE TABLE more (x)"),
        ("DROP TABLE sample", "CREATE TABLE sample (other TEXT)"),
    ],
)
def test_what_this_release_knows_goes_on_and_the_file_is_kept(tmp_path: Path, statements: tuple[str, ...]) -> None:
    content = newer(tmp_path, *statements)
    history = History(str(tmp_path), "b")
    assert history.load_state() == STATE
    assert [record.text for record in history.past().records] == ["NVRM: x"]
    kept = tmp_path / f"{FILE}.schema{NEWER}"
    assert dumped(kept) == content
    assert history.trouble.startswith(f"{tmp_path / FILE} was written by a newer fairlead (schema {NEWER}); it is kept as {kept}")
    assert ("nothing of sample" in history.trouble) == (len(statements) == 2 and "sample" in statements[1])
    history.save_state(msgspec.structs.replace(STATE, clean_sweeps=1))
    history.commit()
    history.close()
    again = History(str(tmp_path), "b")
    assert again.load_state().clean_sweeps == 1 and again.trouble == "" and not list(tmp_path.glob("*.bad"))
    assert dumped(kept) == content


def test_a_history_that_another_process_reads_waits(tmp_path: Path) -> None:
    """The new file must not get the -wal of the other one."""
    newer(tmp_path)
    reader = sqlite3.connect(tmp_path / FILE)
    reader.execute("PRAGMA journal_mode = WAL")
    reader.execute("INSERT INTO event VALUES (1, 'x', 'y')")
    reader.commit()
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM event").fetchall()
    history = History(str(tmp_path), "b")
    assert "history is kept in memory only" in history.trouble and not list(tmp_path.glob("*.schema*"))
    reader.close()
    history._store._retry_at = 0.0
    history.heal()
    assert history.load_state() == STATE and os.path.exists(tmp_path / f"{FILE}.schema{NEWER}")


def test_a_value_of_a_newer_release_costs_only_its_entry(tmp_path: Path) -> None:
    """An action that this release does not know must not make the agent forget what people have acknowledged."""
    data = msgspec.json.decode(msgspec.json.encode(STATE))
    data["tracks"]["ecc/"] = {"level": "catastrophe"}
    data["reboots"] = "many"
    state, unread = state_of(msgspec.json.encode(data))
    assert state == STATE and sorted(unread) == ["reboots", "tracks ecc/"]
    newer(tmp_path, state=msgspec.json.encode(data))
    history = History(str(tmp_path), "b")
    assert history.load_state() == STATE
    assert "parts of the policy's state cannot be read" in history.trouble
    history.commit()
    history.close()
    rows = sqlite3.connect(tmp_path / FILE).execute("SELECT value FROM kept WHERE key = 'state unread'").fetchall()
    assert msgspec.json.decode(rows[0][0]) == data


@pytest.mark.parametrize("data", [b"[]", b"3", b"{", b""])
def test_a_state_that_is_no_object(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        state_of(data)
