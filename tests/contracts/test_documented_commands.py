"""The commands of README and docs: all of them parse, and those that need no cluster run as they are written.

They run from a clone, and from the wheel that was installed into an empty folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.cli import COMMANDS, command_parser
from tests.contracts import documented_commands
from tests.contracts.documented_commands import ROOT, Shown
from tests.lab.trees import MACHINES

SHOWN = documented_commands.shown()
#: What begins a command that needs no node, no Slurm and no root.
ALONE = (
    "check --root",
    "topology --root",
    "explain",
    "config profiles",
    "config check",
    "env list",
    "lint job.sh",
    "version",
    "snapshot my-node",
    "snapshot this-node",
)


def ids(one: Shown) -> str:
    return f"{one.page}:{one.number}"


@pytest.mark.parametrize("one", SHOWN, ids=ids)
def test_a_shown_command_line_is_one(one: Shown, capsys: pytest.CaptureFixture[str]) -> None:
    for words in one.commands:
        assert words[0] in (*COMMANDS, "help"), one
        try:
            command_parser(words[0]).parse(words[1:])
        except SystemExit as e:
            assert e.code == 0, f"{ids(one)}: {one.line}\n{capsys.readouterr().err}"


@pytest.mark.parametrize("one", documented_commands.inline(), ids=ids)
def test_a_command_in_a_sentence_has_the_options_that_it_names(one: Shown) -> None:
    words = one.line.split()[1:]
    assert words[0] in (*COMMANDS, "help"), one
    if words[0] == "help":
        return
    known = {spelling for action in command_parser(words[0])._actions for spelling in action.option_strings}
    named = {word.strip("[],.").partition("=")[0] for word in words[1:] if re.match(r"\[?--?[a-z]", word)}
    assert named <= known or words[0] == "run", one


def alone(one: Shown) -> bool:
    # of a machine that is set up by the lines before it, or of one with Slurm
    if any(word in one.line for word in ("/opt/", "/tmp/snapshot", "ssh ", "version --fleet")):
        return False
    return bool(one.commands) and all(" ".join(words).startswith(ALONE) for words in one.commands)


def site_of_readme() -> str:
    return next(
        "\n".join(lines)
        for _, lines, language in documented_commands.blocks((ROOT / "README.md").read_text())
        if language == "toml"
    )


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a clone has after `make setup`: .venv/bin/fairlead and .cache/machines."""
    folder = tmp_path_factory.mktemp("clone")
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".cache").mkdir()
    (folder / ".cache/machines").symlink_to(MACHINES)
    command = folder / ".venv/bin/fairlead"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT / "agent"} exec {sys.executable} -m fairlead "$@"\n')
    command.chmod(0o755)
    return folder


def type_it(one: Shown, folder: Path, path: Path) -> str:
    """Run a line as a reader types it. Return its standard output."""
    (folder / "site.toml").write_text(site_of_readme())
    (folder / "job.sh").write_text("#!/bin/bash\n#SBATCH --gres=gpu:8\nsrun ./train\n")
    env = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}", "COLUMNS": "120"}
    done = subprocess.run(["bash", "-c", one.line], cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode in (0, 1, 2, 3), f"{ids(one)}: {one.line}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    # on a busy machine a command says that it works (cli/patience.py)
    said = [line for line in done.stderr.splitlines() if not re.fullmatch(r"fairlead [a-z-]+: .*, \d+ s", line)]
    assert not said, f"{ids(one)}: {one.line}\n{done.stderr}"
    return done.stdout


def follows(page: tuple[str, ...], said: list[str]) -> bool:
    """Say whether the output of a page is what was said: "..." on a line of its own, or at its end, stands for any text."""
    pattern = ""
    for line in page:
        pattern += "(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + "\n"
    return re.fullmatch(pattern, "\n".join(said) + "\n") is not None


FROM_CLONE = [one for one in SHOWN if alone(one)]
IN_EMPTY_FOLDER = [one for one in FROM_CLONE if ".cache/" not in one.line and ".venv/" not in one.line]


@pytest.mark.heavy
@pytest.mark.parametrize("one", FROM_CLONE, ids=ids)
def test_it_runs_from_a_clone(one: Shown, clone: Path) -> None:
    said = type_it(one, clone, clone / ".venv/bin")
    assert not one.output or follows(one.output, said.rstrip("\n").splitlines()), f"{ids(one)} shows something else than\n{said}"


@pytest.mark.heavy
def test_it_runs_from_the_wheel_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    for one in {one.line: one for one in IN_EMPTY_FOLDER}.values():
        type_it(one, tmp_path, installed / "bin")


def test_both_kinds_are_there() -> None:
    """Without this a page in another form would make the tests above say nothing."""
    assert {one.page for one in FROM_CLONE} >= {"README.md", "docs/tutorial/five-minutes.md"}
    assert len(SHOWN) > 50 and len(FROM_CLONE) > 8 and len(IN_EMPTY_FOLDER) > 4
