"""`fairlead accept` against real Slurm; the programs that it runs are stand-ins (standin.py)."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from fairlead.errors import HostError
from fairlead.measure import acceptance_plan
from fairlead.measure.acceptance_run import NODES_SECONDS, AcceptanceRun
from fairlead.measure.results_store import ResultStore
from fairlead.measure.slurm_jobs import AcceptanceJobs
from tests import printed_json
from tests.measure.conftest import Site

pytestmark = [pytest.mark.slurm]
QUICK = "--tools=all_reduce"
SLEEP = "#!/bin/sh\nexec sleep 300\n"


def whys(node: dict[str, object]) -> str:
    return str(node["why"])


def test_all_pass_and_it_can_be_shown_again(site: Site) -> None:
    code, out, err = site.accept("n[1-4]")
    assert code == 0, out + err
    assert [f"n{i}: pass" in out for i in range(1, 5)] == [True] * 4
    assert "no RDMA adapter" in out and "the class alone judges" in out  # gemm has no reference
    assert "all_reduce.busbw at 16 GiB: 105% to 106% of the theoretical 450 GB/s (ring; NVLS" in out
    assert "4 jobs submitted" in err and "[4/4]" in err
    assert site.accept("--show")[:2] == (0, out)
    code, nodes = site.data("--show")
    one = nodes["n1"]
    assert one["serials"][0] == "16000159000" and one["driver"] == "580.95.05" and one["gpus"] == "8 x NVIDIA H100 80GB HBM3"
    (all_reduce,) = (t for t in one["tools"] if t["tool"] == "all_reduce")
    assert all_reduce["versions"] == {"nccl-tests": "2.17.9", "nccl": "2.29.3", "cuda": "13.1"}
    assert all_reduce["figures"][0]["reference"] == 470.0 and all_reduce["figures"][0]["class_nodes"] == 3
    assert all_reduce["figures"][0]["peak"]["share"] > 1
    code, raw, _ = site.accept("n2", "--show", "--raw", "all_reduce")
    assert code == 0 and "# Avg bus bandwidth" in raw
    code, history, _ = site.accept("--history")
    assert code == 0 and "pass: n[1-4]" in history
    # One node alone later: it is compared with what the store has of its class.
    site.mode("n5", "nvbandwidth", "slow 40")
    code, nodes = site.data("n5", "--tools=copy")
    assert code == 2 and whys(nodes["n5"]).startswith("copy "), whys(nodes["n5"])
    assert "0.60 of the class median" in whys(nodes["n5"]) and "(4 other nodes)" in whys(nodes["n5"])
    assert "more figures" in whys(nodes["n5"])


def test_each_fault_has_its_own_words(site: Site) -> None:
    site.write(accept="[accept.seconds]\nall_reduce = 10")
    for node, mode in (("n1", "slow 30"), ("n2", "wrong"), ("n3", "hang"), ("n4", "crash"), ("n5", "corrupt")):
        site.mode(node, "all_reduce_perf", mode)
    code, nodes = site.data("n[1-5]", QUICK)
    assert code == 2
    assert {n: node["outcome"] for n, node in nodes.items()} == {
        "n1": "fail",
        "n2": "fail",
        "n3": "fail",
        "n4": "fail",
        "n5": "unknown",
    }
    assert "all_reduce busbw at 16 GiB 333.9 GB/s" in whys(nodes["n1"]) and "0.71 of the reference 470" in whys(nodes["n1"])
    assert whys(nodes["n2"]) == "all_reduce: 6 wrong values"
    assert whys(nodes["n3"]) == "all_reduce: hung, ended after 10 s: 8 ranks listed, 2 sizes done, the last of 2 GiB"
    assert whys(nodes["n4"]) == "all_reduce: crashed (SIGSEGV): 8 ranks listed, 2 sizes done, the last of 2 GiB"
    assert whys(nodes["n5"]) == "all_reduce: damaged: no row of 2 GiB"
    assert site.jobs() == []


def test_siblings_find_the_slow_one_without_a_reference(site: Site) -> None:
    site.write(profile="l40s-pcie")
    site.mode("n2", "all_reduce_perf", "slow 8")
    site.mode("n3", "all_reduce_perf", "nofooter")
    code, nodes = site.data("n[1-5]", QUICK)
    assert code == 3  # n3 is not known
    assert [nodes[f"n{i}"]["outcome"] for i in range(1, 6)] == ["pass", "warn", "unknown", "pass", "pass"]
    assert "0.92 of the class median" in whys(nodes["n2"]) and "(3 other nodes)" in whys(nodes["n2"])
    assert "footer is missing" in whys(nodes["n3"])
    (site.folder / "accept.sqlite").unlink()
    code, nodes = site.data("n[4-5]", QUICK)
    assert code == 3 and "no reference: profile l40s-pcie has no reference, and 1 other node" in whys(nodes["n4"])


def test_what_is_not_there_and_ranks_of_several_processes(site: Site) -> None:
    (site.folder / "bin/gpu_burn").unlink()
    (site.folder / "bin/dcgmi").unlink()
    command = "srun --cpu-bind=none -n 8 all_reduce_perf -b 16G -e 16G -g 1"
    site.write(accept=f"[accept.commands]\nall_reduce = '{command}'")
    site.mode("n2", "all_reduce_perf", "rank 3")
    site.mode("n3", "all_reduce_perf", "lost 1")
    code, nodes = site.data("n[1-3]", "--tools=all_reduce,gemm", "--sbatch=--ntasks=8")
    assert code == 2
    assert whys(nodes["n1"]) == "gemm: not installed" and nodes["n1"]["outcome"] == "unknown"
    (all_reduce,) = (t for t in nodes["n1"]["tools"] if t["tool"] == "all_reduce")
    assert all_reduce["outcome"] == "pass" and all_reduce["figures"][0]["bytes"] == 16 << 30  # only the first rank prints
    assert "Test NCCL failure common.cu:1108 'unhandled cuda error'" in whys(nodes["n2"])
    assert "Invalid number of GPUs: 8 requested" in whys(nodes["n3"])
    site.write()
    code, nodes = site.data("n1", "--tools=dcgm")
    assert code == 3 and whys(nodes["n1"]) == "dcgm: not installed"  # asked for by name
    code, nodes = site.data("n[1-4]", "--tools=copy")
    assert code == 0


HOSTILE = r"""
out=$(ls {folder}/out/*.$SLURMD_NODENAME.out)
mark=$(sed -n "s/ node $SLURMD_NODENAME//p" $out)
script=$(cut -d" " -f4 /proc/$PPID/stat)
case $SLURMD_NODENAME in
n1) rm $out && mkfifo $out && kill -9 $script ;;
n2) rm $out && ln -s {secret} $out && kill -9 $script ;;
n3) (sed "s/ node n3/ node n5/" $out && echo "$mark done") > $out.new && mv $out.new $out ;;
n4) printf "\033[2J\033]0;t\007\302\2331m\342\200\256\r\nn5: fail [red]x[/red]\n"; exit 3 ;;
n5) exec all_reduce_perf -b 1G -e 16G -f 2 -g 8 ;;
esac
"""


def test_a_hostile_node_spoils_its_own_result_and_no_other(site: Site) -> None:
    """Its root may write in the folder that is shared: a pipe or a link in the place of its output, an output of another node."""
    secret = site.folder / "secret"
    secret.write_text("canary-71d2")
    hostile = site.folder / "hostile"
    hostile.write_text(HOSTILE.format(folder=site.folder, secret=secret))
    site.write(accept=f"[accept.commands]\nall_reduce = '. {hostile}'")
    _, out, err = site.accept("n[1-5]", QUICK)
    _, nodes = site.data("--show")
    assert {n: node["outcome"] for n, node in nodes.items()} == {
        **dict.fromkeys(("n1", "n2", "n3", "n4"), "unknown"),
        "n5": "pass",
    }
    assert "gave no output" in whys(nodes["n1"]) and "gave no output" in whys(nodes["n2"])
    assert whys(nodes["n3"]) == "its output says that it is of another node: n5"
    raw = site.accept("n4", "--show", "--raw", "all_reduce")[1]
    assert "n5: fail [red]x[/red]" in raw and "n5: fail" in whys(nodes["n4"])
    for written in (out, err, raw, json.dumps(nodes), site.accept("--history")[1]):
        assert "canary" not in written and [c for c in written if c != "\n" and not c.isprintable()] == []
    assert not [line for line in out.splitlines() if line.startswith("n5: fail")]


def test_an_output_that_does_not_end_is_that_nodes_alone(site: Site) -> None:
    hostile = site.folder / "hostile"
    hostile.write_text(
        "case $SLURMD_NODENAME in\nn1) yes | head -c 30000000 ;;\nesac\nexec all_reduce_perf -b 1G -e 16G -f 2 -g 8\n"
    )
    site.write(accept=f"[accept.commands]\nall_reduce = '. {hostile}'")
    site.accept("n[1-2]", QUICK)
    _, nodes = site.data("--show")
    assert {n: node["outcome"] for n, node in nodes.items()} == {"n1": "unknown", "n2": "pass"}
    assert "its output is longer than 8 MiB" in whys(nodes["n1"])


def test_no_script_is_written_through_a_link_that_a_node_has_put_there(site: Site) -> None:
    site.write()
    precious = site.folder / "precious"
    precious.write_text("precious")
    plan = acceptance_plan.make(["n1"], None, profile="hgx-h100", folder=str(site.folder / "out"))
    (site.folder / "out").mkdir()
    (site.folder / "out" / f"{plan.job_name}.n1.sh").symlink_to(precious)
    store = ResultStore(str(site.folder / "accept.sqlite"))
    jobs = AcceptanceJobs(conf="/etc/slurm/slurm.conf", bin_dir=str(site.slurm.bin))
    with pytest.raises(HostError, match="File exists"):
        AcceptanceRun(plan, jobs, store, lambda text: None).measure()
    store.close()
    assert precious.read_text() == "precious" and site.jobs() == []


def test_ctrl_c_cancels_its_jobs_and_no_other(site: Site) -> None:
    other = site.slurm.submit(SLEEP, "-wn5", user="")
    for node in ("n1", "n2"):
        site.mode(node, "all_reduce_perf", "hang")
    process = site.start("n[1-3]", QUICK)
    site.until(lambda: len(site.jobs()) == 3, "n1, n2 hang, and the other job")
    site.until(lambda: all(site.slurm.job_state(int(j)) == "RUNNING" for j in site.jobs()), "they run")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "its jobs are cancelled" in err and "interrupted" in err
    site.until(lambda: site.jobs() == [str(other)], "only the other job is left")
    code, nodes = site.data("--show")
    assert code == 3 and "interrupted" in whys(nodes["n1"])
    assert [t["outcome"] for t in nodes["n3"]["tools"]] in (["unknown"], [])  # measured, and not judged, if it was in time


@pytest.mark.parametrize("way", ["resume", "cancel"])
def test_a_killed_run_is_found(site: Site, way: str) -> None:
    site.mode("n1", "all_reduce_perf", "hang")
    if way == "resume":
        site.write(accept="[accept.seconds]\nall_reduce = 10")
    process = site.start("n[1-2]", QUICK)
    site.until(lambda: site.jobs() and all(site.slurm.job_state(int(j)) == "RUNNING" for j in site.jobs()), "it runs")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    code, _, err = site.accept("n1", QUICK)
    assert code == 75 and "which was killed, still has n1" in err
    run = err.split("of run ")[1].split(",")[0]
    assert f"fairlead accept --resume {run} goes on with it; --cancel {run} ends it" in err
    if way == "cancel":
        code, out, _ = site.accept("--cancel", run)
        assert code == 0 and "on n1" in out and out.endswith(" cancelled\n")
    else:
        code, out, err = site.accept("--resume", run)
        assert code == 2 and "n1: fail: all_reduce: hung" in out and "n2: pass" in out, out + err
        assert site.accept("--resume", run)[:2] == (2, out)  # once more changes nothing
    site.until(lambda: site.jobs() == [], "no job is left")


def test_jobs_that_do_not_start_or_are_ended_by_others(site: Site) -> None:
    site.slurm.submit(SLEEP, "-wn1", "--exclusive", user="")
    site.slurm.scontrol("update", "nodename=n2", "state=drain", "reason=riser swap")
    for node in ("n3", "n4", "n5"):
        site.mode(node, "all_reduce_perf", "hang")
    process = site.start("n[1-5]", QUICK, "--max-wait=15", "--json")

    def running(node: str) -> str:
        return site.slurm.run(["/usr/bin/squeue", "-h", "-t", "R", "-w", node, "-o", "%A"]).stdout.strip()

    site.until(lambda: all(running(n) and site.wrote(n, "2147483648") for n in ("n3", "n4", "n5")), "three hang")
    site.slurm.run(["/usr/bin/scancel", running("n3")])
    site.slurm.scontrol("update", "nodename=n4", "state=down", "reason=pulled")
    site.slurm.scontrol("update", "nodename=n5", "state=drain", "reason=later")  # a running job goes on
    site.until(lambda: len(site.jobs()) == 2, "n5, and the one that was there before")
    site.slurm.run(["/usr/bin/scancel", "--signal=KILL", running("n5")])
    out, err = process.communicate(timeout=120)
    nodes = {n["node"]: n for n in printed_json.hold("accept", out)["nodes"]}
    assert process.returncode == 3, out + err
    assert all(n["outcome"] == "unknown" for n in nodes.values())
    assert "did not start in 15 s" in whys(nodes["n1"]) and "it is cancelled" in whys(nodes["n1"])
    assert whys(nodes["n2"]) == "not submitted: the node is in state DRAIN (riser swap) and starts no job"
    assert "the job was cancelled by somebody" in whys(nodes["n3"]) and "2 sizes done" in whys(nodes["n3"])
    assert "the node failed while the job ran" in whys(nodes["n4"])
    assert nodes["n5"]["tools"][0]["outcome"] == "unknown"


ENDS_FIRST = """#!/bin/sh
# The job ends between squeue and scancel: by the time fairlead's scancel asks, it has ended.
for last; do :; done
case $last in [0-9]*) {bin}/scancel "$last" && touch {folder}/ended ;; esac
exec {bin}/scancel "$@"
"""


@pytest.mark.release("trixie")
def test_a_job_that_ends_while_it_is_cancelled_stops_no_other(site: Site) -> None:
    """Slurm calls a job that has ended an invalid job id. The other nodes of the run are measured all the same."""
    site.slurm.submit(SLEEP, "-wn1", "--exclusive", user="")
    late = site.folder / "late"
    late.mkdir()
    for tool in ("sbatch", "squeue", "scontrol", "sinfo", "sacct"):
        (late / tool).symlink_to(site.slurm.bin / tool)
    (late / "scancel").write_text(ENDS_FIRST.format(bin=site.slurm.bin, folder=site.folder))
    (late / "scancel").chmod(0o755)
    code, nodes = site.data("n[1-2]", QUICK, "--max-wait=10", "--bin-dir", str(late))
    assert (site.folder / "ended").exists()
    assert code == 3 and "did not start in 10 s" in whys(nodes["n1"]) and nodes["n2"]["outcome"] == "pass", nodes


#: What slurmctld does with a job whose node came up other than it was asked for (slurm.h, JOB_RECONFIG_FAIL; job_mgr.c,
#: _job_requeue_op): where the job may not be requeued, BOOT_FAIL.
NOT_AS_ASKED = """import ctypes, glob, sys
lib = ctypes.CDLL(glob.glob("/usr/lib/*/slurm-wlm/libslurmfull.so")[0], mode=ctypes.RTLD_GLOBAL)
lib.slurm_init(None)
lib.slurm_requeue(int(sys.argv[1]), 1 << 17)
"""


def test_a_node_that_does_not_boot_and_a_job_that_is_preempted(site: Site) -> None:
    """Neither says anything of the node; a preempted job is not run a second time."""
    for node in ("n1", "n2"):
        site.mode(node, "all_reduce_perf", "hang")
    process = site.start("n[1-2]", QUICK, "--json")

    def job(node: str) -> str:
        return site.slurm.run(["/usr/bin/squeue", "-h", "-t", "R", "-p", "main", "-w", node, "-o", "%A"]).stdout.strip()

    site.until(lambda: all(job(n) and site.wrote(n, "2147483648") for n in ("n1", "n2")), "both hang")
    first, second = job("n1"), job("n2")
    site.slurm.run(["/usr/bin/python3", "-c", NOT_AS_ASKED, first])
    urgent = site.slurm.submit(SLEEP, "-wn2", "-purgent", "--exclusive", user="")
    out, err = process.communicate(timeout=180)
    assert process.returncode == 3, out + err
    states = site.slurm.run(["/usr/bin/squeue", "-h", "-t", "all", "-j", f"{first},{second}", "-o", "%A %T"]).stdout.split("\n")
    assert sorted(filter(None, states)) == sorted([f"{first} BOOT_FAIL", f"{second} PREEMPTED"])
    nodes = {n["node"]: n for n in printed_json.hold("accept", out)["nodes"]}
    assert {n: node["outcome"] for n, node in nodes.items()} == {"n1": "unknown", "n2": "unknown"}
    assert "the node did not boot for the job" in whys(nodes["n1"]) and "2 sizes done" in whys(nodes["n1"])
    assert "the job was preempted" in whys(nodes["n2"]) and "2 sizes done" in whys(nodes["n2"])
    site.until(lambda: site.slurm.job_state(urgent) == "RUNNING", "the urgent job runs in its place")


def test_in_a_reservation(site: Site) -> None:
    """The nodes of the reservation, while nobody else's job starts there."""
    what = ("Nodes=n[2-3]", "Users=root", "StartTime=now", "Duration=60", "Flags=MAINT")
    site.slurm.scontrol("create", "reservation", "ReservationName=acceptance", *what)
    try:
        other = site.slurm.submit(SLEEP, "-wn2", user="")
        code, nodes = site.data("--reservation=acceptance", QUICK)
        assert code == 0 and set(nodes) == {"n2", "n3"}, nodes
        shown = site.slurm.run(["/usr/bin/squeue", "-h", "-t", "all", "-o", "%A %T %v"]).stdout.splitlines()
        measured = job_numbers(site)
        assert [line.split()[1:] for line in shown if line.split()[0] in measured] == [["COMPLETED", "acceptance"]] * 2
        assert site.slurm.job_state(other) == "PENDING"
        code, nodes = site.data("n1", "--reservation=acceptance", QUICK, "--max-wait=1")
        assert code == 3 and nodes["n1"]["outcome"] == "unknown" and site.jobs() == [str(other)]
    finally:
        site.slurm.run(["/usr/bin/scancel", "--user=root"], check=False)
        site.until(lambda: not site.jobs(), "no job is left")
        site.slurm.scontrol("delete", "reservation=acceptance")


def job_numbers(site: Site) -> set[str]:
    """The jobs of the last run."""
    with contextlib.closing(sqlite3.connect(site.folder / "accept.sqlite")) as store:
        return {str(job) for (job,) in store.execute("SELECT job FROM node WHERE job IS NOT NULL")}


def fill(file: io.FileIO) -> None:
    with contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_a_full_disk_is_one_line_and_leaves_no_job(site: Site) -> None:
    disk = site.folder / "disk"
    disk.mkdir()
    site.mode("n1", "all_reduce_perf", "hang")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], check=True)
    try:
        process = site.start("n[1-2]", QUICK, f"--store={disk}/accept.sqlite")
        assert process.stderr is not None
        while "n2: measured" not in (line := process.stderr.readline()):
            assert line, "it ended"
        with (disk / "filler").open("wb", buffering=0) as file:
            fill(file)
            site.slurm.run(["/usr/bin/scancel", *site.jobs()])
            while process.poll() is None:  # what a transaction before has given back is taken too
                fill(file)
                time.sleep(0.01)
        _, err = process.communicate(timeout=60)
        lines = [line for line in err.splitlines() if line.startswith("fairlead accept: ")]
        assert process.returncode == 69 and len(lines) == 1, err
        told = ("database or disk is full", "disk I/O error")  # by which file of SQLite's has no room first
        assert lines[0] in [f"fairlead accept: {disk}/accept.sqlite: {each}" for each in told]
        (disk / "filler").unlink()
        code, out, _ = site.accept("--show", f"--store={disk}/accept.sqlite")
        assert code == 3 and "n2" in out and "n1: unknown" in out  # what was written before is whole
        process = site.start("n3", QUICK, "--store=/proc/accept.sqlite")
        assert "fairlead accept: /proc/accept.sqlite: " in process.communicate(timeout=60)[1] and process.returncode == 69
        assert site.jobs() == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_dry_run_submits_nothing(site: Site) -> None:
    code, out, _ = site.accept("n[1-2]", "--dry-run", "--reservation=none", "--sbatch=--account=ops")
    assert code == 0 and out.count("#!/bin/sh") == 2 and "# n2: sbatch --parsable" in out
    assert "--reservation=none" in out and "--account=ops" in out and "--exclusive" in out and "--no-requeue" in out
    assert site.jobs() == [] and not (site.folder / "out").exists() and not (site.folder / "accept.sqlite").exists()


