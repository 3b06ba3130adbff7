"""The return-to-service command: real processes that pass, fail, hang, leave others behind, and outlive a killed agent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.daemon.loop import return_command as proof_module
from fairlead.daemon.loop.return_command import Proving, _session, _stat
from fairlead.policy import Proof, Rules

DRAIN = "fairlead:xid:0123456789ab broken"


def rules(script: str, *, retry: int = 3600) -> Rules:
    return Rules(return_command=("/bin/sh", "-c", script), return_deadline_seconds=60.0, return_retry_seconds=retry)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[..., Proving]]:
    """Makes Provings on one state folder; ends what they run."""
    all_of_them: list[Proving] = []

    def make(**options: Callable[[], bool]) -> Proving:
        all_of_them.append(Proving(str(tmp_path), "boot", **options))
        return all_of_them[-1]

    yield make
    for proving in all_of_them:
        proving.close()


def until(met: Callable[[], bool], what: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, f"no {what}"
        time.sleep(0.005)


def ended(proving: Proving) -> Proof:
    """The state once the run has ended."""

    def over() -> bool:
        proving.poll()
        return proving.state is not Proof.RUNNING

    until(over, "end of the run")
    return proving.state


def started(proving: Proving, folder: Path, word: str = "up") -> None:
    until(lambda: (proving.poll() or True) and (folder / word).exists(), word)


def alive(pid: int) -> bool:
    found = _stat(pid)
    return found is not None and found[0] not in "ZX"


def test_exit_0_is_the_proof_and_stays_one(made: Callable[..., Proving]) -> None:
    proving = made()
    proving.follow(True, DRAIN, rules("echo starting; echo all 8 GPUs passed"))
    assert proving.state is Proof.RUNNING and ended(proving) is Proof.PASSED
    proving.follow(True, DRAIN, rules("exit 1"))
    assert proving.state is Proof.PASSED, "one proof is enough"
    assert proving.said == "passed: all 8 GPUs passed" and proving.outcomes["passed"] == 1
    proving.follow(False, DRAIN, rules("exit 1"))
    assert proving.state is Proof.NONE, "what it proved is over with what it was wanted for"


@pytest.mark.parametrize(
    ("script", "said"),
    [("echo 'busbw 12 GB/s, expected 370' >&2; exit 3", "exit 3: busbw 12 GB/s, expected 370"), ("kill -9 $$", "signal 9")],
)
def test_anything_else_is_none_and_is_not_tried_at_once(made: Callable[..., Proving], script: str, said: str) -> None:
    proving = made()
    proving.follow(True, DRAIN, rules(script))
    assert ended(proving) is Proof.FAILED and proving.said == said
    proving.follow(True, DRAIN, rules("exit 0"))
    assert proving.state is Proof.FAILED and proving.next_unix > time.time() + 3000
    again = made()
    again.follow(True, DRAIN, rules("exit 0"))
    assert again.state is Proof.FAILED, "nor by an agent that was started again"
    again.follow(True, "fairlead:xid:ffffffffffff another drain", rules("exit 0"))
    assert ended(again) is Proof.PASSED


@pytest.mark.heavy
def test_it_is_tried_again_after_the_wait(made: Callable[..., Proving], tmp_path: Path) -> None:
    proving, short = made(), rules(f"echo x >> {tmp_path}/runs; test $(wc -l < {tmp_path}/runs) = 2", retry=1)
    proving.follow(True, DRAIN, short)
    assert ended(proving) is Proof.FAILED

    def again() -> bool:
        proving.follow(True, DRAIN, short)
        proving.poll()
        return proving.state is Proof.PASSED

    until(again, "second run")
    assert (proving.outcomes["failed"], proving.outcomes["passed"]) == (1, 1)


def test_a_command_that_is_not_there(made: Callable[..., Proving]) -> None:
    proving = made()
    proving.follow(True, DRAIN, Rules(return_command=("/nowhere/test",)))
    assert ended(proving) is Proof.FAILED and "exit 127" in proving.said and "/nowhere/test" in proving.said
    broken = made()
    broken.follow(True, "other", Rules(return_command=("nul\0byte",)))
    assert broken.state is Proof.FAILED and "cannot be started" in broken.said


def test_what_it_gets(made: Callable[..., Proving], monkeypatch: pytest.MonkeyPatch) -> None:
    """No environment of the agent's, nothing on standard input, no process group of the agent's, arguments as they are."""
    monkeypatch.setenv("SECRET", "x")
    proving = made()
    script = 'read -r x; echo "$SECRET|$x|$1|$(cat /proc/self/oom_score_adj)|$(pwd)"'
    proving.follow(True, DRAIN, Rules(return_command=("/bin/sh", "-c", script, "sh", "$(id) a b")))
    assert ended(proving) is Proof.PASSED and proving.said == "passed: ||$(id) a b|500|/"
    assert proving.record is not None and proving.record.pid != os.getpgrp()


def test_the_deadline_ends_the_whole_group(made: Callable[..., Proving], tmp_path: Path) -> None:
    proving = made()
    proving.follow(True, DRAIN, rules(f"sleep 1000 & echo $! > {tmp_path}/pid; touch {tmp_path}/up; wait"))
    started(proving, tmp_path)
    assert proving._deadline <= time.monotonic() + 60
    proving._deadline = time.monotonic()  # it has come
    assert ended(proving) is Proof.FAILED and proving.outcomes["deadline"] == 1
    pid = int((tmp_path / "pid").read_text() or 0)
    until(lambda: not alive(pid), "end of the child")


def test_what_ignores_sigterm_is_killed(made: Callable[..., Proving], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof_module, "GRACE_SECONDS", 0.05)
    proving = made()
    proving.follow(True, DRAIN, rules(f"trap '' TERM; touch {tmp_path}/up; while :; do sleep 0.05; done"))
    started(proving, tmp_path)
    proving._deadline = time.monotonic()
    pid = proving.record.pid if proving.record else 0
    assert ended(proving) is Proof.FAILED
    until(lambda: (proving.poll() or True) and not alive(pid), "end of it")


def test_processes_it_leaves_behind_do_not_meet_the_next_job(made: Callable[..., Proving], tmp_path: Path) -> None:
    proving = made()
    proving.follow(True, DRAIN, rules(f"sleep 1000 & echo $! > {tmp_path}/pid; exit 0"))
    assert ended(proving) is Proof.PASSED
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not alive(pid), "end of the child")


def test_given_up_it_is_ended_and_begins_anew_when_wanted_again(made: Callable[..., Proving], tmp_path: Path) -> None:
    proving = made()
    proving.follow(True, DRAIN, rules(f"touch {tmp_path}/up; sleep 1000"))
    started(proving, tmp_path)
    pid = proving.record.pid if proving.record else 0
    proving.follow(False, DRAIN, rules("exit 0"))
    assert proving.state is Proof.NONE

    def passed() -> bool:
        proving.follow(True, DRAIN, rules("exit 0"))
        proving.poll()
        return proving.state is Proof.PASSED

    until(passed, "another run")
    assert not alive(pid) and proving.outcomes["given up"] == 1


def test_not_while_jobs_run(made: Callable[..., Proving], tmp_path: Path) -> None:
    steps = [True]
    proving = made(busy=lambda: steps[0])
    proving.follow(True, DRAIN, rules(f"touch {tmp_path}/up"))
    assert proving.state is Proof.NONE and proving.record is None
    steps[0] = False
    proving.follow(True, DRAIN, rules("exit 0"))
    assert ended(proving) is Proof.PASSED and not (tmp_path / "up").exists()


def test_without_a_record_on_disk_nothing_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    proving = Proving(str(tmp_path / "file"), "boot")
    try:
        proving.follow(True, DRAIN, rules(f"touch {tmp_path}/up"))
        assert ended(proving) is Proof.FAILED and not (tmp_path / "up").exists()
    finally:
        proving.close()


def test_a_damaged_record_is_as_good_as_none(made: Callable[..., Proving], tmp_path: Path) -> None:
    (tmp_path / "return.json").write_text('{"pid": "x"')
    proving = made()
    proving.follow(True, DRAIN, rules("exit 0"))
    assert ended(proving) is Proof.PASSED


_AGENT = """
import sys, time
from fairlead.daemon.loop.return_command import Proving
from fairlead.policy import Rules
proving = Proving(sys.argv[1], "boot")
proving.follow(True, "drain", Rules(return_command=("/bin/sh", "-c", sys.argv[2])))
while True:
    proving.poll()
    time.sleep(0.01)
