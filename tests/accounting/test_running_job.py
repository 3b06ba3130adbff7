"""What a running job has used is read by a step in the job, on each of its nodes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from fairlead.controller.accounting import Accounting
from fairlead.controller.running_report import in_lines, records_of
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


def test_each_node_of_a_running_job_is_read(slurm: Cluster, tmp_path: Path) -> None:
    srun = tmp_path / "srun"  # as the job's user: Slurm lets nobody else start a step in the job, not even root
    become = ["/usr/bin/setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "/usr/bin/srun", "--chdir=/tmp"]
    srun.write_text(f'#!/bin/sh\nexec {shlex.join([*enter_command(slurm.pid), *become])} "$@"\n')
    srun.chmod(0o755)
    job = slurm.submit("#!/bin/sh\nsleep 300\n", "-N2", "--gres=gpu:2", "--time=10")
    slurm.wait_job(job, "RUNNING")
    try:
        (run,) = Accounting(Scontrol(conf="/etc/slurm/slurm.conf", bin_dir=str(slurm.bin))).running(str(job))
        assert (run.job, run.nodes, run.end_unix, run.gpus) == (job, ("n1", "n2"), None, 4)
        slurm.run(["/bin/sh", "-c", "cat > /tmp/usage-records && chmod 755 /tmp/usage-records"], stdin=PROGRAM)
        for node in run.nodes:
            made = record_of(node, 10.0, 8, job=job, end_unix=None, end_boot=None, ended_by="")
            slurm.run(["/bin/sh", "-c", f"cat > /tmp/lines-{node}-{job}"], stdin="\n".join(in_lines(node, encoded(made))) + "\n")
        found = records_of(run, srun=str(srun), program="/tmp/usage-records", conf="/etc/slurm/slurm.conf", seconds=30.0)
        assert sorted(record.node for record in found) == ["n1", "n2"] and all(len(record.gpus) == 8 for record in found)
        with pytest.raises(SlurmError):
            records_of(run, srun=str(srun), program="/no/program", conf="/etc/slurm/slurm.conf", seconds=30.0)
    finally:
        cancel(slurm, job)
