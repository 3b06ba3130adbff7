"""`make test` runs a test of real Slurm or of the rack again, alone, when it failed beside others, and says so.

These tests share two cores with several clusters. A test that fails there and passes alone is a race, in the test or in
fairlead. It is named at the end of the run, so that somebody looks for the race. It does not end the run with a failure. Tests of
any other kind, and more than ``MAX`` failures, are never run again.

Use: ``pytest -p tests.second_run``.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

import pytest

MAX = 3
MARKS = {"slurm", "rack"}
PASSED_ALONE = pytest.StashKey[list[str]]()


def to_run_again(failed: Iterable[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """The node ids of the failed tests, each once; an empty list where one of them may not be run again."""
    reports = list(failed)
    if any(not MARKS & set(report.keywords) for report in reports):
        return []
    names = list(dict.fromkeys(report.nodeid for report in reports))
    return names if len(names) <= MAX else []


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if hasattr(session.config, "workerinput") or terminal is None or exitstatus != pytest.ExitCode.TESTS_FAILED:
        return
    names = to_run_again([*terminal.stats.get("failed", []), *terminal.stats.get("error", [])])
    if not names:
        return
    terminal.write_line(f"\nruns again, alone: {' '.join(names)}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *names]
    if subprocess.run(command, cwd=session.config.rootpath, check=False).returncode == 0:
        session.config.stash[PASSED_ALONE] = names
        session.exitstatus = pytest.ExitCode.OK


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for name in config.stash.get(PASSED_ALONE, []):
        terminalreporter.write_line(
            f"RACE {name}: it failed beside other tests and passed alone. Please look for the race.", yellow=True
        )
