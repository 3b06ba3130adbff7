"""128 real slurmds and 128 real agents on one slurmctld: quiet, through a restart, a cut network, and a broken switch.

FAIRLEAD_SCALE_NODES sets another number of nodes. docs/explanation/scale.md has the figures of one run.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fairlead.daemon.slurmctld.pace import ASKS_PER_SECOND
from fairlead.model.verdict import State
from fairlead.policy.decision_rules import Rules
from fairlead.policy.ownership import strip_suffixes
from tests import memory as in_memory
from tests.lab.ledger import own_name
from tests.scale.agents import Agents, NodeAgent, running
from tests.scale.figures import Figures, Window
from tests.scale.many_nodes import LEAVES, NODE_TIMEOUT_SECONDS, ManyNodes
from tests.slurm.conftest import client_of
from tests.slurm.crowd import _UPDATE, Rate, overshoot

NODES = int(os.environ.get("FAIRLEAD_SCALE_NODES", "128"))
RULES = Rules()
BUDGET = NODES * RULES.budget_percent // 100
LEAF_BUDGET = NODES // LEAVES * RULES.budget_group_percent // 100
#: The most that a scene may do to slurmctld in a second of the worst ten: two RPCs a question (daemon/slurmctld/pace.py).
RPCS_PER_SECOND = 2 * 2 * ASKS_PER_SECOND
PROJECT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def many() -> Iterator[ManyNodes]:
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    with ManyNodes("trixie", nodes=NODES, cores=4, accounting=True, sshd=True, name=own_name("scale")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def figures() -> Figures:
    return Figures(NODES)


@pytest.fixture(scope="module")
def quiet(many: ManyNodes) -> Window:
    """A minute of slurmctld before any agent runs: what there is without fairlead. To be asked for before ``agents``."""
    window = Window(many)
    time.sleep(60)
    window.end()
    return window


@pytest.fixture(scope="module")
def everyone(many: ManyNodes, figures: Figures) -> Iterator[Agents]:
    with in_memory.folder() as folder:
        began = time.monotonic()
        with running(many, folder, own=many.leaf(0)) as agents:
            cpu = agents.cpu_seconds()
            figures.add("start", seconds=time.monotonic() - began, cpu_seconds_each=cpu / len(agents))
            agents.until(lambda: agents.in_state(State.OK) == set(many.node_names), "all well", 120)
            yield agents


@pytest.fixture
def agents(many: ManyNodes, everyone: Agents) -> Agents:
    """All nodes in service, all agents content with that."""
    client = client_of(many)

    def well() -> bool:
        """A drain that was resumed right after slurmctld's start is made once more (docs/explanation/slurm-state-changes.md)."""
        nodes = client.nodes()
        if out := [node.name for node in nodes if node.drained]:
            many.scontrol("update", f"nodename={','.join(out)}", "state=resume")
        return all(node.available for node in nodes) and not everyone.in_state(State.DRAIN)

    everyone.until(well, "resume that all agents have seen", 240, every_seconds=3.0)
    return everyone


