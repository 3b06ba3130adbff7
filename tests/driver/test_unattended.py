"""The real unattended-upgrades on a Debian node: it moves what else is newer, and nothing of the driver."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from fairlead.config.driver_lock_file import load_lock
from fairlead.model import apt_hold
from tests.driver.apt_node import AptNode
from tests.driver.conftest import INSTALL, Debian, from_debian, lock, site_text
from tests.driver.nvidia_repository import build
from tests.driver.test_apt import wants

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(900)]
OTHER = "of-the-site"
NEWER = "999.1-1"
ALLOWED = 'Unattended-Upgrade::Origins-Pattern { "origin=Lab"; };\nAPT::Sandbox::User "root";\n'


def repository(folder: Path) -> None:
    """A newer nvidia-smi, and two versions of a package that is not ours."""
    stanzas = []
    for name, version in (("nvidia-smi", NEWER), (OTHER, "1-1"), (OTHER, "2-1")):
        file = build(folder, name, version, "")
        control = subprocess.run(["dpkg-deb", "--field", str(file)], capture_output=True, text=True, check=True).stdout
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        stanzas.append(f"{control.rstrip()}\nFilename: ./{file.name}\nSize: {file.stat().st_size}\nSHA256: {digest}\n")
    packages = "\n".join(stanzas).encode()
    (folder / "Packages").write_bytes(packages)
    sums = f" {hashlib.sha256(packages).hexdigest()} {len(packages)} Packages\n"
    (folder / "Release").write_text(f"Origin: Lab\nDate: Sun, 22 Nov 2026 04:00:00 UTC\nSHA256:\n{sums}")


def test_unattended_upgrades_moves_others_and_keeps_off_the_driver(node: AptNode, debian: Debian, tmp_path: Path) -> None:
    site, files = tmp_path / "site.toml", tmp_path / "files"
    names = ", ".join(f'"{n}"' for n in INSTALL)
    site.write_text(site_text(default=debian.older.version).replace(names, f'{names}, "unattended-upgrades"'))
    lock(site, *from_debian(), "--download", str(files))
    found = load_lock(str(tmp_path / "fairlead.lock")).sets["default"]
    node.serve(found.packages, files)
    node.declare(**wants(found))
    assert node.apply()["state"] == "changed"
    ours = node.versions("nvidia-smi")["nvidia-smi"]

    (tmp_path / "lab").mkdir()
    repository(tmp_path / "lab")
    tar = subprocess.run(["tar", "-C", str(tmp_path), "-c", "lab"], capture_output=True, check=True).stdout
    subprocess.run(node.words("tar", "-C", "/srv", "-x"), input=tar, check=True, timeout=60)
    node.run(
        "sh", "-c", "rm -f /etc/apt/sources.list; echo 'deb [trusted=yes] file:/srv/lab ./' > /etc/apt/sources.list.d/lab.list"
    )
    node.run("sh", "-c", f"printf '%s' '{ALLOWED}' > /etc/apt/apt.conf.d/99lab")
    node.run("apt-get", "-q", "update")
    node.run("dpkg", "-i", f"/srv/lab/{OTHER}_1-1_amd64.deb")

    node.run("unattended-upgrade", "-v", timeout=300)
    assert node.versions("nvidia-smi", OTHER) == {"nvidia-smi": ours, OTHER: "2-1"}
    node.run("sh", "-c", f"apt-mark unhold nvidia-smi && rm {apt_hold.PIN}")  # by the list of unattended-upgrades alone
    node.run("unattended-upgrade", "-v", timeout=300)
    assert node.versions("nvidia-smi") == {"nvidia-smi": ours}
    node.run("rm", apt_hold.UNATTENDED)
    node.run("unattended-upgrade", "-v", timeout=300)
    assert node.versions("nvidia-smi") == {"nvidia-smi": NEWER}, "else it would have moved"
