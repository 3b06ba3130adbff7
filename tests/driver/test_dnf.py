"""Real dnf and rpm on nodes like EL without a network: install, hold, upgrade, back, over NVIDIA's renames, what is refused."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.model.change import Package
from tests.driver import el_repository
from tests.driver.apt_node import CACHE
from tests.driver.dnf_node import LIST, DnfNode
from tests.driver.el_repository import driver_set, repository

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]
BEFORE_RENAME, OLDER, NEWER, NEWEST = "575.57.08", "580.82.07", "580.95.05", "595.58.03"
CONTAINERS = ("libnvidia-container1", "libnvidia-container-tools", "nvidia-container-toolkit-base", "nvidia-container-toolkit")
OLD_NAMES = ("nvidia-fabric-manager", "libnvidia-nscq-575", "libnvsdm-575", "nvidia-imex-575")


@pytest.fixture(params=["bookworm", "trixie"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DnfNode]:
    """A node near EL9, then one near EL10."""
    with DnfNode(tmp_path / "node", request.param) as made:
        yield made


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DnfNode]:
    with DnfNode(tmp_path / "node") as made:
        yield made


def declare(node: DnfNode, packages: Sequence[Package], **more: Any) -> None:
    """Declare this set of one driver version, without a kernel module unless ``more`` says another."""
    version = next(p.version for p in packages if p.name == "libnvidia-ml").partition(":")[2].partition("-")[0]
    listed = [msgspec.to_builtins(p) for p in packages]
    node.declare(**{"version": version, "module": "none", "install": ("nvidia-driver-cuda",), "packages": listed, **more})


def serve(node: DnfNode, packages: Sequence[Package]) -> None:
    """Put the files into the node's cache, under the names that fairlead gives them there."""
    script = 'mkdir -p "/$1"; cat > "/$1/$2"'
    for package in packages:
        with open(repository(node.suite) / package.url, "rb") as f:
            subprocess.run(node.words("sh", "-c", script, "sh", CACHE, package.file), stdin=f, check=True, timeout=60)


def move(node: DnfNode, packages: Sequence[Package], **more: Any) -> dict[str, Any]:
    serve(node, packages)
    declare(node, packages, **more)
    return node.apply()


def have(node: DnfNode, packages: Sequence[Package]) -> None:
    """The node has the whole set once, whole on disk, locked, and no name of another driver release."""
    there = node.versions()
    assert {p.name: there.get(p.name) for p in packages} == {p.name: p.version for p in packages}
    others = {n for n in there if n.startswith(("nvidia", "libnv", "kmod-nvidia"))} - {p.name for p in packages}
    assert not others, others
    assert node.rpm("-V", "--nomtime", *(p.name for p in packages)) == []
    listed = node.locked()
    assert all(f"\n{p.name}-{p.version}.*\n" in listed for p in packages if p.kept), listed
    library = next(p.version for p in packages if p.name == "libnvidia-ml").partition(":")[2].partition("-")[0]
    assert node.run("readlink", "-f", f"{el_repository.LIBRARY}.1").strip().endswith(library)


@pytest.mark.release("bookworm")
def test_install_hold_upgrade_and_back(either: DnfNode) -> None:
    node = either
    older, newer = driver_set(node.suite, OLDER, *CONTAINERS), driver_set(node.suite, NEWER, *CONTAINERS)
    serve(node, older)
    declare(node, older)
    planned = node.apply("--dry-run")
    assert planned["state"] == "would_change" and "libnvidia-ml" not in node.versions(), planned
    first = node.apply()
    assert (first["state"], first["persisted"], first["effective"]) == ("changed", "yes", "yes"), first
    have(node, older)
    second = node.apply()
    assert (second["state"], second["changed"]) == ("same", 0), second

    # locked: dnf upgrades what else is newer, and nothing of the driver, whatever the repository has
    node.repository()
    node.run("dnf", "-y", "--repo", "nvidia", "install", "unrelated-1-1")
    node.run("dnf", "-y", "--repo", "nvidia", "upgrade")
    assert node.versions("unrelated") == {"unrelated": "0:2-1"}
    have(node, older)
    node.run("dnf", "-y", "--repo", "nvidia", "install", f"libnvidia-ml-3:{NEWER}", code=1)
    assert node.apply()["changed"] == 0

    # the upgrade: fairlead's own run passes the lock, and the former set's files stay in the cache
    moved = move(node, newer)
    assert moved["state"] == "changed" and f"- libnvidia-ml 3:{OLDER}-1.el{node.major}" in moved["steps"][0]["diff"], moved
    have(node, newer)
    cached = set(node.run("ls", f"/{CACHE}").split())
    assert {p.file for p in (*older, *newer)} <= cached

    # back: the former set declared again, nothing brought to the node
    declare(node, older)
    assert node.apply()["state"] == "changed"
    have(node, older)
    assert node.apply()["changed"] == 0

    # what is let go of: the lines of others stay in the list, the packages too
    node.run("sh", "-c", f"echo 'unrelated-0:2-1.*' >> {LIST}")
    node.declare()
    assert node.apply()["changed"] == 1 and node.locked() == "unrelated-0:2-1.*\n"
    assert node.versions("libnvidia-ml")


