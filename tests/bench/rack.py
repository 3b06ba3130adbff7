"""What takes a whole rack: reaction times, the agent's cost, a scrape, RPCs.

Eight nodes of 8 simulated GPUs each with the agent as a unit, one controller; all on this machine.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.rows import Row, median, percentile
from tests.lab import demo_steps, roots
from tests.lab.host import Host
from tests.lab.rack import Rack
from tests.lab.wheels import wheelhouse

NODES = 8
FAIRLEAD = str(Path(sys.executable).with_name("fairlead"))
TRIALS = 30
BURSTS = 6
AT_ONCE = 8
AGENT_SECONDS = 60
SCRAPES = 200
TICKS = 100  # USER_HZ, what /proc/PID/stat counts in (proc(5))
METRICS_PORT = 9810

SCRAPE = """
import http.client, json, sys, time
took = []
for _ in range(int(sys.argv[1])):
    start = time.perf_counter()
    c = http.client.HTTPConnection("127.0.0.1", int(sys.argv[2]), timeout=10)
    c.request("GET", "/metrics")
    body = c.getresponse().read()
    c.close()
    took.append((time.perf_counter() - start) * 1000)
    time.sleep(0.02)
series = sum(1 for line in body.splitlines() if line and not line.startswith(b"#"))
json.dump({"took": took, "series": series}, sys.stdout)
"""


class Bench:
    def __init__(self, rack: Rack) -> None:
        self.rack = rack
        self.site = rack.folder / "site.toml"

    def write_site(self) -> None:
        """The demo's site with room for the bursts in the drain budget, and an open metrics port inside each node."""
        addresses = "\n".join(f'{host.name} = "{host.address}"' for host in self.rack.nodes)
        limit, why = demo_steps.memlock()
        text = demo_steps.SITE.format(
            nodes=len(self.rack.nodes), key=roots.ssh_key(), ssh=self.rack.ssh_config, hosts=addresses, memlock=limit, why=why
        )
        text = text.replace("budget_percent = 75", "budget_percent = 100")
        self.site.write_text(
            text.replace("[agent]", f'[slurm]\nreconcile_seconds = 2\n\n[agent]\nmetrics_listen = "127.0.0.1:{METRICS_PORT}"')
        )

    def provision(self) -> None:
        wheels = str(wheelhouse(self.rack.suite))
        command = [FAIRLEAD, "provision", "--site", str(self.site), "--wheelhouse", wheels, "-q", "--json"]
        done = subprocess.run([*self.rack.enter, *command], capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise RuntimeError(f"provision ended with {done.returncode}: {done.stderr[-2000:]}")

    # -- reactions ------------------------------------------------------------------------------

    def verdict(self, host: Host) -> str:
        return host.path("/run/fairlead/verdict").read_text()

    def until(self, good: Callable[[], bool], seconds: float = 20) -> float:
        start = time.monotonic()
        while not good():
            if time.monotonic() - start > seconds:
                raise RuntimeError("did not happen within the bound")
            time.sleep(0.0005)
        return time.monotonic()

    def inject(self, host: Host, trial: int) -> None:
        pci = "0000:61:00"
        host.inject_kmsg(f"NVRM: Xid (PCI:{pci}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus. {trial}")

    def repair(self, hosts: list[Host]) -> None:
        """An admin resumes the nodes: that acknowledges what the agent has seen so far."""
        names = ",".join(host.name for host in hosts)
        self.rack.ctl(f"scontrol update nodename={names} state=undrain")
        for host in hosts:
            host.run(["systemctl", "kill", "--kill-who=main", "--signal=USR1", "fairlead-agent"], check=False)
        for host in hosts:
            self.until(lambda h=host: "\tdrain\t" not in self.verdict(h), 90)  # type: ignore[misc]
        self.rack.wait_idle(30, [host.name for host in hosts])

    def reactions(self) -> list[Row]:
        host = self.rack.nodes[0]
        decided, drained = [], []
        rpcs = []
        for trial in range(TRIALS):
            before = self.rpcs()
            start = time.monotonic()
            self.inject(host, trial)
            decided.append((self.until(lambda: "Xid 79" in self.verdict(host)) - start) * 1000)
            drained.append((self.until(lambda: "\tdrain\t" in self.verdict(host)) - start) * 1000)
            rpcs.append(self.rpcs() - before)
            self.repair([host])
        burst: list[float] = []
        hosts = self.rack.nodes[:AT_ONCE]
        for trial in range(BURSTS):
            start = time.monotonic()
            for each in hosts:
                self.inject(each, trial)
            waiting = {h.name: h for h in hosts}
            while waiting:
                for name, each in list(waiting.items()):
                    if "\tdrain\t" in self.verdict(each):
                        burst.append((time.monotonic() - start) * 1000)
                        del waiting[name]
                if time.monotonic() - start > 30:
                    raise RuntimeError(f"not drained in a burst: {sorted(waiting)}")
                time.sleep(0.0005)
            self.repair(hosts)
        others = "others: 1 to 300 s (reference)"
        return [
            Row(
                "Xid line to the agent's decision, median", median(decided), 50, "ms", "", f"p99 {percentile(decided, 99):.0f} ms"
            ),
            Row("... to DRAIN read back from slurmctld, median", median(drained), 250, "ms", others),
            Row("... to DRAIN, p99", percentile(drained, 99), 1000, "ms", "", f"{TRIALS} trials"),
            Row(f"... {AT_ONCE} nodes at once, median", median(burst), 500, "ms", "", f"max {max(burst):.0f} ms"),
            Row("slurmctld RPCs for one drain, median", median(rpcs), 6, "", "", f"max {max(rpcs)}"),
        ]

    def rpcs(self) -> int:
        """Messages that slurmctld has served from root's tools, without slurmd's registrations and our own sdiag."""
        text = self.rack.ctl("sdiag")
        counts = dict(re.findall(r"^\s+(REQUEST_\w+)\s+\(\s*\d+\)\s+count:(\d+)", text, re.MULTILINE))
        return sum(int(n) for name, n in counts.items() if name in COUNTED)

    # -- cost -----------------------------------------------------------------------------------

    def processes(self, host: Host) -> list[int]:
        """The agent and its worker, as the machine numbers them."""
        group = next(p for p in self.rack.cgroup.rglob("fairlead-agent.service") if host.name in str(p))
        return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]

    def cost(self) -> list[Row]:
        host = self.rack.nodes[1]
        pids = self.processes(host)

        def ticks() -> int:
            fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
            return sum(int(f[11]) + int(f[12]) for f in fields)

        rpcs = self.rpcs()
        before, start = ticks(), time.monotonic()
        time.sleep(AGENT_SECONDS)
        share = (ticks() - before) / TICKS / (time.monotonic() - start) * 100
        steady = self.rpcs() - rpcs
        pss = sum(_pss(pid) for pid in pids) / 1024
        told = host.run(["/usr/bin/python3", "-c", SCRAPE, str(SCRAPES), str(METRICS_PORT)], timeout=120).stdout
        scraped: dict[str, Any] = json.loads(told)
        beside = "nvitop-exporter 1 s: 1.0 %, 24 MiB (reference)"
        return [
            Row(
                "agent, 8 GPUs, all checks, 1 s sweep",
                share,
                0.5,
                "% of a core",
                beside,
                f"{len(pids)} processes, {AGENT_SECONDS} s",
            ),
            Row("agent with its worker, PSS", pss, 48, "MiB", "24 MiB (reference)"),
            Row("scrape, median", median(scraped["took"]), 5, "ms", "2.5 to 6.7 ms (reference)", f"{scraped['series']} series"),
            Row("slurmctld RPCs in steady state, 8 agents", float(steady), 0, "", "", f"in {AGENT_SECONDS} s"),
        ]


