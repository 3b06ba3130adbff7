"""What the agent reads of this machine before it writes about its node: slurmd's log, and whose node it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.host.process import slurmd_names
from fairlead.slurm.client import NodeState
from fairlead.slurm.identity import disagreement
from fairlead.slurm.leftovers import Leftovers, in_log


def test_what_slurmds_log_hides(tmp_path: Path) -> None:
    path = tmp_path / "slurmd.n1.log"
    path.write_text(
        "[2020-01-01T00:00:00.000] error: [job 4] epilog failed status=1:0\n"
        "[2031-01-01T00:00:00.000] epilog for job 5 ran for 0 seconds\n"
        "[2031-01-02T00:00:00.000] error: [job 6] epilog failed status=1:0\n"
    )
    assert in_log(str(path), 1.8e9) == "slurmd's log says: epilog failed at 2031-01-02T00:00:00"
    assert in_log(str(path), 2.0e9) == "" and in_log(str(tmp_path / "none"), 0.0) == ""
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"ClusterName=x\nSlurmdLogFile={tmp_path}/slurmd.%n.log\n")
    assert Leftovers(str(conf), "n1").log_path() == str(path)
    assert "epilog failed" in Leftovers(str(conf), "n1").since(1.8e9)
    assert Leftovers(str(tmp_path / "none"), "n1").since(0.0) == ""


@pytest.mark.parametrize(
    ("cmdlines", "name", "host", "refused"),
    [
        ([], "n1", "other", ""),
        (["/usr/sbin/slurmd -N n1 -D"], "n1", "other", ""),
        (["/usr/sbin/slurmd -Nn2"], "n1", "here", "slurmd here is node n2, the document says n1"),
        (["/usr/sbin/slurmd -D"], "n1", "here", ""),
        (["/usr/sbin/slurmd -D"], "n1", "other", "slurmctld has n1 on host other, this is here"),
        (["/usr/sbin/slurmd -N n2", "/usr/sbin/slurmd -N n3"], "n1", "other", ""),
    ],
)
def test_another_machines_node(tmp_path: Path, cmdlines: list[str], name: str, host: str, refused: str) -> None:
    for pid, line in enumerate(cmdlines, 100):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text("slurmd\n")
        (tmp_path / str(pid) / "status").write_text("Name:\tslurmd\nUid:\t0\t0\t0\t0\n")
        (tmp_path / str(pid) / "exe").symlink_to("/usr/sbin/slurmd")
        (tmp_path / str(pid) / "cmdline").write_text(line.replace(" ", "\0") + "\0")
    mine = NodeState(name=name, states=frozenset({"IDLE"}), hostname=host)
    assert disagreement(mine, slurmd_names(str(tmp_path)), "here.example.org") == refused
