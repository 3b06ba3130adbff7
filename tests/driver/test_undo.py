"""What `fairlead apply --undo`, and a document without a driver, give back: what fairlead wrote goes, what others wrote stays."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import config
from tests.driver.apt_node import AptNode, PackageNode
from tests.driver.conftest import Debian
from tests.driver.dnf_node import LIST, DnfNode
from tests.driver.el_repository import driver_set
from tests.driver.test_apt import wants
from tests.driver.test_dnf import NEWER, OLDER, declare, move, serve

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]
#: An admin's own line from before fairlead, with a comment.
FIRST = "# kept by the storage group\nlustre-client-0:2.15.5-1.*\n"
#: What another admin writes later, in front of fairlead's part and behind it.
LATER = ("!bad-0:1-1.*\n", "*kernel*\n")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DnfNode]:
    """A node with a locked driver, and lines of other people from before fairlead and from after it."""
    with DnfNode(tmp_path / "node") as made:
        write(made, FIRST)
        move(made, driver_set(made.suite, NEWER))
        write(made, f"{LATER[0]}{made.locked()}{LATER[1]}")
        yield made


def write(node: DnfNode, text: str) -> None:
    subprocess.run(node.words("sh", "-c", f"cat > {LIST}"), input=text.encode(), check=True, timeout=60)


def declare_no_driver(node: PackageNode) -> None:
    document = config.resolve_layers("gpu1", [("test", {"settings": {"tuned": {"managed": False}}})])[0]
    script = "cat > /etc/fairlead/node.json"
    subprocess.run(node.words("sh", "-c", script), input=config.encode_document(document), check=True, timeout=60)


def test_undo_takes_only_fairlead_s_lines_from_dnf_s_list(node: DnfNode) -> None:
    shown = node.run("python3", "-m", "fairlead", "apply", "--undo", "--dry-run")
    assert f"-libnvidia-ml-3:{NEWER}-1.el9.*\n" in shown and not any(f"-{line}" in shown for line in (FIRST, *LATER))
    node.run("python3", "-m", "fairlead", "apply", "--undo")
    assert node.locked() == f"{LATER[0]}{FIRST}{LATER[1]}"
    assert "libnvidia-ml" not in node.run("dnf", "-q", "versionlock", "list", "--disablerepo=*")
    node.run("python3", "-m", "fairlead", "apply", "--undo")
    assert node.locked() == f"{LATER[0]}{FIRST}{LATER[1]}"


def test_a_document_without_a_driver_takes_only_fairlead_s_lines(node: DnfNode) -> None:
    declare_no_driver(node)
    node.run("python3", "-m", "fairlead", "apply")
    assert node.locked() == f"{LATER[0]}{FIRST}{LATER[1]}"


def test_a_line_that_somebody_adds_while_packages_are_installed_stays(tmp_path: Path) -> None:
    with DnfNode(tmp_path / "node") as node:
        packages = driver_set(node.suite, NEWER)
        serve(node, packages)
        declare(node, packages)
        with subprocess.Popen(node.words(*node.apply_words()), stdout=subprocess.PIPE) as running:
            while node.processes("dnf") == [] and running.poll() is None:
                pass
            node.run("sh", "-c", f"echo 'lustre-client-0:2.15.5-1.*' >> {LIST}")
            running.communicate(timeout=120)
        listed = node.locked()
        assert "lustre-client-0:2.15.5-1.*\n" in listed and f"\nlibnvidia-ml-3:{NEWER}-1.el9.*\n" in listed


@pytest.mark.parametrize(
    "way",
    [
        "--undo",
        pytest.param("a document without a driver", marks=pytest.mark.slow),
        pytest.param("an empty driver", marks=pytest.mark.slow),
        "hold = false",
    ],
)
def test_apt_no_longer_holds_what_fairlead_held_and_another_version_may_come(way: str, tmp_path: Path, debian: Debian) -> None:
    """Somebody else's holds stay. fairlead's own hold is not taken for somebody else's afterwards."""
    with AptNode(tmp_path / "node") as node:
        older, newer = debian.older, debian.newer
        node.run("apt-mark", "hold", "slurmd")
        node.serve(older.packages, debian.files)
        node.declare(**wants(older))
        node.apply()
        assert {"slurmd", "nvidia-smi"} <= node.holds()
        if way == "--undo":
            node.run("python3", "-m", "fairlead", "apply", "--undo")
        elif way == "a document without a driver":
            declare_no_driver(node)
            node.run("python3", "-m", "fairlead", "apply")
        else:
            node.declare(**(wants(older, hold=False) if way == "hold = false" else {}))
            assert node.apply()["state"] == "changed"
            assert node.apply()["changed"] == 0
        assert node.holds() == {"slurmd"}
        node.serve(newer.packages, debian.files)
        node.declare(**wants(newer))
        assert node.apply()["state"] == "changed"
        assert node.versions("nvidia-smi") == {p.name: p.version for p in newer.packages if p.name == "nvidia-smi"}


def test_a_list_that_cannot_be_read_is_one_failed_change(node: DnfNode) -> None:
    node.run("sh", "-ec", f"cp {LIST} /srv/list; rm {LIST}; mkdir {LIST}")
    assert "FAILED /etc/dnf/plugins/versionlock.list: " in node.run("python3", "-m", "fairlead", "apply", "--undo", code=69)
    assert node.apply(code=69)["state"] == "unreadable"
    node.run("sh", "-ec", f"rmdir {LIST}; cp /srv/list {LIST}")
    node.apply()
    assert node.apply()["changed"] == 0


def test_a_list_that_is_a_link_stays_one(node: DnfNode) -> None:
    """The lines of the people who write to the file behind the link still count for dnf."""
    node.run("sh", "-ec", f"mkdir /srv/site; mv {LIST} /srv/site/; ln -s /srv/site/versionlock.list {LIST}")
    packages = driver_set(node.suite, OLDER)
    move(node, packages)
    assert node.run("readlink", LIST) == "/srv/site/versionlock.list\n"
    assert f"\nlibnvidia-ml-3:{OLDER}-1.el9.*\n" in node.locked() and node.locked().startswith(LATER[0])
