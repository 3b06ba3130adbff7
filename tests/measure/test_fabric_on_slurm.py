"""`fairlead accept --fabric` under real Slurm, over real links that are really slow (fabric_lab.py).

There is no GPU. TCP stands in for the collective (fabric_tcp.py).
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.cli.machine_tree import recorded_nvml
from fairlead.config import encode_document, profile_document
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.measure.fabric_jobs import FabricJobs
from fairlead.topology.binding.published_files import render_topology
from tests import printed_json
from tests.lab.ledger import own_name
from tests.lab.roots import SUITES
from tests.lab.trees import MACHINES
from tests.measure.fabric_lab import NODES, RATE_KBIT, UPLINK_KBIT, FabricLab, fabric_lab, passes, reported, until
from tests.topology.fabrics import rails

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
ALL = "n[1-12]"
TREE = MACHINES / "hgx-h100"
SLOW_KBIT = RATE_KBIT * 6 // 10
REPEATS = [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 10))]
RELEASES = ["bookworm", *(pytest.param(suite, marks=pytest.mark.slow) for suite in SUITES if suite != "bookworm")]
RAIL_KBIT = RATE_KBIT // 2  # of each of two rails, so that these two cores carry no more than in the other tests


@pytest.fixture(scope="module", params=RELEASES)
def up(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FabricLab]:
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    with fabric_lab(request.param, own_name(f"fabric-{request.param}"), tmp_path_factory.mktemp("fabric")) as lab:
        yield lab


@pytest.fixture
def lab(up: FabricLab) -> FabricLab:
    """Every link at its full rate, every node idle, nothing stored."""
    up.slurm.run(["/usr/bin/scancel", "--user=root"], check=False)
    up.slurm.wait_idle()
    for each in up.folder.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    up.heal()
    up.write()
    return up


# -- real figures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("repeat", REPEATS)
def test_a_healthy_fabric_accuses_nobody(lab: FabricLab, repeat: int) -> None:
    named, data = lab.guilty(ALL)
    assert named == set(), reported(data)
    assert [node["outcome"] for node in data["nodes"]] == ["pass"] * 12
    assert data["topology"] == "declared" and data["rounds"] >= 5


@pytest.mark.parametrize("repeat", REPEATS)
def test_a_slow_node_is_named_and_none_else(lab: FabricLab, repeat: int) -> None:
    lab.rates("n6", sends=SLOW_KBIT, receives=SLOW_KBIT)
    named, data = lab.guilty(ALL)
    assert named == {("node", "n6")}, reported(data)
    assert [node["node"] for node in data["nodes"] if node["outcome"] != "pass"] == ["n6"]


@pytest.mark.parametrize("repeat", REPEATS)
def test_a_node_with_one_slow_direction_is_named(lab: FabricLab, repeat: int) -> None:
    lab.rates("n11", receives=SLOW_KBIT)
    named, data = lab.guilty(ALL)
    assert named == {("node", "n11")}, reported(data)


@pytest.mark.parametrize("repeat", REPEATS)
def test_a_slow_uplink_is_named_and_no_node(lab: FabricLab, repeat: int) -> None:
    lab.uplink("leaf2", UPLINK_KBIT * 4 // 10)
    named, data = lab.guilty(ALL)
    assert named == {("uplink", "leaf2")}, reported(data)
    assert {node["outcome"] for node in data["nodes"]} == {"pass"}


@pytest.mark.parametrize("repeat", REPEATS)
def test_a_node_that_dies_in_mid_run_is_named(lab: FabricLab, repeat: int) -> None:
    process = lab.start(ALL, "--json")
    assert process.stderr is not None and process.stdout is not None
    try:
        with process.stderr, process.stdout:
            for line in process.stderr:
                if "round 2" in line:
                    lab.slurm.power_off("n7")
            data = printed_json.hold("accept", process.stdout.read())
        process.wait(timeout=60)
    finally:
        lab.slurm.start_slurmd("n7", "-b")
        lab.slurm.wait_idle()
    assert [(part["kind"], part["name"]) for part in data["guilty"]] == [("gone", "n7")], reported(data)
    outcomes = {node["node"]: node["outcome"] for node in data["nodes"]}
    assert outcomes == dict.fromkeys(NODES, "pass") | {"n7": "unknown"}
    assert process.returncode == 3
    own = [pair for pair in data["pairs"] if "n7" in (pair["node_a"], pair["node_b"])]
    # on a busy machine it dies only in round 3 or later
    assert own[-1]["why"] == "n7 went down" and own[-1]["round"] < data["pairs"][-1]["round"], "a dead node gets no more pair"


@pytest.mark.slow
@pytest.mark.parametrize("repeat", REPEATS)
def test_one_slow_rail_is_named_with_both_ends(lab: FabricLab, repeat: int) -> None:
    """The links are real. The names of their ends come from a machine tree, as an agent publishes them on each node, and from a
    dump of ibnetdiscover, because veth links are no RDMA devices."""
    lab.heal(RAIL_KBIT)
    lab.write(rails=2)
    (lab.folder / "topology").write_text(rails(units=3, nodes=4, each=8).dump())
    published = render_topology(gather(Root(str(TREE)), recorded_nvml(str(TREE))))
    adapters = [line.split("\t")[7] for line in published.splitlines() if line.startswith("gpu\t")]
    files = [lab.slurm.node_dirs(node).run / "topology" for node in NODES]
    for file in files:
        file.write_text(published)
    lab.rates("n3", sends=RAIL_KBIT // 2, receives=RAIL_KBIT, rail=1)
    try:
        named, data = lab.guilty(ALL)
    finally:
        for file in files:
            file.unlink()
    assert named == {("rail", "n3")}, reported(data)
    (part,) = data["guilty"]
    port = f"leaf1-{int(adapters[1].removeprefix('mlx5_')) + 1} port 3"
    assert part["rails"] == ["1"] and part["why"].startswith(f"rail 1 ({adapters[1]}, {port}) "), part
    assert part["ends"]["1"] == [{"hca": adapters[1], "switch_port": port, "cable": ""}]
    assert {pair["rail"] for pair in data["pairs"] if pair["stage"] == "rail"} == {"0", "1"}


# -- the run itself, with a program that answers at once ------------------------------------------


QUICK = """#!/bin/sh
# Prints in the form of nccl-tests the figure that the file figures/NODE has, for the slower of the two nodes.
here=$(dirname "$0")/..
[ -e "$here/hang/$SLURMD_NODENAME" ] && echo hangs >"$here/hang/$SLURMD_NODENAME" && exec sleep 600
[ "$SLURM_PROCID" = 0 ] || exit 0
low=100
for node in $(scontrol show hostnames "$SLURM_STEP_NODELIST"); do
	read -r value <"$here/figures/$node" && [ "$value" -lt "$low" ] && low=$value
