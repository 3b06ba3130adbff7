"""Several clusters with one slurmdbd, and a federation of two that run: fairlead sees the cluster of its slurm.conf alone.

A job of a federation has the number of its cluster in the upper bits of its id.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.controller.accounting import Accounting
from fairlead.fleet.node_events import COLUMNS
from fairlead.jobs.job_run import JobRun
from fairlead.slurm.listing import listed
from fairlead.slurm.scontrol import Scontrol
from tests.lab.cluster import Cluster
from tests.lab.ledger import own_name
from tests.lab.pause import until
from tests.lab.second_cluster import SECOND, TwoClusters

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(240)]
HOOKS = Path(__file__).resolve().parents[2] / "slurm"


def test_ids_with_a_clusters_number_pass_everywhere() -> None:
    conf = "FederationParameters=fed_display\n"
    hooks = {"prolog": HOOKS / "prolog", "epilog": HOOKS / "epilog"}
    with Cluster("trixie", nodes=1, cores=4, accounting=True, extra_conf=conf, **hooks) as slurm:  # type: ignore[arg-type]
        slurm.run(["/usr/bin/sacctmgr", "-i", "add", "federation", "fed", "clusters=lab"])
        until(lambda: "fed" in slurm.scontrol("show", "federation"), "the federation")
        run = slurm.node_dirs("n1").run
        (run / "jobs").mkdir(exist_ok=True)
        (run / "ended").mkdir(exist_ok=True)
        client = Scontrol(conf="/etc/slurm/slurm.conf", bin_dir=str(slurm.bin), deadline_seconds=60)
        began = int(time.time())
        job = slurm.submit("#!/bin/sh\nuntil [ -e /tmp/go ]; do sleep 0.1; done\n", "-n1", "--gres=gpu:1")
        assert job > 1 << 26
        slurm.wait_job(job, "RUNNING")
        until(lambda: (run / "jobs" / str(job)).exists(), "the prolog's record")
        assert [int(each.id) for each in client.jobs_on("n1")] == [job]
        (node,) = listed(client)
        assert [int(each.id) for each in node.jobs] == [job]
        assert client.gres_indices(job, "n1") == {0}
        slurm.run(["/usr/bin/touch", "/tmp/go"])
        slurm.wait_job(job, "COMPLETED")
        mistakes: list[str] = []
        found = Accounting(client).ended
        until(lambda: job in {each.job for each in found(began - 60, int(time.time()) + 1, mistakes)}, "the job in sacct")
        assert not mistakes


WAITS = "#!/bin/sh\nuntil [ -e /tmp/{} ]; do sleep 0.1; done\n"
GPU = ("-n1", "--gres=gpu:1", "--exclusive")


@pytest.fixture(scope="module", params=["trixie"])
def two(request: pytest.FixtureRequest) -> Iterator[TwoClusters]:
    hooks = {"prolog": HOOKS / "prolog", "epilog": HOOKS / "epilog"}
    conf = "FederationParameters=fed_display\nSchedulerParameters=batch_sched_delay=0,sched_min_interval=1000,bf_interval=1\n"
    with TwoClusters(request.param, nodes=1, cores=4, extra_conf=conf, name=own_name("fed"), **hooks) as made:
        made.start_second()
        for dirs in (made.node_dirs("n1"), made.second_dirs("n1")):
            for name in ("jobs", "ended"):
                (dirs.run / name).mkdir(exist_ok=True)
        yield made


def clients(two: TwoClusters) -> tuple[Scontrol, Scontrol]:
    """Of ``lab`` and of the second cluster."""
    confs = ("/etc/slurm/slurm.conf", two.second_conf)
    first, second = (Scontrol(conf=conf, bin_dir=str(two.bin), deadline_seconds=60) for conf in confs)
    return first, second


def ended(client: Scontrol, since: int) -> dict[int, JobRun]:
    mistakes: list[str] = []
    found = Accounting(client).ended(since, int(time.time()) + 1, mistakes)
    assert not mistakes
    return {run.job: run for run in found}


def events(client: Scontrol, since: int) -> list[str]:
    """Slurm's own node events, by the command of `fairlead collect`."""
    words = ["sacctmgr", "-n", "-P", "show", "event", f"start=uts{since}", f"format={','.join(COLUMNS)}"]
    return [line for line in client.ask(words).splitlines() if "riser" in line]


