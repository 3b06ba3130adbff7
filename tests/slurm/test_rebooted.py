"""Reboots, starts without the saved state and reconfigurations of a real slurmctld: whose resume was it that lifted our drain?"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.drains.outcome import Outcome, finish
from fairlead.drains.protocol import DrainProtocol
from fairlead.errors import SlurmUnavailable
from fairlead.slurm.client import NodeState
from fairlead.slurm.scontrol import Scontrol
from tests.lab.cluster import Cluster
from tests.lab.pause import pause
from tests.lab.roots import SUITES
from tests.slurm.conftest import client_of, drain_of, running
from tests.slurm.crowd import OURS, rpcs

pytestmark = pytest.mark.slurm
WHY = "GPU gone"
OF_CONFIG = ("REQUEST_BUILD_INFO", "REQUEST_PING")  # of `scontrol show config`
STATE = "/var/spool/slurm/state"


class Site:
    """n1 with its protocol, on a cluster of its own that may be rebooted and forgotten."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.client: Scontrol = client_of(cluster)
        self.new_agent("boot 1")

    def new_agent(self, boot_id: str) -> None:
        """As a new process of the agent has it, in that boot."""
        self.protocol: DrainProtocol = drain_of(self.client, self.folder, "n1")
        self.protocol.state.boot_id = boot_id

    def drained(self) -> None:
        assert finish(self.protocol.drain("xid", WHY)).outcome is Outcome.DRAINED

    def reconcile(self) -> Outcome:
        return finish(self.protocol.reconcile()).outcome

    def until(self, met: Callable[[NodeState], bool], what: str) -> NodeState:
        deadline = time.monotonic() + 90
        while True:
            began = time.monotonic()
            try:
                node = self.client.node("n1")
            except SlurmUnavailable as e:
                node = NodeState(name="n1", states=frozenset({"UNKNOWN"}), reason=str(e))
            if met(node):
                return node
            assert time.monotonic() < deadline, (what, node)
            pause(began)

    def registered(self) -> NodeState:
        return self.until(lambda n: not n.states & {"UNKNOWN", "DOWN", "REBOOT_ISSUED"}, "registered")

    def reboot(self, *words: str) -> NodeState:
        """`scontrol reboot` with these words, until slurmctld has the node back."""
        self.cluster.scontrol("reboot", *words, "n1")
        self.until(lambda n: "REBOOT_ISSUED" in n.states, "reboot issued")
        self.cluster.stop_slurmd("n1")
        time.sleep(1.1)  # slurmd says its boot time in whole seconds
        self.new_agent("boot 2")
        assert self.reconcile() is Outcome.DRAINED  # before slurmd has registered nothing is decided
        command = "mount --bind /run/lab-nodes/n1/run /run/fairlead; exec /usr/sbin/slurmd -b -N n1"
        self.cluster._exec(f"exec unshare --mount --propagation private /bin/sh -ec {shlex.quote(command)}")
        return self.registered()

    def restart(self, *options: str, before: str = "true") -> None:
        """slurmctld ends and starts again; ``before``: what is done while it is away."""
        self.cluster.stop_slurmctld()
        self.cluster._exec(f"{before}; mkdir -p {STATE}; exec /usr/sbin/slurmctld {shlex.join(options)}")
        self.registered()

    def lift(self) -> None:
        self.cluster.scontrol("update", "nodename=n1", "state=resume")


