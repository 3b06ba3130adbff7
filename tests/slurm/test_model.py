"""The model of slurmctld does what the real ones do: the same random operations on both, state and reason compared after each."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from fairlead.errors import SlurmError
from fairlead.slurm.client import NodeState
from fairlead.slurm.scontrol import Scontrol
from tests.lab.cluster import Cluster
from tests.lab.pause import pause
from tests.slurm import model
from tests.slurm.conftest import NODES, client_of, running

pytestmark = pytest.mark.slurm

RELEASE = {"bookworm": "22", "trixie": "24", "forky": "26"}
FILES = {"/etc/slurm-reboot": "#!/bin/sh\nexit 0\n"}
SEED = 20260805


@pytest.fixture
def strict(up: Cluster) -> Iterator[Cluster]:
    """A cluster in which a DOWN node stays so, with a program for reboots (slurmd is told by hand that it has booted)."""
    extra = "ReturnToService=0"
    with running(Cluster(up.suite, nodes=len(NODES), cores=4, files=FILES, reboot="/etc/slurm-reboot", extra_conf=extra)) as own:
        yield own


def shape(node: NodeState) -> tuple[frozenset[str], str]:
    """What is compared. NOT_RESPONDING and PLANNED come and go; MIXED is ALLOCATED in part; the lab's SlurmUser is root."""
    states = frozenset("ALLOCATED" if s == "MIXED" else s for s in node.states) - {"NOT_RESPONDING", "PLANNED"}
    return states, node.reason


def agree(client: Scontrol, ctld: model.Ctld, done: object) -> None:
    """Wait until the real one says what the model says: registrations and job ends take a moment there."""
    wanted = {n.name: shape(n) for n in ctld.nodes()}
    deadline = time.monotonic() + 90
    while True:
        began = time.monotonic()
        if (real := {n.name: shape(n) for n in client.nodes()}) == wanted:
            return
        differ = {n: (real[n], wanted[n]) for n in real if real[n] != wanted[n]}
        assert began < deadline, f"after {done}: real, model: {differ}"
        pause(began)


OPERATIONS = (
    *("DRAIN", "DRAIN", "DRAIN", "UNDRAIN", "UNDRAIN", "RESUME", "RESUME", "DOWN", "FAIL", "reason", "reason"),
    *("reboot", "job", "no job"),
)


@pytest.mark.parametrize("rounds", [12, pytest.param(240, marks=[pytest.mark.slow, pytest.mark.timeout(1500)])])
def test_random_operations(strict: Cluster, rounds: int) -> None:
    chance = random.Random(f"{SEED} {rounds}")
    client, ctld = client_of(strict), model.Ctld(RELEASE[strict.suite], NODES)
    jobs: dict[str, list[int]] = {name: [] for name in NODES}
    fallen: set[str] = set()  # resumed from DOWN, a node gets no job until a ping of slurmctld's, some 20 s later

    def act(name: str, operation: str, reason: str) -> None:
        words: list[str] = []
        with suppress(SlurmError):
            if operation == "job":
                if name not in fallen and not jobs[name] and ctld.start_job(name):  # one at a time: none has to wait for CPUs
                    jobs[name].append(strict.submit("#!/bin/sh\nsleep 600\n", f"-w{name}", "--no-requeue"))
                return
            if operation == "no job":
                ctld.end_job(name)
                if jobs[name]:
                    strict.run(["/usr/bin/scancel", str(jobs[name].pop())])
                return
            if operation == "reason":
                words = ["update", f"nodename={name}", f"reason={reason}"]
                ctld.update(name, reason=reason)
            elif operation == "reboot":  # held off by a job, so that only the request is seen
                if not jobs[name] or "ALLOCATED" not in ctld.node(name).states:
                    return
                words = ["reboot", "asap", "nextstate=resume", *([f"reason={reason}"] if reason != "one" else []), name]
                ctld.reboot(name, asap=True, next_state="RESUME", reason=reason if reason != "one" else "")
            else:
                given = [f"reason={reason}"] if operation in ("DRAIN", "DOWN", "FAIL") else []
                words = ["update", f"nodename={name}", f"state={operation}", *given]
                ctld.update(name, operation, reason if given else "")
        if operation == "DOWN":
            jobs[name].clear()
            fallen.add(name)
        strict.scontrol(*words, check=False)

    for number in range(rounds):
        calm = {n for n in NODES if "REBOOT_REQUESTED" in ctld.node(n).states}
        plan = [(n, chance.choice(OPERATIONS), chance.choice(("one", "two words", "fairlead:xid:abcdef012345 x"))) for n in NODES]
        plan = [(n, "RESUME" if n in calm and o in ("no job", "DOWN") else o, r) for n, o, r in plan]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda each: act(*each), plan))
        agree(client, ctld, (number, plan))
        ctld.clock += 1
        if number % 12 == 11:
            for name in NODES:  # before it: a request for a reboot that nothing holds off any more would be carried out
                if "REBOOT_REQUESTED" in ctld.node(name).states:
                    act(name, "RESUME", "")
            strict.stop_slurmctld()
            strict.start_slurmctld()
            ctld.restart()
            for name in NODES:
                ctld.register(name)
            agree(client, ctld, "restart")
            fallen.clear()
    print(f"\n{strict.suite}: {rounds} rounds of 8 operations, {rounds // 12} restarts of slurmctld, seed {SEED}")


