"""fairlead's units on a controller with real systemd: the timer collects, the socket answers, and hostile clients stop neither.

bookworm has a systemd (252) that counts each connection as a start of the service. Those of trixie (257) and forky also limit
polls.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.accounting.controller_host import ask, ended_job, set_up, start_units
from tests.lab.accounting import OPERATOR, STRANGER
from tests.lab.enter import enter_command
from tests.lab.host import Host
from tests.lab.ledger import own_name
from tests.lab.pause import until
from tests.lab.rack import Rack
from tests.lab.roots import USER

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.slow, pytest.mark.rack, pytest.mark.timeout(900)]
#: Opens many connections and holds them: a third says nothing, a third half a request, a third one byte a second. It opens those
#: again that were closed, and so often says how many it has opened. It ends when its standard input does: a signal would reach
#: only nsenter, which has forked.
HOSTILE = """
import select, socket, sys, time
address, wanted, seconds = ("ctl", 6830), int(sys.argv[1]), float(sys.argv[2])
held, opened, end = {}, 0, time.monotonic() + seconds
while time.monotonic() < end:
    for _ in range(wanted - len(held)):
        try:
            link = socket.create_connection(address, timeout=5)
        except OSError:
            continue
        link.setblocking(False)
        opened += 1
        held[link] = opened % 3
        if opened % 3 == 1:
            try:
                link.send(b"MUNGE:AwQFAAA")
            except OSError:
                pass
    if opened >= wanted:
        print(opened, flush=True)
    if select.select([sys.stdin], [], [], 1)[0]:
        break
    for link, kind in list(held.items()):
        try:
            if kind == 2:
                link.send(b"A")
            if link.recv(1) == b"":
                raise OSError
        except BlockingIOError:
            pass
        except OSError:
            link.close()
            del held[link]
"""


@pytest.fixture(scope="module", params=["bookworm", "trixie", "forky"])
def rack(request: pytest.FixtureRequest) -> Iterator[Rack]:
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    with Rack(2, suite=request.param, name=own_name("units"), accounting=True) as made:
        set_up(made)
        yield made


@pytest.fixture(scope="module")
def job(rack: Rack) -> int:
    """A job of alice that the timer has collected."""
    ended = ended_job(rack)
    start_units(rack)
    said: list[subprocess.CompletedProcess[str]] = []

    def reported() -> bool:
        said[:] = [ask(rack.nodes[0], USER, str(ended), "--json")]
        return len(nodes_of(said[0])) == 2

    try:
        until(reported, "report of the ended job with both nodes", 240)
    except AssertionError as e:
        told = rack.ctl("journalctl --no-pager -u fairlead-collect -u 'fairlead-job*' -n 20", check=False)
        raise AssertionError(f"{e}; fairlead job said: {said[0].stderr}{told}") from None
    return ended


def nodes_of(said: subprocess.CompletedProcess[str]) -> set[str]:
    """The nodes whose records are in a report, or none if there is no report yet."""
    reports = json.loads(said.stdout)["jobs"] if said.returncode == 0 else []
    return {record["node"] for report in reports for record in report["records"]}


def test_the_timer_collects_and_the_socket_answers(rack: Rack, job: int) -> None:
    assert "fairlead-collect" in rack.ctl("systemctl list-timers --no-legend fairlead-collect.timer")
    owner = rack.ctl("stat -c '%U %a' /var/lib/fairlead-collect/jobs.sqlite").split()
    assert owner[0] == "fairlead" and int(owner[1], 8) & 0o007 == 0
    assert nodes_of(ask(rack.nodes[0], USER, str(job), "--json")) == {"gpu1", "gpu2"}


def test_users_see_their_own_jobs_and_operators_see_all(rack: Rack, job: int) -> None:
    login = rack.nodes[0]
    theirs, none = ask(login, STRANGER, str(job)), ask(login, STRANGER, "99999")
    assert (theirs.returncode, theirs.stdout) == (none.returncode, none.stdout) == (66, "")
    assert theirs.stderr == none.stderr.replace("99999", str(job))
    assert ask(login, OPERATOR, str(job)).stdout == ask(login, USER, str(job)).stdout != ""


def test_last_user_and_array(rack: Rack, job: int) -> None:
    """A user's own jobs only; an operator names another user. Words that are no id are refused before anybody is asked."""
    login = rack.nodes[0]
    assert ask(login, USER, "--last").stdout.startswith(f"job {job} ")
    own, named = ask(login, USER, "--user"), ask(login, OPERATOR, "--user", USER)
    assert own.stdout == named.stdout and own.stdout.splitlines()[1].split()[0] == str(job)
    for user, words in ((STRANGER, ["--user", USER]), (STRANGER, ["--last"]), (STRANGER, ["--user"]), (OPERATOR, ["--last"])):
        said = ask(login, user, *words)
        assert (said.returncode, said.stdout) == (66, ""), words
    theirs, nobody = (ask(login, STRANGER, "--user", name) for name in (USER, "nobody-of-this-name"))
    assert theirs.stderr.replace(USER, "X") == nobody.stderr.replace("nobody-of-this-name", "X")
    for words in (["17; id"], ["--array", "17_1"], ["--user", "a b"], ["17", "--last"], []):
        assert ask(login, USER, *words).returncode == 64, words


