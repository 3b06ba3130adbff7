"""The boot of a provisioned node: apply, then the first verdict, then slurmd; what cannot be reached, and what is broken.

Real reboots of one lab node. The tests share it and run in their order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.daemon.publishing.notify import READY_SECONDS
from tests.lab.host import Host
from tests.lab.ledger import own_name
from tests.lab.rack import Rack
from tests.playbooks.test_convergence import Admin, wait

pytestmark = [pytest.mark.rack, pytest.mark.timeout(300)]
GOVERNOR = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
SITE = '[classes.h100.agent]\nkmsg_path = "/etc/fairlead-sim/kmsg"\ninterval_seconds = 0.5\n'
#: A file of somebody else's that is read after ours: what is declared cannot be reached at the next boot.
OTHER = "/etc/sysctl.d/99-site.conf"
PROGRAM = "/usr/local/bin/fairlead"
DROP_IN = "/etc/systemd/system/fairlead-apply.service.d/test.conf"


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    with Rack(nodes_wanted=1, name=own_name("boot")) as rack:
        made = Admin(rack, tmp_path_factory.mktemp("admin"))
        made.write_site(more=SITE)
        made.provision()
        yield made


def boot(admin: Admin) -> Host:
    """Reboot; returns when systemd has nothing left to start."""
    (host,) = admin.rack.nodes
    host.reboot()
    host.run("systemctl is-system-running --wait", check=False)
    return host


def time_of(host: Host, unit: str, what: str) -> int:
    """Microseconds since the boot."""
    return int(host.run(f"systemctl show -p {what}TimestampMonotonic --value {unit}").stdout)


def slurm(admin: Admin) -> tuple[str, str]:
    """State and reason of the node in slurmctld."""
    said = admin.rack.scontrol("-o", "show", "node", "gpu1")
    reason = re.search(r"Reason=(.*?) \[", said)
    return re.findall(r"State=(\S+)", said)[0], reason[1] if reason else ""


def usable(admin: Admin) -> None:
    admin.rack.scontrol("update", "NodeName=gpu1", "State=RESUME", check=False)
    admin.rack.wait_idle()


def test_1_apply_then_the_first_verdict_then_slurmd_and_nothing_is_left_to_do(admin: Admin) -> None:
    host = boot(admin)
    ready = [time_of(host, unit, "ActiveEnter") for unit in ("fairlead-apply", "fairlead-agent")]
    started = time_of(host, "slurmd", "ExecMainStart")
    assert 0 < ready[0] <= ready[1] <= started
    assert host.run("cut -f2 /run/fairlead/verdict").stdout.strip() in ("ok", "warn")
    said = json.loads(host.run(f"{PROGRAM} apply --dry-run --json").stdout)
    assert said["changed"] == 0 and {i["state"] for i in said["items"]} == {"same"}
    findings = json.loads(host.run("cat /run/fairlead/status.json").stdout)["findings"]
    assert [f for f in findings if f["check"].startswith("setting.")] == []


def test_2_what_is_only_observed_warns_and_jobs_run(admin: Admin) -> None:
    host = admin.rack.nodes[0]
    host.run(f"echo kernel.numa_balancing=1 > {OTHER}")
    host = boot(admin)
    admin.rack.wait_idle()
    assert host.run("cut -f2 /run/fairlead/verdict").stdout == "warn\n"
    said = host.run(f"{PROGRAM} status", check=False).stdout
    assert f"warn    setting.numa_balancing [observe]: {OTHER}: kernel.numa_balancing: sets 1 and is read after" in said
    assert admin.rack.run(["srun", "-w", "gpu1", "hostname"]).stdout == "gpu1\n"


def test_3_what_is_enforced_and_cannot_be_reached_drains_the_node_before_slurmd_takes_a_job(admin: Admin) -> None:
    admin.write_site(more=SITE + "[classes.h100.settings.numa_balancing]\nmode = 'enforce'\n")
    host = admin.rack.nodes[0]
    host.run(f"rm {OTHER}")
    admin.provision()
    host.run(f"echo kernel.numa_balancing=1 > {OTHER}; sysctl -qw kernel.numa_balancing=0")
    host = boot(admin)
    wait(lambda: "DRAIN" in slurm(admin)[0])
    _, reason = slurm(admin)
    words = rf"{OTHER}: kernel.numa_balancing: sets 1 and is read after"
    assert re.match(rf"fairlead:setting.numa_balancing:\w+ {words}", reason), reason
    journal = "journalctl --sync; journalctl -b -u fairlead-agent -o json"
    wait(lambda: "verdict state=drain" in host.run(journal).stdout)
    lines = [json.loads(line) for line in host.run(journal).stdout.splitlines()]
    told = [int(x["__MONOTONIC_TIMESTAMP"]) for x in lines if x["MESSAGE"].startswith("verdict state=drain")]
    started, waited = time_of(host, "slurmd", "ExecMainStart"), READY_SECONDS * 1e6
    late = started - time_of(host, "fairlead-agent", "ExecMainStart") >= waited  # slurmd waits so long and no longer
    assert told[0] <= started or late, [x["MESSAGE"] for x in lines]
    said = host.run(f"{PROGRAM} status", check=False).stdout
    assert "drain" in said and "setting.numa_balancing" in said
    host.run(f"rm {OTHER}")
    host.run(f"{PROGRAM} apply")
    usable(admin)
    admin.write_site(more=SITE)
    admin.provision()


@pytest.mark.slow
def test_4_an_apply_that_is_killed_at_boot_is_seen_by_the_agent_and_made_good_by_the_next(admin: Admin) -> None:
    """Killed as soon as it has begun to change things, over and over: the mark it leaves holds nothing back."""
    host = admin.rack.nodes[0]
    killed = f"{PROGRAM} apply --phase boot & while [ ! -e /run/fairlead/applying ]; do :; done; kill -9 $!; wait $!"
    admin.write_site(more=SITE + "reapply = false\n[classes.h100.settings.persistence]\nmode = 'enforce'\n")
    admin.provision()
    host.run(f"mkdir -p {Path(DROP_IN).parent}")
    unit = f'[Service]\nExecStart=\nExecStart=/bin/sh -c "{killed}"\n'
    host.run(f"cat > {DROP_IN}", stdin=unit.replace("$!", "$$!"))
    host = boot(admin)
    assert "Result=exit-code" in host.run("systemctl show -p Result fairlead-apply").stdout
    assert host.run("systemctl is-active slurmd").stdout == "active\n"
    assert host.run("test -e /run/fairlead/applying", check=False).returncode == 0
    wait(lambda: "DRAIN" in slurm(admin)[0])
    assert slurm(admin)[1].startswith("fairlead:setting.persistence:")
    host.run(f"rm {DROP_IN}; systemctl daemon-reload; systemctl restart fairlead-apply")
    assert host.path(GOVERNOR).read_text() == "performance\n"
    wait(lambda: "DRAIN" not in slurm(admin)[0], 90)  # the cause is gone: the agent resumes its own
    admin.write_site(more=SITE)
    admin.provision()


BROKEN = [
    ("damaged", "head -c 100 /etc/fairlead/node.json > /tmp/x; cat /tmp/x > /etc/fairlead/node.json", 78, "node.json"),
    pytest.param(
        "newer",
        'sed -i \'s/"schema": *[0-9]*/"schema": 99/\' /etc/fairlead/node.json',
        78,
        "schema: 99 is not readable",
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize(("kind", "breaks", "code", "words"), BROKEN)
def test_5_a_document_that_cannot_be_read_is_said_by_both_units_and_slurmd_starts(
    kind: str, breaks: str, code: int, words: str, admin: Admin
) -> None:
    host = admin.rack.nodes[0]
    host.run(breaks)
    host = boot(admin)
    for unit in ("fairlead-apply", "fairlead-agent"):
        shown = host.run(f"systemctl show -p ExecMainStatus,ActiveState,NRestarts {unit}").stdout
        assert f"ExecMainStatus={code}\n" in shown and "ActiveState=failed" in shown, shown
    said = host.run("journalctl --sync; journalctl -b -o cat -u fairlead-apply").stdout
    assert words in said and "next:" in said, said
    assert "Traceback" not in said
    assert host.run("systemctl is-active slurmd").stdout == "active\n"
    assert host.run("ls /run/fairlead/verdict", check=False).stdout == ""
    admin.provision()
    assert host.path(GOVERNOR).read_text() == "performance\n"


@pytest.mark.slow
def test_6_without_a_document_nothing_of_ours_runs_and_slurmd_starts(admin: Admin) -> None:
    host = admin.rack.nodes[0]
    host.run("mv /etc/fairlead/node.json /root")
    host = boot(admin)
    shown = host.run("systemctl show -p ConditionResult,ActiveState fairlead-apply fairlead-agent").stdout
    assert shown.split() == ["ActiveState=inactive", "ConditionResult=no"] * 2
    assert host.run("systemctl is-active slurmd").stdout == "active\n"
