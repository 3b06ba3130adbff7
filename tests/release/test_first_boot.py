"""The packages in an image that boots for the first time: systemd applies all presets, and enables no unit of fairlead."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.driver.apt_node import PROJECT
from tests.lab.host import Host
from tests.lab.ledger import own_name
from tests.lab.rack import Rack
from tests.release.build_packages import built, deb, rpm

pytestmark = [pytest.mark.rack, pytest.mark.slow, pytest.mark.timeout(900)]
#: A unit of somebody else, which Debian's own preset enables at a first boot.
OTHER = "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"
INSTALL = {"deb": "apt-get -y -q install /root/package.deb </dev/null", "rpm": "rpm -i --nodeps /root/package.rpm"}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("package") / "tree")


@pytest.fixture(params=[("bookworm", "deb"), ("trixie", "rpm")])
def host(request: pytest.FixtureRequest, package: Path) -> Iterator[Host]:
    """A host with the package (systemd 252 with the .deb, 257 with the RPM), as an image that has not booted yet."""
    suite, kind = request.param
    name = own_name("first")
    up = f"from tests.lab.rack import Rack; Rack(nodes_wanted=1, name={name!r}, suite={suite!r}, el={kind == 'rpm'}).up()"
    subprocess.run([sys.executable, "-c", up], cwd=PROJECT, check=True, timeout=280)
    rack = Rack.find(name)
    try:
        (made,) = rack.nodes
        file = package / (deb(package) if kind == "deb" else rpm(package))
        made.path(f"/root/package.{kind}").write_bytes(file.read_bytes())
        made.run(INSTALL[kind], env={"DEBIAN_FRONTEND": "noninteractive"})
        made.path("/usr/lib/systemd/system/other.service").write_text(OTHER)
        yield made
    finally:
        rack.down()


def units(host: Host) -> dict[str, tuple[str, str]]:
    """Whether each unit of fairlead and the other one is enabled, and whether it runs."""
    files = host.run("systemctl list-unit-files --plain --no-legend 'fairlead*' other.service").stdout.splitlines()
    names = [line.split()[0] for line in files]
    state = {name: host.run(["systemctl", "is-active", name], check=False).stdout.strip() for name in names if "@" not in name}
    return {line.split()[0]: (line.split()[1], state.get(line.split()[0], "inactive")) for line in files}


def test_a_first_boot_enables_and_starts_nothing_of_fairlead(host: Host) -> None:
    before = host.boot_id()
    host.refit(machine_id="uninitialized")  # machine-id(5), "First Boot Semantics"
    host.power("cycle")
    host.wait_boot(before)
    host.run("while systemctl list-jobs --no-legend | grep -q .; do sleep 0.1; done")
    assert host.run("cat /etc/machine-id").stdout.strip() != "uninitialized"
    found = units(host)
    assert found.pop("other.service") == ("enabled", "active"), "the presets were not applied"
    assert "fairlead-agent.service" in found and "fairlead-apply.service" in found
    assert set(found.values()) <= {("disabled", "inactive"), ("static", "inactive")}, found
    host.run(["systemctl", "disable", "other.service"])
    host.run(["systemctl", "preset-all"], check=False)  # its exit code is 1 because of the units that the lab masks
    again = units(host)
    assert again.pop("other.service")[0] == "enabled"
    assert {enabled for enabled, _ in again.values()} <= {"disabled", "static"}, again
