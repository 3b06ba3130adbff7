"""Start-up cost is judged by what got imported, not by a stopwatch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fairlead.cli import COMMANDS

HEAVY = {
    "asyncio",
    "ansible_runner",
    "jinja2",
    "rich",
    "ClusterShell",
    "importlib.metadata",
    "http.server",
    "pynvml",
    "prometheus_client",
}


CODE = """
import sys
from fairlead.cli import main
try:
    main(sys.argv[1:])
finally:
    print("\\n".join(sys.modules), file=sys.stderr)
"""


def imported(*command: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", CODE, *command], capture_output=True, text=True, check=False)
    modules = set(done.stderr.splitlines())
    assert "fairlead.cli" in modules, done.stderr
    return modules


@pytest.mark.parametrize(
    "command", [("version",), ("status",), ("--help",), ("explain", "xid", "79"), ("hold", "--show"), ("audit",)]
)
def test_light_commands_load_nothing_heavy(command: tuple[str, ...]) -> None:
    assert not imported(*command) & HEAVY


def test_who_asks_for_a_job_needs_no_database() -> None:
    assert "sqlite3" not in imported("job", "1", "--controller", "127.0.0.1:1", "--bin-dir", "/nowhere")


def test_a_rank_starts_with_next_to_nothing() -> None:
    """`fairlead run` starts once for every rank."""
    modules = imported("run", "--dry-run")
    assert "fairlead.topology.binding.rank_binding" in modules
    assert not modules & (HEAVY | {"msgspec", "subprocess", "ctypes", "json", "fairlead.host.gather", "fairlead.model.facts"})


def test_help_loads_no_command() -> None:
    commands = {f"fairlead.cli.{name.replace('-', '_')}" for name in COMMANDS}
    assert not imported("--help") & (commands | HEAVY | {"msgspec"})
