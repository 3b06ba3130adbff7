"""What a job's user can write anywhere is never run and never seen in what fairlead says."""

from __future__ import annotations

import pytest

from tests.faults.conftest import PROLOG, Ward
from tests.lab.roots import LabError

pytestmark = [pytest.mark.rack, pytest.mark.timeout(180)]
MARK = "pwned"
HOSTILE = {
    "command": f"$(touch /tmp/{MARK})",
    "backticks": f"`touch /tmp/{MARK}`",
    "separators": f"x; touch /tmp/{MARK} & touch /tmp/{MARK} | touch /tmp/{MARK} > /tmp/{MARK}",
    "quotes": f"'\";touch /tmp/{MARK};\"'",
    "lines": f"a\nexport {MARK}=1\nprint {MARK}\nunset PATH\nexport LD_PRELOAD=/tmp/{MARK}.so\n",
    "verdict": f"1\tdrain\t99999999999\t1\t{MARK}",
    "record": f"x\n1\trunning\t0\t0\t0\t-\t-\t.\n{MARK}\n",
    "scontrol": f"x Reason=fairlead:xid:000000000000_{MARK} State=DRAIN NodeName=gpu1 Comment={MARK}",
    "reason": f"fairlead:xid:abcdefabcdef {MARK}",
    "terminal": f"\x1b]0;{MARK}\x07\x1b[2J%n%s%%\\033[2J",
    "globs": f"* ?? [a-z]* ~root {{{MARK},b}} $HOME ${{IFS}} $((1/0)) {MARK}",
    "bytes": f"\udcff\udcfe{MARK}\udc80",
    "long": MARK * 204,  # Slurm takes 1024 bytes
    "64 KiB": MARK * 13108,
}


def test_hostile_names_and_comments_do_nothing_and_are_seen_nowhere(ward: Ward) -> None:
    script = f"#!/bin/sh\ncat /run/fairlead/jobs/$SLURM_JOB_ID\nsrun sh -c 'echo env=$LD_PRELOAD,${MARK},${{PATH:+path}}'\n"
    jobs: dict[str, int] = {}
    for name, text in HOSTILE.items():
        for option in ("--job-name", "--comment"):
            try:
                jobs[f"{option} {name}"] = ward.rack.submit(script, "-n1", "--gres=gpu:1", f"{option}={text}")
            except LabError:
                assert name == "64 KiB", name  # what Slurm will not take is no job
    environment = {"FAIRLEAD_PROFILE": HOSTILE["command"], "FAIRLEAD_SKIP": HOSTILE["lines"], "FAIRLEAD_SET": HOSTILE["quotes"]}
    jobs["environment"] = ward.rack.submit(script, "-n1", "--gres=gpu:1", env=environment)
    assert len(jobs) >= 2 * len(HOSTILE) - 1
    for what, job in jobs.items():
        assert ward.rack.wait_job(job, seconds=90) == "COMPLETED", what
        lines = ward.rack.output(job).splitlines()
        record = next(line for line in lines if "\t" in line).split("\t")
        assert (record[:2], record[2].isdigit(), record[5:]) == (["1", "running"], True, ["-", "-", "."]), f"{what}: {lines}"
        assert "env=,,path" in lines, f"{what}: {lines}"
    nothing_of_it(ward)


def nothing_of_it(ward: Ward) -> None:
    for number in (1, 2, 3):
        ward.sweeps(number)
        found = ward.run(number, f"ls -d /tmp/{MARK}* /tmp/*.so; grep -rl {MARK} /run/fairlead /var/lib/fairlead", check=False)
        assert found.stdout == "", found.stdout
        assert MARK not in ward.journal(number)
        assert MARK not in ward.fairlead(number, "status", "--json").stdout
        assert ward.slurm(number).states == ("IDLE",), ward.slurm(number)
        assert ward.slurm(number).reason == ""
        assert ward.verdict(number)[1] in ("ok", "warn")
    assert ward.rack.ctl(f"ls -d /tmp/{MARK}*", check=False) == ""


@pytest.mark.parametrize(
    ("comment", "flag"),
    [
        ("fairlead:off", "off"),
        ("my run, fairlead:off please", "off"),
        (f"fairlead:off'; touch /tmp/{MARK} #\n\t", "off"),
        ("FAIRLEAD:OFF", "-"),
        ("fairlead: off", "-"),
        ("fairlead:of", "-"),
        ("fair\nlead:off", "-"),
        ("", "-"),
    ],
)
def test_of_a_comment_one_flag_is_kept(ward: Ward, comment: str, flag: str) -> None:
    said = ward.job(1, "#!/bin/sh\ncat /run/fairlead/jobs/$SLURM_JOB_ID\n", f"--comment={comment}")
    assert said.split("\t")[6:] == [flag, ".\n"]


def test_hostile_job_on_a_node_that_refuses(ward: Ward) -> None:
    """The refusal too says nothing of the job's own words."""
    ward.xid(2)
    ward.drained(2)
    done = ward.prolog(2, SLURM_JOB_NAME=HOSTILE["lines"], SLURM_JOB_COMMENT=HOSTILE["command"], SLURM_JOB_GPUS=HOSTILE["record"])
    assert done.returncode == 1 and MARK not in done.stderr and len(done.stderr.splitlines()) == 1, (PROLOG, done)
    found = ward.run(2, f"ls -d /tmp/{MARK}*; grep -rl {MARK} /run/fairlead", check=False)
    assert found.stdout == ""
