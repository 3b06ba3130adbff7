"""A command that takes long says so: one line in place on a terminal, plain lines elsewhere, and never in what it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.cli import COMMANDS, command_parser
from tests.daemon.conftest import PROJECT

#: What shows its own progress, by nodes or files.
COUNTED = {"init", "plan", "provision", "maintain", "lock", "bundle", "fleet", "version", "accept", "nccl", "replay", "selftest"}
#: What ends within two seconds, lets another program run, serves, or prints as it reads.
QUICK = {
    "status", "explain", "xid", "lint", "run", "agent", "dashboards", "job", "template", "hold", "audit", "env", "docs", "schema",
}  # fmt: skip
SCRIPT = """
import sys, time
from fairlead.cli import main, template
def run(args):
    print("first", flush=True)
    end = time.monotonic() + {seconds}
    while time.monotonic() < end:
        time.sleep(0.05)
    print("last")
    return 0
template.SLOW, template.run = "at work", run
run.__module__ = "fairlead.cli.template"
from fairlead.cli import patience
patience.PLAIN_SECONDS = 1.0
patience.PATIENCE_SECONDS = 1.0
sys.exit(main(["template", "--list"]))
"""


def test_every_command_is_slow_quick_or_counts() -> None:
    slow = {name for name in COMMANDS if getattr(sys.modules[command_parser(name).get_default("run").__module__], "SLOW", "")}
    assert slow | COUNTED | QUICK == set(COMMANDS) and not slow & (COUNTED | QUICK)


def said(seconds: float, **streams: object) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent"), "TERM": "xterm"}
    command = [sys.executable, "-c", SCRIPT.format(seconds=seconds)]
    return subprocess.run(command, env=env, text=True, timeout=120, check=True, **streams)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("seconds", [0.1, 2.6])
def test_on_a_terminal(seconds: float, tmp_path: Path) -> None:
    import pty

    main_end, other = pty.openpty()
    done = said(seconds, stdout=subprocess.PIPE, stderr=other)
    os.close(other)
    os.set_blocking(main_end, False)
    try:
        drawn = os.read(main_end, 65536).decode()
    except OSError:  # nothing was drawn
        drawn = ""
    os.close(main_end)
    assert done.stdout == "first\nlast\n", "nothing in what it prints"
    if seconds < 1:
        assert drawn == ""
    else:
        assert re.match(r"\r\x1b\[Kfairlead template: at work, [12] s", drawn) and drawn.endswith("\r\x1b[K")


def test_elsewhere() -> None:
    done = said(2.6, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.stdout == "first\nlast\n"
    assert re.fullmatch(r"fairlead template: at work, [12] s\n", done.stderr), "one line, and the next a minute later"
    assert said(0.1, stdout=subprocess.PIPE, stderr=subprocess.PIPE).stderr == ""
