"""Settings of a stock Debian with its own kernel: provisioned over ssh, read back by programs of others, found when they drift.

What is effective only after a reboot is judged in test_guest_4_reboot.py, and ACS too: the kernel of a fresh Debian lets the
IOMMU translate, and there fairlead refuses to clear the bits.
"""

from __future__ import annotations

import re

import pytest

from tests.vm.cases import ACS, CASES
from tests.vm.guest_node import FAIRLEAD, Node
from tests.vm.stages import Stages, items

pytestmark = [pytest.mark.slow, pytest.mark.vm, pytest.mark.root, pytest.mark.timeout(1500)]
NOW = [name for name, case in CASES.items() if not case.reboot and name != "pcie_acs"]
LATER = [name for name, case in CASES.items() if case.reboot]


def test_the_guest_is_the_release_that_was_asked_for_with_a_kernel_of_its_own(node: Node, suite: str) -> None:
    said = node.guest.ssh(". /etc/os-release; echo $VERSION_CODENAME; uname -r; systemd-detect-virt --container || :")
    assert said.split() == [suite, node.image.kernel, "none"]


def test_a_fresh_node_is_provisioned_in_one_run(stages: Stages) -> None:
    """Only ACS is left, which fairlead refuses here, and what waits for the reboot."""
    states = {name: item["state"] for name, item in items(stages.first).items()}
    assert {name for name, state in states.items() if state in ("failed", "unreadable", "absent")} == set(), stages.first
    assert {name for name, state in states.items() if state == "refused"} == {"pcie_acs"}
    assert {name for name, state in states.items() if state == "deferred"} == set(LATER)
    print(f"first run {stages.first['seconds']:.0f} s, second run {stages.second['seconds']:.0f} s")


def test_a_second_run_changes_nothing(stages: Stages) -> None:
    assert stages.second["changed"] == 0 and stages.second["changes"] == [], stages.second


def test_acs_is_left_alone_where_the_iommu_translates_and_the_next_step_is_named(stages: Stages, node: Node) -> None:
    item = items(stages.second)["pcie_acs"]
    assert item["state"] == "refused" and "the IOMMU translates" in item["message"], item
    assert "iommu=pt" in item["hint"]
    assert set(node.guest.ssh(ACS).split()) == {"001d"}, "as the kernel has set the bits"


@pytest.mark.parametrize("name", NOW)
def test_a_setting_is_effective_and_a_program_of_others_reads_it_back(name: str, stages: Stages) -> None:
    item = items(stages.first)[name]
    assert (item["effective"], item["pending"]) == ("yes", ""), item
    assert stages.shown[name] == CASES[name].prints
    assert name not in stages.found_clean, "the agent finds no drift"


@pytest.mark.parametrize("name", LATER)
def test_what_needs_a_reboot_is_persisted_and_said_to_wait(name: str, stages: Stages) -> None:
    item = items(stages.first)[name]
    assert (item["persisted"], item["effective"], item["pending"]) == ("yes", "no", "reboot"), item
    assert stages.shown[name] != CASES[name].prints
    assert name in stages.found_clean


@pytest.mark.parametrize("name", [name for name in CASES if name != "pcie_acs"])
def test_what_a_person_changes_by_hand_is_found_by_the_agent_and_put_right_by_the_next_run(name: str, stages: Stages) -> None:
    assert name in stages.found_tampered
    assert any(step["done"] for step in stages.repaired[name]["steps"]), stages.repaired[name]
    if name in NOW:
        assert stages.shown_tampered[name] != CASES[name].prints, "the change by hand was real"
    assert stages.shown_repaired[name] == stages.shown[name]


def test_grub_s_own_menu_has_the_words_that_were_declared(stages: Stages, node: Node) -> None:
    entries = node.guest.ssh("grep -P '^\\tlinux\\t' /boot/grub/grub.cfg").splitlines()
    assert entries and all(re.search(r" iommu=pt intel_iommu=on$", entry) for entry in entries), entries


def test_the_agent_runs_in_its_sandbox(stages: Stages, node: Node) -> None:
    """Its capabilities and its filter of system calls are in the kernel's own words, and it cannot write where it must not."""
    pid = node.guest.ssh("systemctl show -p MainPID --value fairlead-agent").strip()
    status = dict(line.split(":\t", 1) for line in node.guest.ssh(f"cat /proc/{pid}/status").splitlines() if ":\t" in line)
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert int(status["CapBnd"], 16) == sum(1 << bit for bit in (1, 2, 19, 21, 34)), "DAC_*, SYS_PTRACE, SYS_ADMIN, SYSLOG"
    inside = f"nsenter -t {pid} -m -- sh -c 'touch /etc/x /usr/x /boot/x; ls -A /home /root' 2>&1 || :"
    said = node.guest.ssh(inside)
    assert said.count("Read-only file system") == 3 and "alice" not in said, said
    assert node.guest.ssh("systemctl --failed --plain --no-legend") == ""


def test_the_agent_s_parent_never_loads_nvml_and_slurm_starts_after_it(stages: Stages, node: Node) -> None:
    pid = node.guest.ssh("systemctl show -p MainPID --value fairlead-agent").strip()
    assert "libnvidia-ml" not in node.guest.ssh(f"cat /proc/{pid}/maps")
    assert node.guest.ssh(f"pgrep -P {pid} | wc -l").strip() == "1", "its worker"
    assert "slurmd.service" in node.guest.ssh("systemctl show -p Before --value fairlead-agent")


def test_a_value_that_a_device_does_not_keep_is_told_by_the_device_s_address(stages: Stages, node: Node) -> None:
    """QEMU's devices keep their read requests at 128 bytes, whatever is written to their config space."""
    node.write_site("[nodes.gpu1.settings.pcie_max_read_request]\nmanaged = true\nnvme_bytes = 512\n")
    item = items(node.provision())["pcie_max_read_request"]
    node.write_site()
    assert item["state"] == "failed" and "MaxReadReq" in item["message"], item
    assert node.guest.ssh("lspci -vvv -d ::0108 | grep -o 'MaxReadReq.*' | sort -u") == "MaxReadReq 128 bytes\n"
    node.provision()
    assert "pcie_max_read_request" not in node.guest.run(f"{FAIRLEAD} status", check=False).stdout
