"""A node whose Python is too old: the first words that go there are understood by it, and name it."""

from __future__ import annotations

import ast
import importlib.util
import json
import shutil
import subprocess
import sys

import pytest

from fairlead import assets

OLD = [name for name in ("python2.7", *(f"python3.{n}" for n in range(6, 11))) if shutil.which(name)]
AS_IF = "import sys; sys.version_info = (3, 9, 18, 'final', 0)\n"


def start() -> str:
    path = assets.directory("playbooks") / "roles/node/action_plugins/fairlead_node.py"
    spec = importlib.util.spec_from_file_location("fairlead_node_action", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text: str = module.START
    return text


def said(*command: str) -> dict[str, object]:
    done = subprocess.run([*command], input="12\nnot looked at\n", capture_output=True, text=True, timeout=60, check=False)
    marked = [line for line in done.stdout.splitlines() if line.startswith("FAIRLEAD-REPLY ")]
    assert done.returncode == 0 and len(marked) == 1, done
    answer: dict[str, object] = json.loads(marked[0].removeprefix("FAIRLEAD-REPLY "))
    return answer


def test_an_old_python_is_named_with_what_to_do() -> None:
    ast.parse(start(), feature_version=(3, 4))
    answer = said(sys.executable, "-c", AS_IF + start())
    assert answer["failed"] and answer["msg"] == f"{sys.executable} is Python 3.9; fairlead needs 3.11 or newer"
    assert answer["hint"] == "install one and name it in the site's [ansible] python"


@pytest.mark.parametrize("name", OLD)
def test_old_pythons_of_this_machine_say_so_themselves(name: str) -> None:
    """Where the machine has any (a shim that leads nowhere is none)."""
    version = subprocess.run([name, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True, check=False)
    if version.returncode:
        pytest.skip(f"{name} does not run here")
    answer = said(name, "-c", start())
    assert answer["failed"] and f"is Python {name.removeprefix('python')}; fairlead needs 3.11" in str(answer["msg"])
