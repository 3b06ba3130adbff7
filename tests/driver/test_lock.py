"""The lock: what is known to go wrong is refused with its reason; what is declared and what is locked are held together."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from fairlead import config
from fairlead.config.driver_lock_file import SCHEMA, Lock, LockedSet, load_lock
from fairlead.config.driver_rules import FIRST_BRANCH, LAST_BRANCH, OPEN, PROPRIETARY, RULES, Set, driver_version, faults
from fairlead.errors import ConfigError
from fairlead.model.change import Package
from fairlead.provision.driver_lock import text
from tests import printed_json
from tests.driver.apt_node import environment


def package(name: str, version: str) -> Package:
    return Package(
        name=name, version=version, architecture="amd64", sha256="ab" * 32, size=10, url=f"http://mirror.example/{name}.deb"
    )


def chosen(version: str, *packages: str, module: str = "open", gpu: str = "hopper") -> Set:
    found = tuple(package(*p.split("=")) for p in packages)
    return Set(version=version, branch=version[:3], module=module, gpu=gpu, packages=found)


GOOD = (
    "nvidia-open=580.95.05-1", "nvidia-fabricmanager=580.95.05-1", "nvidia-imex=580.95.05-1", "nvidia-persistenced=580.95.05-1",
    "datacenter-gpu-manager-4-cuda13=1:4.4.1-1", "nvidia-container-toolkit=1.19.1-1", "nvidia-container-toolkit-base=1.19.1-1",
    "gdrdrv-dkms=2.5.1-1", "libgdrapi=2.4.4-1", "dkms=3.0.10-8", "nvidia-driver-pinning-580=580-1",
)  # fmt: skip


EL = (
    "nvidia-driver-cuda=3:580.95.05-1.el9", "libnvidia-ml=3:580.95.05-1.el9", "nvidia-kmod-common=3:580.95.05-1.el9",
    "kmod-nvidia-open-dkms=3:580.95.05-1.el9", "nvidia-fabricmanager=0:580.95.05-1", "libnvidia-nscq=0:580.95.05-1",
    "libnvsdm=0:580.95.05-1", "nvidia-imex=0:580.95.05-1", "nvlsm=0:2025.06.11-1", "datacenter-gpu-manager-4-cuda13=1:4.5.0-1",
    "nvidia-container-toolkit=0:1.19.1-1", "kernel-devel=0:5.14.0-570.17.1.el9_6",
)  # fmt: skip


def test_a_good_set_has_nothing_against_it() -> None:
    assert faults(chosen("580.95.05", *EL)) == ()
    assert faults(chosen("580.95.05", *GOOD)) == ()
    debian = ("nvidia-kernel-dkms=535.261.03-1", "nvidia-persistenced=535.171.04-1~deb12u1", "nvidia-settings=535.171.04-1")
    assert faults(chosen("535.261.03", *debian, module="proprietary")) == ()


@pytest.mark.parametrize(
    ("rule", "declared"),
    [
        ("branch", Set(version="580.95.05", branch="570", module="none", gpu="", packages=())),
        ("module", chosen("580.95.05", "nvidia-kernel-dkms=580.95.05-1")),
        ("module", chosen("580.95.05", "nvidia-open=580.95.05-1", module="none")),
        ("open_from_turing", chosen("580.95.05", "nvidia-open=580.95.05-1", gpu="volta")),
        ("proprietary_before_blackwell", chosen("580.95.05", "cuda-drivers=580.95.05-1", module="proprietary", gpu="blackwell")),
        ("known_gpu", chosen("550.54.15", "nvidia-open=550.54.15-1", gpu="blackwell")),
        ("known_gpu", chosen("595.58.03", "nvidia-dkms=595.58.03-1ubuntu1", module="proprietary", gpu="volta")),
        ("userland", chosen("580.95.05", "nvidia-open=580.95.05-1", "libnvidia-ml1=580.82.07-1")),
        ("fabric_manager", chosen("580.95.05", "nvidia-open=580.95.05-1", "nvidia-fabricmanager=580.82.07-1")),
        ("fabric_manager", chosen("570.172.08", "nvidia-open=570.172.08-1", "nvidia-fabricmanager-570=570.158.01-1")),
        ("fabric_manager", chosen("575.57.08", "nvidia-open=3:575.57.08-1.el9", "libnvidia-nscq-575=0:575.51.03-1")),
        ("open_only", chosen("620.10.01", "cuda-drivers=3:620.10.01-1.el9", module="proprietary")),
        ("nvsdm", chosen("580.95.05", "kmod-nvidia-open-dkms=3:580.95.05-1.el9", "libnvsdm=0:580.82.07-1")),
        ("nvsdm", chosen("575.57.08", "nvidia-open=3:575.57.08-1.el9", "libnvsdm-575=0:575.51.03-1")),
        ("imex", chosen("580.95.05", "nvidia-open=580.95.05-1", "nvidia-imex-580=580.82.07-1")),
        ("dcgm_generation", chosen("580.95.05", "nvidia-open=580.95.05-1", "datacenter-gpu-manager=1:3.3.9")),
        ("dcgm_cuda", chosen("570.172.08", "nvidia-open=570.172.08-1", "datacenter-gpu-manager-4-cuda13=1:4.4.1-1")),
        ("container_toolkit", chosen("580.95.05", "nvidia-open=580.95.05-1", "nvidia-container-toolkit=1.19.0-1")),
        ("container_toolkit", chosen("580.95.05", "nvidia-open=580.95.05-1", "nvidia-container-toolkit=1.20.0-1",
                                     "libnvidia-container1=1.19.1-1")),
        ("gdrcopy", chosen("580.95.05", "nvidia-open=580.95.05-1", "gdrdrv-dkms=2.5.1-1", "libgdrapi=1.3-1")),
        ("peermem", chosen("580.95.05", "nvidia-open=580.95.05-1", "nvidia-peer-memory-dkms=1.3-0")),
    ],
)  # fmt: skip
def test_each_known_bad_set_is_refused_for_its_reason(rule: str, declared: Set) -> None:
    against = faults(declared)
    assert [f.rule for f in against] == [rule], against
    assert against[0].why and against[0].source and against[0].what
    (source,) = {r.read for r in RULES if r.name == rule}
    assert "2026-01-01" <= source <= date.today().isoformat()


def test_every_rule_has_a_bad_set_above() -> None:
    (mark,) = [m for m in test_each_known_bad_set_is_refused_for_its_reason.pytestmark if m.name == "parametrize"]  # type: ignore[attr-defined]
    assert {row[0] for row in mark.args[1]} == {r.name for r in RULES}
    assert list(FIRST_BRANCH.values()) == sorted(FIRST_BRANCH.values()) and set(LAST_BRANCH) < set(FIRST_BRANCH)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("nvidia-open", "open"), ("nvidia-open-580", "open"), ("nvidia-kernel-open-dkms", "open"), ("nvidia-dkms-open", "open"),
     ("nvidia-open-kernel-dkms", "open"), ("nvidia-dkms-580-open", "open"), ("nvidia-dkms-580-server-open", "open"),
     ("linux-modules-nvidia-580-server-open-6.8.0-60-generic", "open"), ("linux-modules-nvidia-580-open-generic", "open"),
     ("kmod-nvidia-open-dkms", "open"), ("nvidia-kernel-dkms", "proprietary"), ("nvidia-dkms", "proprietary"),
     ("nvidia-dkms-580-server", "proprietary"), ("cuda-drivers", "proprietary"), ("cuda-drivers-580", "proprietary"),
     ("linux-modules-nvidia-580-generic", "proprietary"), ("linux-modules-nvidia-580-server-6.8.0-60-generic", "proprietary"),
     ("nvidia-open-kmod", "open"), ("kmod-nvidia-open-580.95.05-5.14.0-570.17.1", "open"), ("cuda-open-hwe", "open"),
     ("kmod-nvidia-dc-open-latest", "open"), ("nvidia-open-driver-G06-signed-cuda-kmp-default", "open"),
     ("kmod-nvidia-580.95.05-5.14.0-570.17.1", "proprietary"), ("nvidia-kmod-common", ""),
     ("kmod-nvidia-latest-dkms", "proprietary"), ("nvidia-kernel-support", ""), ("nvidia-driver-cuda", ""), ("dkms", "")],
)  # fmt: skip
def test_which_kernel_module_a_package_is(name: str, kind: str) -> None:
    found = ["open"] * bool(OPEN.match(name)) + ["proprietary"] * bool(PROPRIETARY.match(name))
    assert found == ([kind] if kind else [])


@pytest.mark.parametrize(
    ("version", "driver"),
    [("535.261.03-1", "535.261.03"), ("1:580.95.05-0ubuntu1", "580.95.05"), ("535.216.03-2~bpo12+1", "535.216.03"),
     ("3:580.95.05-1.el9", "580.95.05"), ("0:5.14.0-570.17.1.el9_6", ""), ("0:252-46.el9", ""),
     ("1.18.0-1", ""), ("3.0.10-8", ""), ("20220217+3~deb12u1", ""), ("570.26-1", "570.26")],
)  # fmt: skip
def test_the_drivers_version_in_a_packages(version: str, driver: str) -> None:
    assert driver_version(version) == driver


def locked(**more: Any) -> LockedSet:
    fields: dict[str, Any] = {"version": "580.95.05", "branch": "580", "module": "open", "install": ("nvidia-open",)}
    packages = tuple(package(*p.split("=")) for p in GOOD)
    return LockedSet(**{**fields, "architecture": "amd64", "packages": packages, **more})


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "site.toml"
    path.write_text("""\
