"""Packages of two versions on one rack: upgraded in batches, rolled back in the middle, and upgraded again while jobs run.

The older package is built from the release before, with a lower version number. Each node is looked at twice: when apt has
exchanged the package, so that the agent runs with the document of the other version, and when `fairlead provision` has brought
its own.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.ledger import own_name
from tests.lab.rack import Rack
from tests.lab.roots import SUITES
from tests.rack.provisioned import PROJECT, ProvisionedRack
from tests.rack.upgrade_scene import UpgradeScene, agents_answer, versions
from tests.release.build_packages import built, deb, make_packages, tools
from tests.release_before import release_before

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.rack, pytest.mark.timeout(480), pytest.mark.slow]
OLDER = "0.0.9"
INSTALL = "DEBIAN_FRONTEND=noninteractive apt-get -y -q --allow-downgrades install /root/{}.deb </dev/null"
Releases = dict[str, Path]  # the folder of each by "old" and "new"; the packages are in its folder dist


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Releases:
    new = built(tmp_path_factory.mktemp("new") / "tree").parents[1]
    old = release_before(tmp_path_factory.mktemp("old"))
    for name in ("pyproject.toml", "agent/fairlead/__init__.py"):
        (old / name).write_text((old / name).read_text().replace('version = "0.1.0"', f'version = "{OLDER}"', 1))
        (old / name).write_text((old / name).read_text().replace('__version__ = "0.1.0"', f'__version__ = "{OLDER}"', 1))
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


@pytest.fixture(scope="module", params=list(SUITES))
def site(request: pytest.FixtureRequest, releases: Releases) -> Iterator[ProvisionedRack]:
    with Rack(3, suite=request.param, name=own_name("test-upgrade-packages")) as rack:
        made = ProvisionedRack(rack)
        for host in rack.nodes:
            for name, folder in releases.items():
                (packages,) = folder.glob("dist/fairlead-*-packages")
                host.path(f"/root/{name}.deb").write_bytes((packages / deb(packages)).read_bytes())
            host.run(INSTALL.format("old"))
        made.provision("gpu[1-3]", release=releases["old"])
        made.hooks_on()
        agents_answer(made)
        yield made


def test_jobs_and_drains_outlast_packages_of_two_versions(site: ProvisionedRack, releases: Releases) -> None:
    scene = UpgradeScene(site)
    first = versions(site, releases["new"])
    assert {each["installed"].split("-")[0] for each in first.values()} == {OLDER}, first
    for nodelist, numbers, name in (("gpu[1,3]", (1, 3), "new"), ("gpu[1,3]", (1, 3), "old"), ("gpu[1-3]", (1, 2, 3), "new")):
        for number in numbers:
            site.node(number).run(INSTALL.format(name))
        scene.same()
        site.provision(nodelist, release=releases[name])
        found = versions(site, releases["new"])
        for number in numbers:
            each = found[f"gpu{number}"]
            assert (each["installed"].split("-")[0] == OLDER) == (name == "old"), found
            # the release before tells its version only
            assert each["installed"].startswith(each["agent"]) and not each["restart_due"], found
        scene.holds()
    scene.end()
    for host in site.rack.nodes:
        assert host.run("dpkg -V fairlead").stdout == ""
