"""The rack: what a node seems to be, jobs over two of them, reboots, power, the kernel log, clean endings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab import cpus, hardware, inotify, linux, net, slurmconf
from tests.lab.faults import Faults
from tests.lab.ledger import INOTIFY, RUN, Ledger, cgroup_pids, own_name
from tests.lab.rack import Rack
from tests.lab.roots import LabError, lab_dir

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.rack]
PROJECT = Path(__file__).resolve().parents[2]


def traces(name: str) -> list[str]:
    """Everything that a rack of this name has left on the machine."""
    ledger = Ledger(name)
    group = cpus.cgroup2() / f"fairlead-lab-{name}"
    left = [str(path) for path in (ledger.folder, group, lab_dir() / "racks" / name) if path.exists()]
    left += [f"netns {path.name}" for path in Path("/run/netns").glob(net.namespace(name, "*"))]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path("/proc", pid, "cmdline").read_bytes().decode(errors="replace").split("\0")
            mounts = Path("/proc", pid, "mountinfo").read_text()
        except OSError:
            continue
        left += [f"process {pid}: {words}"] if str(ledger.folder) in words else []
        left += [f"mount seen by {pid}"] if f"/racks/{name}/" in mounts else []
    return left


def test_every_unit_runs(rack: Rack) -> None:
    for host in rack.hosts:
        assert host.ssh("systemctl is-system-running", check=False).stdout.strip() == "running", host.console()
        assert host.units_failed() == []


def test_a_node_shows_its_tree_and_nothing_of_the_machine(rack: Rack) -> None:
    node = rack.nodes[1]
    assert node.tree is not None
    assert node.ssh("cat /proc/cmdline").stdout == (node.tree / "proc/cmdline").read_text()
    assert node.ssh("ls /sys/bus/pci/devices").stdout.split() == sorted(os.listdir(node.tree / "sys/bus/pci/devices"))
    assert node.ssh("ls /sys/class/infiniband").stdout.split() == sorted(os.listdir(node.tree / "sys/class/infiniband"))
    assert "Socket(s):           2" in node.ssh("lscpu").stdout
    majors = {line.split()[4].rstrip(",") for line in node.ssh("ls -l /dev/nvidia[0-7]").stdout.splitlines()}
    assert len(majors) == 1
    assert 240 <= int(majors.pop()) <= 254
    assert node.ssh("cat /proc/driver/nvidia/version").stdout.startswith("NVRM version:")
    assert float(node.ssh("cut -d' ' -f1 /proc/uptime").stdout) < time.clock_gettime(time.CLOCK_BOOTTIME)


def test_settings_of_a_node_are_its_own(rack: Rack) -> None:
    mine = Path("/proc/sys/kernel/numa_balancing").read_text()
    one, two = rack.nodes[0], rack.nodes[1]
    one.ssh("sysctl -q -w kernel.numa_balancing=0 && setpci -s 17:00.0 ECAP_ACS+6.w=0000")
    assert one.ssh("sysctl -n kernel.numa_balancing; setpci -s 17:00.0 ECAP_ACS+6.w").stdout.split() == ["0", "0000"]
    assert two.ssh("sysctl -n kernel.numa_balancing; setpci -s 17:00.0 ECAP_ACS+6.w").stdout.split() == ["1", "001d"]
    assert Path("/proc/sys/kernel/numa_balancing").read_text() == mine
    refused = one.ssh("sysctl -w vm.dirty_ratio=11", check=False)
    assert refused.returncode != 0


def test_simulated_nvml_answers_everywhere(rack: Rack) -> None:
    node = rack.nodes[3]
    program = (
        "import ctypes; n = ctypes.CDLL('libnvidia-ml.so.1'); n.nvmlInit_v2(); c = ctypes.c_uint();"
        " r = n.nvmlDeviceGetCount_v2(ctypes.byref(c)); print(r, c.value)"
    )
    assert node.ssh(f'python3 -c "{program}"').stdout.split() == ["0", "8"]
    Faults(node.sim / "nvml.control").error(None, "nvmlDeviceGetCount", 999)
    assert node.ssh(f'python3 -c "{program}"').stdout.split()[0] == "999"
    assert rack.nodes[2].ssh(f'python3 -c "{program}"').stdout.split() == ["0", "8"]
    Faults(node.sim / "nvml.control").clear()


AUTODETECT = (
    "mkdir -p /tmp/detect && cp /etc/slurm/*.conf /tmp/detect && echo AutoDetect=nvml > /tmp/detect/gres.conf"
    " && slurmd -G -f /tmp/detect/slurm.conf 2>&1 | sed -n 's/.*Gres Name=gpu //p'"
)


def test_slurm_finds_the_gpus_of_the_tree_by_itself(rack: Rack) -> None:
    """slurmd -G with AutoDetect=nvml: Slurm's own NVML client against the simulated library (gres.conf(5))."""
    node = rack.nodes[2]
    if hardware.nvml_plugin(rack.suite) is None:
        pytest.skip("Debian has no NVML plug-in for this Slurm")
    found = [
        dict(word.split("=", 1) for word in line.split() if "=" in word) for line in node.ssh(AUTODETECT).stdout.splitlines()
    ]
    assert [gpu["File"] for gpu in found] == [f"/dev/nvidia{minor}" for minor in range(8)]
    assert {gpu["Type"] for gpu in found} == {"h100"}
    assert [gpu["Cores"] for gpu in found] == ["0"] * 4 + ["1"] * 4