schema = 1
[classes.h100]
nodes = "gpu[1-2]"
profile = "hgx-h100"
[classes.h100.settings.driver]
branch = "580"
install = ["nvidia-open"]
""")
    write(path, default=locked())
    return path


def write(site: Path, **sets: LockedSet) -> None:
    (site.parent / "fairlead.lock").write_text(text(Lock(schema=SCHEMA, sets=sets)))


def document(site: Path) -> config.Document:
    return config.resolve(config.load_site(str(site)), "gpu1", ["h100"])[0]


def refused(site: Path, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        document(site)


def test_the_set_reaches_the_document(site: Path) -> None:
    want: Any = document(site).settings["driver"]
    assert want.version == "580.95.05" and len(want.packages) == len(GOOD)
    assert load_lock(str(site.parent / "fairlead.lock")).sets["default"] == locked()
    assert text(load_lock(str(site.parent / "fairlead.lock"))) == (site.parent / "fairlead.lock").read_text()


def test_a_lock_that_does_not_fit_names_file_key_and_node(site: Path) -> None:
    write(site, default=locked(module="proprietary"))
    write(site, other=locked())
    refused(site, r"fairlead\.lock: sets\.default: node gpu1 wants this set")
    write(site, default=locked(branch="570", version="570.172.08"))
    refused(site, r"fairlead\.lock: sets\.default\.branch: is 570, but node gpu1 declares 580")
    write(site, default=locked(install=("nvidia-open", "nvidia-imex")))
    refused(site, r"sets\.default\.install: is nvidia-open nvidia-imex, but node gpu1 declares nvidia-open")
    write(site, default=locked(packages=(package("nvidia-open", "580.95.05-1"), package("datacenter-gpu-manager", "1:3.3.9"))))
    refused(site, r"sets\.default, of node gpu1: datacenter-gpu-manager 1:3\.3\.9 does not support driver branch 580: DCGM 3")
    (site.parent / "fairlead.lock").write_text("schema = 1\n[sets.default]\nversion = 3\n")
    refused(site, r"fairlead\.lock: not a lock: .*sets")
    (site.parent / "fairlead.lock").unlink()
    refused(site, r"site\.toml: settings\.driver: node gpu1 declares a driver, but ")
    site.write_text(site.read_text() + 'packages = [{name="x"}]\n')
    refused(site, "settings.driver.packages")


@pytest.mark.parametrize("word", ["../secret", "/etc/shadow", "..", "a/b", "a b", "", "-o", "\x1b[2J", "n\n"])
@pytest.mark.parametrize("key", ["name", "version", "architecture"])
def test_a_package_whose_name_would_be_a_path_is_in_no_lock_and_no_document(site: Path, key: str, word: str) -> None:
    with pytest.raises(ValueError, match="is no name, version or architecture"):
        Package(**{"name": "a", "version": "1", "architecture": "all", "sha256": "", "size": 0, key: word})
    lock = site.parent / "fairlead.lock"
    lock.write_text(re.sub(f'{key} = "[^"]*"', lambda _: f"{key} = {json.dumps(word)}", lock.read_text()))
    refused(site, r"fairlead\.lock: not a lock")


def test_a_nodes_package_database_moves_no_cursor_and_no_file(site: Path, tmp_path: Path) -> None:
    """--status is a copy of what a node has: its root may have written anything there."""
    debs = tmp_path / "debs"
    build(debs, "nvidia-open", "580.95.05-1", "libevil (= 2)")
    status, before = tmp_path / "status", (site.parent / "fairlead.lock").read_text()
    evil = "\x1b[2J\x1b]0;t\x07\x9b1m\u202e"
    head = "Status: install ok installed\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\n"
    for text_of in (
        f"Package: libevil\nVersion: 1{evil}\n{head}\n",
        f"Package: ../../{evil}\nVersion: 2\n{head}\n",
        "\x00" * 9999,
    ):
        status.write_text(text_of)
        done = run(site, "--debs", str(debs), "--status", str(status))
        told = done.stdout + done.stderr
        assert done.returncode in (69, 78) and [c for c in told if c not in "\n" and not c.isprintable()] == [], told
    more = f"Filename: ../../etc/passwd\nX-Evil: {evil}\nInstalled-Size: many\n"
    status.write_text(f"Package: libother\nVersion: 1\n{head}{more}\n")  # keys and values that dpkg does not write
    done = run(site, "--debs", str(debs), "--status", str(status))
    assert done.returncode == 78 and "cannot be satisfied" in done.stderr
    status.unlink()
    os.mkfifo(status)
    assert run(site, "--debs", str(debs), "--status", str(status)).returncode == 65, (
        "a pipe that nobody writes to is not waited for"
    )
    status.unlink()
    with open(status, "wb") as f:
        f.truncate(1 << 40)
    done = run(site, "--debs", str(debs), "--status", str(status))
    assert done.returncode == 65 and "no package database" in done.stderr
    assert (site.parent / "fairlead.lock").read_text() == before


def run(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fairlead", "lock", "--site", str(site), *words]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=False)


def test_check_lists_every_reason(site: Path) -> None:
    assert run(site, "--check").returncode == 0
    assert printed_json.hold("lock", run(site, "--check", "--json").stdout)["holds"]
    old = package("datacenter-gpu-manager", "1:3.3.9"), package("nvidia-fabricmanager", "570.1.1-1")
    write(site, default=locked(packages=(package("nvidia-open", "580.95.05-1"), *old)))
    done = run(site, "--check")
    assert done.returncode == 78 and len(done.stdout.splitlines()) == 2, done.stdout
    assert "[NVIDIA Fabric Manager User Guide" in done.stdout


def test_what_cannot_be_satisfied_is_said_with_file_and_key(site: Path, tmp_path: Path) -> None:
    """A folder of packages in which something is missing: apt's own reason, nothing written."""
    debs = tmp_path / "debs"
    build(debs, "nvidia-open", "580.95.05-1", "libnvidia-absent (= 580.95.05-1)")
    build(debs, "nvidia-fm", "580.95.05-1", "")
    status = tmp_path / "status"
    status.write_text("")
    before = (site.parent / "fairlead.lock").read_text()
    words = ["--debs", str(debs), "--status", str(status)]
    done = run(site, *words)
    assert done.returncode == 78 and "cannot be satisfied: nvidia-open : Depends: libnvidia-absent" in done.stderr, done.stderr
    assert f"{site}: settings.driver" in done.stderr
    site.write_text(site.read_text().replace('branch = "580"', 'branch = "535"'))
    done = run(site, *words)
    assert done.returncode == 78 and "no version of branch 535 in the repositories" in done.stderr and "580.95.05" in done.stderr
    assert (site.parent / "fairlead.lock").read_text() == before
    site.write_text(site.read_text().replace('branch = "535"', 'branch = "580"').replace('["nvidia-open"]', '["nvidia-fm"]'))
    done = run(site, *words)
    assert done.returncode == 78 and "module is open, and the set has no package of the open kernel module" in done.stderr
    done = run(site, "--repository", "deb [trusted=yes] file:/none ./", "--status", str(status))
    assert done.returncode == 69 and "package lists: " in done.stderr
    assert run(site, "--debs", str(tmp_path), "--status", str(status)).returncode == 66