def test_reboots_and_registrations(strict: Cluster) -> None:
    """What takes slurmd: a reboot with each end, a registration with a GPU less, a node that falls silent by its reason."""
    client, ctld = client_of(strict), model.Ctld(RELEASE[strict.suite], NODES)

    def update(name: str, state: str, reason: str = "") -> None:
        words = ["update", f"nodename={name}", f"state={state}", *([f"reason={reason}"] if reason else [])]
        strict.scontrol(*words, check=False)
        with suppress(SlurmError):
            ctld.update(name, state, reason)

    for name in ("n1", "n2", "n3", "n4"):
        update(name, "DRAIN", "ours")
    for name, asap, after, reason in (("n1", True, "RESUME", ""), ("n2", True, "", ""), ("n3", True, "RESUME", "ann's"),
                                      ("n4", False, "DOWN", ""), ("n5", True, "RESUME", ""), ("n6", True, "", "")):  # fmt: skip
        ctld.reboot(name, asap=asap, next_state=after, reason=reason)
        words = [
            *(["asap"] if asap else []),
            *([f"nextstate={after}"] if after else []),
            *([f"reason={reason}"] if reason else []),
        ]
        strict.scontrol("reboot", *words, name)
    ctld.issue_reboots()
    agree(client, ctld, "reboots issued")
    update("n6", "UNDRAIN")
    agree(client, ctld, "undrain while it boots")
    time.sleep(1.1)  # boot time and time of the request are whole seconds
    for name in NODES[:6]:
        strict.stop_slurmd(name)
        strict._exec(f"exec /usr/sbin/slurmd -b -N {name}")
        ctld.register(name, booted=True)
    agree(client, ctld, "booted")

    update("n7", "DRAIN", "ours")
    gres = strict.folder / "etc/gres.conf"
    whole = gres.read_text()
    fewer = [
        line for line in whole.splitlines() if not (("NodeName=n7 " in line or "NodeName=n8 " in line) and "nvidia7" in line)
    ]
    for text, valid in (("\n".join(fewer) + "\n", False), (whole, True)):
        gres.write_text(text)
        for name in ("n7", "n8"):
            strict.stop_slurmd(name)
            strict.start_slurmd(name)
            ctld.register(name, valid=valid)
        agree(client, ctld, f"registered, valid: {valid}")
        update("n7", "UNDRAIN")
        agree(client, ctld, f"undrain, valid: {valid}")
