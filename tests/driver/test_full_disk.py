"""A file system that gets full in the middle of dnf's transaction: one line says which, and the next run with room completes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.driver.apt_node import CACHE
from tests.driver.dnf_node import DnfNode
from tests.driver.el_repository import driver_set
from tests.driver.test_dnf import BEFORE_RENAME, NEWER, declare, have, move, serve

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]
#: /usr or /var of the node as a file system of its own, with a size that can be set.
OWN = {
    "/var": "cp -a /var /srv/var; mount -t tmpfs -o size=400m tmpfs /var; cp -a /srv/var/. /var/",
    "/usr": "mkdir /srv/new; mount -t tmpfs -o size=400m tmpfs /srv/new; mkdir /srv/new/up /srv/new/wk; "
    "mount -t overlay overlay -o lowerdir=/usr,upperdir=/srv/new/up,workdir=/srv/new/wk /usr",
}
SIZED = {"/var": "/var", "/usr": "/srv/new"}


def fill(node: DnfNode, path: str) -> None:
    """Let the file system have no room from now on. A size that dnf has used meanwhile is refused, so it is tried again."""
    script = 'until mount -o remount,size=$(($(df -k --output=used "$1" | tail -1)))k "$1" 2>/dev/null; do :; done'
    node.run("sh", "-c", script, "sh", SIZED[path])


@contextmanager
def stopped(node: DnfNode) -> Iterator[None]:
    """Let dnf do nothing meanwhile."""
    found = node.processes("dnf")
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for each in found:
            with suppress(ProcessLookupError):
                os.kill(each, number)
        if number == signal.SIGSTOP:
            yield


def begun(node: DnfNode, packages: Path) -> bool:
    """Say whether rpm has written the first file of the new set."""
    return (Path(f"/proc/{node.pid}/root") / packages).exists()


@pytest.mark.parametrize("path", ["/var", "/usr"])
def test_a_file_system_that_gets_full_in_the_transaction(path: str, tmp_path: Path) -> None:
    with DnfNode(tmp_path / "node") as node:
        node.run("sh", "-ec", OWN[path])
        packages = driver_set(node.suite, NEWER)
        for _ in range(8):
            move(node, driver_set(node.suite, BEFORE_RENAME))
            serve(node, packages)
            declare(node, packages)
            with subprocess.Popen(node.words(*node.apply_words()), stdout=subprocess.PIPE, text=True) as running:
                while not begun(node, Path(f"usr/lib64/libnvidia-ml.so.{NEWER}")) and running.poll() is None:
                    time.sleep(0.005)
                with stopped(node):
                    fill(node, path)
                report, _ = running.communicate(timeout=120)
            if running.returncode:
                break
            # on a busy machine dnf may be at its end before it is stopped
            node.run("mount", "-o", "remount,size=400m", SIZED[path])
        assert running.returncode == 69 and "no room for the packages on this node: " in report, report
        named = "/var/" if path == "/var" else "/usr"
        assert f"make room in {named}" in report, report
        node.run("mount", "-o", "remount,size=400m", SIZED[path])
        assert node.apply()["persisted"] == "yes"
        have(node, packages)


def test_a_usr_that_is_read_only_is_named_and_nothing_changes(tmp_path: Path) -> None:
    """rpm itself says that there is no room."""
    with DnfNode(tmp_path / "node") as node:
        move(node, driver_set(node.suite, BEFORE_RENAME))
        packages = driver_set(node.suite, NEWER)
        serve(node, packages)
        declare(node, packages)
        before = node.versions()
        node.run("sh", "-ec", "mount --bind /usr /usr; mount -o remount,bind,ro /usr")
        item = node.apply(code=69)
        assert "/usr is mounted read-only" in item["message"] and node.versions() == before, item
        node.run("mount", "-o", "remount,bind,rw", "/usr")
        node.apply()
        have(node, packages)


def test_a_file_in_the_cache_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with DnfNode(tmp_path / "node") as node:
        packages = driver_set(node.suite, NEWER)
        declare(node, packages)
        serve(node, packages[1:])
        node.run("mkdir", f"/{CACHE}/{packages[0].file}")
        assert f"/{CACHE}/{packages[0].file}: Is a directory" in node.apply(code=69)["message"]
