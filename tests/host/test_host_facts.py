"""Facts about the host: readers on small trees and recorded ones, questions that hang, tasks in true D state."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from fairlead.host import storage
from fairlead.host.gather import Gatherer, gather
from fairlead.host.host_facts_reader import HostReader
from fairlead.host.probe import Probes, Question, parse_units
from fairlead.host.root import Root
from fairlead.host.tasks import Watch
from fairlead.model.facts import Missing
from fairlead.model.host_facts import Host, Space, Tasks, UnitState, Wanted
from tests.host.conftest import write
from tests.host.test_gather import DATA, needs_data
from tests.lab.trees import MACHINES
from tests.lab.unpack import unpack
from tests.simulation.test_dstate import frozen


def host(tree: Path, wanted: Wanted | None = None) -> Host:
    found = gather(Root(os.fspath(tree)), None, wanted=wanted or Wanted()).host
    assert isinstance(found, Host)
    return found


def until(good: object, seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while not good():  # type: ignore[operator]
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_a_machine_tree() -> None:
    found = host(MACHINES / "hgx-h100", Wanted(mounts=("/", "/elsewhere"), units=True))
    assert isinstance(found.ports, tuple) and isinstance(found.spaces, tuple) and isinstance(found.units, tuple)
    assert {p.width_lanes for p in found.ports} == {4} and len(found.ports) == 10
    assert all("rx_icrc_encapsulated" in p.counters and list(p.carrier_downs.values()) == [1] for p in found.ports)
    assert [isinstance(s.total_bytes, int) for s in found.spaces] == [True, False]
    assert "slurmd.service" in {u.name for u in found.units}
    assert isinstance(found.tasks, Tasks) and found.tasks.stuck == ()
    assert found.memory_bytes == 2113929216 * 1024 and found.cpus_online == 112 and found.smt == "notsupported"
    assert isinstance(found.controllers, tuple) and len(found.controllers) == 8
    assert isinstance(found.nvme, tuple) and {(n.state, bool(n.pci)) for n in found.nvme} == {("live", True)}


def test_an_empty_tree_is_missing_in_its_places(tree: Path) -> None:
    found = host(tree, Wanted(mounts=("/",), units=True))
    for name in ("mounts", "tasks", "units", "clock", "memory_bytes", "smt", "cpus_online"):
        assert isinstance(getattr(found, name), Missing), name
    assert (found.ports, found.controllers, found.nvme, found.fs_errors) == ((), (), (), ())
    assert isinstance(found.hung_task_warnings, Missing)
    for said in (0, 10, -1):
        write(tree, "/proc/sys/kernel/hung_task_warnings", f"{said}\n")
        assert host(tree).hung_task_warnings == said
    write(tree, "/host.json", '{"clock": 3, "tasks": {"total": "x"}, "units": [{}]}')
    found = host(tree, Wanted(units=True))
    assert isinstance(found.clock, Missing) and "clock" in found.clock.detail
    write(tree, "/host.json", "not json")
    assert isinstance(host(tree).tasks, Missing)


def test_mounts_and_memory_controllers(tree: Path) -> None:
    lines = (
        "22 1 9:0 / / rw shared:1 - ext4 /dev/md0 ro,errors=remount-ro",
        "23 22 8:1 / /data\\040disk ro,nosuid - xfs /dev/sda1 rw",
        "short line",
        "24 22 8:2 / / rw - xfs /dev/sdb rw",
    )
    write(tree, "/proc/1/mountinfo", "\n".join(lines))
    mounts = storage.mounts(Root(os.fspath(tree)))
    assert isinstance(mounts, tuple)
    assert {m.path: (m.kind, m.read_only, m.flagged_read_only) for m in mounts} == {
        "/": ("xfs", False, False),  # mounted over the first
        "/data disk": ("xfs", False, True),
    }
    mc = "/sys/devices/system/edac/mc/mc0"
    for name, value in (("ce_count", "7"), ("ue_count", "many"), ("dimm0/dimm_ce_count", "6"), ("dimm0/dimm_label", "A1")):
        write(tree, f"{mc}/{name}", value + "\n")
    controllers = storage.memory_controllers(Root(os.fspath(tree)))
    assert isinstance(controllers, tuple)
    (found,) = controllers
    assert (found.corrected, found.worst_dimm, isinstance(found.uncorrected, Missing)) == (7, "A1", True)


def test_units_as_systemctl_lists_them() -> None:
    text = "slurmd.service loaded active running Slurm node daemon\nx.service not-found inactive dead x.service\n\nodd\n"
    assert parse_units(text) == (
        UnitState(name="slurmd.service", load="loaded", active="active", sub="running"),
        UnitState(name="x.service", load="not-found", active="inactive", sub="dead"),
    )


def test_a_question_that_hangs_is_asked_once_and_blocks_nobody() -> None:
    question = Question(("sleep", "1000"))
    question.ask()
    first = question._process
    assert first is not None
    assert until(lambda: question.waiting_seconds() > 0.02) and question.answer is None
    question.ask()
    assert question._process is first, "never doubled"
    question.end()
    assert until(lambda: not os.path.exists(f"/proc/{first.pid}") or first.poll() is not None)


def test_questions_that_fail_say_so() -> None:
    for command, words in ((("no-such-program",), "No such file"), (("sh", "-c", "echo bad; exit 3"), "ended with 3: bad")):
        question = Question(command)
        question.ask()
        assert until(lambda q=question: not q.waiting_seconds() and q.answer is not None)  # type: ignore[misc]
        assert isinstance(question.answer, Missing) and words in question.answer.detail


def test_the_space_of_a_real_mount_and_of_none() -> None:
    probes = Probes(("/", "/no/such/place"), units=False, first_wait_seconds=30.0)
    probes.ask()
    probes.wait_once()
    root, none = probes.spaces()
    info = os.statvfs("/")
    assert root.total_bytes == info.f_blocks * info.f_frsize and root.waiting_seconds == 0
    assert isinstance(none.total_bytes, Missing) and "No such file" in none.failed
    probes.end()


def test_the_probe_keeps_its_last_answer_while_the_next_one_hangs() -> None:
    probes = Probes(("/",), units=False, first_wait_seconds=30.0)
    probes.ask()
    probes.wait_once()
    question = next(iter(probes._mounts.values()))
    question._command = ("sleep", "1000")  # the server goes away
    probes.ask()
    (space,) = probes.spaces()
    assert isinstance(space.total_bytes, int) and space.waiting_seconds > 0
    probes.end()


def test_what_systemd_said_before_it_hung_is_no_answer() -> None:
    probes = Probes((), units=True, first_wait_seconds=30.0)
    units = probes._units
    assert units is not None
    units._command = ("echo", "slurmd.service loaded active running")
    probes.ask()
    probes.wait_once()
    units._command = ("sleep", "1000")
    probes.ask()
    assert isinstance(probes.units(), tuple)
    units._asked -= 100.0
    assert isinstance(probes.units(), Missing)
    probes.end()


def test_the_live_machine() -> None:
    looks = HostReader(Root("/"), Wanted(mounts=("/",)), once=True)
    found = looks.read(())
    assert isinstance(found.spaces, tuple) and isinstance(found.spaces[0], Space)
    assert isinstance(found.mounts, tuple) and any(m.path == "/" for m in found.mounts)
    assert isinstance(found.tasks, Tasks) and found.tasks.seen > 1
    assert not isinstance(found.clock, Missing) and found.clock.offset_seconds > 1e9
    assert not isinstance(found.memory_bytes, Missing) and found.memory_bytes > 1 << 28


def test_between_thorough_looks_the_host_is_as_it_was(tree: Path) -> None:
    write(tree, "/proc/meminfo", "MemTotal: 1024 kB\n")
    gatherer = Gatherer(Root(os.fspath(tree)), wanted=Wanted(), slow_seconds=1000)
    first = gatherer.gather(None)
    write(tree, "/proc/meminfo", "MemTotal: 512 kB\n")
    second = gatherer.gather(None)
    assert (first.thorough, second.thorough) == (True, False)
    assert isinstance(second.host, Host) and second.host.memory_bytes == 1024 * 1024
    gatherer._next_thorough = 0.0
    third = gatherer.gather(None)
    assert third.thorough and isinstance(third.host, Host) and third.host.memory_bytes == 512 * 1024
    gatherer.end()


def task(
    tree: Path, pid: int, state: str, *, switches: int = 5, pending: int = 0, cgroup: str = "0::/", threads: int = 1
) -> None:
    rest = f"{state} 1 1 1 0 -1 4194560 " + "0 " * 10 + f"{threads} 0 777 0 0"
    write(tree, f"/proc/{pid}/stat", f"{pid} (evil) name) R (x) {rest}\n")
    write(
        tree,
        f"/proc/{pid}/status",
        f"Name:\tevil\nSigPnd:\t{0:016x}\nShdPnd:\t{pending:016x}\nvoluntary_ctxt_switches:\t{switches}\n",
    )
    write(tree, f"/proc/{pid}/cgroup", cgroup + "\n")


def test_the_job_of_a_sleeper_is_slurms_own_word(tree: Path) -> None:
    """Slurm 26.05: by the job's record; and a group of that name that a user made is no job's."""
    records = tree / "run/fairlead/jobs"
    records.mkdir(parents=True)
    (records / "42").write_text("1\trunning\t1000\t0\t12.34\t-\t-\t.\ts3JXM823B87S00\t.\n")
    for group, told in (
        ("/system.slice/gpu1_slurmstepd.scope/s3JXM823B87S00/step_0/user/task_0", (42, "0")),
        ("/system.slice/gpu1_slurmstepd.scope/s3JXM823B87S01/step_0/user/task_0", (0, "0")),
        ("/user.slice/user-1000.slice/user@1000.service/job_42/step_0", (0, "")),
        ("/user.slice/user-1000.slice/user@1000.service/x_slurmstepd.scope/s3JXM823B87S00/step_0", (0, "")),
    ):
        task(tree, 11, "D", cgroup=f"0::{group}")
        seen = Watch(Root(os.fspath(tree))).sweep(1.0)
        assert isinstance(seen, Tasks)
        (stuck,) = seen.stuck
        assert (stuck.job, stuck.step) == told


def test_sleepers_over_looks(tree: Path) -> None:
    step = "0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0"
    task(tree, 10, "S")
    task(tree, 11, "D", cgroup=step)
    task(tree, 12, "D")
    watch = Watch(Root(os.fspath(tree)))
    first = watch.sweep(100.0)
    assert isinstance(first, Tasks) and [(t.pid, t.seconds) for t in first.stuck] == [(11, 0.0), (12, 0.0)]
    task(tree, 11, "D", pending=0x100, cgroup=step)
    task(tree, 12, "D", switches=6)  # it has run since: every disk read looks like that
    second = watch.sweep(160.0)
    assert isinstance(second, Tasks)
    stuck, busy = second.stuck
    assert (stuck.pid, stuck.seconds, stuck.job, stuck.step, stuck.killed) == (11, 60.0, 12, "0", True)
    assert (busy.pid, busy.seconds) == (12, 0.0)
    task(tree, 11, "S")
    third = watch.sweep(220.0)
    assert isinstance(third, Tasks) and [t.pid for t in third.stuck] == [12]
    watch.end()


def test_many_processes_are_gone_through_in_turns_and_sleepers_each_time(tree: Path) -> None:
    for pid in range(1, 31):
        task(tree, pid, "D" if pid in (3, 25) else "S")
    watch = Watch(Root(os.fspath(tree)))
    seen = [watch.sweep(float(t), turn=10) for t in range(4)]
    pids = [[t.pid for t in sweep.stuck] for sweep in seen if isinstance(sweep, Tasks)]
    assert pids == [[3], [3], [3, 25], [3, 25]]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mkfs.ext4"), reason="needs root, fsfreeze and mkfs.ext4")
def test_a_task_in_true_d_state_is_seen_sleeping_and_unkillable(tmp_path: Path) -> None:
    with frozen(tmp_path) as (keeper, path, thaw):
        command = ["nsenter", "--mount", f"--target={keeper}", "sh", "-c", f"exec mkdir {path}.folder"]
        with subprocess.Popen(command) as sleeper:
            watch = Watch(Root("/"))

            def seen(*, killed: bool) -> bool:
                found = watch.sweep(time.monotonic(), turn=100000)
                assert isinstance(found, Tasks)
                return any(t.pid == sleeper.pid and t.killed is killed and t.seconds > 0 for t in found.stuck)

            try:
                assert until(lambda: seen(killed=False)), "asleep"
                sleeper.send_signal(signal.SIGKILL)
                assert until(lambda: seen(killed=True)), "SIGKILL is pending"
            finally:
                watch.end()
                thaw()


@needs_data
def test_the_recorded_infiniband_ports_have_their_counters(tree: Path) -> None:
    recorded = DATA / "sysfs/sys-class-infiniband-h100.0"
    for name in sorted(p.relative_to(recorded) for p in recorded.rglob("*") if p.is_file()):
        write(tree, f"/sys/class/infiniband/{name}", (recorded / name).read_bytes())
    ports = host(tree).ports
    assert isinstance(ports, tuple) and len(ports) == 9
    known = {p.name: p for p in ports}
    assert known["mlx5_1"].counters["link_downed"] == 255 and known["mlx5_bond_0"].width_lanes == 2
    assert not [p for p in ports for v in p.counters.values() if isinstance(v, Missing)]


@needs_data
@pytest.mark.parametrize("archive", ["d_nccl_azure_ndv5-topo", "hwloc_dgx_gb10", "hwloc_16amd64_cpusets"])
def test_recorded_machines_have_nothing_that_raises(archive: str, tmp_path: Path) -> None:
    unpack(DATA / f"sysroots/{archive}.tar.gz", tmp_path, keep="fully_trusted")
    found = host(next(tmp_path.iterdir()), Wanted(mounts=("/",), units=True))
    assert isinstance(found.clock, Missing)