"""


def killed_agent(folder: Path, script: str) -> None:
    """An agent that begins a run and is killed in the middle of it."""
    agent = subprocess.Popen([sys.executable, "-c", _AGENT, str(folder), script])
    try:
        until((folder / "up").exists, "run under way")
    finally:
        agent.kill()
        agent.wait()


@pytest.mark.parametrize("leader", [True, False])
def test_what_a_killed_agent_left_is_ended_before_another_run(made: Callable[..., Proving], tmp_path: Path, leader: bool) -> None:
    """Found by process id and start time; where the first process has ended, by its session and its mark."""
    hang = f"sh -c 'echo $$ > {tmp_path}/pid; touch {tmp_path}/up; sleep 1000' & "
    killed_agent(tmp_path, hang + ("wait" if leader else f"until [ -e {tmp_path}/go ]; do sleep 0.02; done"))
    pid = int((tmp_path / "pid").read_text())
    if not leader:
        (tmp_path / "go").touch()
        until(lambda: not alive(json.loads((tmp_path / "return.json").read_text())["pid"]), "end of the first process")
    assert alive(pid)
    proving = made()
    until(lambda: not alive(pid), "end of what was left")

    def passed() -> bool:
        proving.follow(True, "drain", rules("exit 0", retry=1))
        proving.poll()
        return proving.state is Proof.PASSED

    until(passed, "a run of its own")


def test_what_is_left_and_cannot_be_ended_is_never_doubled(
    made: Callable[..., Proving], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As state D is to SIGKILL: the process goes on whatever is sent to it."""
    killed_agent(tmp_path, f"touch {tmp_path}/up; exec sleep 1000")
    pid = json.loads((tmp_path / "return.json").read_text())["pid"]
    real = os.kill
    monkeypatch.setattr(os, "kill", lambda *_: None)
    proving = made()
    for _ in range(3):
        proving.follow(True, "drain", rules(f"touch {tmp_path}/second"))
        assert proving.state is Proof.FAILED
    monkeypatch.undo()
    real(pid, signal.SIGKILL)
    until(lambda: not alive(pid), "end of what was left")
    proving.follow(True, "drain", rules("exit 0"))
    assert ended(proving) is Proof.PASSED and not (tmp_path / "second").exists()


def test_another_process_under_the_old_number_is_left_alone(made: Callable[..., Proving], tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        stat = _stat(other.pid)
        assert stat is not None
        record = {"token": "t", "boot_id": "boot", "drain": "drain", "pid": other.pid, "ticks": stat[3] - 1}
        (tmp_path / "return.json").write_text(json.dumps(record))
        proving = made()
        proving.follow(True, "drain", rules("exit 0"))
        assert ended(proving) is Proof.PASSED and alive(other.pid)
    finally:
        other.kill()
        other.wait()


def test_an_agent_killed_before_its_record_is_on_disk_leaves_nothing(tmp_path: Path) -> None:
    """The command waits for the agent's word; without it, it ends."""
    reader, writer = os.pipe()
    child = subprocess.Popen(
        ["/bin/sh", "-c", proof_module._START, "x", "/bin/touch", str(tmp_path / "up")], stdin=reader, close_fds=True
    )
    os.close(reader)
    os.close(writer)
    assert child.wait(timeout=90) == 0 and not (tmp_path / "up").exists()
    assert _session(child.pid) == []