@pytest.mark.release("trixie")
def test_over_the_rename_and_back(either: DnfNode) -> None:
    """575 and 580 have other names for the fabric packages. libnvsdm-575 is obsoleted by nothing, so it goes by its name."""
    node = either
    former, newer = driver_set(node.suite, BEFORE_RENAME), driver_set(node.suite, OLDER)
    move(node, former)
    have(node, former)
    assert set(OLD_NAMES) <= set(node.versions())
    moved = move(node, newer)
    assert "1 removed" not in moved["message"] and not set(OLD_NAMES) & set(node.versions()), moved
    have(node, newer)
    declare(node, former)
    node.apply()
    have(node, former)
    assert node.apply()["changed"] == 0
    declare(node, newer)
    node.apply()
    have(node, newer)


def test_what_was_installed_by_hand_is_taken_over(node: DnfNode) -> None:
    """A node with the older names, whose dnf history is not fairlead's, goes to the set over the rename."""
    node.repository()
    former, newer = driver_set("bookworm", BEFORE_RENAME), driver_set("bookworm", NEWER)
    without = [p for p in former if p.name != "libnvsdm-575"]
    node.run("dnf", "-y", "--repo", "nvidia", "install", *(f"{p.name}-{p.version}" for p in without))
    move(node, newer)
    have(node, newer)


def refused(node: DnfNode, code: int, *words: str) -> str:
    """The apply says so, and the node's packages are as before."""
    before = node.versions()
    item = node.apply(code=code)
    assert all(w in f"{item['message']}; {item['hint']}" for w in words), item
    assert node.versions() == before
    return str(item["message"])


def test_what_is_refused(node: DnfNode) -> None:
    """Each with its reason, and nothing installed."""
    found = driver_set("bookworm", OLDER)
    by_name = {p.name: p for p in found}
    library = by_name["libnvidia-ml"]
    declare(node, found)
    refused(node, 69, f"{found[0].file}: not in /{CACHE}", "no mirror is declared")
    serve(node, found)
    declare(node, [p for p in found if p.name != "nvidia-persistenced"])
    refused(node, 69, "nvidia-driver-cuda-3:580.82.07", "needs nvidia-persistenced = 3:580.82.07", "fairlead lock")
    # a file that was cut short, or is another one
    node.run("truncate", "-s", "-9", f"/{CACHE}/{library.file}")
    declare(node, found)
    refused(node, 69, f"{library.file}: not the file that the lock names")
    # dnf and rpm say so too, if the lock itself has the hash of a torn file
    serve(node, [library])
    node.run("sh", "-c", f"printf xx | dd of=/{CACHE}/{library.file} bs=1 seek=6300 conv=notrunc 2>/dev/null")
    digest = node.run("sha256sum", f"/{CACHE}/{library.file}").split()[0]
    declare(node, [msgspec.structs.replace(p, sha256=digest) if p is library else p for p in found])
    refused(node, 69, "package libnvidia-ml-3:580.82.07-1.el9.x86_64 does not verify", "digest")
    node.run("rm", f"/{CACHE}/{library.file}")
    declare(node, found, mirror="/srv/none")
    refused(node, 69, "/srv/none", "No such file")
    huge = [msgspec.structs.replace(p, installed_kib=1 << 40) for p in found]
    declare(node, huge)
    refused(node, 69, "MiB free", "nothing was changed")
    # a mirror has what the cache has not
    node.repository()
    node.run("sh", "-c", f"mkdir /srv/mirror; cp /srv/nvidia/{library.url} /srv/mirror/{library.file}")
    declare(node, found, mirror="/srv/mirror")
    assert node.apply()["state"] == "changed"
    have(node, found)


def test_no_other_package_goes_or_comes(node: DnfNode) -> None:
    """--allowerasing would take the site's own package too, and a plugin's file would bring what nobody declared."""
    found, newer = driver_set("bookworm", OLDER), driver_set("bookworm", NEWER)
    move(node, found)
    node.repository()
    node.run("dnf", "-y", "--repo", "nvidia", "install", f"site-monitor-{OLDER}")
    serve(node, newer)
    declare(node, newer)
    refused(node, 69, f"dnf would also remove site-monitor 0:{OLDER}-1", "not in the declared set")
    node.run("rpm", "-e", "site-monitor")
    # an exclude of the site in dnf.conf is for its own runs
    node.run("sh", "-c", "echo 'excludepkgs=nvidia* libnvidia*' >> /etc/dnf/dnf.conf")
    assert node.apply()["state"] == "changed"
    have(node, newer)
    # what somebody else keeps is theirs
    node.run("sh", "-c", f"printf 'libnvidia-ml-{newer[2].version}.*\\n' > {LIST}")
    declare(node, found)
    refused(node, 78, "libnvidia-ml", "somebody else keeps it from")