def test_1_equal_ids_of_two_clusters_with_one_slurmdbd(two: TwoClusters) -> None:
    """Two clusters that are no federation number their jobs alike."""
    first, second = clients(two)
    began = int(time.time()) - 60
    job = two.submit("#!/bin/sh\nexit 0\n", *GPU)
    assert two.submit_second("#!/bin/sh\nexit 3\n", *GPU) == job
    two.wait_job(job, "COMPLETED")
    for client, state in ((first, "COMPLETED"), (second, "FAILED")):
        until(lambda c=client: job in ended(c, began), "the job in sacct")  # type: ignore[misc]
        assert ended(client, began)[job].state == state
    if first.release() != "22.05":  # its sacctmgr spoils texts, so nothing is written there
        Accounting(second).write_comment(str(job), "of the second")
        assert (Accounting(first).comment(str(job)), Accounting(second).comment(str(job))) == ("", "of the second")
    second.drain("n1", "riser swap")
    assert second.node("n1").drained and not first.node("n1").drained
    until(lambda: events(second, began), "the event in slurmdbd")
    assert not events(first, began), "the node of the same name in the other cluster was not drained"
    second.resume("n1")
    until(lambda: second.node("n1").states == {"IDLE"}, "n1 of the second cluster idle")


def test_2_a_federation_of_two_running_clusters(two: TwoClusters) -> None:
    two.run(["/usr/bin/sacctmgr", "-i", "add", "federation", "fed", f"clusters=lab,{SECOND}"])
    for text in (lambda: two.scontrol("show", "federation"), lambda: two.second("scontrol", "show", "federation")):
        until(lambda t=text: "PersistConnSend/Recv:Yes/Yes" in t() and "Synced:Yes" in t(), f"sibling in {text()}")  # type: ignore[misc]
    first, second = clients(two)
    began = int(time.time()) - 60
    here = two.submit(WAITS.format("here"), *GPU, "--clusters=lab")
    there = two.submit(WAITS.format("there"), *GPU, f"--clusters={SECOND}")
    assert here > 1 << 26 and there > 1 << 26 and here != there
    for client, job, dirs in ((first, here, two.node_dirs("n1")), (second, there, two.second_dirs("n1"))):
        until(lambda c=client, j=job: [int(each.id) for each in c.jobs_on("n1")] == [j], f"job {job} alone on its n1")  # type: ignore[misc]
        until(lambda d=dirs, j=job: (d.run / "jobs" / str(j)).exists(), "the prolog's record")  # type: ignore[misc]
        (node,) = listed(client)
        assert [int(each.id) for each in node.jobs] == [job], "no node and no job of the other cluster"
        assert client.gres_indices(job, "n1") is not None
        assert [run.job for run in Accounting(client).all_running([])] == [job]
    first.drain("n1", "riser swap")
    assert first.node("n1").drained and not second.node("n1").drained

    free = two.submit("#!/bin/sh\nexit 0\n", *GPU)  # has a sibling in each cluster; one of them is drained
    for name in ("here", "there"):
        two.run(["/usr/bin/touch", f"/tmp/{name}"])
    until(lambda: free in ended(second, began), "the job that may run in both")
    until(lambda: here in ended(first, began) and there in ended(second, began), "the other jobs in sacct")
    assert there not in ended(first, began) and here not in ended(second, began)
    seen = ended(first, began).get(free)
    assert seen is None or not seen.nodes, "its sibling in the first cluster had no node"
    assert ended(second, began)[free].nodes == ("n1",)
    first.resume("n1")
