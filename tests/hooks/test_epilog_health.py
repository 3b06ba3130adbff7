"""The epilog ends records and never fails; the health check says a change once."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from tests.hooks.stage import HOOKS, SHELLS, Stage, uptime_seconds

pytestmark = pytest.mark.root
JOB = {"SLURM_JOB_ID": "4711", "SLURM_JOB_UID": "1000", "SLURM_JOB_GPUS": "0,1"}
LATER = 1 << 40


def test_epilog_ends_the_record(stage: Stage, shell: str) -> None:
    stage.verdict(f"1\tok\t{LATER}\t1\t-\n")
    stage.start(shell, "prolog", {**JOB, "SLURM_JOB_COMMENT": "fairlead:off"})
    start = stage.job(4711)[4]
    assert stage.start(shell, "epilog", JOB).rc == 0
    record = stage.job(4711)
    assert record[:5] == ["1", "ended", "1000", "0,1", start]
    assert 0 <= uptime_seconds() - int(record[5]) <= 60
    assert record[6:] == ["off", "."]


def test_epilog_keeps_that_the_prolog_refused(stage: Stage, shell: str) -> None:
    stage.verdict(f"1\tdrain\t{LATER}\t1\tbroken\n")
    assert stage.start(shell, "prolog", JOB).rc == 1
    assert stage.start(shell, "epilog", JOB).rc == 0
    record = stage.job(4711)
    assert record[1] == "refused"
    assert record[5].isdigit()


@pytest.mark.parametrize("content", [None, "", "1\trunning\t1000", "garbage\n", "1\trunning\t1\t0\t5\t-\t-\tx\n"])
def test_epilog_without_a_complete_record(stage: Stage, shell: str, content: str | None) -> None:
    if content is not None:
        (stage.run / "jobs/4711").write_text(content)
    assert stage.start(shell, "epilog", JOB).rc == 0
    record = stage.job(4711)
    assert (record[1], record[2], record[3], record[-1]) == ("ended", "1000", "0,1", ".")


def test_epilog_disabled(stage: Stage, shell: str) -> None:
    (stage.etc / "disabled").touch()
    assert stage.start(shell, "epilog", JOB).rc == 0
    assert stage.job(4711) == []


def test_health_check_notes_each_change_once(stage: Stage, shell: str) -> None:
    def check() -> str:
        ran = stage.start(shell, "health-check")
        assert (ran.rc, ran.err) == (0, "")
        return ran.out

    assert "verdict is missing" in check()
    assert check() == ""
    stage.verdict(f"1\tok\t{LATER}\t1\t-\n")
    assert check() == "fairlead: the verdict is fresh again\n"
    assert check() == ""
    stage.verdict("1\tdrain\t08\t1\tx\n")
    assert "expired at 08 s of uptime" in check()
    assert check() == ""
    stage.verdict("1\tdrain\n")
    assert "verdict is malformed" in check()
    state = (stage.run / "health").read_text().split("\t")
    assert (state[0], state[1], state[3]) == ("1", "malformed", ".\n")


def test_health_check_on_a_healthy_node_is_silent(stage: Stage, shell: str) -> None:
    stage.verdict(f"1\tok\t{LATER}\t1\t-\n")
    assert stage.start(shell, "health-check").out == ""


def test_health_check_disabled(stage: Stage, shell: str) -> None:
    (stage.etc / "disabled").touch()
    assert stage.start(shell, "health-check").out == ""


@pytest.mark.parametrize("name", ["prolog", "epilog", "health-check"])
def test_what_root_runs_opens_only_what_root_alone_can_change(name: str) -> None:
    """So there is no FIFO, no hung disk and no process of a user's that it could wait for."""
    code = re.sub(r"^\s*#.*$|'[^']*'|\s#.*$", "", (HOOKS / name).read_text(), flags=re.MULTILINE)
    paths = set(re.findall(r"(?<![\w$}])/[\w./-]+", code))
    assert paths and all(p.startswith(("/etc/fairlead/", "/run/fairlead/")) or p in ("/proc/uptime", "/dev/null") for p in paths)


@pytest.mark.parametrize("name", ["prolog", "epilog", "health-check"])
def test_nothing_is_started_whatever_root_is_given(stage: Stage, shell: str, name: str) -> None:
    """Under a process limit of 1, where every fork fails with words of the shell's."""
    (stage.run / "ended").mkdir()
    for verdict in (f"1\tok\t{LATER}\t1\t-\n", "1\tok\t1\t1\t-\n", f"1\tdrain\t{LATER}\t1\tx\n", "garbage"):
        stage.verdict(verdict)
        for more in ({}, {"SLURM_JOB_SLUID": "s3JXM823B87S00", "SLURM_JOB_COMMENT": "$(id) `id`"}):
            ran = stage.start(shell, name, {**JOB, **more}, no_fork=True)
            assert "fork" not in ran.err.lower() and ran.rc == (1 if name == "prolog" and "drain" in verdict else 0), ran.err


#: What a process may be given that starts a hook, as words before the shell and as its environment.
STRANGE = {
    "no file may grow": (["prlimit", "--fsize=0:0"], {}),
    "functions for builtins": ([], {f"BASH_FUNC_{name}%%": "() { exit 3; }" for name in ("[", "read", "printf", "umask")}),
    "options of bash": ([], {"SHELLOPTS": "errexit:nounset:noclobber"}),
}


@pytest.mark.parametrize("name", ["prolog", "epilog", "health-check"])
@pytest.mark.parametrize("limit", STRANGE)
def test_no_hook_of_roots_fails_for_what_its_process_was_given(stage: Stage, shell: str, name: str, limit: str) -> None:
    words, more = STRANGE[limit]
    (stage.run / "ended").mkdir()
    for verdict, wanted in ((f"1\tok\t{LATER}\t1\t-\n", 0), (f"1\tdrain\t{LATER}\t1\tx\n", 1 if name == "prolog" else 0)):
        stage.verdict(verdict)
        argv = ["nsenter", "-m", "-t", str(stage.pid), *words, "env", "-i", *(f"{k}={v}" for k, v in (JOB | more).items())]
        argv += [stage._which(shell), *SHELLS[shell][1:], str(HOOKS / name)]
        reader, writer = os.pipe()
        if not more:  # with functions bash itself complains, before it reads the hook
            os.close(reader)  # nobody reads what the hook says
        try:
            done = subprocess.run(argv, stdout=writer, stderr=writer, timeout=60, check=False)
        finally:
            for end in (writer, reader) if more else (writer,):
                os.close(end)
        assert done.returncode == wanted
