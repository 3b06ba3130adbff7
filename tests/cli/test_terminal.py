"""Whatever a command prints, it moves no cursor and sets no title; fairlead's own colours and progress do work."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.cli.output import columns
from fairlead.cli.terminal import printable
from tests.daemon.conftest import PROJECT

EVIL = "\x1b[2J\x1b]0;title\x07\x9b31m\x85\x7f\x00\r\b\u202e\u2066\u200b\u2028\ud800\x1b[1;31mred\x1b[5m"


def test_only_printable_characters_line_ends_tabs_and_our_colours_get_through() -> None:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), printable():
        print(f"a\tb {EVIL}\n\N{GREEK SMALL LETTER ALPHA} \033[1;33mwarn\033[0m")
        print(EVIL, file=sys.stderr)
        sys.stdout.writelines(["x\r", "y\n"])
    assert out.getvalue() == f"a\tb ?[2J?]0;title??31m????{'?' * 6}\x1b[1;31mred?[5m\n\u03b1 \033[1;33mwarn\033[0m\nx?y\n"
    assert not set(err.getvalue()) & set("\x07\x9b\x85\x7f\x00\r\b\u202e\u2028\ud800")


def test_an_error_that_quotes_a_file_is_printable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"no such {chr(27)}[2J file"
    assert main(["config", "check", str(tmp_path / name)]) != 0
    assert "\x1b" not in capsys.readouterr().err


def test_colours_still_are_seen_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "verdict").write_text("1\twarn\t999999999999\t7\tx \x1b[2J\n")
    main_end, other = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent"), "TERM": "xterm"} | {"NO_COLOR": ""}
    command = [sys.executable, "-m", "fairlead", "status", "--run-dir", str(tmp_path)]
    subprocess.run(command, stdout=other, stderr=other, env=env, check=False, timeout=60)
    os.close(other)
    said = os.read(main_end, 65536).decode()
    os.close(main_end)
    assert "\x1b[1;33mwarn\x1b[0m" in said and "\x1b[2J" not in said


def test_a_cell_of_a_table_is_one_line() -> None:
    """A node or a user must not be able to add rows."""
    made = columns([("n1", "a\nn2  drained\x85n3\u2028n4"), ("n5", "b")], ("NODE", "WHY"))
    assert [line.split()[0] for line in made.splitlines()] == ["NODE", "n1", "n5"]
