"""NVIDIA's own repository as the source: its layout, its signature and its names, with real apt on a Debian node.

The packages are ours (tests/driver/nvidia_repository.py says what of them is real); apt, dpkg, gpg and fairlead are.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from fairlead.config.driver_lock_file import LockedSet, load_lock
from tests.driver import nvidia_repository
from tests.driver.apt_node import AptNode
from tests.driver.conftest import lock, status

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("gpg") is None or shutil.which("gpgconf") is None, reason="gpg is not installed"),
]
COMMON = ("nvidia-container-toolkit", "libgdrapi")
NEW = ("nvidia-open", "nvidia-fabricmanager", "nvidia-imex", "datacenter-gpu-manager-4-cuda13", *COMMON)
OLD = ("nvidia-open", "nvidia-fabricmanager-575", "nvidia-imex-575", "datacenter-gpu-manager-4-cuda12", *COMMON)
PREFERENCES = "/etc/apt/preferences.d/00-nvidia-prefer"


def site(folder: Path) -> Path:
    text = "schema = 1\n"
    for number, (name, chosen, install) in enumerate((("old", 'version = "575.57.08"', OLD), ("new", 'branch = "580"', NEW)), 1):
        names = ", ".join(f'"{n}"' for n in install)
        text += f'[classes.{name}]\nnodes = "gpu{number}"\nprofile = "hgx-h100"\n[classes.{name}.settings.driver]\n{chosen}\n'
        text += f'module = "open"\nset = "{name}"\ninstall = [{names}]\n'
    (folder / "site.toml").write_text(text)
    return folder / "site.toml"


def line(repository: Path, key: Path) -> str:
    return f"deb [signed-by={key}] file:{repository}/x86_64 /"


def moved(node: AptNode, found: LockedSet, files: Path) -> None:
    """The set declared and applied: all of it installed and held, though nothing can be loaded here."""
    node.serve(found.packages, files)
    packages = [msgspec.to_builtins(p) for p in found.packages]
    node.declare(version=found.version, branch=found.branch, module="open", install=found.install, packages=packages)
    done = node.apply(code=None)
    assert done["persisted"] == "yes" and done["effective"] == "no", done
    wanted = {p.name: p.version for p in found.packages}
    assert node.versions(*wanted) == wanted
    assert set(wanted) <= node.holds() and node.run("dpkg", "--audit") == ""
    link = node.run("readlink", f"/{nvidia_repository.LIBRARY}.1").strip()
    assert link == f"libnvidia-ml.so.{found.version}"


def test_lock_install_hold_upgrade_and_rollback(node: AptNode, tmp_path: Path) -> None:
    key = nvidia_repository.repository(tmp_path / "cuda")
    declared, files = site(tmp_path), tmp_path / "files"
    words = ["--status", str(status()), "--download", str(files)]
    other = nvidia_repository.sign(tmp_path / "cuda/x86_64", tmp_path / "other.gpg")  # signs again, with another key
    refused = lock(declared, "--repository", line(tmp_path / "cuda", key), *words, code=69)
    assert "package lists: " in refused.stderr and not (tmp_path / "fairlead.lock").exists()
    key = other
    lock(declared, "--repository", line(tmp_path / "cuda", key), *words)
    sets = load_lock(str(tmp_path / "fairlead.lock")).sets
    old, new = sets["old"], sets["new"]
    # the newest of its branch, though the repository has 595; daemons and module of that version, the rest its newest
    assert new.version == "580.95.05" and old.version == "575.57.08"
    got = {p.name: p.version for p in new.packages}
    assert got["nvidia-kernel-open-dkms"] == got["nvidia-fabricmanager"] == got["nvidia-imex"] == "580.95.05-1"
    assert got["datacenter-gpu-manager-4-core"] == "1:4.6.0-1" and "nvidia-kernel-dkms" not in got
    assert all(p.kept for p in new.packages)
    assert "nvidia-fabricmanager-575" in {p.name for p in old.packages}

    # the node has NVIDIA's repository too, its key, and a pin on its newest driver
    tar = subprocess.run(["tar", "-C", str(tmp_path), "-c", "cuda", "other.gpg"], capture_output=True, check=True).stdout
    subprocess.run(node.words("tar", "-C", "/srv", "-x"), input=tar, check=True, timeout=60)
    source = f"deb [signed-by=/srv/{key.name}] file:/srv/cuda/x86_64 /"
    node.run("sh", "-c", 'printf "%s\\n" "$1" > /etc/apt/sources.list.d/cuda.list; rm -f /etc/apt/sources.list', "sh", source)
    node.run("sh", "-c", f'printf "%s" "$1" > {PREFERENCES}', "sh", nvidia_repository.PREFER)
    node.run("apt-get", "-q", "-o", "APT::Sandbox::User=root", "update")
    assert "Candidate: 595.58.03-1" in node.run("apt-cache", "policy", "nvidia-open")

    moved(node, old, files)
    moved(node, new, files)  # the daemons' names change with 580: the former go in the same transaction
    assert not node.versions("nvidia-fabricmanager-575", "nvidia-imex-575", "datacenter-gpu-manager-4-cuda12")
    # neither an upgrade nor somebody who asks for one package moves it: it is on hold
    simulated = node.run("apt-get", "--simulate", "-q", "dist-upgrade")
    assert not re.findall(r"^(?:Inst|Remv) .*nvidia.*", simulated, re.MULTILINE), simulated
    assert "Candidate: 580.95.05-1" in node.run("apt-cache", "policy", "nvidia-open"), "above the pin of others"
    assert "already the newest" in node.run("apt-get", "--yes", "-q", "install", "nvidia-open")
    assert node.versions("nvidia-open") == {"nvidia-open": "580.95.05-1"}
    moved(node, old, files)  # back, with nothing brought
    assert not node.versions("nvidia-fabricmanager", "nvidia-imex", "datacenter-gpu-manager-4-cuda13")


def test_ubuntus_names(tmp_path: Path) -> None:
    """Precompiled modules are of the kernel's version and move with the driver all the same."""
    debs = tmp_path / "debs"
    debs.mkdir()
    for v, kernel in (("580.95.05", "6.8.0-60.63"), ("570.172.08", "6.8.0-60.63")):
        for name, version, fields in nvidia_repository.ubuntus(v, kernel):
            nvidia_repository.build(debs, name, version, fields)
    (tmp_path / "status").write_text("")
    names = ["nvidia-headless-no-dkms-580-server-open", "nvidia-utils-580-server", "nvidia-fabricmanager-580"]
    names.append("linux-modules-nvidia-580-server-open-generic")
    listed = ", ".join(f'"{n}"' for n in names)
    declared = tmp_path / "site.toml"
    declared.write_text(
        'schema = 1\n[classes.a]\nnodes = "gpu1"\nprofile = "hgx-h100"\n[classes.a.settings.driver]\nbranch = "580"\n'
        f'module = "open"\ninstall = [{listed}]\n'
    )
    lock(declared, "--debs", str(debs), "--status", str(tmp_path / "status"))
    found = load_lock(str(tmp_path / "fairlead.lock")).sets["default"]
    assert found.version == "580.95.05" and all(p.kept for p in found.packages), found
    modules = {p.name: p.version for p in found.packages if p.name.startswith("linux-")}
    assert set(modules.values()) == {"6.8.0-60.63+1"} and len(modules) == 3
