"""A node like EL with systemd: locked, provisioned over ssh as any node, moved while drained, and back from the node's own cache.

The admin host's `fairlead lock` reads a copy of the node's rpm database. The root is Debian's with EL's dnf and rpm
(``tests.lab.el_roots``), and the packages are the stand-ins with NVIDIA's names (``el_repository``).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.driver import el_repository
from tests.lab import wheels
from tests.lab.host import Host
from tests.lab.ledger import own_name
from tests.lab.rack import Rack
from tests.playbooks.admin import PROJECT, Admin

pytest.importorskip("solv")
pytestmark = [pytest.mark.rack, pytest.mark.timeout(600)]
INSTALL = (
    *el_repository.INSTALL, "datacenter-gpu-manager-4-cuda12", "nvidia-container-toolkit", "python3-dnf-plugin-versionlock",
)  # fmt: skip
LIST = "/etc/dnf/plugins/versionlock.list"
REPOSITORY = "[nvidia]\nname=nvidia\nbaseurl=file:///srv/nvidia\nenabled=0\ngpgcheck=0\nmodule_hotfixes=1\n"


class ElAdmin(Admin):
    """The admin host of one node like EL."""

    def __init__(self, rack: Rack, folder: Path) -> None:
        self.folder = folder
        super().__init__(rack, folder)

    @property
    def host(self) -> Host:
        return self.rack.nodes[0]

    def declare(self, version: str) -> None:
        """Declare this driver, and lock it for the node as its database is now."""
        names = ", ".join(f'"{el_repository.rename(name, version)}"' for name in INSTALL)
        self.write_site(
            more=f'[classes.h100.settings.driver]\nversion = "{version}"\nmodule = "open"\nhold = true\ninstall = [{names}]'
        )
        for name in ("rpmdb.sqlite", "rpmdb.sqlite-wal"):
            there, here = self.host.path(f"/var/lib/rpm/{name}"), self.folder / name
            here.unlink(missing_ok=True)
            if there.exists():
                here.write_bytes(there.read_bytes())
        words = ["--repository", str(el_repository.repository(self.rack.suite)), "--status", str(self.folder / "rpmdb.sqlite")]
        self.run("lock", "--site", str(self.site), *words, "--download", str(self.files))

    @property
    def files(self) -> Path:
        return self.folder / "packages"

    def driver(self, *words: str, code: int) -> dict[str, Any]:
        """What `fairlead apply` says of the driver on the node."""
        done = self.host.run(f"/usr/local/bin/fairlead apply --json {' '.join(words)}", check=False, timeout=240)
        assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return dict(next(item for item in json.loads(done.stdout)["items"] if item["setting"] == "driver"))

    def versions(self) -> dict[str, str]:
        lines = self.host.run("rpm -qa --qf '%{NAME} %{EPOCHNUM}:%{VERSION}-%{RELEASE}\\n'").stdout.splitlines()
        return dict(line.split(" ") for line in lines if line.startswith(("nvidia", "libnv", "kmod", "datacenter")))


@pytest.fixture(scope="module", params=["bookworm", pytest.param("trixie", marks=pytest.mark.slow)])
def el(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ElAdmin]:
    """A node with dnf 4.14 (``bookworm``) or 4.23 (``trixie``)."""
    name, suite = own_name("el"), request.param
    up = f"from tests.lab.rack import Rack; Rack(nodes_wanted=1, name={name!r}, suite={suite!r}, el=True).up()"
    subprocess.run([sys.executable, "-c", up], cwd=PROJECT, check=True, timeout=280)
    rack = Rack.find(name)
    try:
        yield ElAdmin(rack, tmp_path_factory.mktemp("el"))
    finally:
        rack.down()


def whole(el: ElAdmin, version: str) -> None:
    """The node has the lock's packages and no other version of them, and the versionlock list names each of them."""
    versions, locked = el.versions(), el.host.run(f"cat {LIST}").stdout
    driver = {name: v for name, v in versions.items() if "container" not in name and not name.startswith("datacenter")}
    assert len(driver) >= 8 and all(v.split(":")[1].startswith(f"{version}-") for v in driver.values()), versions
    assert "nvidia-container-toolkit" in versions and "datacenter-gpu-manager-4-core" in versions
    assert all(f"{name}-{v}.*\n" in locked for name, v in versions.items()), locked