def test_a_running_job_of_somebody_else_is_named_to_operators_only(rack: Rack, job: int) -> None:
    """Slurm lets only its own user start a step in it. Who is no operator gets the answer of a job that does not exist."""
    login = rack.nodes[0]
    running = rack.submit("#!/bin/sh\nsleep 300\n", "-wgpu2", "--gres=gpu:1", "--time=10")
    rack.wait_job(running, "RUNNING")
    try:
        for user in (OPERATOR, ""):
            said = ask(login, user, str(running))
            assert (said.returncode, said.stdout) == (66, ""), said.stderr
            assert f"job {running} is in state RUNNING, and only its own user can read a running job" in said.stderr
        theirs, none = ask(login, STRANGER, str(running)), ask(login, STRANGER, "99999")
        assert (theirs.returncode, none.returncode) == (66, 66)
        assert theirs.stderr == none.stderr.replace("99999", str(running))
        own = ask(login, USER, str(running))
        assert own.returncode == 0 and own.stdout.startswith(f"job {running}  RUNNING"), own.stderr
    finally:
        rack.ctl(f"scancel {running}")
        rack.wait_job(running)


def test_an_account_with_another_number_is_named(rack: Rack, job: int) -> None:
    """A site that makes the account with `useradd --system` on each host can get this, and is told what to do about it."""
    login, number = rack.nodes[0], rack.ctl("id -u fairlead").strip()
    login.run("usermod --uid 1990 fairlead")
    try:
        said = ask(login, USER, str(job))
    finally:
        login.run(f"usermod --uid {number} fairlead")
    assert said.returncode == 69 and said.stdout == ""
    assert f"the answer is of the user {number}, and only root (0) and fairlead (1990) are trusted here" in said.stderr
    assert "the same number here as on the controller" in said.stderr
    assert ask(login, USER, str(job)).returncode == 0


def test_a_bad_request_leaves_no_failed_unit(rack: Rack, job: int) -> None:
    rack.nodes[0].run("printf 'nonsense\\n' | timeout 5 sh -c 'exec 3<>/dev/tcp/ctl/6830; cat >&3' || true", check=False)
    words = ["/usr/bin/python3", "-c", "import socket; s = socket.create_connection(('ctl', 6830)); s.send(b'x\\n'); s.recv(9)"]
    rack.nodes[0].run(words, check=False, timeout=30)
    assert "fairlead-job" not in "".join(rack.controller.units_failed())


def test_many_slow_clients_do_not_stop_the_service(rack: Rack, job: int) -> None:
    """200 connections of one user, opened again when they are closed: a user on another host is answered, and all is as before
    when they have gone. What a user on the same host gets is printed: only the first 8 connections of a host are taken."""
    hostile, same, other = rack.nodes[0], rack.nodes[0], rack.nodes[1]
    quiet = seconds_of(rack, other, job)
    words = [*enter_command(hostile.pid), "/usr/bin/setpriv", "--reuid=2003", "--regid=2003", "--clear-groups"]
    program = [*words, "/usr/bin/python3", "-c", HOSTILE, "200", "600"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as attack:
        assert attack.stdin is not None and attack.stdout is not None
        assert int(attack.stdout.readline()) >= 200
        elsewhere = [seconds_of(rack, other, job) for _ in range(5)]
        here = ask(same, USER, str(job), timeout=120)
        assert attack.poll() is None, "the attack went on all the time"
        attack.stdin.close()
        opened = attack.stdout.read().split()[-1:]
    state = rack.ctl("systemctl show -P ActiveState -P Result fairlead-job.socket").split()
    assert sorted(state) == ["active", "success"]
    began = time.monotonic()
    assert ask(same, USER, str(job)).returncode == 0
    print(f"{rack.suite}: quiet {quiet:.2f} s; 200 slow connections ({opened} opened): another host"
          f" {', '.join(f'{s:.2f}' for s in elsewhere)} s, the same host exit code {here.returncode};"
          f" afterwards {time.monotonic() - began:.2f} s; load {os.getloadavg()[0]:.1f}")  # fmt: skip


def seconds_of(rack: Rack, host: Host, job: int) -> float:
    """How long alice waits for her report on a host. She asks again if this machine, which all tests share, is too slow."""
    began = time.monotonic()
    until(lambda: ask(host, USER, str(job), timeout=120).returncode == 0, "answer", 120)
    return time.monotonic() - began