def test_dkms_brings_the_headers_of_the_c_library(site: Path, tmp_path: Path) -> None:
    """NVIDIA's build ends without them, and dkms only recommends them."""
    debs = tmp_path / "debs"
    build(debs, "nvidia-open", "580.95.05-1", "dkms")
    build(debs, "dkms", "3.0.10-8", "")
    build(debs, "libc6-dev", "2.36-9", "")
    (tmp_path / "status").write_text("")
    done = run(site, "--debs", str(debs), "--status", str(tmp_path / "status"))
    assert done.returncode == 0, done.stderr
    found = {p.name: p for p in load_lock(str(site.parent / "fairlead.lock")).sets["default"].packages}
    assert set(found) == {"nvidia-open", "dkms", "libc6-dev"}
    assert found["nvidia-open"].kept and not found["libc6-dev"].kept and not found["dkms"].kept


def build(folder: Path, name: str, version: str, depends: str) -> None:
    """A package file, made by dpkg-deb."""
    top = folder / "build" / name
    (top / "DEBIAN").mkdir(parents=True)
    control = f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: none <none@example.org>\nDescription: test\n"
    (top / "DEBIAN/control").write_text(control + (f"Depends: {depends}\n" if depends else ""))
    command = ["dpkg-deb", "--root-owner-group", "--build", str(top), str(folder / f"{name}_{version}_all.deb")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
