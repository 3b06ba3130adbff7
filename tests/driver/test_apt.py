"""Real apt on a Debian node without a network: install, hold, upgrade, rollback, what is refused, and runs that are killed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.config.lock import LockedSet
from tests.driver.apt_node import CACHE, AptNode
from tests.driver.conftest import Debian

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]
PIN = "/etc/apt/preferences.d/fairlead-driver.pref"
UNATTENDED = "/etc/apt/apt.conf.d/52fairlead-driver"


def wants(found: LockedSet, **more: Any) -> dict[str, Any]:
    packages = [msgspec.to_builtins(p) for p in found.packages]
    return {
        "version": found.version,
        "branch": found.branch,
        "module": "none",
        "install": found.install,
        "packages": packages,
        **more,
    }


def have(found: LockedSet, node: AptNode) -> None:
    """The whole set, held, is what the node has."""
    wanted = {p.name: p.version for p in found.packages}
    assert node.versions(*wanted) == wanted
    assert {p.name for p in found.packages if p.kept} <= node.holds()
    assert node.run("dpkg", "--audit") == ""
    link = node.run("readlink", "-f", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").strip()
    assert link.endswith(f"libnvidia-ml.so.{found.version}"), link


def test_install_hold_upgrade_and_rollback(node: AptNode, debian: Debian) -> None:
    older, newer = debian.older, debian.newer
    node.place(older.packages, debian.files)
    node.declare(**wants(older))
    planned = node.apply("--dry-run")
    assert planned["state"] == "would_change" and not node.versions("nvidia-smi"), planned
    first = node.apply()
    assert (first["state"], first["persisted"], first["effective"]) == ("changed", "yes", "yes"), first
    have(older, node)
    second = node.apply()
    assert (second["state"], second["changed"]) == ("same", 0), second

    # held and pinned: what an administrator or unattended-upgrades does leaves it alone
    assert "nvidia-smi" in node.run("cat", UNATTENDED)
    dump = node.run("apt-config", "dump", "Unattended-Upgrade::Package-Blacklist")
    assert '"^nvidia-smi$"' in dump and '"^libnvidia-ml1$"' in dump
    policy = node.run("apt-cache", "policy", "nvidia-smi")
    assert "1001" in policy and f"Candidate: {node.versions('nvidia-smi')['nvidia-smi']}" in policy

    # the upgrade: the former set's files stay in the cache
    node.place(newer.packages, debian.files)
    node.declare(**wants(newer))
    moved = node.apply()
    assert moved["state"] == "changed" and f"- nvidia-smi {older.version}" in moved["steps"][0]["diff"], moved
    have(newer, node)
    cached = set(node.run("ls", f"/{CACHE}").split())
    assert {p.file for p in (*older.packages, *newer.packages)} <= cached

    # the rollback: the former set declared again, nothing brought to the node
    node.declare(**wants(older))
    back = node.apply()
    assert back["state"] == "changed" and not back["message"].startswith("fail"), back
    have(older, node)
    assert node.apply()["changed"] == 0

    # what is let go of: hold and pin given free, packages left
    node.run("apt-mark", "unhold", "nvidia-smi")
    assert node.apply()["steps"][0]["diff"] == "--- packages\n+ on hold: nvidia-smi\n"
    have(older, node)
    node.declare()
    assert node.apply()["changed"] == 2 and "No such file" in node.run("ls", PIN, UNATTENDED, code=2)
    assert node.versions("nvidia-smi")
