"""The demo's steps. Each does one thing to the rack, waits with a bound, and checks what it says."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.lab import layout, roots, slurmconf
from tests.lab.demo_stage import Stage
from tests.lab.faults import Faults
from tests.lab.host import Host
from tests.lab.rack import Rack
from tests.lab.wheels import wheelhouse

PROJECT = Path(__file__).resolve().parents[2]
FAIRLEAD = [sys.executable, "-m", "fairlead"]
HOOKS = slurmconf.Hooks(
    prolog="/etc/slurm/prolog.d/*",
    epilog="/etc/slurm/epilog.d/*",
    task_prolog="/etc/slurm/fairlead/task-prolog",
    health_check="/etc/slurm/fairlead/health-check",
    timeout_seconds=60,
    reboot="/usr/sbin/reboot",
)
EXTRA = "PropagateResourceLimitsExcept=MEMLOCK\n"

SITE = """\
schema = 1
generation = 1

[agent]
interval_seconds = 1.0                    # a demo does not wait; 15 s is the default
nvml_deadline_seconds = 1.5
verdict_ttl_seconds = 30
kmsg_path = "/etc/fairlead-sim/kmsg"      # /dev/kmsg is not namespaced: the lab feeds a FIFO

[policy]
budget_percent = 75                       # four nodes: let three of them fail

[classes.h100]
nodes = "gpu[1-{nodes}]"
profile = "hgx-h100"

[classes.h100.checks.clock]
synchronised = false                      # nobody sets the clock of the machine that the lab runs on

[classes.h100.settings.nccl]
socket_interface = "10.77.0.0/16"         # the nodes' own network: its interface has another name on each

[classes.h100.settings.memlock]
limit = "{memlock}"                       # {why}

[ansible]
user = "root"
private_key = "{key}"
ssh_args = "-F {ssh}"

[ansible.hosts]
{hosts}
"""

JOB = """\
#!/bin/bash
echo "batch=$SLURMD_NODENAME GLOO_SOCKET_IFNAME=$GLOO_SOCKET_IFNAME"
srun sh -c 'echo "task=$SLURM_PROCID node=$SLURMD_NODENAME local=$SLURM_LOCALID gpus=$SLURM_STEP_GPUS" \\
  "cpus=$(sed -n "s/^Cpus_allowed_list:[[:space:]]*//p" /proc/self/status) CUDA_DEVICE_ORDER=$CUDA_DEVICE_ORDER" \\
  "NCCL_DEBUG=$NCCL_DEBUG GLOO_SOCKET_IFNAME=$GLOO_SOCKET_IFNAME MASTER_ADDR=$MASTER_ADDR MASTER_PORT=$MASTER_PORT"'
