"""A visit of the program that runs on a node, in a folder of this machine: real files; systemctl is a script that logs its
arguments."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead import config
from fairlead.on_node import other_gpus, program
from fairlead.on_node.stop import Stop
from fairlead.provision import run_bundle

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
RELEASE = "0.0.0-test"
UNIT = "fairlead-agent.service"
SYSTEMCTL = """#!/bin/sh
echo "$2 $3 $4" >> {log}
[ "$2" = show ] && printf 'Id={unit}\\nUnitFileState=enabled\\nActiveState=active\\nNeedDaemonReload=no\\n'
exit 0
"""


class Machine:
    """A node's folders below tmp_path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opt = folder / "opt"
        self.log = folder / "systemctl.log"
        self.hook = folder / "etc/slurm/fairlead/task-prolog"
        self.state = folder / "var/lib/fairlead"
        (folder / "bin").mkdir()
        program = folder / "bin/systemctl"
        program.write_text(SYSTEMCTL.format(log=self.log, unit=UNIT))
        program.chmod(0o755)

    def request(self, document: str = "one", **more: Any) -> dict[str, Any]:
        content = b"#!/bin/sh\n"
        entry = {"path": str(self.hook), "mode": 0o755, "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        return {
            "state": "present",
            "check": False,
            "diff": False,
            "undo": False,
            "force": False,
            "drained": False,
            "only": [],
            "opt": str(self.opt),
            "release": RELEASE,
            "files": [entry],
            "package_files": [],
            "documents": [{"path": str(self.folder / "etc/fairlead/node.json"), "content": document, "mode": 0o644}],
            "links": [[f"{self.opt}/current", RELEASE]],
            "units": [{"name": UNIT, "start": True}],
            "leftovers": [],
            "state_paths": [str(self.state)],
            "folders": [],
            **more,
        }

    def visit(self, request: dict[str, Any], *, payload: bool = False) -> dict[str, Any]:
        body = json.dumps(request).encode()
        data = b"%d\n%s" % (len(body), body)
        if payload:
            index = json.dumps({"files": request["files"], "wheels": []}).encode()
            data += b"%d\n%s#!/bin/sh\n" % (len(index), index)
        return program.visit(io.BytesIO(data))

    def install_program(self, text: str) -> None:
        """What stands for `fairlead` in the installed release."""
        path = self.opt / RELEASE / "bin/fairlead"
        path.write_text(f"#!{sys.executable}\n{text}\n")
        path.chmod(0o755)

    def systemctl_calls(self) -> list[str]:
        said = [line.strip() for line in self.log.read_text().splitlines() if not line.startswith("show")]
        self.log.unlink()
        return said


APPLIED = 'print(\'{"changed": 0, "items": []}\')'


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return found


def test_the_agent_is_restarted_though_the_run_that_changed_things_ended_early(machine: Machine) -> None:
    with pytest.raises(Stop):  # the release has no package in it: apply fails, and the agent was not restarted
        machine.visit(machine.request(), payload=True)
    assert f"restart {UNIT}" not in machine.systemctl_calls()
    machine.install_program(APPLIED)
    again = machine.visit(machine.request())
    assert f"restart {UNIT}" in machine.systemctl_calls() and again["changed"]
    third = machine.visit(machine.request())
    assert machine.systemctl_calls() == [] and not third["changed"]


def test_systemd_reads_its_unit_files_once_for_all_units_of_a_fresh_node(machine: Machine) -> None:
    """Each ``systemctl enable`` reads all unit files of the node again, as ``daemon-reload`` does."""
    units = [{"name": f"fairlead-{name}", "start": False} for name in ("apply.service", "scratch@local.path")]
    with pytest.raises(Stop):
        machine.visit(machine.request(units=units), payload=True)
    assert machine.systemctl_calls() == ["enable fairlead-apply.service fairlead-scratch@local.path"]


def test_a_drop_in_that_differs_is_read_by_systemd_before_the_restart(machine: Machine) -> None:
    """Older systemd does not say of a new drop-in that it has not read it (NeedDaemonReload)."""
    with pytest.raises(Stop):
        machine.visit(machine.request(), payload=True)
    machine.install_program(APPLIED)
    machine.visit(machine.request())
    machine.log.unlink()
    drop_in = {
        "path": str(machine.folder / f"etc/systemd/system/{UNIT}.d/50-metrics.conf"),
        "content": "[Service]\n",
        "mode": 0o644,
    }
    documents = [*machine.request()["documents"], drop_in]
    machine.visit(machine.request(documents=documents))
    calls = machine.systemctl_calls()
    assert calls.index("daemon-reload") < calls.index(f"restart {UNIT}")
    assert not machine.visit(machine.request(documents=documents))["changed"] and machine.systemctl_calls() == []


