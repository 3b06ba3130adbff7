"""A real Open MPI under real Slurm: mpirun inside a batch script, inside one task of srun, over two nodes by orted and srun.

Ranks inside one task have no hook of Slurm's: they have the task's mask, which fairlead never narrows, and `fairlead run`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from tests.hooks.stage import HOOKS
from tests.hooks.test_on_slurm import NEAR, PACKAGE, lay_out
from tests.lab.cluster import Cluster
from tests.lab.packages import unpacked
from tests.slurm.conftest import running
from tests.topology.build import hgx

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.slow]
AGENT = "/opt/lab/agent"
RUN = f"env PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={AGENT} python3 -m fairlead run --"
PRINT_MASK = 'echo "$SLURMD_NODENAME $OMPI_COMM_WORLD_RANK $(taskset -cp $$ | sed "s/.*: //")"'
#: Where the packages' own scripts would have put it: Debian's alternatives.
INSTALL = "cp -a /run/mpi/. / 2>/dev/null; [ -d /run/mpi/lib ] && cp -a /run/mpi/lib/. /usr/lib/; ldconfig; "
INSTALL += "ln -sf mpirun.openmpi /usr/bin/mpirun; mpirun --version"


@pytest.fixture(scope="module")
def site() -> Iterator[Cluster]:
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    binds = {PACKAGE.parent: AGENT, PACKAGE: f"/run/lab-hooks{PACKAGE}", unpacked("bookworm", "openmpi-bin"): "/run/mpi"}
    with running(Cluster("bookworm", nodes=2, simulated=True, task_prolog=HOOKS / "task-prolog", binds=binds)) as up:
        assert "Open MPI" in up.run(["/bin/sh", "-c", INSTALL]).stdout
        for name in ("n1", "n2"):
            lay_out(up, name, hgx(), python="/usr/bin/python3")
        yield up


def ranks(cluster: Cluster, command: str, *options: str) -> dict[str, dict[int, str]]:
    """CPUs by node and rank of a batch job that runs one mpirun."""
    script = f"#!/bin/sh\nexport OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n{command} /bin/sh -c '{PRINT_MASK}'\n"
    job = cluster.submit(script, *options, user="root")
    assert cluster.wait_job(job) == "COMPLETED", cluster.output(job)
    found: dict[str, dict[int, str]] = {}
    for node, rank, cpus in re.findall(r"^(n\d) (\d+) ([\d,-]+)$", cluster.output(job), re.MULTILINE):
        found.setdefault(node, {})[int(rank)] = cpus
    return found


WHOLE = ("-N1", "-n8", "-c14", "--gres=gpu:8", "-w", "n1")


def test_in_a_batch_script(site: Cluster) -> None:
    """Without binding every rank has all of the job's CPUs; `fairlead run` assigns them; what mpirun bound itself stays."""
    assert ranks(site, "mpirun -np 4 --bind-to none", *WHOLE) == {"n1": dict.fromkeys(range(4), "0-111")}
    assert ranks(site, f"mpirun -np 8 --bind-to none {RUN}", *WHOLE) == {"n1": dict(enumerate(NEAR))}
    assert ranks(site, f"mpirun -np 4 --bind-to core {RUN}", *WHOLE) == {"n1": {0: "0", 1: "56", 2: "1", 3: "57"}}


def test_inside_one_task(site: Cluster) -> None:
    """The step's task keeps all its CPUs. By itself mpirun takes n1 for another machine and asks srun for its daemon: that is
    a step beside its own (--overlap), with one task, and is not narrowed either."""
    one = ("-N1", "-n1", "-c112", "--gres=gpu:8", "-w", "n1")
    alone = "srun -n1 -c112 --gres=gpu:8 mpirun --mca plm isolated --mca ras ^slurm -H localhost:8 -np"
    assert ranks(site, f"{alone} 4 --bind-to none", *one) == {"n1": dict.fromkeys(range(4), "0-111")}
    assert ranks(site, f"{alone} 8 --bind-to none {RUN}", *one) == {"n1": dict(enumerate(NEAR))}
    beside = "export SLURM_OVERLAP=1; srun -n1 -c112 --gres=gpu:8 mpirun --oversubscribe -np 8 --bind-to none"
    assert ranks(site, f"{beside} {RUN}", *one) == {"n1": dict(enumerate(NEAR))}


def test_over_two_nodes(site: Cluster) -> None:
    """orted is started by srun on each node, one task with all of the job's CPUs there; ranks are assigned on each node."""
    two = ("-N2", "-n16", "-c14", "--gres=gpu:8")
    found = ranks(site, f"mpirun -np 16 --map-by ppr:8:node --bind-to none {RUN}", *two)
    assert found == {"n1": dict(enumerate(NEAR)), "n2": {8 + i: cpus for i, cpus in enumerate(NEAR)}}
