"""The program that is sent to nodes: what it is put together of, and that it runs where fairlead is not installed."""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fairlead.provision import node_program, run_bundle, wheels
from fairlead.provision.node_python import START

AGENT = Path(__file__).resolve().parents[2] / "agent"
REQUEST: dict[str, Any] = {
    "state": "absent",
    "check": True,
    "diff": False,
    "undo": False,
    "force": False,
    "drained": False,
    "only": [],
    "release": "none",
    "files": [],
    "documents": [],
    "package_files": [],
    "links": [],
    "units": [],
    "leftovers": [],
    "state_paths": [],
    "folders": [],
    "slurm_conf": [],
}


def run(*python: str, **request: Any) -> dict[str, Any]:
    """What the program answers, sent as the action plugin sends it."""
    sent, body = node_program.archive(), json.dumps({**REQUEST, **request}).encode()
    data = b"%d\n%s%d\n%s" % (len(sent), sent, len(body), body)
    done = subprocess.run([*python, "-c", START], input=data, capture_output=True, timeout=120, check=False)
    marked = [line for line in done.stdout.decode().splitlines() if line.startswith("FAIRLEAD-REPLY ")]
    assert done.returncode == 0 and len(marked) == 1, done
    return dict(json.loads(marked[0].removeprefix("FAIRLEAD-REPLY ")))


def test_the_archive_is_the_folder_and_the_same_every_time() -> None:
    names = zipfile.ZipFile(io.BytesIO(node_program.archive())).namelist()
    assert names == sorted(f"on_node/{path.name}" for path in (AGENT / "fairlead/on_node").iterdir() if path.suffix == ".py")
    assert node_program.archive() == node_program.archive()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_it_runs_in_a_python_that_has_no_package_at_all(tmp_path: Path) -> None:
    leftover = tmp_path / "leftover"
    leftover.touch()
    node_answer = run(sys.executable, "-I", "-S", opt=str(tmp_path / "opt"), leftovers=[str(leftover)])
    assert node_answer == {"changed": True, "changes": [{"what": str(leftover), "why": "remove"}], "undone": None}
    assert leftover.exists(), "it was a check"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_in_the_wanted_release_it_goes_on_in_the_installed_package(tmp_path: Path) -> None:
    """The release here has no bin/fairlead: only a call in the same process can reach the command."""
    release, version = tmp_path / "opt/1", "{}.{}".format(*sys.version_info[:2])
    site = release / f"lib/python{version}/site-packages"
    site.mkdir(parents=True)
    (release / "bin").mkdir()
    (release / "bin/python").symlink_to(os.path.realpath(sys.executable))
    (release / "pyvenv.cfg").write_text(f"home = {os.path.dirname(os.path.realpath(sys.executable))}\n")
    (release / ".installed").write_text(version)
    (site / "here.pth").write_text("\n".join([str(AGENT), *(path for path in sys.path if path.endswith("site-packages"))]))
    document = {"path": str(tmp_path / "node.json"), "content": "{}", "mode": 0o644}
    (tmp_path / "node.json").write_text("{}")
    wanted = {"state": "present", "opt": str(tmp_path / "opt"), "release": "1", "documents": [document]}
    node_answer = run(str(release / "bin/python"), "-I", **wanted, only=["no-such-setting"])
    assert node_answer["failed"] and node_answer["msg"].startswith("fairlead apply: --only no-such-setting: no setting")


def imports(path: Path) -> set[str]:
    """What a module imports; relative imports with their dot."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return found


@pytest.mark.parametrize("path", sorted((AGENT / "fairlead/on_node").glob("*.py")), ids=lambda path: path.stem)
def test_it_imports_the_standard_library_its_own_folder_and_the_command_line_in_one_place(path: Path) -> None:
    others = {name for name in imports(path) if not name.startswith(".") and name.split(".")[0] not in sys.stdlib_module_names}
    assert others == ({"fairlead.cli"} if path.name == "apply_command.py" else set())
    assert not any(name.startswith("..") for name in imports(path))


def test_what_the_action_plugin_imports_needs_no_installed_fairlead(tmp_path: Path) -> None:
    run_bundle.write_bundle(tmp_path, (), wheels.own_wheel(), (), state="present", undo=False, force=False)
    script = f"import sys; sys.path.insert(0, {str(tmp_path / 'lib')!r})\n"
    script += "from fairlead.provision import node_answer, wheel_tags; print(node_answer.__file__, wheel_tags.__file__)"
    said = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.split() == [f"{tmp_path}/lib/fairlead/provision/{name}.py" for name in ("node_answer", "wheel_tags")]