done
echo "# nccl-tests version 2.17.9 nccl-headers=22903 nccl-library=22903"
echo "# Collective test starting: all_gather_perf"
for rank in 0 1 2 3; do echo "#  Rank  $rank Group  0 Pid $((100 + rank)) on $SLURMD_NODENAME device 0 [0000:1b:00] none"; done
echo "#  size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong"
echo "8589934592 134217728 float none -1 1000 $low.0 $low.0 0 1000 $low.0 $low.0 0"
[ -e "$here/cut/$SLURMD_NODENAME" ] && exit 0
echo "# Out of bounds values : 0 OK"
echo "# Avg bus bandwidth    : $low.0"
"""


@pytest.fixture
def quick(lab: FabricLab) -> FabricLab:
    """A program that needs no second: the steps, the job, the store and the commands are real."""
    for sub in ("figures", "hang", "cut", "bin"):
        (lab.folder / sub).mkdir(exist_ok=True)
    for node in NODES:
        (lab.folder / "figures" / node).write_text("47\n")
    tool = lab.folder / "bin/quick"
    tool.write_text(QUICK)
    tool.chmod(0o755)
    lab.write(tool=str(tool), seconds=10)
    return lab


def test_a_run_that_is_killed_at_each_step_goes_on(quick: FabricLab) -> None:
    """SIGKILL after the job was submitted, in a round, between rounds, in the confirmation; at the end the result is whole."""
    (quick.folder / "figures/n5").write_text("30\n")
    run, words = "", [ALL]
    for point in ("job ", "round 1 ", "figures, from", "round 3 (confirm)", "round 5 "):
        process = quick.start(*words)
        assert process.stderr is not None and process.stdout is not None
        for line in process.stderr:
            if line.startswith("run ") and not run:
                run = line.split()[1].rstrip(":")
            if point in line:
                break
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
        process.stdout.close()
        process.stderr.close()
        words = ["--resume", run]
    code, out, err = quick.accept("--resume", run)
    assert code == 2 and "n5: fail: at most 30 GB/s" in out, out + err
    assert "found again" in err, err
    named, data = quick.guilty("--show", run)
    assert named == {("node", "n5")}
    pairs = [(p["node_a"], p["node_b"]) for p in data["pairs"]]
    assert len(pairs) == len(set(pairs)), "no pair was measured in two rounds"
    assert all(p["gbps"] for p in data["pairs"]) and data["rounds"] == 6
    until(lambda: quick.jobs() == [], "its job is gone")
    assert quick.accept("--resume", run)[:2] == (2, out), "a run that has ended is shown again"


ENDS_FIRST = """#!/bin/sh
# The steps end between squeue and scancel: by the time fairlead's scancel asks, slurmctld does not have them any more.
case $1 in [0-9]*)
	{bin}/scancel "$@"
	for step; do while {bin}/squeue -h -s -o %i | grep -qxF "$step"; do sleep 0.2; done; done
	touch {folder}/ended ;;