def test_bad_input_is_one_line(site: Site) -> None:
    for words, code, says in (
        ((), 64, "name the nodes"),
        (("n9",), 66, "Slurm has no node n9"),
        (("n[1-",), 64, "makes no sense"),
        (("n1", "--tools=linpack"), 64, "no such tool"),
        (("--partition=gone",), 66, "no node in partition gone"),
        (("--show", "nothing"), 66, "no results yet"),
        (("n1", "--raw=copy"), 64, "--raw needs --show"),
    ):
        got, out, err = site.accept(*words)
        assert got == code and says in err.splitlines()[0] and not out, err
    site.write(accept="[accept.commands]\nlinpack = 'x'")
    got, _, err = site.accept("n1")
    assert got == 78 and "site.toml: accept.commands: no tool 'linpack'" in err
    assert site.jobs() == []


# -- what others do to its jobs meanwhile ---------------------------------------------------------


def running(site: Site, node: str) -> str:
    """The job that runs on the node."""
    return site.slurm.run(["/usr/bin/squeue", "-h", "-t", "R", "-w", node, "-o", "%A"]).stdout.strip()


def test_a_job_that_is_suspended_or_ended_early_accuses_no_node(site: Site) -> None:
    """The tool of n1 stands still beyond its deadline. Slurm ends the job of n2 before its time limit, as at the end of a
    reservation, while its tool runs."""
    slow = f"all_reduce = 'touch {site.folder}/$SLURMD_NODENAME; sleep 2; all_reduce_perf -b 1G -e 16G -f 2 -g 8'"
    site.write(accept=f"[accept.commands]\n{slow}\n[accept.seconds]\nall_reduce = 6")
    site.mode("n2", "all_reduce_perf", "hang")
    site.write(accept=f"[accept.commands]\n{slow}\n[accept.seconds]\nall_reduce = 60")
    second = site.start("n2", QUICK, "--json", f"--store={site.folder}/second.sqlite")
    site.until(lambda: site.wrote("n2", "2147483648"), "n2 hangs")
    site.slurm.scontrol("update", f"jobid={running(site, 'n2')}", "EndTime=now")
    site.write(accept=f"[accept.commands]\n{slow}\n[accept.seconds]\nall_reduce = 6")
    first = site.start("n1", QUICK, "--json")
    site.until((site.folder / "n1").exists, "the tool of n1 runs")
    job = running(site, "n1")
    site.slurm.scontrol("suspend", job)
    assert first.stderr is not None
    assert any("is suspended" in line for line in first.stderr)
    time.sleep(8)
    site.slurm.scontrol("resume", job)
    for process, says in ((first, "suspended while it ran"), (second, "Slurm ended the job early")):
        out, err = process.communicate(timeout=120)
        (found,) = printed_json.hold("accept", out)["nodes"]
        assert process.returncode == 3 and found["outcome"] == "unknown" and says in whys(found), out + err