def test_1_provisioning_brings_the_files_and_waits_for_a_drained_node(el: ElAdmin) -> None:
    el.declare("580.82.07")
    before = el.versions()
    result = el.provision("--packages", str(el.files), code=75)["gpu1"]
    driver = next(item for item in result["apply"]["items"] if item["setting"] == "driver")
    assert (driver["state"], driver["steps"][0]["disruption"]) == ("deferred", "drain"), driver
    assert el.versions() == before, "a loaded driver is moved on a drained node only"
    cached = el.host.run("ls /var/cache/fairlead/packages").stdout.split()
    assert len([name for name in cached if name.endswith(".rpm")]) >= 10


def test_2_a_drained_node_gets_the_whole_set_at_once(el: ElAdmin) -> None:
    el.driver("--drained", code=75)
    whole(el, "580.82.07")
    assert el.host.run("systemctl is-active fairlead-agent.service").stdout.strip() == "active"


def test_3_dnf_upgrade_moves_nothing_of_the_driver(el: ElAdmin) -> None:
    repository = el_repository.repository(el.rack.suite)
    tar = subprocess.run(["tar", "-C", str(repository), "-c", "."], capture_output=True, check=True, timeout=60).stdout
    el.host.path("/srv/nvidia.tar").write_bytes(tar)
    el.host.path("/etc/yum.repos.d/nvidia.repo").write_text(REPOSITORY)
    el.host.run("mkdir -p /srv/nvidia && tar -C /srv/nvidia -xf /srv/nvidia.tar && rm /srv/nvidia.tar")
    before = el.versions()
    el.host.run("dnf -y --repo nvidia upgrade", timeout=120)
    assert el.versions() == before


def test_4_up_from_a_bundle(el: ElAdmin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site without internet: everything that the node gets is in one folder."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels.wheelhouse(el.rack.suite)))
    el.declare("580.95.05")
    bundle, python = el.folder / "bundle", {"bookworm": "3.11", "trixie": "3.13"}[el.rack.suite]
    words = ["--no-admin", "--python", python, "--packages", str(el.files)]
    el.run("bundle", "--site", str(el.site), "--output", str(bundle), *words)
    packages = {path.name for path in (bundle / "packages").iterdir()}
    assert len(packages) >= 10 and all(name.endswith(".rpm") for name in packages)
    el.provision("--bundle", str(bundle), code=75)
    assert packages <= set(el.host.run("ls /var/cache/fairlead/packages").stdout.split())
    el.driver("--drained", code=75)
    whole(el, "580.95.05")
    (el.folder / "former").mkdir()
    for file in (el.site, el.folder / "fairlead.lock"):
        (el.folder / "former" / file.name).write_bytes(file.read_bytes())


def test_5_back_over_the_renames_from_the_nodes_cache(el: ElAdmin) -> None:
    el.declare("575.57.08")
    el.provision("--packages", str(el.files), code=75)
    el.driver("--drained", code=75)
    whole(el, "575.57.08")


def test_6_back_to_the_former_set_needs_no_files_of_the_admin_host(el: ElAdmin, tmp_path: Path) -> None:
    """The site goes back by its version control. The files of the former set are still in the node's cache."""
    former = el.folder / "former"
    (el.folder / "fairlead.lock").write_bytes((former / "fairlead.lock").read_bytes())
    el.site.write_bytes((former / "site.toml").read_bytes())
    (tmp_path / "empty").mkdir()
    el.provision("--packages", str(tmp_path / "empty"), code=75)
    el.driver("--drained", code=75)
    whole(el, "580.95.05")
