"""What a running job has used is read by a step in the job, on each of its nodes."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.controller.accounting import Accounting
from fairlead.controller.job_store import JobStore
from fairlead.controller.running_report import denied_line, in_lines, records_of
from fairlead.errors import SlurmError
from fairlead.jobs.usage_record import encoded
from fairlead.slurm.scontrol import Scontrol
from tests.accounting.test_admin_comment import cancel
from tests.jobs.job_reports import record_of
from tests.lab.cluster import Cluster
from tests.lab.enter import enter_command
from tests.lab.roots import USER

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.slow]
#: Prints what ``fairlead usage-records --lines`` printed on the node: the lab's nodes have no Python packages.
PROGRAM = '#!/bin/sh\n[ "$1 $2" = "usage-records --lines" ] && cat "/tmp/lines-$SLURMD_NODENAME-$3"\n'


@dataclass
class Running:
    """A running job on two nodes, and a folder of Slurm's commands whose srun runs as the job's user."""

    slurm: Cluster
    job: int
    bin: Path


@pytest.fixture
def running(slurm: Cluster, tmp_path: Path) -> Iterator[Running]:
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in slurm.bin.iterdir():
        if program.name != "srun":
            (folder / program.name).symlink_to(program)
    srun = folder / "srun"  # Slurm lets nobody else start a step in the job, not even root
    become = ["/usr/bin/setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "/usr/bin/srun", "--chdir=/tmp"]
    srun.write_text(f'#!/bin/sh\nexec {shlex.join([*enter_command(slurm.pid), *become])} "$@"\n')
    srun.chmod(0o755)
    slurm.run(["/bin/sh", "-c", "cat > /tmp/usage-records && chmod 755 /tmp/usage-records"], stdin=PROGRAM)
    job = slurm.submit("#!/bin/sh\nsleep 300\n", "-N2", "--gres=gpu:2", "--time=10")
    slurm.wait_job(job, "RUNNING")
    try:
        yield Running(slurm, job, folder)
    finally:
        cancel(slurm, job)


def has_lines(slurm: Cluster, node: str, job: int, *lines: str) -> None:
    slurm.run(["/bin/sh", "-c", f"cat > /tmp/lines-{node}-{job}"], stdin="\n".join(lines) + "\n")


def test_each_node_of_a_running_job_is_read(running: Running) -> None:
    slurm, job, conf = running.slurm, running.job, "/etc/slurm/slurm.conf"
    (run,) = Accounting(Scontrol(conf=conf, bin_dir=str(slurm.bin))).running(str(job))
    assert (run.job, run.nodes, run.end_unix, run.gpus, run.kind) == (job, ("n1", "n2"), None, 4, "batch")
    for node in run.nodes:
        made = record_of(node, 10.0, 8, job=job, end_unix=None, end_boot=None, ended_by="")
        has_lines(slurm, node, job, *in_lines(node, encoded(made)))
    found = records_of(run, srun=str(running.bin / "srun"), program="/tmp/usage-records", conf=conf, seconds=30.0)
    assert sorted(record.node for record in found.records) == ["n1", "n2"] and found.denied == ()
    assert all(len(record.gpus) == 8 for record in found.records)
    has_lines(slurm, "n2", job, *in_lines("n2", b""), denied_line("n2"))
    found = records_of(run, srun=str(running.bin / "srun"), program="/tmp/usage-records", conf=conf, seconds=30.0)
    assert [record.node for record in found.records] == ["n1"] and found.denied == ("n2",)
    with pytest.raises(SlurmError):
        records_of(run, srun=str(running.bin / "srun"), program="/no/program", conf=conf, seconds=30.0)


def test_a_job_that_completes_is_no_error_of_srun(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job completes until the epilog has ended on every node, and no step starts in it any more."""
    slurm, job = running.slurm, running.job
    JobStore(str(tmp_path / "store"), write=True).close()
    monkeypatch.setattr(os, "getuid", lambda: int(slurm.run(["/usr/bin/id", "-u", USER]).stdout))
    words = ["job", str(job), "--bin-dir", str(running.bin), "--slurm-conf", "/etc/slurm/slurm.conf"]
    slurmd = slurm.run(["/bin/cat", "/run/slurmd.n2.pid"]).stdout.strip()
    slurm.run(["/bin/kill", "-STOP", slurmd])
    try:
        slurm.run(["/usr/bin/scancel", str(job)])
        slurm.wait_job(job, "COMPLETING")
        assert main([*words, "--store", str(tmp_path / "store")]) == 66
    finally:
        slurm.run(["/bin/kill", "-CONT", slurmd])
    err = capsys.readouterr().err
    assert err.startswith(f"fairlead job: job {job} is in state COMPLETING, and no step starts in it any more"), err
    assert "a minute or two after its end" in err and "srun" not in err


def test_a_running_job_is_reported_with_the_options_of_the_site(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fairlead.cli.job.PROGRAM", "/tmp/usage-records")
    begin = time.time() - 5
    for node in ("n1", "n2"):
        times = {"begin_unix": begin, "written_unix": begin + 5, "end_unix": None, "end_boot": None, "ended_by": ""}
        made = record_of(node, 5.0, 2, job=running.job, uid=None, **times)
        has_lines(running.slurm, node, running.job, *in_lines(node, encoded(made)))
    JobStore(str(tmp_path / "store"), write=True).close()
    site = tmp_path / "site.toml"
    site.write_text('schema = 1\n[usage]\ncurrency = "EUR"\ngpu_hour_price = 3600.0\n')
    words = ["job", str(running.job), "--bin-dir", str(running.bin), "--slurm-conf", "/etc/slurm/slurm.conf"]
    assert main([*words, "--store", str(tmp_path / "store"), "--site", str(site)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"job {running.job}  RUNNING  2 nodes, 4 x NVIDIA H100") and "  cost " in out
    assert "left out: advice: the job ran for less than 10 min" in out
    assert main([*words, "--nodes", "--store", str(tmp_path / "store")]) == 0
    head, table, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith(f"job {running.job}  RUNNING  2 nodes: medians so far") and table.startswith("NODE")
    assert [row.split()[0] for row in rows[:2]] == ["n1", "n2"] and "the nodes were not compared" in rows
    assert main([*words, "--controller", "127.0.0.1:1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"job {running.job}  RUNNING") and "left out: advice and cost: " in out
