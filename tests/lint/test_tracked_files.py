"""The checkout stays quick to clone and to search: no copied trees, no links, and no file that a command can make again.

``docs/decisions/0064-what-the-limit-on-tracked-files-is-for.md`` says why, and what the limits were before.
"""

from __future__ import annotations

import glob
import json
import os
import re
import subprocess
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from release.dashboards.__main__ import FOLDER
from tests.docs_write import GENERATED

ROOT = Path(__file__).resolve().parents[2]
FILES_MAX, MACHINE_FILES_MAX = 2100, 60
FILE_BYTES_MAX, ALL_BYTES_MAX = 200_000, 16_000_000
#: Tracked files that a command can make again: why the checkout has them all the same.
MADE_AGAIN = {
    "docs/man/*.1": "`make docs`. The wheel and the packages install them, and a build of these runs no program of fairlead",
    "docs/completion/*": "`make docs`. As the manual pages",
    "templates/usr/share/bash-completion/completions/fairlead": "`make docs`. As the manual pages; nodes get it too",
    "docs/reference/*.md": "`make docs`, or a run of the lab. People read them here, and a review shows what has changed",
    "docs/images/*.svg": "`make docs`, `python -m tests.dashboards`. Pages show them",
    "agent/fairlead/dashboards/*.json": "`make dashboards`. `fairlead dashboards` writes them where no SDK of Grafana is",
    "release/collection/roles/declare/meta/argument_specs.yml": "`make docs`. Ansible reads it from the role",
    "agent/fairlead/provision/admin.txt": "`make lock`. A lock is the record of what was chosen at one time",
    "agent/fairlead/provision/node.txt": "`make lock`. As above",
    "agent/fairlead/provision/node_wheels.toml": "`make lock`. As above",
    "release/build.txt": "`make lock`. As above",
    "tests/machines/*": "`python -m tests.lab.machines`. A review shows how a tree changes (decisions 3 and 40)",
}  # fmt: skip
SAYS_SO = re.compile(r"(?:generated|written) (?:from [\w ]+ )?by `|writes this (?:file|page)", re.IGNORECASE)


class Tracked(NamedTuple):
    mode: str
    content: str
    path: str


@cache
def tracked() -> list[Tracked]:
    run = subprocess.run(["git", "ls-files", "-s", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode:
        pytest.skip("no git checkout")
    rows = (row.split("\t") for row in run.stdout.split("\0") if row)
    return [Tracked(*words.split()[:2], path) for words, path in rows]


def made_again(paths: list[str]) -> set[str]:
    """Return the files that `make docs` or `make dashboards` writes whole, and those that say that a command wrote them."""
    found = {str(p.relative_to(ROOT)) for p in GENERATED if p.is_file() and "<!-- generated:" not in p.read_text()}
    found |= {str(p.relative_to(ROOT)) for p in FOLDER.glob("*.json")}
    for path in paths:
        if not path.endswith((".py", ".gz")) and (ROOT / path).is_file():
            with (ROOT / path).open(encoding="utf-8", errors="replace") as lines:
                head = "".join(line for line, _ in zip(lines, range(4), strict=False))
            found |= {path} if SAYS_SO.search(head) else set()
    return found & set(paths)


def test_the_number_and_the_size_of_the_files() -> None:
    paths = [each.path for each in tracked()]
    assert len(paths) <= FILES_MAX, "decision 64: which new files can go? A higher limit needs a decision"
    assert len([path for path in paths if path.startswith("tests/machines/")]) <= MACHINE_FILES_MAX
    sizes = {path: (ROOT / path).stat().st_size for path in paths if (ROOT / path).is_file()}
    assert not {path: size for path, size in sizes.items() if size > FILE_BYTES_MAX}
    assert sum(sizes.values()) <= ALL_BYTES_MAX


def test_no_link_leads_in_a_circle_and_no_folder_is_another_repository() -> None:
    assert not [each.path for each in tracked() if each.mode not in ("100644", "100755")]
    found = [path for path in glob.glob("**", root_dir=ROOT, recursive=True) if "__pycache__" not in path]
    assert len(found) < 2 * FILES_MAX and max(path.count(os.sep) for path in found) < 20


def test_what_git_ignores_is_not_tracked() -> None:
    words = ["git", "ls-files", "-ci", "--exclude-standard"]
    assert subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False).stdout == ""


def test_no_file_is_a_copy_of_another() -> None:
    """Short files may be equal by chance: a value of a machine tree, the defaults of two roles."""
    by_content: dict[str, list[str]] = {}
    for each in tracked():
        by_content.setdefault(each.content, []).append(each.path)
    copies = [paths for paths in by_content.values() if len(paths) > 1 and (ROOT / paths[0]).stat().st_size > 64]
    assert not copies, f"keep one, and let the program that needs the others make them: {copies}"


def test_no_folder_of_tests_has_an_empty_init() -> None:
    """pytest imports tests by their path. tests/__init__.py stays, or another package named tests could be imported."""
    inits = [ROOT / each.path for each in tracked() if re.fullmatch(r"tests/.+/__init__\.py", each.path)]
    assert not [str(path) for path in inits if path.is_file() and not path.stat().st_size]


def test_what_a_command_can_make_again_is_named_with_a_reason() -> None:
    paths = [each.path for each in tracked()]
    unnamed = [path for path in made_again(paths) if not any(fnmatchcase(path, row) for row in MADE_AGAIN)]
    assert not unnamed, f"leave it out of git, or say in MADE_AGAIN why it is kept: {unnamed}"
    assert not [row for row in MADE_AGAIN if not any(fnmatchcase(path, row) for path in paths)], "no such file any more"


def test_a_planted_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "table.txt").write_text("# Written by `make tables`.\n1\n")
    (tmp_path / "page.md").write_text("# Page\n\n`make pages` writes this page.\n")
    (tmp_path / "data.json").write_text(json.dumps({"written": "by a person"}))
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    monkeypatch.setattr(f"{__name__}.GENERATED", {})
    monkeypatch.setattr(f"{__name__}.FOLDER", tmp_path / "none")
    assert made_again(["table.txt", "page.md", "data.json"]) == {"table.txt", "page.md"}