@pytest.fixture(scope="module", params=list(SUITES))
def own(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    cluster = Cluster(request.param, nodes=3, cores=4, reboot="/bin/true", extra_conf="ReturnToService=1\n")
    with running(cluster):
        yield cluster


@pytest.fixture
def site(own: Cluster, tmp_path: Path) -> Iterator[Site]:
    made = Site(own, tmp_path)
    yield made
    deadline = time.monotonic() + 90
    while True:  # "Node unexpectedly rebooted" may come after a resume: slurmd has said that it has just booted
        began = time.monotonic()
        busy = [node.name for node in made.client.nodes() if node.states != {"IDLE"}]
        if not busy:
            return
        assert began < deadline, busy
        own.scontrol("update", f"nodename={','.join(busy)}", "state=resume", check=False)
        pause(began)


SLOW = [pytest.param(words, marks=pytest.mark.slow) for words in (("ASAP", "nextstate=RESUME"), ())]


@pytest.mark.parametrize("words", [("ASAP",), ("nextstate=RESUME",), *SLOW])
def test_a_reboot_by_slurmctld_acknowledges_nothing(site: Site, words: tuple[str, ...]) -> None:
    """Which of them lift the drain differs by release; a person's resume after the reboot counts on all."""
    site.drained()
    back = site.reboot(*words)
    if "nextstate=RESUME" in words:
        assert not back.drained, back
    print(f"\n{site.cluster.suite} reboot {' '.join(words)}: {'stays' if back.drained else 'lifted'}, reason {back.reason!r}")
    if not back.drained:
        assert site.reconcile() is Outcome.LOST
        site.drained()  # the fault is still there
        assert site.reconcile() is Outcome.DRAINED
    else:
        assert site.reconcile() is Outcome.DRAINED
    site.lift()
    assert site.reconcile() is Outcome.ACKNOWLEDGED


@pytest.mark.release("bookworm", "forky")
def test_a_slurmctld_without_its_saved_state_acknowledges_nothing(site: Site) -> None:
    for how in ({"before": f"rm -rf {STATE}"}, {"options": ("-c",)}):
        site.drained()
        time.sleep(1.1)
        assert site.reconcile() is Outcome.DRAINED
        site.restart(*how.get("options", ()), before=str(how.get("before", "true")))
        assert not site.client.node("n1").drained
        site.protocol.state.reconfigured = lambda: (
            True
        )  # as of a slurmd that was reconfigured some day: nothing more is asked then
        site.cluster.run(["/usr/bin/sdiag", "--reset"])
        assert site.reconcile() is Outcome.LOST, how
        asked = {name: count for name, (count, _) in rpcs(site.cluster).items() if name in (*OURS, *OF_CONFIG)}
        print(f"\n{site.cluster.suite}: a drain that is gone, in a slurmctld that has begun since: {asked}")
        assert 0 < sum(asked.values()) <= 6, asked
        site.drained()
        site.lift()
        assert site.reconcile() is Outcome.ACKNOWLEDGED, how


@pytest.mark.slow
def test_a_slurmctld_with_an_old_state_acknowledges_nothing(site: Site) -> None:
    """A backup of the folder from before our drain, with an older drain of somebody else's in it."""
    site.cluster.scontrol("update", "nodename=n2", "state=drain", "reason=bob: PSU")
    site.restart()  # which saves
    site.cluster._exec(f"rm -rf /var/spool/slurm/old; cp -a {STATE} /var/spool/slurm/old")
    time.sleep(1.1)
    site.drained()
    site.restart(before=f"rm -rf {STATE}; mv /var/spool/slurm/old {STATE}")
    assert site.client.node("n2").drained and not site.client.node("n1").drained
    assert site.reconcile() is Outcome.LOST


XID, GONE = "xid/0000:1b:00.0#0d6a4f0e-5b1c-4f65-9a39-3f1f6f9b7c21:812", "gpu_count/#gpus=7"


@pytest.mark.parametrize("what", ["reconfigured, lifted", "lifted, reconfigured", "emptied, reconfigured"])
@pytest.mark.release("bookworm", "forky")
def test_of_a_resume_beside_a_reconfiguration_only_the_past_counts(site: Site, what: str) -> None:
    """slurmctld starts itself anew from 23.11 on, and nothing shows that it had not begun without its state before that. On 22.05
    it goes on; on 24.11 without slurmdbd our words are left where a person has lifted the drain."""
    site.protocol.state.known = (XID, GONE)
    site.drained()
    for step in what.split(", "):
        time.sleep(1.1)
        if step == "lifted":
            site.lift()
        elif step == "emptied":
            site.restart(before=f"rm -rf {STATE}")
        else:
            site.cluster.scontrol("reconfigure")
            time.sleep(1.1)
            site.registered()
    found = finish(site.protocol.reconcile())
    emptied, goes_on = "emptied" in what, site.cluster.suite == "bookworm"
    if site.cluster.suite == "trixie" and not emptied:
        assert (found.outcome, found.known) == (Outcome.ACKNOWLEDGED, (XID, GONE))
    elif goes_on:
        assert (found.outcome, found.known) == ((Outcome.LOST, ()) if emptied else (Outcome.ACKNOWLEDGED, (XID, GONE)))
    else:
        assert (found.outcome, found.known) == (Outcome.LOST, (XID,))


@pytest.mark.slow
def test_a_restart_with_its_state_keeps_our_drain_and_a_resume_that_something_newer_proves(site: Site) -> None:
    site.drained()
    site.restart()
    assert site.reconcile() is Outcome.DRAINED
    time.sleep(1.1)
    site.cluster.scontrol("update", "nodename=n2", "state=drain", "reason=ann: newer than ours")
    time.sleep(6)  # the time of a reading is told as up to 5 s earlier: the clocks of two machines may differ
    assert site.reconcile() is Outcome.DRAINED
    site.lift()
    site.restart()
    assert site.reconcile() is Outcome.ACKNOWLEDGED


@pytest.mark.slow
def test_a_restart_right_after_a_resume_is_no_resume_where_nothing_tells(site: Site) -> None:
    """24.11 without slurmdbd leaves the lifted words, which tell."""
    site.drained()
    site.lift()
    site.restart()
    assert site.reconcile() is (Outcome.ACKNOWLEDGED if site.cluster.suite == "trixie" else Outcome.LOST)