UNDO_FAILS = 'print(\'{"schema": 1, "outcomes": [{"target": "/x", "done": false, "message": "/x: Read-only file system"}]}\')'


def test_an_undo_that_fails_keeps_what_it_needs_to_be_tried_again(machine: Machine) -> None:
    with pytest.raises(Stop):
        machine.visit(machine.request(), payload=True)
    note = machine.state / "undo/x.json"
    note.parent.mkdir(parents=True)
    note.write_text("{}")
    machine.install_program(UNDO_FAILS)
    with pytest.raises(Stop, match=r"/x: Read-only file system"):
        machine.visit(machine.request(state="absent", undo=True))
    assert note.exists() and (machine.opt / "current").exists()


def test_the_agent_ends_before_settings_are_brought_back(machine: Machine) -> None:
    """Else it finds drift, and a setting that the site enforces drains the node."""
    with pytest.raises(Stop):
        machine.visit(machine.request(), payload=True)
    machine.log.unlink()
    machine.install_program(f"open({str(machine.log)!r}, 'a').write('undo\\n'); print('{{\"schema\": 1, \"outcomes\": []}}')")
    machine.visit(machine.request(state="absent", undo=True))
    assert machine.systemctl_calls() == [f"disable --now {UNIT}", "undo", "daemon-reload"]
    assert not machine.opt.exists() and not machine.hook.exists()


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("slurm.conf", "TaskProlog={hook}"),
        ("slurm.conf", "  taskprolog = {hook} # ours"),
        ("hooks.conf", "TaskProlog={hook}"),  # a file that slurm.conf includes
    ],
)
def test_a_hook_that_slurm_conf_names_is_not_removed(machine: Machine, name: str, line: str) -> None:
    with pytest.raises(Stop):
        machine.visit(machine.request(), payload=True)
    conf = machine.folder / "etc/slurm" / name
    conf.write_text(line.format(hook=machine.hook) + "\n")
    request = machine.request(state="absent", slurm_conf=[str(machine.folder / "etc/slurm/*.conf")])
    with pytest.raises(Stop, match=f"{name} still says"):
        machine.visit(request)
    assert machine.hook.exists()
    conf.write_text("#" + conf.read_text())
    machine.visit(request)
    assert not machine.hook.exists()


def test_the_agent_is_restarted_when_an_earlier_release_comes_back(machine: Machine) -> None:
    for release in ("1", "2"):
        (machine.opt / release / "bin").mkdir(parents=True)
        (machine.opt / release / ".installed").write_text("{}.{}".format(*sys.version_info[:2]))
        (machine.opt / release / "bin/fairlead").write_text(f"#!{sys.executable}\n{APPLIED}\n")
        (machine.opt / release / "bin/fairlead").chmod(0o755)
    machine.visit(machine.request(release="2", links=[[f"{machine.opt}/current", "2"]]), payload=True)
    machine.log.unlink()
    back = machine.visit(machine.request(release="1", links=[[f"{machine.opt}/current", "1"]]))
    assert f"restart {UNIT}" in machine.systemctl_calls() and back["changed"]


