"""The live table of a maintenance run on a real pseudo-terminal: what its screen shows, and what is left of it."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from fairlead.provision.maintain.maintenance_display import frame, lasted
from tests.terminal import Pty

PROJECT = Path(__file__).resolve().parents[2]
ENV = {**os.environ, "PYTHONPATH": f"{PROJECT / 'agent'}:{PROJECT}", "TERM": "xterm-256color"}
COMMAND = (sys.executable, "-m", "tests.provision.shown")
IN_WORK = re.compile(r"n1 +waiting +\d+ s +drained")


def table(lines: list[str]) -> list[str]:
    """From its head on; there is one."""
    heads = [i for i, line in enumerate(lines) if line.startswith("NODE")]
    assert len(heads) == 1, "\n".join(lines)
    return lines[heads[0] :]


@pytest.mark.parametrize("more", [{}, {"NO_COLOR": "1"}], ids=["colours", "none"])
def test_a_table_that_is_drawn_anew(more: dict[str, str]) -> None:
    """At any size, also after a change of it; once stopped it says so, and it leaves the terminal as it was."""
    env = {k: v for k, v in ENV.items() if k != "NO_COLOR"} | more
    with Pty(COMMAND, rows=24, columns=80, env=env, cwd=PROJECT) as pty:
        lines = pty.until("n1", "n2", "n3: failed: not well", " 2 in work")
        head, *rows = table(lines)
        assert head.split() == ["NODE", "STEP", "FOR", "WHAT"] and IN_WORK.match(rows[0]) and not pty.cursor(), lines
        assert "n3: failed: not well after 0 s: gpu_count: 7 of 8; stays drained" in "\n".join(lines[: lines.index(head)])
        for rows_, columns in ((12, 50), (40, 200)):
            pty.resize(rows_, columns)
            at = len(pty.said)
            pty.until_said("\x1b[2J", at)  # the screen is written again
            table(pty.until("n3: failed", "NODE", " 2 in work"))
        pty.process.send_signal(signal.SIGTERM)
        lines = pty.until(
            "stopping: nodes already in progress will be finished.", "Press Ctrl-C again to leave them as they are."
        )
        assert IN_WORK.match(table(lines)[1])
        pty.type(b"\x03")
        pty.until_said("left at")
        assert pty.end() == 0
    assert pty.cursor() and not [line for line in pty.screen.lines if line.startswith("NODE")]
    assert pty.screen.colours == (set() if more else {"31"})


def test_a_dumb_terminal_has_lines() -> None:
    with Pty(COMMAND, rows=24, columns=80, env={**ENV, "TERM": "dumb"}, cwd=PROJECT) as pty:
        pty.until("n1: waiting: drained", "n3: failed: ")
        pty.type(b"\x03")
        pty.until("stopping: nodes already in progress will be finished")
        pty.type(b"\x03")
        pty.until_said("left at")
        assert pty.end() == 0
    assert "\x1b" not in pty.said


def test_a_frame_fits_its_height() -> None:
    """With more nodes in work than lines, the number of the others; a text that looks like markup is a text."""
    from rich.console import Console

    console = Console(width=40, force_terminal=False, color_system=None)
    rows = [(f"gpu{n}", "waiting", "5 s", "drained [/x] :warning: by whoever did it") for n in range(9)]
    with console.capture() as said:
        console.print(frame(rows, ("9 nodes: 9 in work",), 6))
    lines = said.get().splitlines()
    assert [line.split()[0] for line in lines] == ["NODE", "gpu0", "gpu1", "gpu2", "...", "9"] and "6 more" in lines[4]
    assert "drained [/x] :warn" in lines[1] and max(map(len, lines)) <= 40
    assert [lasted(s) for s in (0.4, 119, 120, 7199, 7200)] == ["0 s", "119 s", "2 min", "119 min", "2 h"]