def spread(names: Sequence[str], count: int) -> tuple[str, ...]:
    """So many of the nodes, from one end to the other."""
    return tuple(names[:: max(1, len(names) // max(1, count))][: max(1, count)])


def drains(many: ManyNodes, since: int) -> Counter[str]:
    """How often each node was drained, from slurmctld's log after byte ``since``."""
    log = (many.log / "slurmctld.log").read_text()[since:]
    return Counter(name for _, name, state in _UPDATE.findall(log) if "DRAIN" in state and state != "UNDRAIN")


def reasons(many: ManyNodes) -> dict[str, str]:
    return {node.name: node.reason for node in client_of(many).nodes() if node.drained}


def log_size(many: ManyNodes) -> int:
    return (many.log / "slurmctld.log").stat().st_size


def test_quiet_agents_ask_nothing(many: ManyNodes, quiet: Window, agents: Agents, figures: Figures) -> None:
    """No RPC of fairlead's in a minute, and the bytes on slurmctld's network are those of Slurm alone."""
    window, cpu = Window(many), agents.cpu_seconds()
    time.sleep(60)
    window.end()
    share = 100 * (agents.cpu_seconds() - cpu) / window.seconds
    some = agents.of(many.node_names[::16])
    metrics = [(agent.run_dir / "metrics.prom").read_text() for agent in some]
    figures.add(
        "quiet",
        ours=window.ours,
        counts=window.counts,
        without=quiet.counts,
        bytes=window.moved,
        bytes_without=quiet.moved,
        cpu_percent_all=share,
        pss_mib=sum(agent.pss_mib() for agent in some) / len(some),
        series=sum(not line.startswith("#") for line in metrics[0].splitlines()),
        metrics_bytes=len(metrics[0]),
    )
    assert window.ours == 0 and quiet.ours == 0


def test_a_slurmctld_that_comes_back(many: ManyNodes, agents: Agents, figures: Figures) -> None:
    """Drained nodes stay drained by the same reasons, faults of the time without slurmctld drain once, and a person's drain is
    untouched. No agent asks that has nothing to ask."""
    names = many.node_names
    out, bad = spread(names[1:], (BUDGET - 2) * 2 // 3), spread(names[2:], (BUDGET - 2) // 6)
    bad = tuple(name for name in bad if name not in out)
    for agent in agents.of(out):
        agent.gpu_lost()
    took = agents.until(lambda: agents.in_state(State.DRAIN) == set(out), "drains", 120)
    many.scontrol("update", f"nodename={names[0]}", "state=drain", "reason=riser swap")
    before, log = reasons(many), log_size(many)
    many.stop_slurmctld()
    for agent in agents.of(bad):
        agent.gpu_lost()
    time.sleep(20)
    asked = agents.asked()
    began = time.monotonic()
    many.start_slurmctld()
    with Rate(many) as rate:
        agents.until(lambda: agents.in_state(State.DRAIN) == {*out, *bad}, "drain of each fault", 180)
        known = time.monotonic() - began
        agents.until(lambda: all(agents[name].asked() > asked[name] for name in out), "a look of each drained node", 180)
        looked = time.monotonic() - began
        agents.until(lambda: not any(a.status()["slurm"]["error"] for a in agents.of([*out, *bad])), "no trouble", 60)
        agents.until(lambda: rate.seen[-1][0] >= 30, "half a minute", 60)
    now = reasons(many)
    silent = {name for name, count in agents.asked().items() if count == asked[name]}
    seconds, rpcs = rate.seen[-1]
    figures.add(
        "restart",
        first_drains_seconds=took,
        drained=len(out),
        faults_while_away=len(bad),
        faults_drained_seconds=known,
        each_asked_seconds=looked,
        rpcs=rpcs,
        in_seconds=seconds,
        worst_second=rate.worst(1.0),
        worst_ten=rate.worst(10.0),
    )
    assert {name: now[name] for name in before} == before, "no drain is lost or made again"
    assert set(now) == {*before, *bad} and drains(many, log) == Counter(bad)
    assert silent == set(names) - {*out, *bad}, "who has no drain asks nothing"
    assert rate.worst(10.0) <= RPCS_PER_SECOND


def test_half_of_the_nodes_are_cut_off(many: ManyNodes, agents: Agents, figures: Figures) -> None:
    """A cut is no fault: nothing is drained for it. Faults of that time drain once after it, and persons' drains stay."""
    names = many.node_names
    cut, rest = names[: NODES // 2], names[NODES // 2 :]
    few = min(4, (BUDGET - 3) // 3)
    beyond, here, late = cut[:few], rest[:few], rest[8]
    client, log = client_of(many), log_size(many)
    many.cut(cut)
    began = time.monotonic()
    for agent in agents.of([*beyond, *here]):
        agent.gpu_lost()
    agents.until(lambda: agents.in_state(State.DRAIN) >= set(here), "drains of nodes that are not cut off", 120)
    many.scontrol("update", f"nodename={cut[10]},{rest[10]}", "state=drain", "reason=riser swap")
    down = agents.until(
        lambda: all("DOWN" in node.states for node in client.nodes(cut)),
        "cut nodes that are down", 4 * NODE_TIMEOUT_SECONDS, every_seconds=2.0,
    )  # fmt: skip
    agents[late].gpu_lost()
    agents.until(lambda: late in agents.limits(), "a fault that waits for the budget", 60)
    held = agents.limits()
    during = agents.in_state(State.DRAIN)
    cpu, at = agents.cpu_seconds(), time.monotonic()
    window = Window(many)
    time.sleep(20)
    window.end()
    busy = 100 * (agents.cpu_seconds() - cpu) / (time.monotonic() - at)
    many.cut(cut, off=False)
    healed, lasted = time.monotonic(), time.monotonic() - began
    with Rate(many) as rate:
        wanted = {*beyond, *here, late}
        agents.until(lambda: agents.in_state(State.DRAIN) == wanted, "drain of each fault", 420)
        took = time.monotonic() - healed
    now = reasons(many)
    figures.add(
        "cut",
        cut=len(cut),
        cut_seconds=lasted,
        down_after_seconds=down,
        held=held,
        cpu_percent_all=busy,
        rpcs_per_minute_during=60 * window.ours / window.seconds,
        all_drained_seconds=took,
        worst_second=rate.worst(1.0),
        worst_ten=rate.worst(10.0),
        rpcs=rate.seen[-1][1],
    )
    assert during == set(here), "a node that cannot ask is not drained by its verdict"
    persons = {cut[10], rest[10]}
    assert set(now) == {*wanted, *persons} and {strip_suffixes(now[name]) for name in persons} == {"riser swap"}
    assert drains(many, log) == Counter([*wanted, *persons]), "each once"
    assert rate.worst(10.0) <= RPCS_PER_SECOND


def test_a_switch_that_takes_a_quarter_of_the_nodes_with_it(many: ManyNodes, agents: Agents, figures: Figures) -> None:
    """The first nodes drain, and all others wait and name the common cause, in status and metrics."""
    names = set(many.leaf(0))
    log, before, cpu = log_size(many), many.network_bytes(), agents.cpu_seconds()
    many.run(["/usr/bin/sdiag", "--reset"])
    began = time.monotonic()
    for agent in agents.of(many.leaf(0)):
        agent.ports_down()
    limit = "common_cause rdma_ports"
    with Rate(many) as rate:
        agents.until(lambda: len(agents.in_state(State.DRAIN)) >= RULES.common_cause_nodes, "first drains", 240)
        first = time.monotonic() - began
        waiting: Callable[[], bool] = lambda: Counter(agents.limits().values())[limit] == len(names) - RULES.common_cause_nodes  # noqa: E731
        agents.until(lambda: waiting() and len(agents.in_state(State.DRAIN)) == RULES.common_cause_nodes, "all others held", 240)
        settled = time.monotonic() - began
        at_settled = rate.seen[-1]
        time.sleep(60)
    tail = (rate.seen[-1][1] - at_settled[1]) / max(1.0, rate.seen[-1][0] - at_settled[0]) * 60
    out = agents.in_state(State.DRAIN)
    over = overshoot((many.log / "slurmctld.log").read_text()[log:], RULES.common_cause_nodes)
    held = sorted(names - out)
    line = 'fairlead_drain_limited{limit="common_cause",name="rdma_ports"} 1.0'
    shown = [name for name in held if line in (agents[name].run_dir / "metrics.prom").read_text()]
    figures.add(
        "switch",
        nodes=len(names),
        first_drains_seconds=first,
        settled_seconds=settled,
        rpcs=at_settled[1],
        worst_second=rate.worst(1.0),
        worst_ten=rate.worst(10.0),
        rpcs_per_minute_after=tail,
        overshoot_nodes=over.nodes,
        overshoot_seconds=over.seconds,
        bytes=many.network_bytes() - before,
        cpu_seconds_all=agents.cpu_seconds() - cpu,
    )
    assert out < names and set(reasons(many)) == out and len(out) == RULES.common_cause_nodes
    assert shown == held, "the alert counts every node that waits"
    assert rate.worst(10.0) <= RPCS_PER_SECOND
    for agent in agents.of(many.leaf(0)):
        agent.ports_down(down=False)
    agents.until(lambda: not agents.limits() and not agents.in_state(State.DRAIN), "ports that are well again", 240)


def test_a_quarter_of_the_nodes_loses_a_gpu(many: ManyNodes, agents: Agents, figures: Figures) -> None:
    """What no suspicion delays: the budgets of switch and partition hold."""
    names = set(many.leaf(2))
    log = log_size(many)
    many.run(["/usr/bin/sdiag", "--reset"])
    began = time.monotonic()
    for agent in agents.of(many.leaf(2)):
        agent.gpu_lost()
    allowed = min(BUDGET, LEAF_BUDGET)
    with Rate(many) as rate:
        agents.until(
            lambda: len(agents.in_state(State.DRAIN)) == allowed and len(agents.limits()) == len(names) - allowed,
            "a full budget",
            240,
        )
        settled = time.monotonic() - began
    over = overshoot((many.log / "slurmctld.log").read_text()[log:], allowed)
    figures.add(
        "lost_gpus",
        nodes=len(names),
        allowed=allowed,
        settled_seconds=settled,
        rpcs=rate.seen[-1][1],
        worst_second=rate.worst(1.0),
        worst_ten=rate.worst(10.0),
        overshoot_nodes=over.nodes,
        overshoot_seconds=over.seconds,
    )
    assert set(reasons(many)) <= names and len(reasons(many)) == allowed
    assert set(agents.limits().values()) == {"switch leaf2"}


#: A command on a node whose machine is a tree: its ledger names that machine.
ON_TREE = """\
import sys
from fairlead.cli import drain, main
from fairlead.host.root import Root
tree = sys.argv[1]
drain.Root = lambda path: Root(tree)
sys.exit(main(sys.argv[2:]))
"""


def test_commands_of_an_admin(many: ManyNodes, agents: Agents, figures: Figures, tmp_path: Path) -> None:
    """fleet, version, why and collect over all nodes, with real sshds; hold and resume on a node. Each twice, the second time by
    connections that are kept."""
    site, store = many.site(tmp_path), tmp_path / "store"
    bad = agents[many.node_names[7]]
    bad.gpu_lost()
    agents.until(lambda: agents.in_state(State.DRAIN) == {bad.name}, "a drain", 60)
    where = ["--bin-dir", str(many.bin), "--site", str(site)]
    conf = ["--slurm-conf", "/etc/slurm/slurm.conf"]
    folders = ["--state-dir", str(bad.state_dir), "--run-dir", str(bad.run_dir)]
    asks = {
        "fleet": ["fleet", *where, *conf, "--timeout", "120"],
        "fleet without agents": ["fleet", *where, *conf, "--no-agents"],
        "version": ["version", "--fleet", *where, *conf, "--timeout", "120"],
        "why": ["why", bad.name, *where],
        "collect": ["collect", "--store", str(store), *where, *conf, "--timeout", "120"],
    }
    python = [sys.executable, "-P"]
    commands = {name: many.entered([*python, "-m", "fairlead", *words]) for name, words in asks.items()}
    on_node = {
        "hold": ["hold", "--reason", "riser", *folders],
        "hold released": ["hold", "--release", *folders],
        "resume": ["resume", "--document", str(bad.document)],
    }
    commands |= {name: [*python, "-c", ON_TREE, str(bad.tree), *words] for name, words in on_node.items()}
    took: dict[str, list[float]] = {}
    env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent")}
    try:
        for name, command in commands.items():
            for _ in range(2):
                window, began, cpu = Window(many), time.monotonic(), _children()
                done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180, check=False)
                seconds = time.monotonic() - began
                used = _children() - cpu
                window.end()
                took.setdefault(name, []).append(round(seconds, 2))
                took.setdefault(f"{name}, RPCs", []).append(sum(window.counts.values()))
                took.setdefault(f"{name}, CPU", []).append(round(used, 2))
                assert done.returncode == 0, f"{name}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
                print(f"{name}: {done.stdout[-300:]}")
    finally:
        for connection in tmp_path.glob("[0-9a-f]*[0-9a-f]"):
            subprocess.run(["ssh", "-O", "exit", "-o", f"ControlPath={connection}", "n"], capture_output=True, check=False)
    agents.until(lambda: not agents.in_state(State.DRAIN), "the resume in the verdict", 60)
    figures.add(
        "commands",
        **{key.replace(" ", "_"): value for key, value in took.items()},
        store_bytes=sum(p.stat().st_size for p in store.iterdir()),
    )


#: The same with the agent's pid, because the agents here are no units of systemd.
WITH_AGENT = f"""\
import sys
from fairlead.cli import agent_client
pid = int(sys.argv.pop(1))
agent_client.agent_pid = lambda run_dir: pid
{ON_TREE}"""
#: So many nodes at once, as `clush` with its fan-out does it.
FAN_OUT = 32


def on_all(agents: Agents, words: Callable[[NodeAgent], Sequence[str]]) -> list[str]:
    """Run a command of an admin for each node, as ``clush -w NODES fairlead ...`` does, and return what each prints."""
    env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent")}

    def one(agent: NodeAgent) -> str:
        assert agent.process is not None
        command = [sys.executable, "-P", "-c", WITH_AGENT, str(agent.process.pid), str(agent.tree), *words(agent)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, f"{agent.name}: {done.stdout[-1000:]}{done.stderr[-1000:]}"
        return done.stdout

    with ThreadPoolExecutor(FAN_OUT) as pool:
        return list(pool.map(one, agents.values()))


@pytest.mark.parametrize("end", ["ack", "resume"])
def test_hold_ack_and_resume_of_all_nodes(many: ManyNodes, agents: Agents, figures: Figures, end: str) -> None:
    """All nodes are held and released, all lose a GPU, and a person acknowledges all of it, or resumes all nodes. The budget is
    all nodes here. The last scene: the agents keep these rules until its end only. The commands run on this machine too, so on
    few cores the times are those of the cores."""
    open_to_all = {"budget_percent": 100, "budget_group_percent": 100, "strikes_max": 99}
    try:
        before = {name: agent.sequence() for name, agent in agents.items()}
        for agent in agents.values():
            agent.write_document(policy=open_to_all)
            assert agent.process is not None
            agent.process.send_signal(signal.SIGHUP)
        agents.until(lambda: all(agent.sequence() > before[name] + 1 for name, agent in agents.items()), "new rules", 120)
        took: dict[str, float] = {}

        def timed(name: str, words: Callable[[NodeAgent], Sequence[str]], met: Callable[[], bool]) -> list[str]:
            many.run(["/usr/bin/sdiag", "--reset"])
            began = time.monotonic()
            with Rate(many) as rate:
                said = on_all(agents, words)
                took[f"{name}_commands_seconds"] = time.monotonic() - began
                agents.until(met, name, 180)
                took[f"{name}_seconds"] = time.monotonic() - began
                seen = len(rate.seen)
                agents.until(lambda: len(rate.seen) > seen + 1, "a last count", 60)
            took[f"{name}_rpcs"], took[f"{name}_worst_ten"] = rate.seen[-1][1], rate.worst(10.0)
            figures.add(f"all_{end}", nodes=len(agents), **took)
            return said

        def folders(agent: NodeAgent) -> list[str]:
            return ["--state-dir", str(agent.state_dir), "--run-dir", str(agent.run_dir)]

        if end == "ack":
            timed("hold", lambda a: ["hold", "--reason", "riser", *folders(a)], lambda: True)
            timed("release", lambda a: ["hold", "--release", *folders(a)], lambda: True)
            # a woken agent asks once for its own node, and with a new document for the topology
            assert took["hold_rpcs"] <= 3 * len(agents) and took["release_rpcs"] <= 2 * len(agents)
        for agent in agents.values():
            agent.gpu_lost()
        took["drained_seconds"] = agents.until(lambda: agents.in_state(State.DRAIN) == set(agents), "a drain of all", 240)
        assert set(reasons(many)) == set(agents)
        more = ["--all"] if end == "ack" else []
        said = timed(
            end,
            lambda a: [end, *more, "--reason", "known", "--document", str(a.document)],
            lambda: not agents.in_state(State.DRAIN) and not reasons(many),
        )
        assert len(said) == len(agents)
        assert all(("acknowledged: " if end == "ack" else "resumed") in text for text in said), said[:3]
    finally:
        for agent in agents.values():
            agent.write_document()
            if agent.process is not None:
                agent.process.send_signal(signal.SIGHUP)


def _children() -> float:
    """CPU seconds of the programs that have ended: without a master connection of ssh, which stays."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
