"""The agent in its unit's sandbox, under the systemd of each release: what it reads, asks and drains still works."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.lab.host import Host
from tests.lab.ledger import own_name
from tests.lab.rack import Rack
from tests.lab.wheels import wheelhouse
from tests.playbooks.test_convergence import Admin, wait

READING = """
[classes.h100.agent]
kmsg_path = "/etc/fairlead-sim/kmsg"
metrics_listen = "127.0.0.1:9477"
metrics_textfile = "/var/lib/prometheus/node-exporter/fairlead.prom"
[classes.h100.checks.units]
wanted = ["slurmd.service"]
[classes.h100.checks.hung_mounts]
paths = ["/"]
[classes.h100.checks.clock]
enabled = true
"""


def status_of(host: Host) -> dict[str, Any]:
    return dict(json.loads(host.run("cat /run/fairlead/status.json").stdout))


@pytest.mark.slow
@pytest.mark.rack
@pytest.mark.timeout(500)
@pytest.mark.parametrize("suite", ["bookworm", "trixie", "forky"])
def test_everything_the_agent_does_works_in_its_sandbox(suite: str, tmp_path: Path) -> None:
    with Rack(nodes_wanted=1, suite=suite, name=own_name(f"sandbox-{suite}")) as rack:
        (host,) = rack.nodes
        admin = Admin(rack, tmp_path)
        admin.write_site(more=READING)
        planned = admin.provision("--wheelhouse", str(wheelhouse(suite)), "--check", code=1)["gpu1"]
        assert (
            "metrics_textfile: /var/lib/prometheus/node-exporter: no such folder, so the agent writes no metrics"
            in planned["warnings"]
        )
        host.run("mkdir -p /var/lib/prometheus/node-exporter")  # as node_exporter's package does
        assert admin.provision("--wheelhouse", str(wheelhouse(suite)))["gpu1"]["state"] == "changed"
        pid = host.run("systemctl show -p MainPID --value fairlead-agent").stdout.strip()
        status = dict(x.split(":\t", 1) for x in host.run(f"cat /proc/{pid}/status").stdout.splitlines() if ":\t" in x)
        assert (status["Seccomp"].strip(), status["NoNewPrivs"].strip()) == ("2", "1")
        wait(lambda: host.run("cut -f2 /run/fairlead/verdict", check=False).stdout.strip() in ("ok", "warn"))
        said = status_of(host)
        unread = [f for f in said["findings"] if f["level"] == "unknown" or "denied" in str(f) or "not permitted" in str(f)]
        assert unread == [], unread
        again = host.run("/usr/local/bin/fairlead agent", check=False)
        assert again.returncode == 75 and "runs on this node already" in again.stderr, again
        curl = "exec 3<>/dev/tcp/127.0.0.1/9477; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
        assert "fairlead_verdict_state" in host.run(["bash", "-c", curl]).stdout
        wait(lambda: host.run("ls /var/lib/prometheus/node-exporter").stdout == "fairlead.prom\n")
        assert host.run("stat -c %a /var/lib/prometheus/node-exporter/fairlead.prom").stdout == "644\n"
        assert said["trouble"] == []
        rack.wait_idle(60)
        host.inject_kmsg("NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
        until = time.monotonic() + 60
        while "DRAIN" not in rack.ctl("sinfo -h -N -o %T").upper():
            assert time.monotonic() < until, host.run("journalctl -u fairlead-agent --no-pager | tail -20").stdout
            time.sleep(0.5)
        assert (
            host.run("journalctl -u fairlead-agent --no-pager | grep -ciE 'traceback|not permitted|SIGSYS'", check=False).stdout
            == "0\n"
        )
