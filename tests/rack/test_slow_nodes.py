"""One node of a real job made slow: by a limit on its CPU time, by a shaped interface, by a capped clock. And equal nodes."""

from __future__ import annotations

import os
import subprocess
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from fairlead import checks, config
from fairlead.cli.job_nodes import judgement_lines
from fairlead.controller.slow_node_input import signs_of
from fairlead.fleet.slow_node_rule import NodesJudgement, judged
from fairlead.jobs.usage_record import BadRecord, UsageRecord, decoded
from tests.lab import cpus, net, slurmconf, wheels
from tests.lab.faults import Faults
from tests.lab.host import Host
from tests.lab.ledger import own_name
from tests.lab.rack import PROJECT, Rack

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.rack, pytest.mark.timeout(1800)]

SUITE = "bookworm"
SECONDS = 25  # of a job: enough for 8 readings when the agent is asked to read each second
SLOW = 1  # the index of the node that is made slow
SLURM = "/opt/fl/slurm"


class Site:
    """Four nodes with an agent each, and jobs over all of them."""

    def __init__(self, rack: Rack) -> None:
        self.rack = rack
        self.ending = threading.Event()
        self.asking = threading.Thread(target=self._read_often, daemon=True)

    def start_agents(self) -> None:
        for host in self.rack.nodes:
            data = config.to_data(config.profile_document(host.name, "hgx-h100"))
            data["agent"] |= {"interval_seconds": 0.5, "nvml_deadline_seconds": 60.0}
            data["checks"] = {name: {"enabled": False} for name in checks.load()}
            data["settings"] = {}
            del data["hash"]
            text = config.encode_document(config.decode_document(msgspec.json.encode(data), "test")).decode()
            host.run("mkdir -p /etc/fairlead /run/fairlead/jobs && cat > /etc/fairlead/node.json", stdin=text)
            host.run(
                "printf '1\\tallow\\tfull\\t-\\t-\\n' > /etc/fairlead/hooks; chmod 666 /etc/fairlead-sim/nvml.control",
                check=False,
            )
            host.run("systemd-run --quiet --unit=agent-under-test python3 -m fairlead agent --document /etc/fairlead/node.json")
            self.clock(host, 1_980_000_000, 0)
        for host in self.rack.nodes:
            self.until(host.path("/run/fairlead/verdict").exists, f"verdict of {host.name}", host)
        self.asking.start()

    def _read_often(self) -> None:
        """SIGUSR1 makes the agent read everything in its next sweep, as the epilog does; else it does so each 14 s."""
        while not self.ending.wait(1.0):
            for host in self.rack.nodes:
                host.run("systemctl kill --signal=USR1 --kill-whom=main agent-under-test", check=False)

    def until(self, met: Callable[[], object], what: str, host: Host, seconds: float = 180) -> None:
        deadline = time.monotonic() + seconds
        while not met():
            said = host.run("journalctl -u agent-under-test -n 20 --no-pager", check=False).stdout
            assert time.monotonic() < deadline, f"no {what}\n{said}\n{self.rack.logs()}"
            time.sleep(0.3)

    def clock(self, host: Host, hertz: int, reasons: int) -> None:
        faults = Faults(host.sim / "nvml.control")
        faults.set(0, "clocks.sm_hertz", hertz)
        faults.set(0, "throttle_reasons", reasons)

    def job(self) -> NodesJudgement:
        """Run a job over all nodes, and judge it by the records of its nodes. On a busy machine it has to run for longer."""
        for seconds in (SECONDS, 3 * SECONDS, 9 * SECONDS):
            found = self._job(seconds)
            if not found.not_judged:
                return found
        raise AssertionError(self.report)

    def _job(self, seconds: int) -> NodesJudgement:
        names = [host.name for host in self.rack.nodes]
        script = f"#!/bin/sh\nexec srun --kill-on-bad-exit=1 python3 /opt/fl/job/ring_job.py {seconds} {' '.join(names)}\n"
        job = self.rack.submit(script, f"-N{len(names)}", "--ntasks-per-node=1", "--gres=gpu:1", user="")
        assert self.rack.wait_job(job, seconds=600) == "COMPLETED", self.rack.output(job)
        records: dict[str, UsageRecord] = {}

        def whole() -> bool:
            for host in self.rack.nodes:
                for path in host.path("/var/lib/fairlead/usage").glob(f"{job}-*.json"):
                    try:
                        records[host.name] = decoded(path.read_bytes())
                    except (BadRecord, FileNotFoundError):
                        continue
            return len(records) == len(names) and all(record.ended_by for record in records.values())

        self.until(whole, f"whole records of job {job}", self.rack.nodes[0])
        self.signs = signs_of(names, records.values())
        found = judged(self.signs)
        self.report = "\n".join((*(str(sign) for sign in self.signs), *judgement_lines(found)))
        print(self.report)
        return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    packages = tmp_path_factory.mktemp("site")
    for wheel in wheels.wheelhouse(SUITE).glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
    (packages / "fairlead.pth").write_text("/opt/fl/agent\n")  # the NVML worker has no PYTHONPATH
    binds = (
        (str(packages), f"/usr/local/lib/python{wheels.python_version(SUITE)}/dist-packages", True),
        (str(PROJECT / "agent"), "/opt/fl/agent", True),
        (str(PROJECT / "slurm"), SLURM, True),
        (str(Path(__file__).parent), "/opt/fl/job", True),
    )
    hooks = slurmconf.Hooks(prolog=f"{SLURM}/prolog", epilog=f"{SLURM}/epilog")
    with Rack(4, suite=SUITE, name=own_name("slow"), hooks=hooks, binds=binds) as rack:
        made = Site(rack)
        try:
            made.start_agents()
            yield made
        finally:
            made.ending.set()
            made.asking.join(60)


