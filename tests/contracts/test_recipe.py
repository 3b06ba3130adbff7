"""CONTRIBUTING's recipes are true: the files of both examples, put where the recipes say, need no other edit."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.lab.trees import MACHINES

ROOT = Path(__file__).resolve().parents[2]
ROWS = "tests/scorecard/faults/host.py"


def blocks() -> dict[str, str]:
    """The examples of CONTRIBUTING by the path that the step before each names; a row without a path: by its table's."""
    found: dict[str, str] = {}
    step = r"^\d\. ((?:(?!^\d\. ).)*?)^   ```python\n(.*?)^   ```"
    steps = re.findall(step, (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL | re.MULTILINE)
    for words, code in steps:
        path = re.match(r"`([\w/]+\.py)`", words)
        found[path[1] if path else ROWS] = textwrap.dedent(code)
    return found


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with the examples in it."""
    made = tmp_path_factory.mktemp("recipe")
    ignored = shutil.ignore_patterns("__pycache__", "machines")
    for part in ("agent", "tests"):
        shutil.copytree(ROOT / part, made / part, ignore=ignored, symlinks=True)
    (made / ".cache").mkdir()
    (made / ".cache/machines").symlink_to(MACHINES)
    for path, code in blocks().items():
        if path == ROWS:
            rows = made / ROWS
            head, end, rest = rows.read_text().rpartition(")  # fmt: skip")
            code = head + code + end + rest
        else:
            assert not (made / path).exists(), f"{path} is there already: the example needs another name"
        (made / path).write_text(code)
    return made


def fairlead(copy: Path, *argv: str, codes: tuple[int, ...] = (0,)) -> str:
    env = {**os.environ, "PYTHONPATH": str(copy / "agent")}
    done = subprocess.run([sys.executable, "-m", "fairlead", *argv], env=env, capture_output=True, text=True, check=False)
    assert done.returncode in codes, done.stderr
    return done.stdout


def run_tests(copy: Path, *argv: str) -> str:
    env = {**os.environ, "PYTHONPATH": f"{copy / 'agent'}:{copy}"}
    alone = ("--noconftest", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(copy))
    command = [sys.executable, "-m", "pytest", "-q", *alone, *argv]
    done = subprocess.run(command, env=env, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    return done.stdout


def test_the_recipes_name_every_file_that_they_need() -> None:
    assert list(blocks()) == [
        "agent/fairlead/checks/spool_room.py",
        "tests/checks/test_spool_room.py",
        ROWS,
        "agent/fairlead/settings/ksm.py",
        "tests/settings/test_ksm.py",
    ]


def test_the_example_is_a_check(copy: Path) -> None:
    assert "free_bytes_min" in fairlead(copy, "explain", "spool_room")
    assert "spool_room" in json.loads(fairlead(copy, "config", "schema"))["$defs"]["Checks"]["properties"]
    tree = str(MACHINES / "hgx-h100.tuned")
    assert not json.loads(fairlead(copy, "check", "--root", tree, "--only", "spool_room", "--json"))["findings"]


def test_the_example_is_a_setting(copy: Path) -> None:
    assert "ksm/run" in fairlead(copy, "explain", "ksm") or "ksm.rst" in fairlead(copy, "explain", "ksm")
    assert "ksm" in json.loads(fairlead(copy, "config", "schema"))["$defs"]["Settings"]["properties"]


def test_the_examples_own_tests_pass(copy: Path) -> None:
    run_tests(copy, "tests/checks/test_spool_room.py", "tests/settings/test_ksm.py")


def test_no_list_has_to_know_the_check(copy: Path) -> None:
    """The tests that go over all checks take the new one as it is, its scorecard row included."""
    files = ("contracts/test_additions.py", "checks/test_machines.py", "scorecard/test_scorecard.py")
    not_played = ("--deselect", "tests/scorecard/test_scorecard.py::test_row")
    said = run_tests(copy, "-k", "spool", *not_played, *(f"tests/{file}" for file in files))
    assert re.search(r"\b\d+ passed", said)


def test_without_its_row_or_its_test_a_message_says_what_to_add(copy: Path, tmp_path: Path) -> None:
    bare = Path(shutil.copytree(copy, tmp_path / "bare", symlinks=True, ignore=shutil.ignore_patterns("__pycache__")))
    (bare / "tests/checks/test_spool_room.py").unlink()
    shutil.copy(ROOT / ROWS, bare / ROWS)
    with pytest.raises(AssertionError, match=r"write tests/checks/test_spool_room.py"):
        run_tests(bare, "-k", "spool_room and own_test_file", "tests/contracts/test_additions.py")
    with pytest.raises(AssertionError, match=r"add a row for spool_room to FAULTS"):
        run_tests(bare, "-k", "spool_room and has_a_fault", "tests/scorecard/test_scorecard.py")