"""


CAP_SYS_RESOURCE = 24  # capabilities(7)


def memlock() -> tuple[str, str]:
    """What the site declares for memlock: infinity, unless this machine's root may not raise limits at all."""
    held = int(re.search(r"^CapBnd:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)[1], 16)  # type: ignore[index]
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    if held >> CAP_SYS_RESOURCE & 1 or hard == resource.RLIM_INFINITY:
        return "infinity", "as on a real node"
    return str(hard), "this machine's root has no CAP_SYS_RESOURCE and cannot raise limits"


class Demo:
    def __init__(self, stage: Stage, rack: Rack) -> None:
        self.stage = stage
        self.rack = rack
        self.site = Path()

    def node(self, number: int) -> Host:
        return self.rack.nodes[number - 1]

    def faults(self, number: int) -> Faults:
        return Faults(self.node(number).sim / "nvml.control")

    def fairlead(self, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        """A fairlead command of the admin host, in the rack's control network."""
        command = [*self.rack.enter, *FAIRLEAD, *words]
        env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent")}
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=env)
        told = (done.stderr or done.stdout).strip()[-2000:]
        self.stage.check(
            f"fairlead {words[0]} ends with {done.returncode}", done.returncode in codes, codes, f"{done.returncode}: {told}"
        )
        return done.stdout

    def status(self, number: int) -> dict[str, Any]:
        """What the node's agent publishes about itself."""
        done = self.node(number).run(["/usr/local/bin/fairlead", "status", "--json"], check=False)
        return json.loads(done.stdout) if done.stdout.startswith("{") else {"state": "none", "text": done.stderr, "status": {}}

    def verdict(self, number: int) -> list[str]:
        try:
            return self.node(number).path("/run/fairlead/verdict").read_text().rstrip("\n").split("\t")
        except OSError as e:
            return ["-", "none", "-", "-", str(e)]

    # -- steps ------------------------------------------------------------------------------------

    def bring_up(self) -> None:
        start = time.monotonic()
        self.rack.hooks = slurmconf.Hooks(reboot="/usr/sbin/reboot")
        self.rack.extra_conf = EXTRA
        self.rack.up()
        self.stage.reaction(
            "rack of 4 nodes: ssh logins and Slurm idle", time.monotonic() - start, "15 s once its base is cached"
        )
        for host in self.rack.nodes:
            first = host.run(["cat", "/proc/1/comm"]).stdout.strip()
            self.stage.check(f"{host.name}: PID 1 is systemd", first == "systemd", "systemd", first)
        gpus = self.node(1).run("ls /dev | grep -c '^nvidia[0-9]'").stdout.strip()
        self.stage.check("gpu1 has 8 GPU device files", gpus == "8", 8, gpus)
        addresses = "\n".join(f'{host.name} = "{host.address}"' for host in self.rack.nodes)
        self.site = self.rack.folder / "site.toml"
        key = roots.ssh_key()
        limit, why = memlock()
        self.stage.say(f"memlock wanted on the nodes: {limit} ({why})")
        known = {"memlock": limit, "why": why}
        self.site.write_text(SITE.format(**known, nodes=len(self.rack.nodes), key=key, ssh=self.rack.ssh_config, hosts=addresses))

    def provision(self) -> None:
        wheels = str(wheelhouse(self.rack.suite))
        common = ("provision", "--site", str(self.site), "--wheelhouse", wheels, "--json")
        start = time.monotonic()
        first = json.loads(self.fairlead(*common))
        self.stage.reaction("provisioning 4 fresh nodes", time.monotonic() - start)
        changed = {n["node"]: n["changed"] for n in first["nodes"]}
        self.stage.check(
            "the first run changes every node",
            all(changed.values()) and len(changed) == len(self.rack.nodes),
            "changes on all",
            changed,
        )
        start = time.monotonic()
        second = json.loads(self.fairlead(*common))
        self.stage.reaction("provisioning again, nothing to do", time.monotonic() - start, "3 s for 10 nodes")
        again = {n["node"]: n["changed"] for n in second["nodes"]}
        self.stage.check("the second run changes nothing", not any(again.values()), "0 changes", again)
        self.rack.configure(hooks=HOOKS)
        for number in range(1, len(self.rack.nodes) + 1):
            self.stage.wait(f"gpu{number}: verdict ok", lambda n=number: self.verdict(n), lambda v: v[1] == "ok", 20)
        doctor = self.node(1).run(["/usr/local/bin/fairlead", "doctor"], check=False)
        self.stage.say(doctor.stdout)
        self.stage.check(
            "fairlead doctor finds nothing wrong", doctor.returncode == 0, 0, f"{doctor.returncode}\n{doctor.stdout}"
        )
        self.rack.wait_idle(30)

    def _batch_host(self, job: int) -> Host:
        found = re.search(r"BatchHost=(\S+)", self.rack.scontrol("-o", "show", "job", str(job)))
        return next(h for h in self.rack.nodes if found and h.name == found[1])

    def _run_job(self, script: str, *options: str) -> tuple[str, Host]:
        job = self.rack.submit(script, *options)
        state = self.rack.wait_job(job, seconds=40)
        host = self._batch_host(job)
        output = host.run(["cat", f"/tmp/job-{job}.out"], check=False).stdout
        self.stage.check(f"job {job} completed", state == "COMPLETED", "COMPLETED", f"{state}\n{output}")
        return output, host

    def job(self) -> None:
        idle = self.rack.ctl("sinfo -h -o '%n %T'").split()
        self.stage.check("Slurm shows all nodes idle", idle.count("idle") == 4, "4 x idle", idle)
        output, first = self._run_job(JOB, "-N2", "--ntasks-per-node=2", "--gres=gpu:8")
        self.stage.say(output)
        tasks = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in output.splitlines() if line.startswith("task=")]
        self.stage.check("two tasks ran on each of two nodes", len({(t["node"], t["local"]) for t in tasks}) == 4, 4, len(tasks))
        for t in tasks:
            local = self._cores(int(t["node"].removeprefix("gpu")))
            share = list(local)[int(t["local"]) * 4 : int(t["local"]) * 4 + 4]
            wanted = {local[g] for g in share}
            where = f"{t['node']} task {t['local']}: bound to the CPUs of GPUs {','.join(share)}"
            self.stage.check(where, {t["cpus"]} == wanted, wanted, t["cpus"])
        for name, value in (("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), ("NCCL_DEBUG", "WARN")):
            self.stage.check(
                f"{name}={value} in every task", {t[name] for t in tasks} == {value}, value, {t[name] for t in tasks}
            )
        own = {name: self._interface(name) for name in sorted({t["node"] for t in tasks})}
        self.stage.check("the two nodes' interfaces have unlike names", len(set(own.values())) == 2, "two names", own)
        batch = re.search(r"^batch=(\S+) GLOO_SOCKET_IFNAME=(\S*)$", output, re.MULTILINE)
        told = batch.groups() if batch else ()
        self.stage.check(f"the batch step exports {own[first.name]}", told == (first.name, own[first.name]), own, told)
        for name, interface in own.items():
            seen = {t["GLOO_SOCKET_IFNAME"] for t in tasks if t["node"] == name}
            self.stage.check(f"GLOO_SOCKET_IFNAME={interface} in the tasks on {name}", seen == {interface}, interface, seen)
            conf = self._host(name).path("/etc/nccl.conf").read_text().splitlines()
            line = f"NCCL_SOCKET_IFNAME=={interface}"
            self.stage.check(f"{line} in {name}'s /etc/nccl.conf", line in conf, line, conf)
        addresses = {(t["MASTER_ADDR"], t["MASTER_PORT"]) for t in tasks}
        self.stage.check(
            "one rendezvous address for all tasks",
            len(addresses) == 1
            and all(
                *addresses,
            ),
            "one",
            addresses,
        )

    def _host(self, name: str) -> Host:
        return self.node(int(name.removeprefix("gpu")))

    def _interface(self, name: str) -> str:
        """The interface that bears the node's address, as its kernel has it."""
        host = self._host(name)
        return host.run(f"ip -4 -o addr show to {host.address}").stdout.split()[1]

    def _cores(self, number: int) -> dict[str, str]:
        """GRES index -> cpulist of the nearest CPUs, as the agent published it."""
        lines = self.node(number).path("/run/fairlead/topology").read_text().splitlines()
        rows = [ln.split("\t") for ln in lines if ln.startswith("gpu\t")]
        return {r[1]: r[6] for r in sorted(rows, key=lambda r: int(r[1]))}

    def whole_layout(self) -> None:
        for gpu, numa, cpus, good in layout.show(self.stage.say, self.rack.suite):
            self.stage.check(f"task {gpu}: CPUs {cpus} are next to GPU {gpu}", good, f"14 CPUs of NUMA node {numa}", cpus)

    def xid(self) -> None:
        _, host = self._run_job("#!/bin/sh\nhostname\n", "-N1", "--exclusive")
        self.stage.check("before: the first free node is gpu1", host.name == "gpu1", "gpu1", host.name)
        pci = (
            self.node(1).run(["sh", "-c", "awk -F'\\t' '$1==\"gpu\" && $2==3 {print $5}' /run/fairlead/topology"]).stdout.strip()
        )
        self.faults(1).lost(3)
        start = time.monotonic()
        self.node(1).inject_kmsg(f"NVRM: Xid (PCI:{pci}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
        node, _ = self.stage.wait(
            "gpu1 is DRAIN in slurmctld", lambda: self.rack.node_state("gpu1"), lambda n: "DRAIN" in n.states, 10, every=0.005
        )
        self.stage.reaction("Xid line to DRAIN in slurmctld (with 5 ms looks)", time.monotonic() - start, "250 ms median")
        self.stage.say(f"Reason={node.reason}")
        named = node.reason.startswith("fairlead:xid:") and "79" in node.reason and pci in node.reason
        self.stage.check("the reason names check, Xid and GPU", named, f"fairlead:xid:... Xid 79 ... {pci}", node.reason)
        action = "reboot_node" in node.reason or "reset_gpu" in node.reason
        self.stage.check("the reason names the action", action, "reboot_node or reset_gpu", node.reason)
        _, host = self._run_job("#!/bin/sh\nhostname\n", "-N1", "--exclusive")
        self.stage.check("the next job runs elsewhere", host.name != "gpu1", "not gpu1", host.name)
        self.stage.wait("the verdict follows", lambda: self.verdict(1), lambda v: v[1] == "drain", 10)
        story = self.fairlead("why", "gpu1", "--site", str(self.site), "--bin-dir", str(self.rack.bin))
        self.stage.say(story)
        self.stage.check("why tells of the Xid and what to do", "Xid 79" in story and "do:" in story, "Xid 79, do:", story)

    def wedged(self) -> None:
        self.faults(2).hang("nvmlDeviceGetTemperature", gpu=5)
        seen, took = self.stage.wait(
            "gpu2: the verdict says which call hangs", lambda: self.verdict(2), lambda v: "nvmlDeviceGetTemperature" in v[-1], 20
        )
        self.stage.reaction("hanging call to a verdict that names it", took, "deadline 1.5 s + sweep 1 s")
        self.stage.say("\t".join(seen))
        environment = {"SLURM_JOB_ID": "999", "SLURM_JOB_UID": "1000"}
        times = []
        for _ in range(20):
            start = time.monotonic()
            done = self.node(2).run(["/etc/slurm/prolog.d/50-fairlead"], env=environment, check=False)
            times.append(time.monotonic() - start)
        self.node(2).run(["rm", "-f", "/run/fairlead/jobs/999"])
        middle = sorted(times)[10]
        self.stage.check(
            f"the prolog still answers at once (exit {done.returncode})", middle < 0.5, "under 0.5 s", f"{middle:.3f} s"
        )
        self.stage.reaction("prolog with the driver wedged (with entering the node)", middle, "+1 ms; about 5 ms is entering")
        self.faults(2).lift()
        self.stage.wait("the call comes back: gpu2 recovers by itself", lambda: self.verdict(2), lambda v: v[1] == "ok", 180)
        self.rack.wait_idle(30, ["gpu2"])

    def drift(self) -> None:
        bridge = self._bridge(3)
        start = time.monotonic()
        self.node(3).path("/proc/sys/kernel/numa_balancing").write_text("1\n")
        self.node(3).run(["setpci", "-s", bridge, "ECAP_ACS+6.w=001d"])
        wanted = {"setting.numa_balancing"}

        def drifting() -> set[str]:
            return {f["check"] for f in self.status(3)["status"].get("findings", [])}

        def redirecting() -> int:
            return int(self.node(3).run(["setpci", "-s", bridge, "ECAP_ACS+6.w"]).stdout, 16) & 0x2C

        self.stage.wait("gpu3: the agent reports it", drifting, lambda seen: wanted <= seen, 90, every=0.1)
        self.stage.reaction("drift to a finding", time.monotonic() - start, "one sweep (1 s here)")
        for f in self.status(3)["status"]["findings"]:
            self.stage.say(f"{f['check']}: {f['summary']}")
        self.stage.wait(
            "the redirect bits, as after a reset, are clear again by themselves", redirecting, lambda seen: not seen, 60
        )
        wheels = str(wheelhouse(self.rack.suite))
        told = self.fairlead("provision", "--site", str(self.site), "--wheelhouse", wheels, "-l", "gpu3", "--json")
        report = json.loads(told)
        self.stage.check("provision changes gpu3", bool(report["nodes"][0]["changed"]), "changes", report["nodes"])
        value = self.node(3).path("/proc/sys/kernel/numa_balancing").read_text().strip()
        self.stage.check("NUMA balancing is off again", value == "0", "0", value)
        wanted = {"setting.numa_balancing", "setting.pcie_acs"}
        self.stage.wait("no drift any more", drifting, lambda seen: not wanted & seen, 90, every=0.1)

    def _bridge(self, number: int) -> str:
        """The switch port above the first GPU."""
        gpu = self.node(number).run(["awk", "-F\t", '$1 == "gpu" {print $5; exit}', "/run/fairlead/topology"]).stdout.strip()
        return self.node(number).run(f"basename $(dirname $(readlink -f /sys/bus/pci/devices/{gpu}))").stdout.strip()

    def repair(self) -> None:
        admin = "lid off, replacing the power supply"
        self.rack.ctl(f"scontrol update nodename=gpu4 state=drain reason='{admin}'")
        self.faults(4).lost(1)
        self.node(4).inject_kmsg("NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.")
        seen, _ = self.stage.wait("gpu4: the agent sees its fault", lambda: self.verdict(4), lambda v: "Xid 79" in v[-1], 20)
        self.stage.say("\t".join(seen))
        time.sleep(2)  # long enough for a drain that must not come
        before = self.rack.node_state("gpu4")
        self.stage.check("gpu4 keeps the admin's reason", before.reason == admin, admin, before.reason)
        start = time.monotonic()
        self.node(1).reboot()
        self.stage.wait("gpu1: verdict ok after the reboot", lambda: self.verdict(1), lambda v: v[1] == "ok", 60)
        self.stage.wait("fairlead resumes gpu1", lambda: self.rack.node_state("gpu1"), lambda n: n.states == ("IDLE",), 60)
        self.stage.reaction("reboot to resumed by fairlead", time.monotonic() - start)
        self.node(4).reboot()
        self.stage.wait(
            "gpu4: verdict is not drain after its repair", lambda: self.verdict(4), lambda v: v[1] in {"ok", "warn"}, 60
        )
        time.sleep(5)
        after = self.rack.node_state("gpu4")
        kept = "DRAIN" in after.states and after.reason == admin
        self.stage.check("gpu4 is still the admin's", kept, f"DRAIN, {admin}", f"{after.states}, {after.reason}")
