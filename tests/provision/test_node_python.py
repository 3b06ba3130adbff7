"""The Python of a node: found among those that it has, or told as missing with the package that its distribution has."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.provision import node_python
from fairlead.provision.node_answer import NotAnAnswerError, read
from fairlead.provision.node_python import PACKAGES, PROBE, START, VERSION, candidates, command, failure, package
from fairlead.provision.wheel_lock import load
from fairlead.provision.wheels import DEPENDENCIES
from tests.provision.desk import Desk

SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]
OLD = [name for name in ("python2.7", *(f"python3.{n}" for n in range(6, 11))) if shutil.which(name)]
#: A Python of another version, which runs what it is told to.
OTHER = """#!/bin/sh
while [ "$1" != -c ]; do shift; done
exec {python} -I -c 'import sys; sys.version_info = {version}; exec(sys.argv[1])' "$2"
"""
ROCKY = 'NAME="Rocky Linux"\nVERSION="9.4 (Blue Onyx)"\nID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\n'
DOCUMENT = [{"path": "/etc/fairlead/node.json", "content": '{"node": "n1"}'}]


def wheels(*pythons: str) -> list[str]:
    """Names of the lock's wheels for these Pythons."""
    names = [wheel.name for locked in load().packages for wheel in locked.wheels]
    compiled = [name for name in names if any(f"-cp{p.replace('.', '')}-" in name for p in pythons)]
    return compiled + [name for name in names if name.endswith("-none-any.whl")]


def fake(folder: Path, version: str) -> str:
    path = folder / f"python-{version}"
    numbers = tuple(map(int, version.split(".")))
    path.write_text(OTHER.format(python=sys.executable, version=numbers))
    path.chmod(0o755)
    return str(path)


def run(shell: str, text: str) -> str:
    words = [shell, "sh", "-c", text] if shell == "busybox" else [shell, "-c", text]
    done = subprocess.run(words, input="12\nnot looked at\n", capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and done.stderr == "", done
    return done.stdout


def said(shell: str, named: str, release: Path) -> dict[str, str]:
    """What the shell says on a machine whose Python is ``named``, as the admin host reads it."""
    out = run(shell, command("/none/python", named, [], start="print('ran')", release=str(release)))
    marked = [line for line in out.splitlines() if line.startswith(node_python.MARK)]
    assert len(marked) == 1, out
    found: dict[str, str] = read(marked[0].removeprefix(node_python.MARK), DOCUMENT)["no_python"]
    return found


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("version", "words"), [("3.9", "is Python 3.9"), ("3.6", "is Python 3.6"), ("", "is not there"), ("2.7", "is Python 2.7")]
)
def test_a_node_with_an_old_python_or_none_is_told_with_the_package_of_its_distribution(
    tmp_path: Path, shell: str, version: str, words: str
) -> None:
    release = tmp_path / "os-release"
    release.write_text(ROCKY)
    python = fake(tmp_path, version) if version else "/none/python3"
    found = {**said(shell, python, release), "other": ""}  # this machine has others
    assert (found["id"], found["version"], found["like"], found["has"]) == ("rocky", "9.4", "rhel centos fedora", version)
    message = str(failure(found, python)["msg"])
    assert message == f"fairlead needs Python 3.11 or newer, and {python} {words}; EL 9: dnf install python3.12"


@pytest.mark.parametrize("shell", SHELLS)
def test_the_first_python_that_is_new_enough_is_started_and_gets_what_was_sent(tmp_path: Path, shell: str) -> None:
    start = "import sys; print(sys.executable, sys.version_info[:2], sys.stdin.read())"
    ours, new = fake(tmp_path, "3.12"), fake(tmp_path, "3.13")
    assert "(3, 12) 12\nnot looked at" in run(shell, command(ours, new, [], start=start))
    assert "(3, 13) 12\nnot looked at" in run(shell, command("/none/python", new, [], start=start))
    text = command("/none/python", "", [], start=start)
    for path in candidates([]):
        text = text.replace(f" {path} ", f" {ours} ") if path.endswith(".13") else text.replace(f" {path} ", " /none/python ")
    assert "(3, 12) 12\nnot looked at" in run(shell, text)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("text", ["", 'ID="a\\"; echo x"\n', "ID=$(touch x)\nVERSION_ID=`x`\n", "ID=\xe9\n", "no such line"])
def test_what_os_release_says_is_text_and_never_run(tmp_path: Path, shell: str, text: str) -> None:
    release = tmp_path / "os-release"
    release.write_text(text)
    found = said(shell, "/none/python3", release)
    assert (found["id"], found["version"], found["like"]) == ("", "", "")
    assert not Path("x").exists()
    assert said(shell, "/none/python3", tmp_path / "none")["id"] == ""


def test_what_old_pythons_are_asked_is_understood_by_them() -> None:
    for text in (PROBE, VERSION):
        ast.parse(text, feature_version=(3, 4))
    ast.parse(START)


@pytest.mark.parametrize("name", OLD)
def test_old_pythons_of_this_machine_are_passed_over(name: str, tmp_path: Path) -> None:
    version = subprocess.run([name, "-c", VERSION], capture_output=True, text=True, check=False)
    if version.returncode:
        pytest.skip(f"{name} does not run here")
    assert said("sh", str(shutil.which(name)), tmp_path / "none")["has"] == version.stdout.strip()


def test_a_python_without_its_standard_library_is_passed_over_and_said() -> None:
    """Debian's python3-minimal, SLES' python311-base."""
    found = {"id": "debian", "version": "12", "like": "", "has": "3.11", "other": ""}
    message = str(failure(found, "")["msg"])
    assert message.endswith("is Python 3.11, and lacks parts of its standard library; Debian: apt-get install python3")


