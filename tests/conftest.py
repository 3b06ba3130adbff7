"""How the tests are shared out between processes (`pytest -n auto --dist loadgroup`), and whose the labs are that they start.

A test stays in one process with all others that use the same cluster or rack; other files stay whole; tests that start
a lab of their own go wherever there is room. What takes longest is started first. Without -n all of this does nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import clean, ledger, linux

HERE = Path(__file__).parent
#: A fixture that holds a cluster or rack for many tests -> what they are called together.
SHARED = {"up": "slurm", "simulated": "hooks", "real": "hooks", "rack": "rack", "site": "faults", "admin": "playbooks"}
SHARED |= {"all_states": "states"}
#: Roughly how many seconds they take, to begin with the longest; a file takes 1, a test with a lab of its own 10.
SECONDS = {
    "faults": 120,
    "slurm": 100,
    "states": 95,
    "playbooks": 90,
    "rack": 40,
    "hooks": 30,
    "settings/test_settings.py": 30,
    "host/test_gather.py": 25,
    "host/test_snapshot.py": 25,
    "host/test_nvml.py": 25,
    "lint/test_lint.py": 25,
}


def unit(item: pytest.Item) -> str:
    """What ``item`` has to stay together with; '' when it can run anywhere."""
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    for fixture in getattr(item, "fixturenames", ()):
        if fixture in SHARED:
            return f"{SHARED[fixture]}-{parameters[fixture]}" if fixture in parameters else SHARED[fixture]
    if item.get_closest_marker("slurm") or item.get_closest_marker("rack"):
        return ""
    return item.path.relative_to(HERE).as_posix()


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("dist", "no") != "loadgroup":
        return
    weights: dict[str, int] = {}
    for item in items:
        together = unit(item)
        weights[item.nodeid] = SECONDS.get(together.partition("-")[0], 1 if together else 10)
        if together:
            item.add_marker(pytest.mark.xdist_group(together))
    items.sort(key=lambda item: -weights[item.nodeid])


def pytest_xdist_auto_num_workers() -> int:
    """Half as many again as there are cores: much of the time is spent waiting for Slurm and systemd."""
    return max(2, (len(os.sched_getaffinity(0)) * 3 + 1) // 2)


class Told:
    """Names a failed test at once: with several processes the terminal shows dots until the end."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write(f"\nFAILED {report.nodeid} ({report.when})\n")


def pytest_configure(config: pytest.Config) -> None:
    """Labs that this process starts, and what it runs starts, end with it, or are ended by the next run."""
    if config.getoption("numprocesses", None):
        config.pluginmanager.register(Told(config))
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell's background job; what tests interrupt inherits it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ[ledger.OWNER] = f"{os.getpid()} {linux.start_time(os.getpid())}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> Iterator[None]:
    end_orphans(session.config)
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    try:
        return (yield)
    finally:
        end_orphans(session.config)  # after the workers have ended, one of them perhaps by a crash


def end_orphans(config: pytest.Config) -> None:
    """In the one process that starts the others: end what killed test processes left, and say so."""
    if os.geteuid() == 0 and not hasattr(config, "workerinput"):
        for told in clean.clean_orphans():
            print(f"\nlab {told}")