SUBMITS_LATE = """#!/bin/sh
# Says that it was called, and asks slurmctld only when the test lets it.
touch {folder}/asked
while [ ! -e {folder}/go ]; do sleep 0.1; done
exec {bin}/sbatch "$@"
"""


def in_place_of(site: Site, tool: str, script: str) -> Path:
    """A folder with Slurm's commands, and this script in place of one of them."""
    folder = site.folder / f"in-place-of-{tool}"
    folder.mkdir()
    for each in ("sbatch", "scancel", "squeue", "scontrol", "sinfo", "sacct"):
        if each != tool:
            (folder / each).symlink_to(site.slurm.bin / each)
    (folder / tool).write_text(script.format(bin=site.slurm.bin, folder=site.folder))
    (folder / tool).chmod(0o755)
    return folder


def test_a_slurmctld_that_restarts_ends_no_run(site: Site) -> None:
    """It is away while a job is submitted, and while jobs wait. After its restart it has every node as UNKNOWN until it has asked
    it."""
    others = [str(site.slurm.submit(SLEEP, f"-w{node}", "--exclusive", user="")) for node in ("n3", "n4")]
    waits = site.start("n[3-4]", QUICK, "--json", f"--store={site.folder}/other.sqlite")
    submits = site.start("n[1-2]", QUICK, "--json", "--bin-dir", str(in_place_of(site, "sbatch", SUBMITS_LATE)))
    assert waits.stderr is not None
    assert any("waits" in line for line in waits.stderr)
    site.until((site.folder / "asked").exists, "it submits")
    site.slurm.stop_slurmctld()
    (site.folder / "go").touch()
    time.sleep(NODES_SECONDS + 1)  # so that the states of the nodes are read as soon as slurmctld answers
    site.slurm.start_slurmctld()
    out, err = submits.communicate(timeout=120)
    assert submits.returncode == 0, out + err
    assert "waiting for slurmctld: sbatch" in err and "2 jobs submitted" in err, err
    site.slurm.run(["/usr/bin/scancel", *others])
    out, err = waits.communicate(timeout=120)
    assert waits.returncode == 0, out + err


