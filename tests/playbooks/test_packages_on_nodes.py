"""Nodes that have fairlead's .deb: provisioned without wheels, the package left whole, and refused where the releases differ.

Each node goes back to a release of wheels at the end, because the next files of this folder use the same rack.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import roots
from tests.lab.host import Host
from tests.playbooks.admin import Admin, node, states
from tests.release.build_packages import built, deb

pytestmark = [pytest.mark.rack, pytest.mark.timeout(600)]
HOME = "/usr/lib/fairlead"
DEB = "/root/fairlead.deb"
INSTALL = f"DEBIAN_FRONTEND=noninteractive apt-get -y -q install {DEB} </dev/null"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of this working tree, which have the same release as the admin host."""
    return built(tmp_path_factory.mktemp("package") / "tree")


@pytest.fixture(scope="module", autouse=True)
def with_packages(admin: Admin, package: Path) -> Iterator[None]:
    admin.write_site()
    admin.provision()
    for name in ("gpu1", "gpu2"):
        node(admin, name).path(DEB).write_bytes((package / deb(package)).read_bytes())
    yield
    admin.write_site()
    for host in admin.rack.nodes:
        host.run("dpkg --purge fairlead-admin fairlead")  # apt-get purges nothing if it does not know one of them
        host.run(f"rm -f {DEB} /root/admin.deb /root/.ssh/lab")
    admin.provision()


def agent(host: Host) -> dict[str, str]:
    words = "systemctl show -p UnitFileState,ActiveState,FragmentPath,MainPID fairlead-agent.service"
    found = dict(line.split("=", 1) for line in host.run(words).stdout.splitlines())
    if found["MainPID"] != "0":
        found["python"] = host.run(f"tr '\\0' '\\n' < /proc/{found['MainPID']}/cmdline").stdout.split("\n")[0]
    return found


def whole(host: Host) -> None:
    assert host.run("dpkg -V fairlead").stdout == ""


def test_1_a_package_over_wheels(admin: Admin) -> None:
    """The package takes over at the next run: wheels, their units and their link go, and the agent runs from the package."""
    host = node(admin, "gpu1")
    before = agent(host)
    assert before["FragmentPath"].startswith("/etc/systemd/system/")
    host.run(INSTALL)
    checked = admin.provision("--check", "-l", "gpu1")["gpu1"]
    assert "/etc/systemd/system/fairlead-agent.service: remove: the package fairlead has its own" in checked["changes"]
    assert admin.provision("-l", "gpu1")["gpu1"]["state"] == "changed"
    after = agent(host)
    assert after["FragmentPath"].endswith("/lib/systemd/system/fairlead-agent.service")  # Debian 12 says /lib
    assert (after["UnitFileState"], after["ActiveState"]) == ("enabled", "active")
    assert after["python"].startswith(f"{HOME}/bin/python3")
    assert host.run("ls /opt/fairlead").stdout == "current\n"
    assert host.run("readlink /etc/systemd/system/multi-user.target.wants/fairlead-agent.service").stdout.startswith("/")
    host.run("test -e /etc/systemd/system/multi-user.target.wants/fairlead-agent.service && ! test -e /usr/local/bin/fairlead")
    assert admin.provision("-l", "gpu1")["gpu1"]["state"] == "same"
    whole(host)


def test_2_a_fresh_node_with_the_package(admin: Admin) -> None:
    """The installation starts nothing, also with systemd running. Provisioning sends a document and enables the units."""
    host = node(admin, "gpu2")
    admin.provision("--uninstall", "-l", "gpu2")
    host.run(INSTALL)
    assert (agent(host)["UnitFileState"], agent(host)["ActiveState"]) == ("disabled", "inactive")
    result = admin.provision("-l", "gpu2")["gpu2"]
    assert result["state"] == "changed" and not [c for c in result["changes"] if c.startswith(("/opt/fairlead", "/etc/slurm"))]
    assert (agent(host)["UnitFileState"], agent(host)["ActiveState"]) == ("enabled", "active")
    assert admin.provision("-l", "gpu2")["gpu2"]["state"] == "same"
    host.run("systemctl restart fairlead-apply.service && fairlead version && /etc/slurm/prolog.d/50-fairlead", check=False)
    whole(host)


