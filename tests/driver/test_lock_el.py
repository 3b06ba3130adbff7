"""`fairlead lock` by libsolv, and real dnf: from the lock's files alone dnf installs exactly the lock's packages.

The repository is the lab's, made by rpmbuild and createrepo_c. The node's database is the root's own, written by real rpm.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fairlead.config.driver_lock_file import LockedSet, load_lock
from fairlead.host.rpm_header import read_package
from fairlead.provision import node_rpms
from tests.driver import el_repository
from tests.driver.apt_node import PROJECT
from tests.driver.dnf_node import DnfNode
from tests.lab import el_roots
from tests.lab.ledger import own_name

solv = pytest.importorskip("solv")
pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]
INSTALL = (*el_repository.INSTALL, "datacenter-gpu-manager-4-cuda12", "python3-dnf-plugin-versionlock")


@pytest.fixture(params=["bookworm", "trixie"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DnfNode]:
    with DnfNode(tmp_path / "node", request.param) as made:
        yield made


def status_of(node: DnfNode, folder: Path) -> Path:
    """A copy of the node's rpmdb.sqlite with its -wal, as an admin takes it."""
    at = Path(f"/proc/{node.pid}/root/var/lib/rpm")
    for file in ("rpmdb.sqlite", "rpmdb.sqlite-wal"):
        (folder / file).unlink(missing_ok=True)
        if (at / file).exists():
            shutil.copyfile(at / file, folder / file)
    return folder / "rpmdb.sqlite"


def lock(folder: Path, node: DnfNode, version: str, *install: str, module: str = "open") -> tuple[LockedSet, Path]:
    """The locked set for this node, and the folder of its files."""
    site = folder / "site.toml"
    names = ", ".join(f'"{el_repository.rename(n, version)}"' for n in install)
    site.write_text(
        'schema = 1\n[classes.a]\nnodes = "gpu1"\nprofile = "hgx-h100"\n[classes.a.settings.driver]\n'
        f'version = "{version}"\nmodule = "{module}"\ninstall = [{names}]\n'
    )
    files = folder / f"files-{version}"
    words = ["--repository", str(el_repository.repository(node.suite)), "--status", str(status_of(node, folder))]
    command = [sys.executable, "-m", "fairlead", "lock", "--site", str(site), *words, "--download", str(files)]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(PROJECT / "agent"), "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return load_lock(str(folder / "fairlead.lock")).sets["default"], files


def install(node: DnfNode, locked: LockedSet, files: Path) -> dict[str, str]:
    """What is new after dnf has installed the files of the lock, with no repository."""
    node.bring(files, f"/srv/{files.name}")
    before = node.versions()
    words = ["dnf", "-y", "-q", "--disablerepo=*", "--disableexcludes=all", "--setopt=install_weak_deps=False", "--allowerasing"]
    node.run(*words, "install", *(f"/srv/{files.name}/{p.file}" for p in locked.packages))
    return {n: v for n, v in node.versions().items() if before.get(n) != v}


@pytest.mark.release("bookworm")
def test_dnf_installs_from_the_locks_files_alone_what_libsolv_chose(node: DnfNode, tmp_path: Path) -> None:
    """First 580.82.07, then the upgrade from a lock for the node as it is then, then back over the renames to 575."""
    for version in ("580.82.07", "580.95.05", "575.57.08"):
        locked, files = lock(tmp_path, node, version, *INSTALL)
        wanted = {p.name: p.version for p in locked.packages}
        new = install(node, locked, files)
        assert {n: wanted[n] for n in new} == new, "nothing beside the set"
        installed = node.versions()
        assert {n: installed.get(n) for n in wanted} == wanted
        assert wanted["nvidia-driver-cuda"] == f"3:{version}-1.el{node.major}"
        assert node.rpm("-V", "--nomtime", *wanted) == []


@pytest.mark.release("trixie")
def test_the_node_installs_the_lock_and_goes_up_and_back(node: DnfNode, tmp_path: Path) -> None:
    """The whole way: lock, document, `fairlead apply` on the node, each lock made from the node's database of then."""
    pytest.importorskip("fairlead.host.change.dnf_transaction")
    for version in ("580.82.07", "580.95.05", "575.57.08"):
        locked, files = lock(tmp_path, node, version, *INSTALL)
        node.serve(locked.packages, files)
        packages = [msgspec.to_builtins(p) for p in locked.packages]
        node.declare(version=version, module="open", install=list(locked.install), packages=packages)
        assert node.apply(code=None)["persisted"] == "yes"
        installed = node.versions()
        assert {p.name: installed.get(p.name) for p in locked.packages} == {p.name: p.version for p in locked.packages}
        assert {f"{p.name}-{p.version}.*" for p in locked.packages if p.kept} <= set(node.locked().splitlines())


