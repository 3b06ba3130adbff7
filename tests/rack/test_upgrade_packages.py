"""Packages of two versions on one rack: upgraded in batches, rolled back in the middle, and upgraded again while jobs run.

The older package is built from the release before, with a lower version number if its own is not lower. Each node is looked at
twice: when apt or dnf has exchanged the package, so that the agent runs with the document of the other version, and when
`fairlead provision` has brought its own. The nodes with RPMs are Debian roots with real dnf and rpm, and with Debian's Slurm.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.ledger import own_name
from tests.lab.rack import Rack
from tests.lab.roots import SUITES
from tests.rack.provisioned import PROJECT, ProvisionedRack
from tests.rack.upgrade_scene import UpgradeScene, agents_answer, versions
from tests.release.build_packages import VERSION, built, deb, empty_rpm, make_packages, rpm, tools
from tests.release_before import release_before

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.rack, pytest.mark.timeout(600), pytest.mark.slow]
LOWER = "0.0.9"
DNF = "dnf -y -q --disablerepo='*' {} /root/{}.rpm </dev/null"
#: By kind of package: how a node gets its first one, the next one, and the older one back.
COMMANDS = {
    "deb": dict.fromkeys(
        ("first", "new", "old"), "DEBIAN_FRONTEND=noninteractive apt-get -y -q --allow-downgrades install /root/{}.deb </dev/null"
    ),
    "rpm": {"first": DNF.format("install", "{}"), "new": DNF.format("upgrade", "{}"), "old": DNF.format("downgrade", "{}")},
}
VERIFY = {"deb": "dpkg -V fairlead", "rpm": "rpm -V fairlead 2>/dev/null"}
Releases = dict[str, Path]  # the folder of each by "old" and "new"; the packages are in its folder dist


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Releases:
    new = built(tmp_path_factory.mktemp("new") / "tree").parents[1]
    old = release_before(tmp_path_factory.mktemp("old"))
    for name in ("pyproject.toml", "agent/fairlead/__init__.py") if version_of(old) == VERSION else ():
        (old / name).write_text((old / name).read_text().replace(f'version = "{VERSION}"', f'version = "{LOWER}"', 1))
        (old / name).write_text((old / name).read_text().replace(f'__version__ = "{VERSION}"', f'__version__ = "{LOWER}"', 1))
    tools()
    (old / ".cache").mkdir()
    for name in ("release", "packages"):
        (old / ".cache" / name).symlink_to(PROJECT / ".cache" / name)
    env = {**os.environ, "GIT_AUTHOR_DATE": "2026-11-02T12:00:00Z", "GIT_COMMITTER_DATE": "2026-11-02T12:00:00Z"}
    git = ("git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "init.defaultBranch=main")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], cwd=old, env=env, check=True)
    done = make_packages(old)
    assert done.returncode == 0, done.stdout + done.stderr
    return {"old": old, "new": new}


def version_of(folder: Path) -> str:
    found = re.search(r'^version = "(.*)"', (folder / "pyproject.toml").read_text(), re.MULTILINE)
    assert found
    return found[1]


def kind_of(rack: Rack) -> str:
    return "rpm" if rack.el else "deb"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What stands for EL's package of Python, which the root has from Debian."""
    return empty_rpm(tmp_path_factory.mktemp("python"), "python3.11", "3.11.7")


@pytest.fixture(
    scope="module", params=[*(("deb", suite) for suite in SUITES), ("rpm", "bookworm"), ("rpm", "trixie")], ids="-".join
)
def site(request: pytest.FixtureRequest, releases: Releases, python: Path) -> Iterator[ProvisionedRack]:
    kind, suite = request.param
    with Rack(3, suite=suite, name=own_name("test-upgrade-packages"), el=kind == "rpm") as rack:
        made = ProvisionedRack(rack)
        for host in rack.nodes:
            for name, folder in releases.items():
                (packages,) = folder.glob("dist/fairlead-*-packages")
                file = packages / (deb(packages) if kind == "deb" else rpm(packages))
                host.path(f"/root/{name}.{kind}").write_bytes(file.read_bytes())
            if kind == "rpm":
                host.path("/root/python.rpm").write_bytes(python.read_bytes())
                host.run(COMMANDS[kind]["first"].format("python"))
            host.run(COMMANDS[kind]["first"].format("old"))
        made.provision("gpu[1-3]", release=releases["old"])
        made.hooks_on()
        agents_answer(made)
        yield made


def test_jobs_and_drains_outlast_packages_of_two_versions(site: ProvisionedRack, releases: Releases) -> None:
    scene = UpgradeScene(site)
    older, kind = version_of(releases["old"]), kind_of(site.rack)
    first = versions(site, releases["new"])
    assert {each["installed"].split("-")[0] for each in first.values()} == {older}, first
    for nodelist, numbers, name in (("gpu[1,3]", (1, 3), "new"), ("gpu[1,3]", (1, 3), "old"), ("gpu[1-3]", (1, 2, 3), "new")):
        for number in numbers:
            site.node(number).run(COMMANDS[kind][name].format(name))
        scene.same()
        site.provision(nodelist, release=releases[name])
        found = versions(site, releases["new"])
        for number in numbers:
            each = found[f"gpu{number}"]
            assert (each["installed"].split("-")[0] == older) == (name == "old"), found
            # the release before tells its version only
            assert each["installed"].startswith(each["agent"]) and not each["restart_due"], found
        scene.holds()
    scene.end()
    for host in site.rack.nodes:
        assert host.run(VERIFY[kind]).stdout == ""
