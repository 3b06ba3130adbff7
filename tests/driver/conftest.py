"""Debian's own NVIDIA driver packages: whatever two versions its archive has today, resolved by `fairlead lock` and kept."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from fairlead.config.driver_lock_file import LockedSet, load_lock
from fairlead.config.driver_rules import driver_version, numbers
from fairlead.provision.driver_lock import AptArchive, PackageSources
from tests.driver.apt_node import AptNode, environment
from tests.lab import roots

INSTALL = ("nvidia-smi", "nvidia-persistenced")
PARTS = "main contrib non-free non-free-firmware"


def repositories() -> list[str]:
    """Debian 12's own suites, on this machine's mirror."""
    mirror = roots.mirror() or "http://deb.debian.org/debian"
    key = roots.root("bookworm") / "usr/share/keyrings/debian-archive-keyring.gpg"
    suites = [(mirror, s) for s in ("bookworm", "bookworm-updates", "bookworm-backports")]
    suites.append((mirror.rstrip("/").removesuffix("/debian") + "/debian-security", "bookworm-security"))
    return [f"deb [signed-by={key}] {url} {suite} {PARTS}" for url, suite in suites]


class Debian(Struct):
    """Two versions of the driver, the older first: sets of the lock, their package files, and the site that declares them."""

    older: LockedSet
    newer: LockedSet
    files: Path
    site: Path


def status() -> Path:
    return roots.root("bookworm") / "var/lib/dpkg/status"


def lock(site: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """`fairlead lock` on the admin host."""
    command = [sys.executable, "-m", "fairlead", "lock", "--site", str(site), *words]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def from_debian() -> list[str]:
    return [w for line in repositories() for w in ("--repository", line)] + ["--status", str(status())]


def available(name: str = "nvidia-smi") -> list[str]:
    """Driver versions in Debian's archive now, newest first."""
    folder = Path(environment()["XDG_CACHE_HOME"]) / "fairlead"
    archive = AptArchive(PackageSources(repositories=tuple(repositories()), status=str(status())), folder)
    return sorted({driver_version(v) for v in archive.versions(name)[name]} - {""}, key=numbers, reverse=True)


def site_text(**sets: str) -> str:
    names = ", ".join(f'"{n}"' for n in INSTALL)
    text = "schema = 1\ngeneration = 1\n"
    for number, (name, version) in enumerate(sets.items(), 1):
        text += f'[classes.{name}]\nnodes = "gpu{number}"\n[classes.{name}.settings.driver]\nversion = "{version}"\n'
        text += f'module = "none"\ninstall = [{names}]\nset = "{name}"\n'
    return text


@pytest.fixture(scope="session")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Debian:
    with roots.locked("driver"):
        known = available()
        if len(known) < 2:
            pytest.skip(f"Debian 12's archive has one version of the driver now: {known}")
        site = tmp_path_factory.mktemp("site") / "site.toml"
        site.write_text(site_text(older=known[1], newer=known[0]))
        files = Path(environment()["XDG_CACHE_HOME"]) / "fairlead/packages"
        lock(site, *from_debian(), "--download", str(files))
    sets = load_lock(str(site.parent / "fairlead.lock")).sets
    return Debian(sets["older"], sets["newer"], files, site)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[AptNode]:
    with AptNode(tmp_path / "node") as made:
        yield made