def test_ansible_reaches_every_host_and_nothing_else_is_reachable(rack: Rack) -> None:
    command = [
        *rack.enter,
        sys.executable,
        "-m",
        "ansible",
        "adhoc",
        "-i",
        str(rack.inventory_path),
        "all",
        "-m",
        "ping",
        "--one-line",
    ]
    done = subprocess.run(command, cwd=rack.folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(line.split()[0] for line in done.stdout.splitlines() if "SUCCESS" in line) == ["ctl", *rack.node_names]
    assert rack.nodes[0].ssh("ip route show default").stdout == ""


def test_what_a_return_command_may_do_in_the_agents_unit(rack: Rack) -> None:
    """docs/how-to/return-to-service.md: nothing of the system is writable in it; systemd-run gives a test a unit of its own,
    and passes its output and its exit status on."""
    unit = (PROJECT / "templates/etc/systemd/system/fairlead-agent.service").read_text()
    lines = [line for line in unit.partition("MemoryMax=")[1:] if line]
    body = ("".join(lines)).partition("[Install]")[0]
    settings = [line for line in body.splitlines() if "=" in line and not line.startswith("#")]
    own = "systemd-run --quiet --wait --pipe --collect --unit=gpu-return-test -p RuntimeMaxSec=590 "
    script = f"touch /usr/x 2>&1; {own} sh -c 'touch /usr/y && rm /usr/y && echo done; exit 7'; echo $?"
    sandbox = [word for setting in settings for word in ("-p", setting)]
    done = rack.nodes[0].run(
        ["systemd-run", "--quiet", "--wait", "--pipe", "--collect", *sandbox, "sh", "-c", script], check=False
    )
    assert done.stdout.splitlines() == ["touch: cannot touch '/usr/x': Read-only file system", "done", "7"], done


def test_job_over_two_nodes_has_real_masks(rack: Rack) -> None:
    rack.wait_idle()
    script = (
        "#!/bin/sh\nsrun sh -c 'echo $(hostname) $(taskset -cp $$) $(grep Cpus_allowed_list /proc/self/status)"
        " $CUDA_VISIBLE_DEVICES' | sort\n"
    )
    job = rack.submit(script, "-N2", "-n4", "--gres=gpu:8", "--exclusive")
    assert rack.wait_job(job) == "COMPLETED"
    words = [line.split() for line in rack.output(job).splitlines()]
    assert len({line[0] for line in words}) == 2
    per_node = {name: sorted(line[6] for line in words if line[0] == name) for name in {line[0] for line in words}}
    assert all(len(set(masks)) == 2 for masks in per_node.values()), words
    assert all(line[6] == line[8] for line in words), words
    assert all(line[9] == "0,1,2,3,4,5,6,7" for line in words)


def test_kernel_records_wait_for_a_reader(rack: Rack) -> None:
    node = rack.nodes[2]
    node.inject_kmsg("NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\nsecond line", level=3)
    lines = node.ssh("timeout 60 head -n 6 /etc/fairlead-sim/kmsg").stdout.splitlines()
    assert node.tree is not None
    assert lines[:-2] == (node.tree / "dev/kmsg").read_text().splitlines()
    head, _, text = lines[-2].partition(";")
    assert text == "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."
    priority, sequence, stamp, flags = head.split(",")
    assert (priority, flags) == ("3", "c"), "the driver prints with KERN_CONT"
    assert 0 < int(stamp) / 1e6 < node.monotonic()
    assert lines[-1].split(",")[1] == str(int(sequence) + 1)


def test_reboot_puts_volatile_things_back_and_keeps_the_disk(rack: Rack) -> None:
    node = rack.nodes[0]
    node.ssh(
        "mkdir -p /etc/default/grub.d && echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX numa_balancing=disable quiet=1\"'"
        " > /etc/default/grub.d/90-test.cfg && setpci -s 17:00.0 ECAP_ACS+6.w=0000"
    )
    Faults(node.sim / "nvml.control").lost(0)
    before = node.boot_id()
    node.reboot()
    assert node.boot_id() != before
    assert node.ssh("cat /proc/sys/kernel/random/boot_id").stdout.strip() == node.boot_id()
    assert node.ssh("cat /proc/cmdline").stdout.strip().endswith("numa_balancing=disable quiet=1")
    assert node.ssh("sysctl -n kernel.numa_balancing; setpci -s 17:00.0 ECAP_ACS+6.w").stdout.split() == ["0", "001d"]
    assert (node.sim / "nvml.control").read_bytes() == b""
    rack.wait_idle()


def test_scontrol_reboot_returns_the_node(rack: Rack) -> None:
    rack.wait_idle()
    node = rack.nodes[1]
    before = node.boot_id()
    rack.scontrol("reboot", "ASAP", "nextstate=resume", "reason=test", node.name)
    node.wait_boot(before)
    rack.wait_idle()
    assert rack.node_state(node.name).states == ("IDLE",)


def test_pulling_the_plug_and_power_on(rack: Rack) -> None:
    node = rack.nodes[3]
    before = node.boot_id()
    node.power("off")
    deadline = time.monotonic() + 90
    while (node.folder / "init").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(LabError, match="gpu4 is off; its console: "):
        node.run("true")
    node.power("on")
    node.wait_boot(before)
    second = node.boot_id()
    node.power("cycle")
    node.wait_boot(second)
    rack.wait_idle()


def test_slurmctld_away_and_hooks_changed_while_up(rack: Rack) -> None:
    rack.stop_slurmctld()
    assert rack.run(["scontrol", "ping"], check=False).stdout.startswith("Slurmctld(primary) at ctl is DOWN")
    rack.start_slurmctld()
    rack.wait_idle()
    rack.configure(hooks=slurmconf.Hooks(prolog="/etc/slurm/prolog.d/*", reboot="/usr/sbin/reboot"))
    assert "/etc/slurm/prolog.d/*" in rack.ctl("scontrol show config | grep '^Prolog '")
    assert "Prolog=/etc/slurm/prolog.d/*" in rack.nodes[2].ssh("cat /etc/slurm/slurm.conf").stdout
    found = Rack.find(rack.name)
    assert found.hooks == rack.hooks
    assert [node.name for node in found.nodes] == ["gpu1", "gpu2", "gpu3", "gpu4"]


def test_down_leaves_nothing() -> None:
    with Rack(1, name=own_name("test-down")) as made:
        made.nodes[0].ssh("true")
        assert len(cgroup_pids(made.cgroup)) > 10
        assert traces(made.name)
    assert traces(made.name) == []


def _creator(name: str, seconds: float, ending: signal.Signals) -> subprocess.Popen[str]:
    """A process that brings a rack up and gets ``ending`` after ``seconds``; it has ended on return."""
    program = (
        f"import sys\nfrom tests.lab.rack import Rack\nprint('go', flush=True)\nRack(2, name={name!r}).up()\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as creator:
        assert creator.stdout is not None
        assert creator.stdout.readline() == "go\n"
        time.sleep(seconds)
        creator.send_signal(ending)
        creator.wait(120)
    return creator


def some(few: list[float], more: list[float]) -> pytest.MarkDecorator:
    """Moments of ``make test``, and those that ``make test-all`` adds."""
    return pytest.mark.parametrize("seconds", [*few, *(pytest.param(each, marks=pytest.mark.slow) for each in more)])


@some([0.4, 1.2, 2.5], [0.1, 0.8, 1.8])
def test_clean_after_sigkill_in_the_middle_of_up(seconds: float) -> None:
    """The creator is killed at a moment of its start; what it had made by then is found and ended."""
    name = own_name("test-sigkill")
    creator = _creator(name, seconds, signal.SIGKILL)
    assert linux.start_time(creator.pid) is None
    if (RUN / name).exists():  # 0.1 s may be before anything was made
        done = subprocess.run(
            [sys.executable, "-m", "tests.lab.clean", name], cwd=PROJECT, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
    assert traces(name) == []


@some([0.3, 2.0], [1.0])
def test_interrupted_up_cleans_after_itself(seconds: float) -> None:
    """Ctrl-C in the middle of up(): the creator takes everything down before it ends."""
    name = own_name("test-sigint")
    creator = _creator(name, seconds, signal.SIGINT)
    assert creator.returncode != 0
    if (RUN / name).exists():
        # It was up already and waiting for its end: nobody called down(), so the record names all that is left.
        subprocess.run([sys.executable, "-m", "tests.lab.clean", name], cwd=PROJECT, check=True)
    assert traces(name) == []


def test_clean_of_an_unknown_name() -> None:
    command = [sys.executable, "-m", "tests.lab.clean", "no-such-lab"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "clean: no lab named no-such-lab under /run/fairlead-lab\n"


@pytest.mark.parametrize("suite", ["trixie", "forky"])
@pytest.mark.release("forky")
def test_other_releases(suite: str) -> None:
    with Rack(2, suite=suite, name=own_name(f"test-{suite}")) as made:
        for host in made.hosts:
            assert host.units_failed() == []
        job = made.submit("#!/bin/sh\nsrun hostname | sort\n", "-N2", "--gres=gpu:8")
        assert made.wait_job(job) == "COMPLETED"
        before = made.nodes[1].boot_id()
        made.scontrol("reboot", "ASAP", "nextstate=resume", "reason=test", "gpu2")
        made.nodes[1].wait_boot(before)
        made.wait_idle()


@pytest.mark.slow
def test_sixteen_nodes() -> None:
    with Rack(16, name=own_name("test-sixteen")) as made:
        assert int(INOTIFY.read_text()) > inotify.in_use()
        job = made.submit("#!/bin/sh\nsrun hostname | sort -V | tr '\\n' ' '\n", "-N16")
        assert made.wait_job(job) == "COMPLETED"
        assert made.output(job).split() == [f"gpu{i}" for i in range(1, 17)]
    assert traces(made.name) == []