def test_two_admins_at_once_do_not_build_the_same_release(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.opt.mkdir()
    monkeypatch.setattr(program, "LOCK_SECONDS", 0.1)
    with open(machine.opt / ".lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(Stop, match="another `fairlead provision` is running on this node"):
            machine.visit(machine.request(), payload=True)
        assert not (machine.opt / RELEASE).exists()
    with pytest.raises(Stop, match="fairlead apply"):  # past the lock; this release has no package in it
        machine.visit(machine.request(), payload=True)


def test_a_machine_that_goes_by_another_name_is_asked_about_before_it_is_touched(machine: Machine) -> None:
    """Addresses that were exchanged would give each of two nodes the other's document."""
    here = os.uname().nodename
    for state in ("present", "absent"):
        asked = machine.visit(machine.request(node="gpu9", state=state))
        assert asked["hostname"] == here and asked["need"][0] == "name"
        assert "name" not in machine.visit(machine.request(node=f"{here}.example", state=state, check=True)).get("need", ())
        assert "name" not in machine.visit(machine.request(node="gpu9", named=True, state=state, check=True)).get("need", ())
    document = machine.folder / "etc/fairlead/node.json"
    assert not document.exists()
    document.parent.mkdir(parents=True)
    document.write_text('{"node": "gpu9"}')
    assert "name" not in machine.visit(machine.request(node="gpu9"))["need"], "it was that node before"
    document.write_text('{"node": "gpu8"}')
    assert "name" in machine.visit(machine.request(node="gpu9"))["need"]


def sent(
    machine: Machine, wheels: dict[str, bytes], *, listed: dict[str, bytes] | None = None, file: bytes = b""
) -> dict[str, Any]:
    """A visit that brings wheels, of which the request lists these."""
    entries = {name: {"name": name, "size": len(c), "sha256": hashlib.sha256(c).hexdigest()} for name, c in wheels.items()}
    held = {
        name: {"name": name, "size": len(c), "sha256": hashlib.sha256(c).hexdigest()} for name, c in (listed or wheels).items()
    }
    request = machine.request(wheels=list(held.values()))
    index = json.dumps({"files": request["files"], "wheels": list(entries.values())}).encode()
    body = json.dumps(request).encode()
    data = b"%d\n%s%d\n%s" % (len(body), body, len(index), index) + (file or b"#!/bin/sh\n") + b"".join(wheels.values())
    return program.visit(io.BytesIO(data))


A, B = "fairlead-1-py3-none-any.whl", "msgspec-1-py3-none-any.whl"


@pytest.mark.parametrize(
    ("wheels", "listed", "said"),
    [
        ({A: b"own", B: b"changed"}, {A: b"own", B: b"listed!"}, f"{B}: not the file that the admin host listed"),
        ({A: b"longer", B: b"dep"}, {A: b"own", B: b"dep"}, f"{A}: not the file that the admin host listed"),
        (
            {A: b"own", "evil-1-py3-none-any.whl": b"x"},
            {A: b"own", B: b"dep"},
            "evil-1-py3-none-any.whl: sent to this node, and not in",
        ),
        ({A: b"own"}, {A: b"own", B: b"dep"}, "not one of each package"),
    ],
)
def test_a_wheel_that_is_not_as_the_request_lists_it_changes_nothing_on_the_node(
    machine: Machine, wheels: dict[str, bytes], listed: dict[str, bytes], said: str
) -> None:
    before = sorted(machine.folder.rglob("*"))
    with pytest.raises(Stop, match=said):
        sent(machine, wheels, listed=listed)
    assert sorted(machine.folder.rglob("*")) == before


def test_a_hook_that_is_not_as_the_request_names_it_changes_nothing_on_the_node(machine: Machine) -> None:
    """Slurm runs it as root."""
    before = sorted(machine.folder.rglob("*"))
    with pytest.raises(Stop, match=f"{machine.hook}: damaged on the way here"):
        sent(machine, {}, file=b"#!/bin/no\n")
    assert sorted(machine.folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("base", "instance"),
    [
        ("/local", "local"),
        ("/mnt/nvme0", "mnt-nvme0"),
        ("/mnt/my-disk+2/a_b.c", "mnt-my\\x2ddisk\\x2b2-a_b.c"),
        ("/.hidden", "\\x2ehidden"),
        ("", None),
    ],
)
def test_the_disk_of_jobs_names_its_units(base: str, instance: str | None) -> None:
    document = config.resolve_layers("gpu1", [("site", {"jobenv": {"scratch": base}})])[0]
    names = [unit["name"] for unit in run_bundle.scratch_units(document)]
    assert names == ([] if instance is None else [f"fairlead-scratch@{instance}.path", f"fairlead-scratch@{instance}.timer"])
    if instance is not None and shutil.which("systemd-escape"):
        said = subprocess.run(["systemd-escape", "--path", base], capture_output=True, text=True, check=True).stdout
        assert said == f"{instance}\n"


def packaged(machine: Machine, release: str, required: bool = False, **more: Any) -> dict[str, Any]:
    """A request to a machine whose package has this release; "" for a machine without the package."""
    folder = machine.folder / "usr/lib/fairlead"
    if release:
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        (folder / "release").write_text(release + "\n")
        answer = '{"changed": 0, "items": [], "outcomes": []}'  # of apply, and of apply --undo
        (folder / "bin/fairlead").write_text(f"#!/bin/sh\necho '{answer}'\n")
        (folder / "bin/fairlead").chmod(0o755)
    package = {"folder": str(folder), "folders": [str(machine.state)], "required": required, "version": "0.0.0"}
    return machine.request(package=package, **more)


def test_a_node_with_the_package_is_sent_nothing_but_its_document(machine: Machine) -> None:
    answer = machine.visit(packaged(machine, RELEASE, required=True))
    assert {c["what"].removeprefix(str(machine.folder)) for c in answer["changes"]} == {
        "/etc/fairlead/node.json", "/opt/current", UNIT,
    }  # fmt: skip
    assert os.readlink(machine.opt / "current") == "../usr/lib/fairlead" and not machine.hook.exists()
    assert not machine.visit(packaged(machine, RELEASE))["changed"]


@pytest.mark.parametrize(
    ("release", "required", "said"),
    [
        ("0.0.1-other", False, f"the package fairlead here is release 0.0.1-other, and the admin host has {RELEASE}"),
        ("", True, "this node does not have the package fairlead, which the site asks for"),
    ],
)
def test_a_package_that_does_not_fit_is_refused_before_anything_changes(
    machine: Machine, release: str, required: bool, said: str
) -> None:
    with pytest.raises(Stop, match=said) as found:
        machine.visit(packaged(machine, release, required))
    assert "version 0.0.0" in found.value.hint or "fairlead 0.0.0" in found.value.hint
    assert not (machine.folder / "etc").exists() and not (machine.opt / "current").is_symlink()


def test_a_node_without_the_package_gets_wheels(machine: Machine) -> None:
    assert machine.visit(packaged(machine, ""))["need"] == ["wheels", "files"]


def test_what_wheels_left_goes_when_the_package_is_there(machine: Machine) -> None:
    """A release, a unit and the link of an earlier run go. What others have put into these folders stays."""
    unit = machine.folder / "etc/systemd/system" / UNIT
    link = machine.folder / "usr/local/bin/fairlead"
    for path in (unit, link, machine.opt / "0.0.0-old/.installed", machine.opt / "theirs/file"):
        path.parent.mkdir(parents=True, exist_ok=True)
    for path in (unit, machine.opt / "0.0.0-old/.installed", machine.opt / "theirs/file"):
        path.write_text("x")
    target = f"{machine.opt}/current/bin/fairlead"
    link.symlink_to(target)
    (machine.opt / "current").symlink_to("0.0.0-old")
    entry = {"path": str(unit), "mode": 0o644, "sha256": "0", "size": 1}
    more = {"files": [entry], "links": [[f"{machine.opt}/current", RELEASE], [str(link), target]]}
    checked = machine.visit(packaged(machine, RELEASE, check=True, **more))
    assert unit.exists() and os.readlink(machine.opt / "current") == "0.0.0-old"
    machine.log.unlink()
    answer = machine.visit(packaged(machine, RELEASE, **more))
    gone = {str(unit), str(link), str(machine.opt / "0.0.0-old")}
    for said in (checked, answer):
        assert {c["what"] for c in said["changes"] if c["why"] == "remove: the package fairlead has its own"} == gone
    assert not [path for path in gone if os.path.lexists(path)] and (machine.opt / "theirs/file").exists()
    calls = machine.systemctl_calls()
    assert calls.index("daemon-reload") < calls.index(f"reenable {UNIT}") < calls.index(f"restart {UNIT}")
    assert not machine.visit(packaged(machine, RELEASE, **more))["changed"]


def test_an_uninstall_leaves_the_package_and_its_folders(machine: Machine) -> None:
    machine.visit(packaged(machine, RELEASE))
    machine.state.mkdir(parents=True)
    (machine.state / "ledger").touch()
    request = packaged(machine, RELEASE, state="absent", undo=True, links=[])
    assert machine.visit(request)["changed"]
    assert (machine.folder / "usr/lib/fairlead/release").exists() and (machine.opt / "current").is_symlink()
    assert machine.state.is_dir() and not list(machine.state.iterdir())
    assert not (machine.folder / "etc/fairlead/node.json").exists()


def test_a_profile_for_another_gpu_is_refused_before_anything(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "other_gpus", functools.partial(other_gpus.other_gpus, root=str(tmp_path)))
    for number, (kind, physfn) in enumerate(((0x030200, False), (0x030200, False), (0x030000, False), (0x030200, True))):
        device = tmp_path / f"sys/bus/pci/devices/0000:0{number}:00.0"
        device.mkdir(parents=True)
        for name, value in (("vendor", 0x10DE), ("device", 0x27B8 + number // 2), ("class", kind)):
            (device / name).write_text(f"{value:#06x}\n")
        if physfn:
            (device / "physfn").symlink_to("../0000:00:00.0")
    before = sorted(tmp_path.rglob("*"))
    for more in ({}, {"check": True}, {"only": ["sysctl"]}):
        assert machine.visit(machine.request(gpu_pci_ids=["10de:2330"], **more)) == {"other_gpus": {"10de:27b8": 2}}
    assert sorted(p for p in tmp_path.rglob("*") if p.name not in ("opt", ".lock")) == before
    for ids in ([], ["10de:27b8"], ["10de:2330", "10de:27b8"]):
        assert "other_gpus" not in machine.visit(machine.request(gpu_pci_ids=ids))
    assert "other_gpus" not in machine.visit(machine.request(state="absent", gpu_pci_ids=["10de:2330"]))