def test_3_an_upgrade_restarts_an_agent_that_runs(admin: Admin) -> None:
    host = node(admin, "gpu2")
    before = agent(host)["MainPID"]
    host.run(INSTALL.replace("install", "install --reinstall"))
    assert agent(host)["ActiveState"] == "active" and agent(host)["MainPID"] != before
    host.run("systemctl stop fairlead-agent.service")
    host.run(INSTALL.replace("install", "install --reinstall"))
    assert agent(host)["ActiveState"] == "inactive"
    assert admin.provision("-l", "gpu2")["gpu2"]["state"] == "changed"


def test_4_another_release_is_refused(admin: Admin) -> None:
    host = node(admin, "gpu2")
    host.run(f"cp {HOME}/release /root/release && echo 0.0.9-0123456789 > {HOME}/release")
    listing = "sha256sum /etc/fairlead/node.json; ls -l --time-style=full-iso /etc/fairlead /opt/fairlead /usr/lib/systemd/system"
    before = host.run(listing).stdout
    result = admin.provision("-l", "gpu2", code=69)["gpu2"]
    assert result["message"].startswith("the package fairlead here is release 0.0.9-0123456789, and the admin host has 0.1.0-")
    assert "install the packages of one version" in result["hint"] and host.run(listing).stdout == before
    host.run(f"cp /root/release {HOME}/release && rm /root/release")
    assert admin.provision("-l", "gpu2")["gpu2"]["state"] == "same"


def test_5_a_site_can_ask_for_packages(admin: Admin) -> None:
    admin.site.write_text(admin.site.read_text().replace("[ansible]", "[ansible]\npackage = true"))
    results = admin.provision(code=69)
    assert states(results) == {"gpu1": "same", "gpu2": "same", "gpu3": "failed"}
    assert results["gpu3"]["message"].startswith("this node does not have the package fairlead")
    admin.write_site()


def test_6_uninstall_leaves_the_package_whole(admin: Admin) -> None:
    host = node(admin, "gpu2")
    assert admin.provision("--uninstall", "--undo", "-l", "gpu2")["gpu2"]["state"] == "changed"
    assert (agent(host)["UnitFileState"], agent(host)["ActiveState"]) == ("disabled", "inactive")
    assert host.run("ls /etc/fairlead /var/lib/fairlead /run/fairlead 2>/dev/null", check=False).stdout.split() == [
        "/etc/fairlead:", "/var/lib/fairlead:",
    ]  # fmt: skip
    whole(host)
    assert admin.provision("--uninstall", "--undo", "-l", "gpu2")["gpu2"]["state"] == "same"
    host.run("apt-get -y -q remove fairlead </dev/null")
    assert host.run(f"ls -d {HOME} /opt/fairlead /usr/bin/fairlead 2>/dev/null", check=False).stdout == ""


def test_7_an_admin_host_with_packages(admin: Admin, package: Path) -> None:
    """A node plays the admin host: `fairlead provision` of fairlead-admin, with its own Ansible, reaches a node that has the
    package, and says what to do about one that has none."""
    host, target = node(admin, "gpu3"), node(admin, "gpu1")
    host.path(DEB).write_bytes((package / deb(package)).read_bytes())
    host.path("/root/admin.deb").write_bytes((package / deb(package, "fairlead-admin")).read_bytes())
    host.run(INSTALL + "; apt-get -y -q install /root/admin.deb </dev/null")
    host.path("/root/.ssh/lab").write_bytes(roots.ssh_key().read_bytes())
    host.path("/root/.ssh/lab").chmod(0o600)
    site = (
        admin.site.read_text().partition("[ansible]")[0]
        + f"""\
[ansible]
private_key = "/root/.ssh/lab"
ssh_args = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
[ansible.hosts]
gpu1 = "{target.address}"
gpu2 = "{node(admin, "gpu2").address}"
gpu3 = "{host.address}"
"""
    )
    host.path("/etc/fairlead/site.toml").write_text(site)
    done = host.run("fairlead provision -l gpu1 --json", check=False, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    (said,) = json.loads(done.stdout)["nodes"]
    assert said["state"] in ("same", "changed"), said
    done = host.run("fairlead provision -l gpu2 --json", check=False, timeout=200)
    (said,) = json.loads(done.stdout)["nodes"]
    assert "this fairlead comes from a package, which has no pip" in said["message"], said
    assert host.run("dpkg -V fairlead fairlead-admin", check=False).stdout.split() in (
        [],
        ["??5??????", "c", "/etc/fairlead/site.toml"],
    )