def test_a_job_that_completes_for_long_is_measured_and_holds_no_other_run_up(site: Site) -> None:
    """slurmd of n1 and n2 does not answer, as in an epilog that hangs. The tool of n1 has ended, and the run of n2 is stopped by
    Ctrl-C. Another run on n2 begins meanwhile: nobody has killed a run."""
    site.mode("n2", "all_reduce_perf", "hang")
    other = site.start("n2", QUICK)
    site.until(lambda: site.wrote("n2", "2147483648"), "n2 hangs")
    late = f"all_reduce = 'touch {site.folder}/runs; sleep 3; all_reduce_perf -b 1G -e 16G -f 2 -g 8'"
    site.write(accept=f"[accept.commands]\n{late}")
    process = site.start("n1", QUICK, "--json", f"--store={site.folder}/second.sqlite")
    site.until((site.folder / "runs").exists, "the tool of n1 runs")
    slurmds = [site.slurm.run(["/bin/cat", f"/run/slurmd.{node}.pid"]).stdout.strip() for node in ("n1", "n2")]
    site.slurm.run(["/bin/kill", "-STOP", *slurmds])
    try:
        other.send_signal(signal.SIGINT)
        out, err = other.communicate(timeout=60)
        assert other.returncode == 130, out + err
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0 and printed_json.hold("accept", out)["nodes"][0]["outcome"] == "pass", out + err
        states = site.slurm.run(["/usr/bin/squeue", "-h", "-o", "%T"]).stdout.split()
        assert states == ["COMPLETING"] * 2, states
        site.mode("n2", "all_reduce_perf", "ok")
        again = site.start("n2", QUICK)
        assert again.stderr is not None
        assert "1 jobs submitted" in (line := again.stderr.readline()), line
    finally:
        site.slurm.run(["/bin/kill", "-CONT", *slurmds])
    out, err = again.communicate(timeout=60)
    assert again.returncode == 0, out + err


