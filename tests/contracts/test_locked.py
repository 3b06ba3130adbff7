"""What `make lock` wrote fits pyproject.toml: a dependency that is added or bounded anew needs a new lock."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from fairlead.provision import wheel_lock
from fairlead.provision.wheel_tags import DEPENDENCIES, choose

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
Locked = dict[str, tuple[str, set[str]]]  # version and hashes by name


def requirements(path: Path) -> Locked:
    found: Locked = {}
    for name, version, hashes in re.findall(r"^([^#\s]\S*)==(\S+) \\\n((?:    --hash=sha256:.*\n)+)", path.read_text(), re.M):
        found[canonicalize_name(name)] = (version, set(re.findall(r"sha256:([0-9a-f]{64})", hashes)))
    return found


def unmet(wanted: list[str], locked: Locked) -> list[str]:
    parsed = [Requirement(text) for text in wanted]
    return [str(r) for r in parsed if locked.get(canonicalize_name(r.name), ("0", 0))[0] not in r.specifier]


NODE = {p.name: (p.version, {w.sha256 for w in p.wheels}) for p in wheel_lock.load().packages}


def test_the_lock_of_what_runs_on_nodes_is_what_the_project_depends_on() -> None:
    wanted = PROJECT["project"]["dependencies"]
    assert unmet(wanted, NODE) == [], "run `make lock`"
    assert set(NODE) == {canonicalize_name(Requirement(text).name) for text in wanted} == set(DEPENDENCIES)


def test_the_lock_for_the_admin_host_has_its_extras_and_the_same_versions_as_nodes_have() -> None:
    admin = requirements(wheel_lock.ADMIN_FILE)
    extras = PROJECT["project"]["optional-dependencies"]
    assert unmet([*extras["provision"], *extras["el"], *PROJECT["project"]["dependencies"]], admin) == [], "run `make lock`"
    assert {name: admin[name][0] for name in NODE} == {name: version for name, (version, _) in NODE.items()}
    assert all(hashes for _, hashes in admin.values())


def test_the_list_for_pip_is_the_lock() -> None:
    assert requirements(wheel_lock.NODE_FILE) == NODE


def test_a_release_is_built_with_what_the_project_names() -> None:
    tools = requirements(ROOT / "release/build.txt")
    assert unmet(PROJECT["build-system"]["requires"], tools) == [], "run `make lock`"
    assert all("==" in text for text in PROJECT["build-system"]["requires"]), "one version builds a release"
    assert {"pip", "cyclonedx-python-lib"} <= set(tools)


def test_the_lock_says_each_file_once_and_by_its_own_version() -> None:
    for package in wheel_lock.load().packages:
        assert len({w.name for w in package.wheels}) == len({w.sha256 for w in package.wheels}) == len(package.wheels)
        for wheel in package.wheels:
            name, version, _, _ = parse_wheel_filename(wheel.name)
            assert (name, str(version)) == (package.name, package.version) and 0 < wheel.size < 8 << 20
            assert not version.is_prerelease


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14", "3.15"])
def test_every_python_of_the_promise_finds_its_wheels(python: str, machine: str) -> None:
    names = [w.name for p in wheel_lock.load().packages for w in p.wheels]
    chosen, missing = choose(names, python, machine, ("glibc", "2.28"))  # EL 8
    assert not missing and len(chosen) == len(DEPENDENCIES)