esac
exec {bin}/scancel "$@"
"""


def test_a_resumed_run_goes_on_if_its_old_steps_end_by_themselves(quick: FabricLab) -> None:
    """Slurm calls a step that has ended an invalid job id (22.05, seen in a test of a killed run)."""
    (quick.folder / "hang/n1").touch()
    process = quick.start(ALL)
    assert process.stderr is not None and process.stdout is not None
    with process.stderr, process.stdout:
        run = next(line.split()[1].rstrip(":") for line in process.stderr if line.startswith("run "))
        until((quick.folder / "hang/n1").read_text, "the step of n1 hangs")
        process.kill()
        process.wait(timeout=30)
    (quick.folder / "hang/n1").unlink()
    late = quick.folder / "late"
    late.mkdir()
    for tool in ("sbatch", "srun", "squeue", "scontrol"):
        (late / tool).symlink_to(quick.slurm.bin / tool)
    (late / "scancel").write_text(ENDS_FIRST.format(bin=quick.slurm.bin, folder=quick.folder))
    (late / "scancel").chmod(0o755)
    code, out, err = quick.accept("--resume", run, "--bin-dir", str(late))
    assert (quick.folder / "ended").exists(), err
    assert code == 0 and "12 pass" in out, out + err


def test_a_job_that_slurmctld_has_forgotten_is_no_error(lab: FabricLab) -> None:
    """slurmctld forgets an ended job after MinJobAge, which some sites have at a few seconds."""
    jobs = FabricJobs(conf="/etc/slurm/slurm.conf", bin_dir=str(lab.slurm.bin))
    assert jobs.state(99999) is None
    assert jobs.steps(99999, "fairlead-fabric-1") == []


def test_ctrl_c_ends_the_steps_and_the_job(quick: FabricLab) -> None:
    for node in ("n1", "n2"):
        (quick.folder / "hang" / node).touch()
    process = quick.start(ALL)
    steps = lambda: quick.slurm.run(["/usr/bin/squeue", "-h", "-s", "-o", "%i"]).stdout.split()  # noqa: E731
    until(lambda: len(steps()) > 1, "steps run")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "next: run it again: fairlead accept --fabric --resume " in err, out + err
    until(lambda: quick.jobs() == [], "no job is left")
    code, out, _ = quick.accept("--show")
    assert code == 3 and "it has not ended" in out


def test_what_hangs_is_cut_off_or_is_missing_has_its_own_words(quick: FabricLab) -> None:
    quick.write(tool=f"{quick.folder}/bin/$(cat {quick.folder}/tool/$SLURMD_NODENAME)", seconds=5)
    (quick.folder / "tool").mkdir()
    for node in NODES:
        (quick.folder / "tool" / node).write_text("quick")
    (quick.folder / "tool/n2").write_text("no-such-file")
    (quick.folder / "hang/n7").touch()
    (quick.folder / "cut/n9").touch()
    named, data = quick.guilty(ALL)
    nodes = {node["node"]: node for node in data["nodes"]}
    assert named == {("node", "n7")}, reported(data)
    assert nodes["n7"]["outcome"] == "fail" and "hung, ended after 5 s" in nodes["n7"]["why"]
    assert nodes["n2"]["outcome"] == "unknown" and "not measured: not installed" in nodes["n2"]["why"]
    cut = [p["why"] for p in data["pairs"] if "n9" in (p["node_a"], p["node_b"]) and p["gbps"] is None]
    assert cut and all("footer is missing" in why for why in cut if "not installed" not in why and "hung" not in why)
    assert all(nodes[n]["outcome"] in ("pass", "unknown") for n in NODES if n != "n7")


def test_a_command_that_is_nowhere_ends_the_run_in_one_line(quick: FabricLab) -> None:
    quick.write(tool=f"{quick.folder}/bin/no-such-file")
    code, out, err = quick.accept(ALL)
    assert code == 69 and "no pair could be measured: not installed" in err and "pair_command" in err, out + err
    until(lambda: quick.jobs() == [], "its job is gone")
    quick.write(tool="all_reduce_perf -b 8G -e 8G")
    code, _, err = quick.accept(ALL)
    assert code == 64 and "no test of a fabric" in err


def test_a_job_that_somebody_cancels_accuses_nobody_and_the_run_goes_on(quick: FabricLab) -> None:
    process = quick.start(ALL)
    assert process.stderr is not None and process.stdout is not None
    with process.stderr, process.stdout:
        for line in process.stderr:
            if "round 2 " in line:
                quick.slurm.run(["/usr/bin/scancel", "--user=root"])
                break
        err = process.stderr.read()
    assert process.wait(timeout=60) == 69 and "somebody cancelled it" in err, err
    run = err.split("--resume ")[1].split()[0]
    code, out, err = quick.accept("--resume", run)
    assert code == 0 and "12 pass" in out, out + err


def killed_in_round_2(quick: FabricLab, *words: str) -> str:
    """Start a run, end its process by SIGKILL in round 2, and return the name of the run."""
    process = quick.start(ALL, *words)
    assert process.stderr is not None and process.stdout is not None
    with process.stderr, process.stdout:
        run = next(line.split()[1].rstrip(":") for line in process.stderr if line.startswith("run "))
        assert any("round 2 " in line for line in process.stderr)
        process.kill()
        process.wait(timeout=30)
    return run


def test_a_run_whose_cancelled_job_still_completes_gets_another_job(quick: FabricLab) -> None:
    """A job that was cancelled completes until the epilog has ended on every node. No step starts in it any more."""
    slurmd = quick.slurm.run(["/bin/cat", "/run/slurmd.n12.pid"]).stdout.strip()
    run = killed_in_round_2(quick)
    quick.slurm.run(["/bin/kill", "-STOP", slurmd])
    try:
        quick.slurm.run(["/usr/bin/scancel", "--user=root"])
        states = lambda: quick.slurm.run(["/usr/bin/squeue", "-h", "-o", "%T"]).stdout.split()  # noqa: E731
        until(lambda: states() == ["COMPLETING"], "the job completes")
        process = quick.start("--resume", run)
        assert process.stderr is not None and process.stdout is not None
        said = next(line for line in process.stderr if "waits" in line or "again" in line)
        assert "waits" in said, said
    finally:
        quick.slurm.run(["/bin/kill", "-CONT", slurmd])
    with process.stderr, process.stdout:
        err, out = process.stderr.read(), process.stdout.read()
    assert process.wait(timeout=60) == 0 and "12 pass" in out, out + err


FAILS = """#!/bin/sh
# Fails at each second call, as while somebody upgrades Slurm's commands.
if [ -e {folder}/failed-$0 ]; then rm {folder}/failed-$0; exec {bin}/"${{0##*/}}" "$@"; fi
mkdir -p {folder}/failed-$0 && rmdir {folder}/failed-$0 && touch {folder}/failed-$0
echo "${{0##*/}}: error: Unspecified error" >&2
exit 1
"""


@pytest.mark.slow
def test_commands_of_slurm_that_fail_now_and_then_end_no_run(quick: FabricLab) -> None:
    """squeue and scontrol fail at each second call, while the job waits, in the rounds, and in the run that goes on."""
    (quick.folder / "cut/n9").touch()  # its pairs have no figure, so that the node is asked whether it is there
    often = quick.folder / "often"
    often.mkdir()
    for tool in ("sbatch", "srun", "sinfo", "scancel"):
        (often / tool).symlink_to(quick.slurm.bin / tool)
    for tool in ("squeue", "scontrol"):
        (often / tool).write_text(FAILS.format(bin=quick.slurm.bin, folder=quick.folder))
        (often / tool).chmod(0o755)
    run = killed_in_round_2(quick, "--bin-dir", str(often))
    code, out, err = quick.accept("--resume", run, "--bin-dir", str(often))
    assert code == 0 and "12 pass" in out and "waiting for slurmctld: squeue" in err, out + err
    assert "went down" not in out + err, out + err


def test_a_job_that_is_suspended_accuses_nobody_and_the_run_goes_on(quick: FabricLab) -> None:
    """All pairs of round 2 stand still beyond their deadline. They are measured again, and none of them hung."""
    quick.write(tool=f"sleep 2; {quick.folder}/bin/quick", seconds=5)
    process = quick.start(ALL, "--json")
    assert process.stderr is not None and process.stdout is not None
    with process.stderr, process.stdout:
        assert any("round 2 " in line for line in process.stderr)
        time.sleep(1)  # the steps may have begun or not
        (job,) = quick.jobs()
        quick.slurm.scontrol("suspend", job)
        time.sleep(8)
        quick.slurm.scontrol("resume", job)
        err, out = process.stderr.read(), process.stdout.read()
    assert process.wait(timeout=60) == 0 and f"job {job} was suspended: its pairs are measured again" in err, out + err
    data = printed_json.hold("accept", out)
    assert all(pair["gbps"] for pair in data["pairs"]), reported(data)
    until(lambda: quick.jobs() == [], "its job is gone")


@pytest.mark.slow
def test_a_job_that_stays_suspended_is_no_job_that_has_ended(quick: FabricLab) -> None:
    """No step starts in it. So nobody knows whether its nodes are gone."""
    (quick.folder / "hang/n1").touch()
    process = quick.start(ALL, "--max-wait=5")
    assert process.stderr is not None and process.stdout is not None
    until((quick.folder / "hang/n1").read_text, "the step of n1 hangs")
    quick.slurm.scontrol("suspend", *quick.jobs())
    (quick.folder / "hang/n1").unlink()
    out, err = process.communicate(timeout=240)
    assert process.returncode == 69 and "did not run in 5 s (is suspended); it is cancelled" in err, out + err
    assert "has ended" not in err and "went down" not in err
    until(lambda: quick.jobs() == [], "its job is gone")
    code, out, err = quick.accept("--resume", err.split("--resume ")[1].split()[0])
    assert code == 0 and "12 pass" in out, out + err


def test_a_node_that_starts_no_job_is_left_out_and_keeps_no_other_waiting(quick: FabricLab) -> None:
    """n12 is drained before the run. n5 is drained when the run was killed, and n2 while the next job of the run waits. n3 has
    taken part and is down, so that it may have spoiled figures."""
    drained = lambda node: quick.slurm.scontrol("update", f"nodename={node}", "state=drain", "reason=riser swap")  # noqa: E731
    drained("n12")
    try:
        process = quick.start(ALL)
        assert process.stderr is not None and process.stdout is not None
        with process.stderr, process.stdout:
            first = process.stderr.readline()
            assert "n12: left out: slurmctld has it DRAIN (riser swap), and it starts no job" in first, first
            run = next(line.split()[1].rstrip(":") for line in process.stderr if line.startswith("run "))
            assert any("round 2 " in line for line in process.stderr)
            process.kill()
            process.wait(timeout=30)
        quick.slurm.run(["/usr/bin/scancel", "--user=root"])
        until(lambda: quick.jobs() == [], "its job is gone")
        drained("n5")
        quick.slurm.scontrol("update", "nodename=n3", "state=down", "reason=pulled")
        other = quick.slurm.submit("#!/bin/sh\nexec sleep 300\n", "-wn1", "--exclusive", user="")
        process = quick.start("--resume", run)
        assert process.stderr is not None and process.stdout is not None
        with process.stderr, process.stdout:
            assert any("waits" in line for line in process.stderr)
            drained("n2")
            assert any("n2: left out" in line for line in process.stderr)
            quick.slurm.run(["/usr/bin/scancel", str(other)])
            err, out = process.stderr.read(), process.stdout.read()
        assert process.wait(timeout=60) == 3 and "n3: unknown: it went down in the run: slurmctld has it DOWN (pulled)" in out, (
            out + err
        )
        assert "note: n5 was left out: slurmctld has it DRAIN (riser swap), and it starts no job" in out, out
        named, data = quick.guilty("--show", run)
        outcomes = {node["node"]: node["outcome"] for node in data["nodes"]}
        assert named == {("gone", "n3")} and set(data["left_out"]) == {"n2", "n5", "n12"}, reported(data)
        assert all(outcome == "pass" for node, outcome in outcomes.items() if node not in ("n2", "n3", "n5")), outcomes
    finally:
        for node in ("n12", "n5", "n3", "n2"):
            quick.slurm.scontrol("update", f"nodename={node}", "state=resume", check=False)
    until(lambda: quick.jobs() == [], "its job is gone")


@pytest.mark.slow
@pytest.mark.parametrize("away", ["restart", "stop"])
def test_a_slurmctld_that_is_away_in_mid_run_accuses_nobody(quick: FabricLab, away: str) -> None:
    """While it is away, no step starts on any node. If it is back before it is asked, the run goes on; else it is resumed."""
    process = quick.start(ALL)
    assert process.stderr is not None and process.stdout is not None
    with process.stderr, process.stdout:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "round 2 " in line:
                quick.slurm.stop_slurmctld()
                if away == "restart":
                    quick.slurm.start_slurmctld()
        code, said, out = process.wait(timeout=60), "".join(lines), process.stdout.read()
    if away == "stop":
        quick.slurm.start_slurmctld()
        assert code == 75 and "the job goes on" in said, said
        run = said.split("run ")[1].split(":")[0]
        until(lambda: quick.slurm.run(["/usr/bin/scontrol", "ping"], check=False).returncode == 0, "slurmctld answers")
        code, out, said = quick.accept("--resume", run)
    assert code == 0 and "12 pass" in out, out + said


def test_only_nodes_with_a_fresh_pass_take_part(quick: FabricLab) -> None:
    quick.store.unlink()
    passes(quick.store, NODES[:8])
    passes(quick.store, ("n1",), outcome="warn")
    passes(quick.store, ("n12",), age_seconds=8 * 86400)
    code, out, err = quick.accept(ALL, "--dry-run")
    assert code == 0, err
    assert "n1: left out: its newest result alone is warn" in err and "n12: left out: its pass alone is 8 days old" in err
    assert "n[9-11]: left out: it was never measured alone" in err
    assert "# 7 nodes, topology declared" in out and "--no-kill" in out and quick.jobs() == []
    quick.store.unlink()
    passes(quick.store, NODES[:2])
    code, _, err = quick.accept(ALL)
    assert code == 64 and "2 of 12 nodes passed alone" in err


def test_two_runs_are_listed_compared_and_written(quick: FabricLab) -> None:
    assert quick.accept(ALL, "-q")[0] == 0
    (quick.folder / "figures/n5").write_text("30\n")
    code, out, _ = quick.accept(ALL, "-q", f"--csv={quick.folder}/pairs.csv", f"--html={quick.folder}/map.html")
    assert code == 2
    with sqlite3.connect(quick.store) as db:
        runs = [run for (run,) in db.execute("SELECT run FROM fabric_run ORDER BY began")]
    code, compared, _ = quick.accept("--compare", *runs)
    assert code == 0 and "n5: pass -> fail: at most 30 GB/s" in compared and "new: n5: fail" in compared
    code, history, _ = quick.accept("--history")
    assert code == 0 and "node n5" in history and all(run in history for run in runs)
    assert "30 GB/s" in (quick.folder / "map.html").read_text()
    topology = f"--topology={quick.folder}/topology"
    code, judged, err = quick.accept(f"--judge={quick.folder}/pairs.csv", topology)
    assert code == 2 and judged.splitlines()[0] == out.splitlines()[0], judged + err
    code, judged, _ = quick.accept(f"--judge={quick.folder}/pairs.csv", topology, "--fail-below=0.5", "--warn-below=0.6")
    assert code == 0 and "12 pass" in judged


SSH = """#!{python}
import os, sys
node = sys.argv[sys.argv.index("--") + 1]
words = sys.argv[-1]
with open("{folder}/ssh.log", "a") as log:
    log.write(node + ": " + words + "\\n")