FAILS = """#!/bin/sh
# Fails at each second call, as while somebody upgrades Slurm's commands.
if [ -e {folder}/failed-{{tool}} ]; then rm {folder}/failed-{{tool}}; exec {bin}/{{tool}} "$@"; fi
touch {folder}/failed-{{tool}}
echo "{{tool}}: error: Unspecified error" >&2
exit 1
"""


def test_commands_of_slurm_that_fail_now_and_then_end_no_run(site: Site) -> None:
    """The job of n1 does not start, and scancel refuses once to end it."""
    site.slurm.submit(SLEEP, "-wn1", "--exclusive", user="")
    folder = in_place_of(site, "scancel", FAILS.replace("{{tool}}", "scancel"))
    (folder / "squeue").unlink()
    (folder / "squeue").write_text(FAILS.replace("{{tool}}", "squeue").format(bin=site.slurm.bin, folder=site.folder))
    (folder / "squeue").chmod(0o755)
    (site.folder / "failed-squeue").touch()
    process = site.start("n[1-2]", QUICK, "--max-wait=6", "--json", "--bin-dir", str(folder))
    out, err = process.communicate(timeout=120)
    nodes = {n["node"]: n for n in printed_json.hold("accept", out)["nodes"]}
    assert "did not start in 6 s" in whys(nodes["n1"]) and whys(nodes["n1"]).endswith("; it is cancelled"), out + err
    assert nodes["n2"]["outcome"] == "pass" and "waiting for slurmctld: squeue: " in err, err
    assert "cannot be cancelled yet: scancel: " in err, err
    assert len(site.jobs()) == 1, "the one that was there before"


def test_a_run_that_was_killed_before_it_noted_a_job_finds_its_output(site: Site) -> None:
    """SIGKILL came after sbatch, and slurmctld has forgotten the job since (MinJobAge)."""
    assert site.accept("n1", QUICK)[0] == 0
    with contextlib.closing(sqlite3.connect(site.folder / "accept.sqlite")) as store:
        ((run,),) = store.execute("SELECT run FROM run").fetchall()
        for statement in ("UPDATE run SET ended = NULL, pid = 4194305", "DELETE FROM result", "DELETE FROM figure"):
            store.execute(statement)
        store.execute("UPDATE node SET job = NULL, why = 'not measured', outcome = 'unknown'")
        store.commit()
    code, out, err = site.accept("--resume", run, "--bin-dir", str(in_place_of(site, "squeue", "#!/bin/sh\necho JOBID\n")))
    assert code == 0 and "n1: pass" in out, out + err
