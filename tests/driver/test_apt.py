"""Real apt on a Debian node without a network: install, hold, upgrade, rollback, what is refused, and runs that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.config.driver_lock_file import LockedSet
from fairlead.model import apt_hold
from tests.driver.apt_node import CACHE, AptNode
from tests.driver.conftest import Debian

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]
PIN = "/etc/apt/preferences.d/fairlead-driver.pref"
UNATTENDED = "/etc/apt/apt.conf.d/52fairlead-driver"


def wants(found: LockedSet, **more: Any) -> dict[str, Any]:
    packages = [msgspec.to_builtins(p) for p in found.packages]
    common = {"version": found.version, "branch": found.branch, "module": "none", "install": found.install}
    return {**common, "packages": packages, **more}


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
    node.serve(older.packages, debian.files)
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
    assert str(apt_hold.PRIORITY) in policy and f"Candidate: {node.versions('nvidia-smi')['nvidia-smi']}" in policy

    # the upgrade: the former set's files stay in the cache
    node.serve(newer.packages, debian.files)
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
    assert node.apply()["changed"] == 3 and "No such file" in node.run("ls", PIN, UNATTENDED, code=2)
    assert node.versions("nvidia-smi") and not node.holds()


def test_what_is_refused(node: AptNode, debian: Debian) -> None:
    """Each with its reason, and nothing installed."""
    found = debian.older
    without = [p for p in found.packages if p.name != "libnvidia-ml1"]

    def refused(code: int, *words: str, **driver: Any) -> str:
        node.declare(**driver)
        item = node.apply(code=code)
        assert all(w in f"{item['message']}; {item['hint']}" for w in words), item
        assert not node.versions("nvidia-smi", "libnvidia-cfg1")
        return str(item["message"])

    refused(69, f"{found.packages[0].file}: not in /{CACHE}", "no mirror is declared", **wants(found))
    node.serve(found.packages, debian.files)
    less = {**wants(found), "packages": [msgspec.to_builtins(p) for p in without]}
    refused(69, "nvidia-smi needs libnvidia-ml1", "fairlead lock", **less)
    smi = next(p for p in found.packages if p.name == "nvidia-smi")
    node.run("sh", "-c", f"echo x >> /{CACHE}/{smi.file}")
    refused(69, f"{smi.file}: not the file that the lock names", **wants(found))
    huge = [msgspec.to_builtins(msgspec.structs.replace(p, installed_kib=1 << 40)) for p in found.packages]
    node.serve([smi], debian.files)
    refused(69, "MiB free", "nothing was changed", **{**wants(found), "packages": huge})
    node.run("rm", f"/{CACHE}/{smi.file}")
    refused(69, "/srv/none", "No such file", **wants(found, mirror="/srv/none"))
    # a mirror has what the cache has not
    node.run("mkdir", "/srv/mirror")
    with open(debian.files / smi.file, "rb") as f:
        subprocess.run(node.words("sh", "-c", 'cat > "/srv/mirror/$1"', "sh", smi.file), stdin=f, check=True, timeout=60)
    node.declare(**wants(found, mirror="/srv/mirror"))
    # another apt is waited for
    hold = "import fcntl, time; f = open('/var/lib/dpkg/lock-frontend', 'w'); fcntl.lockf(f, fcntl.LOCK_EX)"
    hold += "; print(flush=True); time.sleep(2); open('/srv/let-go', 'w')"
    with subprocess.Popen(node.words("python3", "-c", hold), stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"\n"
        assert node.apply()["state"] == "changed"
    node.run("test", "!", "/srv/let-go", "-nt", "/var/lib/dpkg/info/nvidia-smi.list")
    have(found, node)
    # what somebody else holds is theirs
    node.run("rm", PIN)
    node.serve(debian.newer.packages, debian.files)
    node.declare(**wants(debian.newer))
    said = node.apply(code=78)["message"]
    assert "somebody holds it at" in said and node.versions("nvidia-smi")["nvidia-smi"] == smi.version


def processes(node: AptNode, *names: str) -> list[int]:
    """Process ids on this machine of the node's programs of these names, its holder apart."""
    inside = os.stat(f"/proc/{node.pid}/ns/pid").st_ino
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != node.pid:
            try:
                if os.stat(entry / "ns/pid").st_ino == inside and (entry / "comm").read_text().strip() in (names or ("",)):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def reset(node: AptNode) -> None:
    """All that runs there but its holder ends at once, as in a power cut."""
    for _ in range(50):
        left = processes(node, "python3", "apt-get", "dpkg", "dpkg-deb", "sh", "perl", "apt-mark", "tar", "rm", "dpkg-split")
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def killed_when(node: AptNode, fault_point: str) -> bool:
    """Begin `fairlead apply`, and cut the power as soon as apt-get runs, or dpkg notes a package in this state. False: it had
    ended before the moment was seen."""
    with subprocess.Popen(node.words(*node.apply_words()), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        end = time.monotonic() + 60
        while run.poll() is None and time.monotonic() < end:
            if processes(node, "apt-get") if fault_point == "apt" else f" {fault_point}\n" in node.root_status():
                break
        seen = run.poll() is None
        reset(node)
        run.wait(120)
    return seen


def test_killed_in_the_middle_the_next_run_completes(node: AptNode, debian: Debian) -> None:
    through(node, debian, ("half-installed", "unpacked"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_every_stage_and_on_the_way_back(node: AptNode, debian: Debian) -> None:
    through(
        node, debian, ("apt", "half-installed", "unpacked", "half-configured", "half-installed", "unpacked", "apt", "unpacked")
    )


def through(node: AptNode, debian: Debian, fault_points: tuple[str, ...]) -> None:
    """Older, newer, older ... in turn, each run killed at its moment: the next one makes it good."""
    seen = []
    for number, fault_point in enumerate(fault_points):
        found = (debian.older, debian.newer)[number % 2]
        node.serve(found.packages, debian.files)
        node.declare(**wants(found))
        seen += [fault_point] if killed_when(node, fault_point) else []
        after = node.apply(code=None)
        assert after["state"] in ("changed", "same"), (fault_point, after["message"], after)
        have(found, node)
        assert node.apply()["changed"] == 0
    assert len(seen) >= len(fault_points) // 2, seen


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_any_time_the_next_run_completes(node: AptNode, debian: Debian) -> None:
    """From before the first package to after the last, in twenty steps."""
    for number in range(20):
        found = (debian.older, debian.newer)[number % 2]
        node.serve(found.packages, debian.files)
        node.declare(**wants(found))
        with subprocess.Popen(node.words(*node.apply_words()), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            end = time.monotonic() + 60
            while number and run.poll() is None and not processes(node, "apt-get") and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(0.2 * number)
            reset(node)
            run.wait(120)
        after = node.apply(code=None)
        assert after["state"] in ("changed", "same"), (number, after)
        have(found, node)