def test_a_python_that_the_site_names_wrongly_is_told_with_one_that_is_there() -> None:
    found = {"id": "rocky", "version": "9.4", "like": "rhel", "has": "3.9", "other": "/usr/bin/python3.12"}
    message = str(failure(found, "/usr/bin/python3")["msg"])
    assert message.endswith("is Python 3.9; /usr/bin/python3.12 would do: take `python` out of the site's [ansible]")


@pytest.mark.parametrize(
    ("ready", "first"),
    [((), ("3.13", "3.12", "3.11")), (("3.11",), ("3.11",)), (("3.12", "3.11"), ("3.12", "3.11"))],
)
def test_pythons_for_which_the_run_has_wheels_are_tried_first(ready: tuple[str, ...], first: tuple[str, ...]) -> None:
    found = candidates(wheels(*ready))
    assert found[: len(first) + 1] == (*(f"/usr/bin/python{v}" for v in first), "/usr/bin/python3")
    assert sorted(found) == ["/usr/bin/python3", *(f"/usr/bin/python3.{minor}" for minor in (11, 12, 13))]
    assert len(wheels("3.11")) >= len(DEPENDENCIES)


@pytest.mark.parametrize(
    ("name", "version", "like", "install"),
    [
        ("rhel", "8.6", "fedora", ""),
        ("rhel", "8.8", "fedora", "dnf install python3.11"),
        ("almalinux", "8.10", "rhel centos fedora", "dnf install python3.12"),
        ("rocky", "9.1", "rhel centos fedora", ""),
        ("rocky", "9.2", "rhel centos fedora", "dnf install python3.11"),
        ("ol", "9.4", "fedora", "dnf install python3.12"),
        ("centos", "9", "rhel fedora", "dnf install python3.12"),
        ("rhel", "10.1", "fedora", "dnf install python3"),
        ("debian", "11", "", ""),
        ("debian", "12", "", "apt-get install python3"),
        ("ubuntu", "20.04", "debian", ""),
        ("ubuntu", "22.04", "debian", "apt-get install python3.11 (universe)"),
        ("ubuntu", "24.04", "debian", "apt-get install python3"),
        ("sles", "15.3", "suse", ""),
        ("sles", "15.5", "suse", "zypper install python311 (module Python 3)"),
        ("sles_sap", "15.6", "suse", "zypper install python311 (module Python 3)"),
        ("amzn", "2", "centos rhel fedora", ""),
        ("amzn", "2023", "fedora", "dnf install python3.12"),
        ("sles", "16.0", "suse", None),
        ("gentoo", "", "", None),
        ("", "", "", None),
    ],
)
def test_the_package_of_each_distribution(name: str, version: str, like: str, install: str | None) -> None:
    found = package(name, version, like)
    assert (found.install if found else None) == install
    message = str(failure({"id": name, "version": version, "like": like, "has": "3.9", "other": ""}, "")["msg"])
    assert (install or "install one") in message and "\n" not in message


def test_every_package_names_its_source_and_rises_within_its_family() -> None:
    for one in PACKAGES:
        assert len(one.source) > 20 and one.label
    for family in {p.family for p in PACKAGES}:
        since = [p.since for p in PACKAGES if p.family == family]
        assert since == sorted(since) and since[0] == (0, 0)


@pytest.mark.parametrize(
    "change", [{"id": "x\x1b[2J"}, {"id": "x" * 33}, {"has": "9.9.9"}, {"other": "/tmp/evil"}, {"like": 1}, {"version": None}]
)
def test_a_node_can_say_nothing_else_in_place_of_its_python(change: dict[str, object]) -> None:
    honest = {"id": "rocky", "version": "9.4", "like": "rhel", "has": "3.9", "other": ""}
    assert read(json.dumps({"no_python": {**honest, "x": 1}}), DOCUMENT) == {"no_python": honest}
    with pytest.raises(NotAnAnswerError, match="no_python"):
        read(json.dumps({"no_python": honest | change}), DOCUMENT)


def test_equal_nodes_without_a_python_are_one_line_of_the_plan(tmp_path: Path) -> None:
    """A real Ansible, and nodes that run what is sent by a shell. Those of one release are one group, whatever minor version."""
    desk = Desk(tmp_path, nodes=5)
    for name, version in (("gpu1", "9.4"), ("gpu2", "9.5"), ("gpu3", "9.4"), ("gpu4", "22.04")):
        system = "ubuntu" if name == "gpu4" else "rocky"
        like = "debian" if name == "gpu4" else "rhel centos fedora"
        answer = {"no_python": {"id": system, "version": version, "like": like, "has": "3.9", "other": ""}}
        desk.says(name, f"#!/bin/sh\ncat >/dev/null\nprintf '\\n%s\\n' '{node_python.MARK}{json.dumps(answer)}'\n".encode())
    text = desk.site.read_text()
    desk.site.write_text(text.replace(f"python = '{sys.executable}'", ""))
    done = desk.run("plan", "--site", str(desk.site), "-q")
    assert done.returncode == 69, done.stdout + done.stderr
    lines = done.stdout.replace("\n      | ", " ").splitlines()  # a line of more than 120 characters is wrapped
    words = "  cannot: fairlead needs Python 3.11 or newer, and /usr/bin/python3 is Python 3.9; "
    assert lines[: lines.index("gpu4 (1 node): failed") + 2] == [
        "gpu[1-3] (3 nodes): failed",
        f"{words}EL 9: dnf install python3.12",
        "gpu4 (1 node): failed",
        f"{words}Ubuntu 22.04: apt-get install python3.11 (universe)",
    ]
    assert "gpu5 (1 node): same" in lines