def test_without_the_versionlock_plugin(node: DnfNode) -> None:
    """Without the plugin the list does nothing: refused, until the plugin is in the set."""
    found = driver_set("bookworm", OLDER)
    node.run("rm", "/etc/dnf/plugins/versionlock.conf", "/usr/lib/python3/dist-packages/dnf-plugins/versionlock.py")
    serve(node, found)
    declare(node, found)
    refused(node, 78, "python3-dnf-plugin-versionlock is not installed", "settings.driver.install")
    more = driver_set("bookworm", OLDER, "python3-dnf-plugin-versionlock")
    move(node, more)
    have(node, more)
    node.repository()
    node.run("dnf", "-y", "--repo", "nvidia", "upgrade")
    have(node, more)


def test_another_dnf_and_another_rpm_are_waited_for(node: DnfNode) -> None:
    """rpm's lock is a lock of fcntl, dnf's is a file with a process id. Both are waited for."""
    found = driver_set("bookworm", OLDER)
    serve(node, found)
    declare(node, found)
    hold = "import fcntl, time; f = open('/var/lib/rpm/.rpm.lock', 'w'); fcntl.lockf(f, fcntl.LOCK_EX)"
    hold += "; print(flush=True); time.sleep(3); open('/srv/let-go', 'w')"
    with subprocess.Popen(node.words("python3", "-c", hold), stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"\n"
        assert node.apply()["state"] == "changed"
    (installed,) = node.rpm("-q", "--qf", "%{INSTALLTIME}\\n", "libnvidia-ml")
    assert int(installed) >= int(node.run("stat", "-c", "%Y", "/srv/let-go"))
    newer = driver_set("bookworm", NEWER)
    serve(node, newer)
    declare(node, newer)
    pause = "import dnf, time; b = dnf.Base(); b.fill_sack(load_system_repo=True, load_available_repos=False); "
    pause += "from dnf import lock; l = lock.build_rpmdb_lock('/var/lib/dnf', True)\n"
    pause += "with l: print(flush=True); time.sleep(4); open('/srv/ended', 'w')\n"
    with subprocess.Popen(node.words("python3", "-c", pause), stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"\n"
        assert node.apply()["state"] == "changed"
        assert other.wait(60) == 0
    have(node, newer)


def test_a_full_disk_leaves_the_former_set_and_the_next_run_completes(node: DnfNode) -> None:
    """dnf's own test of the room says no before anything is changed; then there is room."""
    older, newer = driver_set("bookworm", OLDER), driver_set("bookworm", NEWER)
    move(node, older)
    # a file system of its own where the set unpacks most
    node.run(
        "sh",
        "-c",
        "cp -a /usr/share/doc /srv/doc; mount -t tmpfs -o size=400k tmpfs /usr/share/doc; cp -a /srv/doc/*nvidia* /usr/share/doc",
    )
    node.run("sh", "-c", "dd if=/dev/zero of=/usr/share/doc/full bs=4k 2>/dev/null || :")
    serve(node, newer)
    declare(node, newer)
    refused(node, 69, "no room for the packages", "make room there")
    node.run("rm", "/usr/share/doc/full")
    node.run("mount", "-o", "remount,size=8m", "/usr/share/doc")
    assert node.apply()["state"] == "changed"
    have(node, newer)


def test_a_node_that_wants_signatures_names_the_package_without_one(node: DnfNode) -> None:
    node.run("sh", "-c", "echo localpkg_gpgcheck=1 >> /etc/dnf/dnf.conf")
    found = driver_set("bookworm", OLDER)
    serve(node, found)
    declare(node, found)
    refused(node, 69, "localpkg_gpgcheck is on, and ", "580.82.07", "rpm --import")
    node.run("sed", "-i", "/localpkg_gpgcheck/d", "/etc/dnf/dnf.conf")
    assert node.apply()["state"] == "changed"


def test_a_database_that_is_torn_is_named(node: DnfNode) -> None:
    found = driver_set("bookworm", OLDER)
    move(node, found)
    node.run(
        "sh",
        "-c",
        "rm -f /var/lib/rpm/rpmdb.sqlite-*; cp /var/lib/rpm/rpmdb.sqlite /srv; printf torn > /var/lib/rpm/rpmdb.sqlite",
    )
    item = node.apply(code=None)
    assert item["state"] != "same" and "rpmdb.sqlite" in item["message"], item
    node.run("sh", "-c", "cp /srv/rpmdb.sqlite /var/lib/rpm/rpmdb.sqlite")
    assert node.apply()["changed"] == 0