COUNTED = {
    "REQUEST_NODE_INFO",
    "REQUEST_NODE_INFO_SINGLE",
    "REQUEST_PARTITION_INFO",
    "REQUEST_UPDATE_NODE",
    "REQUEST_JOB_INFO",
    "REQUEST_JOB_INFO_SINGLE",
    "REQUEST_CONFIG",
    "REQUEST_BUILD_INFO",
    "REQUEST_PING",
}


def _pss(pid: int) -> int:
    """Proportional set size in KiB (proc(5), smaps_rollup)."""
    found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


def rows(say: Callable[[str], None] = lambda text: print(f"bench:   {text}", file=sys.stderr, flush=True)) -> list[Row]:
    """Bring a rack up, measure, take it down."""
    with Rack(nodes_wanted=NODES, name="bench", extra_conf=demo_steps.EXTRA) as rack:
        bench = Bench(rack)
        bench.write_site()
        say(f"provisioning {NODES} nodes")
        bench.provision()
        rack.configure(hooks=demo_steps.HOOKS)
        for host in rack.nodes:
            bench.until(lambda h=host: "\tok\t" in bench.verdict(h), 60)  # type: ignore[misc]
        say(f"the agent's cost over {AGENT_SECONDS} s")
        out = bench.cost()
        say(f"{TRIALS} reactions, {BURSTS} bursts of {AT_ONCE}")
        return bench.reactions() + out
