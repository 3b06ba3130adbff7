"""Idle jobs on real Slurm: what squeue says, what scontrol notify does, the shipped examples, and a program that is killed."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from fairlead.controller.idle_channels import ScontrolNotify, SiteAct
from fairlead.controller.running_jobs import running_jobs
from fairlead.jobs.idle_rule import RunningJob
from fairlead.jobs.idle_stages import STEPS
from fairlead.slurm.scontrol import Scontrol
from tests.lab.cluster import Cluster
from tests.slurm.conftest import client_of

pytestmark = [pytest.mark.slurm, pytest.mark.root]
EXAMPLES = Path(__file__).resolve().parents[2] / "slurm/idle"
HOSTILE = "x|y=z @mark@ \x1b[2J\nroot|physics fairlead:keep,fairlead:serve"


def started(cluster: Cluster, *options: str, script: str = "#!/bin/sh\nsleep 900\n") -> RunningJob:
    job = cluster.submit(script, "--gres=gpu:2", "-n1", *options)
    cluster.wait_job(job, "RUNNING")
    return one(client_of(cluster), job)


def one(client: Scontrol, job: int) -> RunningJob:
    (found,) = [each for each in running_jobs(client) if each.job == job]
    return found


def end(cluster: Cluster, *jobs: RunningJob) -> None:
    cluster.run(["/usr/bin/scancel", *(str(each.job) for each in jobs)], check=False)


def printed(cluster: Cluster, job: RunningJob, text: str) -> None:
    """Wait until the job's file, which slurmstepd makes some time after slurmctld calls the job RUNNING, has the text."""
    deadline = time.monotonic() + 60
    while text not in (found := cluster.run(["/bin/cat", f"/tmp/job-{job.job}.out"], check=False).stdout):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def test_running_jobs_are_read_whatever_a_comment_says(cluster: Cluster, client: Scontrol) -> None:
    plain, marked = started(cluster, "-wn1"), started(cluster, "-wn2", f"--comment={HOSTILE}")
    other = cluster.submit("#!/bin/sh\nsleep 900\n", "-wn3", "-n1")
    cluster.wait_job(other, "RUNNING")
    found = running_jobs(client)
    assert {each.job for each in found} == {plain.job, marked.job}, "a job without GPUs is not listed"
    assert (plain.user, plain.gpus, plain.nodes, plain.batch) == ("alice", 2, ("n1",), True)
    assert abs(plain.begin_unix - time.time()) < 120
    assert not (plain.keep or plain.serve or plain.work)
    assert marked.serve and not marked.keep, "a word counts only as a whole"
    end(cluster, plain, marked)
    cluster.run(["/usr/bin/scancel", str(other)])


def test_the_owner_answers_by_the_comment(cluster: Cluster, client: Scontrol) -> None:
    job = started(cluster, "-wn1")
    for word in ("keep", "work"):
        cluster.run(["/usr/bin/scontrol", "update", f"JobId={job.job}", f"Comment=fairlead:{word}"], user="alice")
        assert getattr(one(client, job.job), word)
    done = cluster.run(["/usr/bin/scontrol", "update", f"JobId={job.job}", "Comment=fairlead:keep"], user="nobody", check=False)
    assert done.returncode, "another user must not answer for the owner"
    end(cluster, job)


def test_scontrol_notify_reaches_the_job_and_says_no_more_than_sent(cluster: Cluster, client: Scontrol) -> None:
    job = started(cluster, "-wn1", script="#!/bin/sh\necho begun\nsleep 900\n")
    channel = ScontrolNotify(client)
    printed(cluster, job, "begun")  # before that, Slurm drops the message
    assert channel.deliver("fairlead-1-1-0-notify_1", job, "2 idle GPUs") == "sent"
    printed(cluster, job, "2 idle GPUs [fairlead-1-1-0-notify_1]")
    assert channel.query("fairlead-1-1-0-notify_1") == "unconfirmed"
    end(cluster, job)
    cluster.wait_job(job.job, "CANCELLED")
    assert channel.deliver("fairlead-1-1-0-notify_2", job, "x") == "refused"


