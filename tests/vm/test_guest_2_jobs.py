"""Jobs on a stock kernel with cgroup v2 alone: CPUs, devices, folders on the local disk, Slurm's names of job folders."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

from tests.vm.guest_node import FAIRLEAD, Node, wait
from tests.vm.image import HERE
from tests.vm.stages import Stages

pytestmark = [pytest.mark.slow, pytest.mark.vm, pytest.mark.root, pytest.mark.timeout(600)]
SHOW = "/usr/local/bin/show-task"


class Task:
    """One line of show-task."""

    def __init__(self, line: str) -> None:
        fields = dict(word.split("=", 1) for word in line.split()[1:])
        self.rank, self.cpus, self.cpuset = int(fields["rank"]), fields["cpus"], fields["cpuset"]
        self.gpus = [int(gpu) for gpu in fields["gpus"].split(",")]
        self.group, self.tmp = fields["group"], fields["tmp"]

    @property
    def socket(self) -> int:
        """The socket of its only CPU."""
        return int(self.cpus) // 2


def srun(node: Node, words: str, environment: str = "") -> tuple[list[Task], str]:
    """Run show-task as alice in a step. Return its tasks by rank, and everything that was printed."""
    node.guest.ssh(f"cat > {SHOW}; chmod 755 {SHOW}", stdin=(HERE / "inside/show-task").read_text())
    said = node.guest.ssh(f"cd /tmp; runuser -u alice -- env {environment} timeout 200 srun {words} {SHOW} 2>&1", timeout=240)
    tasks = sorted((Task(line) for line in said.splitlines() if line.startswith("task ")), key=lambda task: task.rank)
    return tasks, said


def opened(said: str, gpu: int) -> str:
    """Return what opening a GPU's device file gave in rank 0."""
    return "".join(re.findall(rf"opened nvidia{gpu}: (.*)", said))


def test_the_guest_has_cgroup_v2_alone(stages: Stages, node: Node) -> None:
    assert node.guest.ssh("stat -fc %T /sys/fs/cgroup") == "cgroup2fs\n"
    assert node.guest.ssh("grep -c ' cgroup ' /proc/mounts || :") == "0\n"


