"""A run that ends at any moment: the runner is killed, the node loses power, ssh is cut. The next run completes, and what is
there in between is whole: files are the old or the new one, `current` leads to a complete release."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from contextlib import suppress

import pytest

from tests.lab.host import Host
from tests.playbooks.admin import PROJECT, Admin, node

pytestmark = [pytest.mark.rack, pytest.mark.timeout(900)]
HOOK = "/etc/slurm/fairlead/task-prolog"
ROUNDS = 12
STALE = "#!/bin/sh\n# an older one\n"


@pytest.fixture(scope="module", autouse=True)
def provisioned(admin: Admin) -> None:
    admin.write_site()
    admin.provision()


def prepare(host: Host, fresh: bool) -> None:
    """Much to do: without a release, or with one and other contents of a hook and a document."""
    host.run(["sh", "-c", 'printf %s "$1" > "$2"', "-", STALE, HOOK])
    host.run("rm -rf /opt/fairlead/current /opt/fairlead/0*" if fresh else "echo '{}' > /etc/fairlead/node.json")


def start(admin: Admin) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent")}
    words = admin.command("provision", "--site", str(admin.site), "-q", "-l", "gpu2")
    return subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def at_work(host: Host) -> bool:
    """Whether the program of a run is at work there (its text is on its command line)."""
    return "FAIRLEAD-REPLY" in host.run("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '", check=False).stdout


def strike(admin: Admin, host: Host, how: str, delay: float) -> None:
    """Start a run, and end it in this way, ``delay`` seconds after its program has begun on the node."""
    run = start(admin)
    deadline = time.monotonic() + 60
    while not at_work(host) and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(delay)
    boot = host.boot_id()
    if how == "runner":
        with suppress(ProcessLookupError):  # it was at its end already
            os.killpg(run.pid, signal.SIGKILL)
    elif how == "power":
        host.power("cycle")
    else:
        host.run("pkill -KILL -f 'sshd: root@'", check=False)
    if how == "power":
        host.wait_boot(boot)
    run.wait(240)


def whole(host: Host) -> None:
    """Nothing is half there."""
    hook = host.run(["cat", HOOK], check=False).stdout
    assert hook in ("", STALE, (PROJECT / "slurm/task-prolog").read_text())
    document = host.run("cat /etc/fairlead/node.json", check=False).stdout
    assert document in ("", "{}\n") or document.rstrip().endswith("}")
    if host.run("test -e /opt/fairlead/current", check=False).returncode == 0:
        assert host.run("test -f /opt/fairlead/current/.installed && /usr/local/bin/fairlead version").stdout


def round_of(admin: Admin, how: str, delay: float, fresh: bool) -> None:
    host = node(admin, "gpu2")
    prepare(host, fresh)
    strike(admin, host, how, delay)
    whole(host)
    assert admin.provision("-l", "gpu2")["gpu2"]["state"] in ("changed", "same"), f"{how} after {delay:.2f} s"
    assert host.run(["cat", HOOK]).stdout == (PROJECT / "slurm/task-prolog").read_text()
    left = host.run("find /etc/fairlead /etc/slurm /opt/fairlead -maxdepth 2 -name '*.fairlead-new' -o -name '.*.new'").stdout
    assert left == "", "what the broken run left is gone or was used"
    assert admin.provision("-l", "gpu2")["gpu2"]["state"] == "same"


@pytest.mark.parametrize(("how", "delay", "fresh"), [("runner", 0.3, True), ("power", 0.2, True), ("ssh", 0.1, False)])
def test_the_next_run_completes(admin: Admin, how: str, delay: float, fresh: bool) -> None:
    round_of(admin, how, delay, fresh)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["runner", "power", "ssh"])
def test_the_next_run_completes_wherever_it_was_broken(admin: Admin, how: str) -> None:
    chance = random.Random(how)
    for number in range(ROUNDS):
        round_of(admin, how, chance.uniform(0, 1.5), fresh=bool(number % 2))
