"""How the tests are shared out between processes (`pytest -n auto`), and whose the labs are that they start.

A test stays in one process with all others that use the same cluster or rack; other files stay whole; tests that start
a lab of their own go wherever there is room. What takes longest is started first. Without -n all of this does nothing.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import memory as in_memory
from tests import printed_json
from tests.lab import clean, ledger, linux, trees
from tests.lab.roots import SUITES

# Two cores that also run a cluster say nothing about how long one example should take.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
#: `make test` tries the same examples each time, and fewer of them. `make test-all` tries others each time.
settings.register_profile("same", settings.get_profile("busy"), derandomize=True, max_examples=50)
settings.load_profile("busy")

printed_json.install()

#: Files of tests that share nothing: each of them starts a lab of its own.
SINGLE = ("tests/rack/test_cluster.py", "tests/faults/test_demo.py")
#: Files that hold the clusters of all releases at once.
WHOLE = ("tests/slurm/test_node_states.py",)
#: Rooms whose ``tmp_path`` is a folder in memory.
IN_MEMORY = {"controller", "daemon", "drains", "history", "jobs", "provision"}
#: Roughly how many seconds the longest take together, to begin with them; a file takes 1, a test with its own lab 10.
SECONDS = {
    "playbooks": 680,
    "slurm": 300,
    "faults": 225,
    "tests/measure/test_fabric_on_slurm.py": 170,
    "tests/maintain/test_reboots.py": 160,
    "tests/measure/test_on_slurm.py": 125,
    "tests/rack/test_slow_nodes.py": 90,
    "tests/faults/test_demo.py": 80,
    "tests/release/test_packages.py": 80,
    "tests/driver/test_dnf.py": 80,
    "tests/slurm/test_node_states.py": 65,
    "accounting": 60,
    "tests/hooks/test_one_binding_rule.py": 60,
    "tests/maintain/test_hostile.py": 60,
    "tests/scorecard/test_scorecard.py": 60,
    "tests/daemon/loop/test_main_loop.py": 55,
    "tests/driver/test_el_on_systemd.py": 55,
    "tests/hooks/test_env_in_real_jobs.py": 55,
    "tests/alive/test_nvml.py": 50,
    "tests/driver/test_apt.py": 50,
    "tests/slurm_conf/test_generated.py": 50,
    "tests/driver/test_dnf_modules.py": 45,
    "tests/rack/test_rack.py": 45,
    "tests/driver/test_dnf_killed.py": 40,
    "tests/driver/test_lock_el.py": 40,
    "tests/hooks/test_attacks_in_real_jobs.py": 40,
    "tests/rack/test_stateless.py": 40,
    "tests/release/test_docs_site.py": 40,
    "tests/driver/test_undo.py": 35,
    "tests/judge/test_check_and_agent.py": 35,
    "tests/selftest/test_selftest_command.py": 35,
    "tests/settings/test_on_a_node.py": 35,
    "tests/alive/test_disk.py": 35,
    "tests/apply/test_boot.py": 35,
    "hooks": 30,
    "tests/contracts/test_documented_commands.py": 30,
    "tests/hooks/test_spank.py": 30,
    "tests/lint/test_lint.py": 30,
    "tests/measure/test_nccl_in_jobs.py": 30,
    "tests/measure/test_nccl_measure.py": 30,
    "tests/provision/test_hostile_answers.py": 30,
    "tests/release/test_collection.py": 30,
    "tests/settings/test_settings.py": 30,
    "tests/host/test_snapshot.py": 25,
    "tests/hooks/test_in_real_jobs.py": 25,
    "tests/hooks/test_task_prolog_stopped.py": 25,
    "tests/cli/test_output_lost.py": 20,
    "tests/apply/test_image.py": 20,
    "tests/contracts/test_docs.py": 20,
    "tests/contracts/test_kernel_lines.py": 20,
    "tests/contracts/test_quickstarts.py": 20,
    "tests/driver/test_bundle.py": 20,
    "tests/driver/test_full_disk.py": 20,
    "tests/gpu/test_proof.py": 20,
    "tests/gpu/test_put_back.py": 20,
    "tests/host/test_nvml_activity.py": 20,
    "tests/slurm/test_interleave.py": 20,
    "tests/alive/test_alerts.py": 15,
    "tests/alive/test_every_call.py": 15,
    "tests/alive/test_kernel_log.py": 15,
    "tests/apply/test_apply.py": 15,
    "tests/checks/test_described_machines.py": 15,
    "tests/contracts/test_recipe.py": 15,
    "tests/driver/test_lock_rpm.py": 15,
    "tests/hooks/test_scratch_hostile.py": 15,
    "tests/host/test_gather.py": 15,
    "tests/host/test_nvml.py": 15,
    "tests/jobenv/test_hostile_text.py": 15,
    "tests/provision/test_maintain_invariants.py": 15,
    "tests/provision/test_offline_bundle_check.py": 15,
}


def release_of(name: str) -> str:
    """The suite among the parameters of a test, "" where there is none."""
    return next((suite for suite in SUITES if re.search(rf"[\[-]{suite}[\]-]", name)), "")


def unit(nodeid: str) -> str:
    """What the test has to stay together with: a cluster of one release, the provisioned rack, its file, or only itself."""
    path, _, name = nodeid.partition("::")
    if path in SINGLE:
        return nodeid
    if path in WHOLE:
        return path
    room = path.removeprefix("tests/").partition("/")[0]
    suite = release_of(name)
    if suite and (room in ("slurm", "accounting") or path == "tests/hooks/test_on_slurm.py"):
        return f"{room} {suite}"
    if room in ("playbooks", "vm"):
        return room  # one rack, one virtual machine
    if room == "faults" and path != "tests/faults/test_preflight_sh.py":
        return "faults"
    return path


def weight(nodeid: str) -> int:
    """Seconds, roughly."""
    if nodeid.startswith(SINGLE):
        return SECONDS.get(nodeid.partition("::")[0], 10)
    return SECONDS.get(unit(nodeid).partition(" ")[0], 1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Before pytest leaves out what is slow: what has the mark ``release`` is slow on all other releases."""
    for item in items:
        named = item.get_closest_marker("release")
        suite = release_of(item.name)
        if named is not None and suite and suite not in named.args:
            item.add_marker(pytest.mark.slow)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: -weight(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """By ``unit``. Not by xdist's own marks: xdist 3.8 writes them into node ids, and with pytest 9.2 they never get there."""
    from xdist.scheduler import LoadScopeScheduling

    class ByUnit(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid)

    config.option.loadscopereorder = False  # the order of collection, longest first, not that of the number of tests
    return ByUnit(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Half as many again as there are cores: much of the time is spent waiting for Slurm and systemd."""
    return max(2, (len(os.sched_getaffinity(0)) * 3 + 1) // 2)


@pytest.fixture
def memory() -> Iterator[Path]:
    """An empty folder in memory, for a copy of a machine tree."""
    with in_memory.folder() as made:
        yield made


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """In memory for the rooms whose tests write databases and ledgers: most of their time was spent waiting for the disk."""
    if request.path.relative_to(Path(__file__).parent).parts[0] not in IN_MEMORY:
        yield tmp_path
        return
    with in_memory.folder() as made:
        yield made


class FailedNames:
    """Names a failed test at once: with several processes the terminal shows dots until the end."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write(f"\nFAILED {report.nodeid} ({report.when})\n")


def pytest_configure(config: pytest.Config) -> None:
    """Labs that this process starts, and what it runs starts, end with it, or are ended by the next run."""
    trees.ensure()
    if config.getoption("numprocesses", None):
        config.pluginmanager.register(FailedNames(config))
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell's background job; what tests interrupt inherits it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ[ledger.OWNER] = f"{os.getpid()} {linux.start_time(os.getpid())}"
    if "not slow" in config.getoption("markexpr"):
        settings.load_profile("same")


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
    if not hasattr(config, "workerinput"):
        in_memory.sweep()
    if os.geteuid() == 0 and not hasattr(config, "workerinput"):
        for told in clean.clean_orphans():
            print(f"\nlab {told}")