def test_each_task_of_a_whole_node_gets_a_core_of_its_own_gpu_s_socket(stages: Stages, node: Node) -> None:
    """Slurm alone assigns the tasks in turn, one socket after the other; the published plan puts each beside its two GPUs."""
    alone, _ = srun(node, "-n4 -c1 --gres=gpu:8", "FAIRLEAD_PROFILE=off")
    assert len(alone) == 4 and any(task.socket != task.rank // 2 for task in alone), "without fairlead"
    bound, _ = srun(node, "-n4 -c1 --gres=gpu:8")
    assert [task.socket for task in bound] == [0, 0, 1, 1]
    assert len({task.cpus for task in bound}) == 4, "no two tasks share a core"


def test_a_job_on_part_of_a_node_gets_its_cores_from_the_planner(stages: Stages, node: Node) -> None:
    """Its tasks keep to the CPUs that Slurm's cpuset allows."""
    bound, said = srun(node, "-n3 -c1 --gres=gpu:6")
    assert len(bound) == 3, said
    assert [task.socket for task in bound] == [gpu // 4 for gpu in bound[0].gpus[::2]], said
    assert len({task.cpus for task in bound}) == 3 and len({task.cpuset for task in bound}) == 1


def test_a_job_cannot_open_a_gpu_that_is_not_its_own(stages: Stages, node: Node) -> None:
    """cgroup v2 has no device controller: Slurm loads a BPF program, which only a real kernel runs."""
    _, said = srun(node, "-n4 -c1 --gres=gpu:4")
    assert opened(said, 0).endswith("Invalid argument"), "the driver was reached"
    assert opened(said, 7).endswith("Operation not permitted")


def test_slurm_names_the_folder_of_a_job_as_its_release_does(stages: Stages, node: Node, suite: str) -> None:
    """26.05 names it by the SLUID, earlier releases by the job's number."""
    (task, *_), _ = srun(node, "-n1 --gres=gpu:1")
    folder = task.group.split("/")[3]
    assert folder.startswith("job_") if suite == "trixie" else re.fullmatch(r"s[0-9A-Za-z]+", folder), task.group


def test_a_process_on_a_gpu_belongs_to_the_job_that_runs_there(stages: Stages, node: Node) -> None:
    """Also where Slurm names the job's folder by its SLUID: a job's own process is no leftover, and a stranger's is one."""
    submit = "cd /tmp; runuser -u alice -- sbatch --parsable -o /dev/null -n2 --gres=gpu:2 --wrap 'srun sleep 200'"
    job = node.guest.ssh(submit).strip()
    try:
        wait(lambda: node.guest.run("pgrep -u alice -x sleep", check=False).stdout != "", 60)
        use_gpu(node, node.guest.ssh("pgrep -u alice -x sleep | head -n1").strip())
        assert leftovers(node) == []
        stranger = node.guest.ssh("sleep 300 >/dev/null 2>&1 & echo $!").strip()
        use_gpu(node, stranger)
        assert [(finding["device"], stranger in str(finding["evidence"])) for finding in leftovers(node)] == [
            (node.gpus[0], True)
        ]
        node.guest.ssh(f"kill {stranger}")
    finally:
        use_gpu(node, "")
        node.guest.ssh(f"scancel {job}")
    node.after_jobs()


WORK = """head -c 200M /dev/zero > /dev/shm/taken
timeout 6 sh -c 'while :; do :; done'
until [ -e /tmp/usage-go ]; do sleep 0.2; done
rm /dev/shm/taken"""


def test_a_usage_record_has_the_values_of_the_job_s_control_group(stages: Stages, node: Node, suite: str) -> None:
    """cgroup v2 of a stock kernel: CPU time, the most memory, the limit and the CPUs. From 26.05 on the folder is the SLUID."""
    node.guest.ssh("rm -f /tmp/usage-go; cat > /tmp/usage-work; chmod 755 /tmp/usage-work", stdin=f"#!/bin/sh\n{WORK}\n")
    submit = "cd /tmp; runuser -u alice -- sbatch --parsable -o /dev/null -n1 -c1 --mem=700M --gres=gpu:1 --wrap /tmp/usage-work"
    job = node.guest.ssh(submit).strip()
    folder = "$(cut -d: -f3 /proc/$(pgrep -u alice -x usage-work | head -n1)/cgroup | cut -d/ -f1-4)"
    try:
        wait(lambda: node.guest.run("pgrep -u alice -x usage-work", check=False).stdout != "", 60)
        used = f"sed -n 's/^usage_usec //p' /sys/fs/cgroup{folder}/cpu.stat"
        wait(lambda: int(node.guest.ssh(used).strip() or 0) > 1_000_000, 120)
        time.sleep(12)  # the agent reads a job's group each five seconds
        name = node.guest.ssh(f"basename {folder}").strip()
        seconds = int(node.guest.ssh(used).strip()) / 1e6
    finally:
        node.guest.ssh("touch /tmp/usage-go")
    found: list[dict[str, Any]] = []

    def ended() -> bool:
        said = node.guest.ssh(f"cat /var/lib/fairlead/usage/{job}-*.json 2>/dev/null || :")
        found[:] = [record for line in said.splitlines() if (record := json.loads(line)).get("ended_by")]
        return found != []

    wait(ended, 120)
    record, host = found[0], found[0]["host"]
    assert name == (f"job_{job}" if suite == "trixie" else record["sluid"]), name
    assert host["cpu_seconds"] == pytest.approx(seconds, rel=0.25, abs=0.5)
    assert host["cpus"] == 1 and host["memory_limit_bytes"] == 700 << 20
    assert 200 << 20 <= host["memory_max_bytes"] <= 700 << 20


def use_gpu(node: Node, pid: str) -> None:
    """Let the simulated library say that process ``pid`` computes on GPU 0; ``""``: no process does. Its other values stay."""
    process = {"processes.0.type": "C", "processes.0.pid": pid, "processes.0.used_bytes": 2_000_000_000, "processes.count": 1}
    used = "".join(f"set gpu.0.{key} {value}\n" for key, value in process.items()) if pid else ""
    control = "/etc/fairlead-sim/nvml.control"
    script = f"touch {control}; {{ grep -v gpu.0.processes {control}; cat; }} > {control}.new; mv {control}.new {control}"
    node.guest.ssh(script, stdin=used)


def leftovers(node: Node) -> list[dict[str, Any]]:
    """Return what one `fairlead check` on the node finds of processes on GPUs."""
    said = json.loads(node.guest.run(f"{FAIRLEAD} check --json", check=False).stdout)
    return [finding for finding in said["findings"] if finding["check"] == "gpu_leftovers"]


FREEZE = """set -e
truncate -s 64M /root/frozen.img
mkfs.ext4 -q /root/frozen.img
mkdir -p /mnt/frozen
mount -o loop /root/frozen.img /mnt/frozen
chmod 1777 /mnt/frozen
fsfreeze --freeze /mnt/frozen
"""


def test_a_step_that_waits_for_a_disk_without_end_is_found_with_the_number_of_its_job(stages: Stages, node: Node) -> None:
    """Uninterruptible sleep (D) of a real kernel: SIGKILL does not end it."""
    node.guest.ssh(FREEZE)
    write = "srun dd if=/dev/zero of=/mnt/frozen/x bs=1M count=1 conv=fsync"
    job = node.guest.ssh(f"cd /tmp; runuser -u alice -- sbatch --parsable -o /dev/null -n1 --gres=gpu:1 --wrap '{write}'").strip()

    def found() -> list[dict[str, Any]]:
        node.sweep()
        return [finding for finding in node.status().get("findings", []) if finding["check"] == "stuck_tasks"]

    try:
        wait(lambda: found() != [], 180)
        assert all(f"job {job}" in str(finding) for finding in found()), found()
        assert node.guest.ssh("ps -o stat= -C dd | cut -c1").strip() == "D"
    finally:
        node.guest.ssh("fsfreeze --unfreeze /mnt/frozen")
    wait(lambda: node.guest.ssh(f"squeue -h -j {job} 2>/dev/null || :") == "", 60)
    node.guest.ssh("umount /mnt/frozen; rm /root/frozen.img")


def test_the_files_of_a_job_are_removed_by_a_confined_service_in_its_own_cgroup(stages: Stages, node: Node) -> None:
    """The epilog waits for nothing. The service has three capabilities and sees no device, no network and no other disk."""
    (task, *_), _ = srun(node, "-n1 --gres=gpu:1")
    folder = task.tmp.removesuffix("/tmp")
    assert folder.startswith("/local/fairlead/"), task.tmp
    wait(lambda: node.guest.run(f"test -e {folder}", check=False).returncode == 1, 60)
    service = "fairlead-scratch@local.service"
    said = node.guest.ssh(confined(service, "touch /etc/x /usr/x; ls /dev; ip -br link; cat /proc/self/cgroup /proc/self/status"))
    assert said.count("Read-only file system") == 2, said
    assert f"0::/system.slice/system-fairlead\\x2dscratch.slice/{service}\n" in said
    assert "CapBnd:\t00000000000000c1\n" in said, "CHOWN, SETGID, SETUID"
    assert "NoNewPrivs:\t1\n" in said and "Seccomp:\t2\n" in said
    assert "vda" not in said and "nvidia0" not in said and "ens" not in said and "eth0" not in said


def confined(unit: str, script: str) -> str:
    """Return a shell script that runs ``script`` once in the sandbox of ``unit``, in place of its program. It prints what the
    script said."""
    drop, said = f"/run/systemd/system/{unit}.d", "/run/fairlead/sandbox"
    return f"""set -e
mkdir -p '{drop}'
cat > '{drop}/test.conf' <<'EOF'
[Service]
ExecStart=
ExecStart=-/bin/sh -c '({script}) >{said} 2>&1'
EOF
systemctl daemon-reload
systemctl start '{unit}' || :
rm -r '{drop}'
systemctl daemon-reload
cat {said}
rm {said}
"""
