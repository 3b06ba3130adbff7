"""A real reboot of a drained node: the drain stays, and the kernel, GRUB and fairlead's boot unit do what was declared."""

from __future__ import annotations

import json

import pytest

from tests.vm.cases import ACS, CASES, PORTS, REDIRECTS
from tests.vm.guest_node import FAIRLEAD, Node, wait
from tests.vm.image import HERE
from tests.vm.reboots import Rebooted
from tests.vm.stages import Stages, applied

pytestmark = [pytest.mark.slow, pytest.mark.vm, pytest.mark.root, pytest.mark.timeout(900)]
#: Kernel lockdown ends only with the next boot: the test that uses it comes last.
LOCKDOWN = "/sys/kernel/security/lockdown"


def test_a_drain_that_a_person_holds_stands_over_the_reboot_word_for_word(rebooted: Rebooted) -> None:
    assert rebooted.before["state"] == "drained" and rebooted.before["reason"].startswith("fairlead:xid:"), rebooted.before
    assert rebooted.after == rebooted.before
    print(f"reboot to ssh {rebooted.seconds:.0f} s")


@pytest.mark.parametrize("name", CASES)
def test_a_setting_is_effective_after_the_reboot_with_nothing_left_to_change(name: str, rebooted: Rebooted) -> None:
    assert rebooted.shown[name] == CASES[name].prints
    item = rebooted.items[name]
    assert (item["state"], item["effective"], item["pending"]) == ("same", "yes", ""), item
    assert name not in rebooted.found


def test_the_boot_unit_ran_before_the_agent_and_the_agent_before_slurmd(rebooted: Rebooted) -> None:
    times = [rebooted.started[unit] for unit in ("fairlead-apply", "fairlead-agent", "slurmd")]
    assert all(times) and times == sorted(times), rebooted.started


def test_acs_bits_that_the_kernel_sets_at_boot_are_cleared_by_the_boot_unit(rebooted: Rebooted, node: Node) -> None:
    """With intel_iommu=on the kernel sets them while it finds the bridges. Only those between GPUs are cleared."""
    assert rebooted.shown["pcie_acs"] == "0\n"
    others = "for p in $(lspci -Dn -d 1b36:000c | cut -d' ' -f1); do setpci -s $p ECAP_ACS+6.w; done | sort | uniq -c"
    assert node.guest.ssh(others).split() == ["4", "0011", "2", "001d"], "the two ports above the drives keep theirs"
    assert "pcie_acs" in node.guest.ssh("journalctl -b -u fairlead-apply -o cat --no-pager")


def test_once_it_is_let_go_the_agent_returns_the_node_because_the_reboot_was_the_repair(rebooted: Rebooted, node: Node) -> None:
    assert node.slurm() == rebooted.before
    node.guest.ssh(f"{FAIRLEAD} hold --release")
    wait(lambda: node.slurm()["state"] == "idle", 120)
    assert "reboot_node" in rebooted.before["reason"], "what the reason asked for"


def test_acs_bits_that_somebody_sets_are_cleared_again_by_the_agent(rebooted: Rebooted, node: Node) -> None:
    """A reset of a bridge sets them too. No job runs here and nobody holds the node, so the agent
    applies the setting again by itself."""
    node.guest.ssh(f"for p in $({PORTS}); do setpci -s $p ECAP_ACS+6.w=001d; done")
    assert set(node.guest.ssh(ACS).split()) == {"001d"}
    node.sweep()
    wait(lambda: node.guest.ssh(REDIRECTS) == "0\n", 120)
    wait(lambda: "setting.pcie_acs" not in node.findings(), 60)


def test_the_clock_is_really_set_by_the_one_program_that_was_declared(rebooted: Rebooted, node: Node) -> None:
    """systemd-timesyncd asks a server in the guest whose time is ahead. The kernel then says that the clock is synchronised,
    and the agent that it jumped."""
    assert node.guest.ssh("timedatectl show -p NTPSynchronized --value") == "no\n"
    node.guest.ssh(
        "cat > /usr/local/bin/ntp-server; chmod 755 /usr/local/bin/ntp-server", stdin=(HERE / "inside/ntp-server").read_text()
    )
    node.guest.ssh("systemd-run --unit=ntp-server --collect /usr/local/bin/ntp-server 3")
    before = node.guest.ssh("date +%s.%N; cut -d' ' -f1 /proc/uptime").split()
    node.guest.ssh("systemctl restart systemd-timesyncd")
    wait(lambda: node.guest.ssh("timedatectl show -p NTPSynchronized --value") == "yes\n", 60)
    after = node.guest.ssh("date +%s.%N; cut -d' ' -f1 /proc/uptime").split()
    ahead = (float(after[0]) - float(before[0])) - (float(after[1]) - float(before[1]))
    assert 2 < ahead < 4, f"the clock moved by {ahead:.1f} s"

    def found() -> list[str]:
        return [finding["summary"] for finding in node.status().get("findings", []) if finding["check"] == "clock"]

    node.sweep()
    wait(lambda: any("jumped by +" in summary for summary in found()), 90)
    assert not any("nothing sets the clock" in summary for summary in found())


def test_under_kernel_lockdown_config_space_is_refused_with_the_next_step(rebooted: Rebooted, stages: Stages, node: Node) -> None:
    """Secure Boot turns lockdown on; here it is turned on by hand. setpci cannot write any more, and fairlead says what to do."""
    node.guest.ssh(f"for p in $({PORTS}); do setpci -s $p ECAP_ACS+6.w=001d; done; echo integrity > {LOCKDOWN}")
    assert "[integrity]" in node.guest.ssh(f"cat {LOCKDOWN}")
    item = applied(node, "--only", "pcie_acs")["pcie_acs"]
    assert item["state"] == "refused" and "kernel lockdown (Secure Boot) forbids writes" in item["message"], item
    assert "pci=disable_acs_redir=" in item["hint"]
    assert set(node.guest.ssh(ACS).split()) == {"001d"}
    said = json.loads(node.guest.run(f"{FAIRLEAD} apply --json --only sysctl", check=False).stdout)
    assert said["items"][0]["state"] == "same", "other settings are judged as before"
