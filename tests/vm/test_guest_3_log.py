"""The kernel's own log on a stock kernel: what a user can make it say, and an Xid that the kernel itself has logged."""

from __future__ import annotations

import pytest

from tests.vm.guest_node import SAY, XID, Node, wait
from tests.vm.stages import Stages

pytestmark = [pytest.mark.slow, pytest.mark.vm, pytest.mark.root, pytest.mark.timeout(600)]
#: A process takes a name, copies an executable to a name, and crashes there: `NAME[PID]: segfault at 0 ... in EXECUTABLE[...]`.
CRASH = """
cp /usr/bin/python3 "/tmp/$EXECUTABLE"
"/tmp/$EXECUTABLE" -c '
import ctypes, os
ctypes.CDLL(None).prctl(15, os.environ["NAME"].encode())
ctypes.string_at(0)
' || :
rm -f "/tmp/$EXECUTABLE"
"""
FORGED = (
    ("NVRM: Xid (PCI:", "GPU has fallen off the bus."),
    ("EDAC MC0: 1 UE ", "memory read error on x"),
    ("XFS (vda1): x", "Filesystem has been shut down"),
)


def lines(node: Node, text: str) -> list[str]:
    """Return the lines of dmesg with ``text``."""
    return [line for line in node.guest.ssh("dmesg --notime").splitlines() if text in line]


def slurm_is_idle(node: Node) -> bool:
    return node.slurm() == {"state": "idle", "reason": "none"}


@pytest.mark.parametrize(("name", "executable"), FORGED, ids=["xid", "memory", "disk"])
def test_a_user_s_crash_that_the_kernel_logs_under_a_forged_name_changes_nothing(
    name: str, executable: str, stages: Stages, node: Node
) -> None:
    node.after_jobs()  # of other tests
    wait(lambda: slurm_is_idle(node) and node.verdict() in ("ok", "warn"), 90)
    words = ["env", f"NAME='{name}'", f"EXECUTABLE='{executable}'", "sh -s"]
    node.guest.ssh(f"cd /tmp; runuser -u alice -- {' '.join(words)}", stdin=CRASH)
    said = lines(node, f"{name.rstrip()}")
    assert any("segfault at 0" in line and line.startswith(name) for line in said), said
    node.after_sweeps(2)
    assert node.verdict() in ("ok", "warn") and slurm_is_idle(node)
    assert executable not in node.guest.ssh("cat /run/fairlead/status.json /run/fairlead/verdict")


def test_an_xid_that_root_writes_to_dev_kmsg_is_not_the_kernel_s_and_changes_nothing(
    stages: Stages, node: Node, gpu: str
) -> None:
    text = XID.format(address=gpu.removesuffix(".0"))
    node.guest.ssh(f"echo '<3>{text}' > /dev/kmsg")
    assert lines(node, text), "dmesg shows it as it shows the kernel's own"
    node.after_sweeps(2)
    assert node.verdict() in ("ok", "warn") and slurm_is_idle(node)


def test_an_xid_that_the_kernel_logs_drains_the_node(stages: Stages, node: Node, gpu: str) -> None:
    """The module prints it as NVIDIA's driver does, with facility 0 and the flag of a continuation, while a job runs there."""
    job = node.guest.ssh(
        "cd /tmp; runuser -u alice -- sbatch --parsable -o /dev/null -n2 --gres=gpu:2 --wrap 'srun sleep 60'"
    ).strip()
    wait(lambda: "RUNNING" in node.guest.ssh(f"squeue -h -j {job} -o %T"), 60)
    text = XID.format(address=gpu.removesuffix(".0"))
    watch = f"""
    began=$(date +%s%N)
    echo '{text}' > {SAY}
    until sinfo -h -n gpu1 -o %T | grep -q drain; do sleep 0.1; [ $(($(date +%s%N) - began)) -lt 60000000000 ] || exit 1; done
    echo $(($(date +%s%N) - began))
    """
    seconds = int(node.guest.ssh("sh -s", stdin=watch)) / 1e9
    print(f"Xid of the kernel to DRAIN in Slurm: {seconds:.1f} s")
    record = node.guest.ssh("dmesg --raw | tail -n 50 | grep 'fallen off the bus' | tail -n1")
    assert record.startswith("<3>"), "facility kern, level err"
    now = node.slurm()
    assert now["state"] in ("draining", "drained") and now["reason"].startswith("fairlead:"), now
    assert "Xid 79" in now["reason"] and gpu in now["reason"], now
    assert node.guest.ssh(f"squeue -h -j {job} -o %T") == "RUNNING\n", "the job goes on to its end"
    assert "Xid 79" in node.guest.run("fairlead why gpu1", check=False).stdout
    node.guest.ssh(f"scancel {job}")
    assert seconds < 30
    wait(lambda: node.verdict() == "drain", 60)