os.execv("/bin/sh", ["/bin/sh", "-c", words.replace("/opt/fairlead/current/bin/fairlead drain",
    "{python} -m fairlead drain --document {folder}/" + node + ".json", 1)])
"""


def test_only_a_failed_node_is_drained_and_only_on_request(quick: FabricLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The drain is that of the node's own fairlead, with its ledger and its budget; only ssh is replaced, by a shell here."""
    (quick.folder / "figures/n5").write_text("30\n")
    (quick.folder / "figures/n10").write_text("42\n")  # warns
    ssh = quick.folder / "ssh"
    ssh.write_text(SSH.format(python=sys.executable, folder=quick.folder))
    ssh.chmod(0o755)
    for node in NODES:
        state = quick.folder / f"state-{node}"
        state.mkdir()
        made = profile_document(node)
        slurm = replace(made.slurm, node_name=node, conf="/etc/slurm/slurm.conf", bin_dir=str(quick.slurm.bin))
        agent = replace(made.agent, state_dir=str(state), run_dir=str(state))
        (quick.folder / f"{node}.json").write_bytes(encode_document(replace(made, slurm=slurm, agent=agent)))
    code, out, err = quick.accept(ALL, "-q")
    assert code == 2 and "n5: fail" in out and "n10: warn" in out, out + err
    assert quick.slurm.node_state("n5").reason == "", "nobody asked for a drain"
    code, out, err = quick.accept("--show", "--drain", "--dry-run", f"--ssh={ssh}")
    assert "n5: would be drained with: slow over the fabric" in out and not (quick.folder / "ssh.log").exists()
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2] / "agent"))
    code, out, err = quick.accept("--show", "--drain", f"--ssh={ssh}")
    try:
        assert "n5: drained" in out, out + err
        state = quick.slurm.node_state("n5")
        assert "DRAIN" in state.states and state.reason.startswith("fairlead:manual:") and "slow over the fabric" in state.reason
        assert (quick.folder / "ssh.log").read_text().count("\n") == 1
        assert quick.slurm.node_state("n10").reason == ""
    finally:
        quick.slurm.scontrol("update", "nodename=n5", "state=resume", check=False)
