"""Nodes whose /usr/bin/python3 is old or absent, over real ssh: what would do is found in the one round trip, else it is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.lab.host import Host
from tests.playbooks.admin import Admin, node, states
from tests.playbooks.hostile import put
from tests.provision.test_node_python import OTHER, ROCKY

pytestmark = [pytest.mark.rack, pytest.mark.timeout(300)]
AWAY = "/root/pythons"
BEFORE = f"""set -e
mkdir -p {AWAY}
cp -a /usr/bin/python3* {AWAY}
readlink /opt/fairlead/current >{AWAY}/current
rm /usr/bin/python3* /opt/fairlead/current"""
AFTER = f"rm -f /usr/bin/python3*; mv {AWAY}/python3* /usr/bin; ln -sfn $(cat {AWAY}/current) /opt/fairlead/current; rm -r {AWAY}"


@contextmanager
def without_python(host: Host, *kept: str, version: str = "", release: str = "") -> Iterator[None]:
    """Meanwhile the node has of its Pythons those kept, a python3 of this version ("": none), and no release that runs."""
    host.run(BEFORE)
    try:
        for name in kept:
            host.run(f"cp -a {AWAY}/{name} /usr/bin/{name}")
        if version:
            numbers = tuple(map(int, version.split(".")))
            put(host, "/usr/bin/python3", OTHER.format(python=f"{AWAY}/python3", version=numbers).encode(), program=True)
        if release:
            host.run("mv /etc/os-release /root/os-release")
            put(host, "/etc/os-release", release.encode())
        yield
    finally:
        host.run(AFTER)
        if release:
            host.run("rm /etc/os-release; mv /root/os-release /etc/os-release")


@pytest.fixture(scope="module", autouse=True)
def provisioned(admin: Admin) -> None:
    admin.write_site()
    admin.provision()


def test_a_versioned_python_beside_an_old_one_is_found(admin: Admin) -> None:
    """gpu1: python3 is 3.9, and python3.11 lies beside it, as on EL 9; gpu2: python3.11 alone; gpu3: as it was."""
    with (
        without_python(node(admin, "gpu1"), "python3.11", version="3.9"),
        without_python(node(admin, "gpu2"), "python3.11"),
    ):
        assert set(states(admin.provision("--check")).values()) <= {"changed", "same"}
        assert states(admin.provision()) == {"gpu1": "changed", "gpu2": "changed", "gpu3": "same"}
        for name in ("gpu1", "gpu2"):
            base = node(admin, name).run("readlink -f /opt/fairlead/current/bin/python").stdout.strip()
            assert base == "/usr/bin/python3.11"
        assert set(states(admin.provision()).values()) == {"same"}


def test_nodes_without_a_python_are_told_at_plan_time_with_the_package_that_they_need(admin: Admin) -> None:
    """gpu1: an EL 9 node with Python 3.9; gpu2: the same of another minor version; gpu3: a Debian 12 without any Python."""
    newer = ROCKY.replace("9.4", "9.6")
    with (
        without_python(node(admin, "gpu1"), version="3.9", release=ROCKY),
        without_python(node(admin, "gpu2"), version="3.9", release=newer),
        without_python(node(admin, "gpu3")),
    ):
        told = admin.run("plan", "--site", str(admin.site), "-q", code=69).stdout
    needs = "  cannot: fairlead needs Python 3.11 or newer, and /usr/bin/python3 "
    assert told.splitlines()[:4] == [
        "gpu[1-2] (2 nodes): failed",
        f"{needs}is Python 3.9; EL 9: dnf install python3.12",
        "gpu3 (1 node): failed",
        f"{needs}is not there; Debian: apt-get install python3",
    ], told
    assert set(states(admin.provision()).values()) <= {"same", "changed"}


def test_a_python_that_the_site_names_is_the_one_that_is_taken(admin: Admin) -> None:
    site = admin.site.read_text()
    admin.site.write_text(site.replace("[ansible]\n", '[ansible]\npython = "/usr/bin/python3"\n'))
    try:
        with without_python(node(admin, "gpu1"), "python3.11", version="3.6"):
            results = admin.provision("-l", "gpu1", code=69)
    finally:
        admin.site.write_text(site)
    assert results["gpu1"]["message"] == (
        "fairlead needs Python 3.11 or newer, and /usr/bin/python3 is Python 3.6; "
        "/usr/bin/python3.11 would do: take `python` out of the site's [ansible]"
    )