@pytest.mark.parametrize("name", ["requeue", "cancel"])
def test_the_examples_of_an_act(cluster: Cluster, client: Scontrol, name: str) -> None:
    comment = "--comment=fairlead:requeue"
    willing, other = started(cluster, "-wn1", comment, "--requeue"), started(cluster, "-wn2", "--requeue")
    act = SiteAct(str(EXAMPLES / name), str(cluster.bin))
    from msgspec.structs import replace

    assert act.act("id-1", replace(willing, begin_unix=willing.begin_unix - 100)) == "refused", "another run of the job"
    assert act.act("id-2", willing) == "accepted"
    assert act.act("id-3", other) == ("refused" if name == "requeue" else "accepted")
    ends = {"requeue": {"PENDING"}, "cancel": {"CANCELLED"}}[name]
    cluster.wait_job(willing.job, *ends)
    assert act.act("id-4", willing) == "refused", "it does not run any more"
    end(cluster, willing, other)


SENDMAIL = "#!/bin/sh\nsed -n 's/^Message-ID: <\\(.*\\)@fairlead>$/\\1/p' >> {folder}/sent\n"


def prepared(folder: Path, job: RunningJob) -> None:
    """The site's channel and act are the shipped examples. sendmail writes down what it was really given."""
    for sub in ("state", "mail"):
        (folder / sub).mkdir(parents=True)
    (folder / "job").write_text(str(job.job))
    (folder / "begin").write_text(str(job.begin_unix))
    scripts = {
        "sendmail": SENDMAIL.format(folder=folder),
        "channel": f'#!/bin/sh\nFAIRLEAD_IDLE_MAIL={folder}/mail SENDMAIL={folder}/sendmail exec {EXAMPLES}/mail "$@"\n',
        "act": f'#!/bin/sh\n{EXAMPLES}/requeue "$@" && echo "$3" >> {folder}/sent\n',
    }
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def restarts(cluster: Cluster, job: int) -> int:
    found = re.search(r"\bRestarts=(\d+)", cluster.scontrol("-o", "show", "job", str(job)))
    assert found
    return int(found[1])


@pytest.mark.one_release
@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(9))
def test_a_program_that_is_killed_skips_no_step_and_tells_nobody_twice(
    cluster: Cluster, tmp_path: Path, at: int, when: str
) -> None:
    job = started(cluster, "--comment=fairlead:requeue", "--requeue")
    prepared(tmp_path, job)
    codes = []
    for number in (at, 10**6):
        command = [sys.executable, "-m", "tests.slurm.idle_killed", str(cluster.bin), str(tmp_path), str(number), when]
        done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
        codes.append(done.returncode)
        assert done.returncode in (0, -9), done.stderr
    assert codes == [-9, 0]
    sent = [line.rpartition("-")[2] for line in (tmp_path / "sent").read_text().split()]
    assert max(Counter(sent).values()) == 1, sent
    assert sent == list(STEPS[: len(sent)])
    assert restarts(cluster, job.job) == sent.count("act")
    if at < 7:  # the channel knows its messages, so only an act stays unconfirmed
        assert sent == list(STEPS)
    end(cluster, job)


#: Does all that it is asked to, and its answers are lost: each call but a query ends as if the connection broke.
LOST = '#!/bin/sh\n[ "$1" = query ] && {query}\n"{program}" "$@" >/dev/null\nexit 1\n'


@pytest.mark.one_release
@pytest.mark.slow
@pytest.mark.parametrize("knows", [True, False], ids=["channel knows", "channel does not know"])
def test_every_reply_is_lost_and_nobody_is_told_twice(cluster: Cluster, tmp_path: Path, knows: bool) -> None:
    """A channel that can be asked what it took leads through all steps. With another one, nothing follows the first message."""
    job = started(cluster, "--comment=fairlead:requeue", "--requeue")
    prepared(tmp_path, job)
    for name, query in (("channel", 'exec "$0.whole" "$@"' if knows else "exit 1"), ("act", "exit 1")):
        whole = (tmp_path / name).rename(tmp_path / f"{name}.whole")
        (tmp_path / name).write_text(LOST.format(query=query, program=whole))
        (tmp_path / name).chmod(0o755)
    command = [sys.executable, "-m", "tests.slurm.idle_killed", str(cluster.bin), str(tmp_path), str(10**6), "after"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    sent = [line.rpartition("-")[2] for line in (tmp_path / "sent").read_text().split()]
    assert sent == (list(STEPS) if knows else ["notify_1"])
    assert restarts(cluster, job.job) == sent.count("act")
    end(cluster, job)