def test_dnf_itself_would_choose_the_same_packages(node: DnfNode, tmp_path: Path) -> None:
    """Asked for the same exact versions with the whole repository in view."""
    locked, _ = lock(tmp_path, node, "580.95.05", *INSTALL)
    wanted = {p.name: p.version for p in locked.packages}
    node.repository()
    asked = [f"{n}-{wanted[n]}" for n in locked.install]
    words = ["dnf", "--repo", "nvidia", "--setopt=install_weak_deps=False", "--assumeno", "install", *asked]
    said = node.run(*words, code=1)
    rows = re.findall(r"^ (\S+)\s+(?:x86_64|noarch)\s+(\S+)\s+nvidia\s", said, re.MULTILINE)
    assert {n: v if ":" in v else f"0:{v}" for n, v in rows} == wanted, said


@pytest.mark.release("bookworm")
def test_precompiled_modules_where_no_module_is_named(node: DnfNode, tmp_path: Path) -> None:
    node.repository()
    kernel = el_repository.KERNELS[node.major][0]
    node.run("dnf", "-y", "-q", "--repo", "nvidia", "install", f"kernel-core-{kernel}.el{node.major}")
    names = ("nvidia-driver-cuda", "nvidia-fabricmanager")
    locked, files = lock(tmp_path, node, "580.95.05", *names, module="proprietary")
    module = f"kmod-nvidia-580.95.05-{kernel}"
    assert module in {p.name for p in locked.packages} and not [p for p in locked.packages if p.name.endswith("-dkms")]
    assert module in install(node, locked, files)


def test_real_headers_are_read_as_rpm_itself_reads_them(node: DnfNode, tmp_path: Path) -> None:
    """The database and the package files, against rpm's own words."""
    query = "%{NAME} %{ARCH} %{EPOCHNUM}:%{VERSION}-%{RELEASE} %{SIZE}\\n"
    node.repository()
    node.run("dnf", "-y", "-q", "--repo", "nvidia", "install", "nvlsm", "kernel-core", "datacenter-gpu-manager-4-cuda13")
    found = node_rpms.read_rpms(str(status_of(node, tmp_path)))
    lines = {f"{h.name} {h.architecture} {h.version} {h.installed_bytes}" for h in found}
    assert lines == {line for line in node.rpm("-qa", "--qf", query) if not line.startswith("gpg-pubkey")}
    shell = next(h for h in found if h.name == "lab-base")
    assert "/bin/sh" in {r.name for r in shell.provides}
    folder = el_repository.repository(node.suite)
    for path in sorted(folder.glob("*.rpm"))[::7]:
        with open(path, "rb") as f:
            header = read_package(f)
        said = node.rpm("-qp", "--nosignature", "--qf", query, f"/srv/nvidia/{path.name}")
        assert said == [f"{header.name} {header.architecture} {header.version} {header.installed_bytes}"]
        ours = {r.name for r in header.requires}
        theirs = {
            line.split(" ")[0] if line[0] != "(" else line for line in node.rpm("-qp", "--requires", f"/srv/nvidia/{path.name}")
        }
        assert ours == {name for name in theirs if not name.startswith("rpmlib(")}


def test_a_folder_of_files_and_its_repository_give_the_same_lock(tmp_path: Path) -> None:
    folder = el_repository.repository("bookworm")
    database = el_roots.el_root("bookworm") / "var/lib/rpm/rpmdb.sqlite"
    shutil.copyfile(database, tmp_path / "rpmdb.sqlite")
    site = tmp_path / "site.toml"
    names = json.dumps(list(INSTALL))
    site.write_text(f'schema = 1\n[classes.a]\nnodes = "gpu1"\n[classes.a.settings.driver]\nbranch = "580"\ninstall = {names}\n')
    texts = []
    for option in ("--repository", "--rpms"):
        command = [sys.executable, "-m", "fairlead", "lock", "--site", str(site), option, str(folder)]
        env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(PROJECT / "agent"), "XDG_CACHE_HOME": str(tmp_path / own_name("c"))}
        words = [*command, "--status", str(tmp_path / "rpmdb.sqlite")]
        subprocess.run(words, env=env, capture_output=True, check=True, timeout=120)
        texts.append((tmp_path / "fairlead.lock").read_text())
    assert texts[0] == texts[1] and '"580.95.05"' in texts[0]