def named(found: NodesJudgement) -> list[tuple[str, str]]:
    return [(each.node, each.cause) for each in found.accused]


@contextmanager
def little_cpu(host: Host, percent: int) -> Iterator[None]:
    """What slurmd starts on the host gets this part of one CPU (cgroup v1, cpu.cfs_quota_us)."""
    folder = cpus.v1_controllers().get("cpu")
    if folder is None:
        pytest.skip("no cgroup v1 controller cpu: the limit of this test needs one")
    group = Path(folder) / f"fairlead-lab-{os.getpid()}-slow"
    group.mkdir()
    (group / "cpu.cfs_period_us").write_text("100000")
    (group / "cpu.cfs_quota_us").write_text(str(percent * 1000))
    inside = set(host.run("cat /run/slurmd.*pid /run/slurm/slurmd.pid 2>/dev/null || pidof slurmd", check=False).stdout.split())
    moved = [pid for pid in pids_of(host) if inner(pid) in inside]
    assert moved, "slurmd was not found"
    try:
        for pid in moved:
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for pid in map(int, (group / "cgroup.procs").read_text().split()):
            (Path(folder) / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def pids_of(host: Host) -> list[int]:
    """The machine's pids of the host's processes."""
    space = os.readlink(f"/proc/{host.pid}/ns/pid")
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(path / "ns/pid") == space:
                found.append(int(path.name))
        except OSError:
            continue
    return found


def inner(pid: int) -> str:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split()[-1] for line in lines if line.startswith("NSpid:")), "")


def test_a_node_with_little_cpu_time_is_a_slow_host(site: Site) -> None:
    host = site.rack.nodes[SLOW]
    with little_cpu(host, 3):
        found = site.job()
    assert named(found) == [(host.name, "slow host")], site.report


@pytest.mark.slow  # beside other tests a peer resends packets too, and then nobody is named
def test_a_node_with_a_shaped_interface_has_a_slow_link(site: Site) -> None:
    host = site.rack.nodes[SLOW]
    space, device = net.namespace(site.rack.name, host.name), net.interface(host.name)
    shape = f"tc qdisc add dev {device} root tbf rate 2mbit burst 4kb limit 16kb"
    site.rack.run(["true"])
    run_tc(space, shape)
    try:
        found = site.job()
    finally:
        run_tc(space, f"tc qdisc del dev {device} root")
    assert named(found) == [(host.name, "slow network link")], site.report


def run_tc(space: str, command: str) -> None:
    subprocess.run(["ip", "netns", "exec", space, *command.split()], check=True, timeout=30)


def test_a_gpu_with_a_capped_clock_is_a_slow_gpu(site: Site) -> None:
    host = site.rack.nodes[SLOW]
    site.clock(host, 1_200_000_000, 0x80)  # the power brake
    try:
        found = site.job()
    finally:
        site.clock(host, 1_980_000_000, 0)
    assert named(found) == [(host.name, "slow GPU")] and found.accused[0].gpu == "0", site.report


@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 50))])
def test_equal_nodes_name_nobody(site: Site, number: int) -> None:
    assert named(site.job()) == [], site.report
