"""Names use the words of the glossary. A retired word names no file, class, function, parameter or attribute.

``docs/reference/glossary.md`` has the retired words and what replaces them. Prose may use them as plain English, and so may the
name of a test function, which is a sentence. No two files and no two classes of the package have the same name,
and no two files that tests import.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from fairlead.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "agent/fairlead"
GLOSSARY = ROOT / "docs/reference/glossary.md"

RETIRED = frozenset({
    "board", "boards", "look", "looks", "looked", "looking", "lookout", "held", "stand", "stands", "stood", "standing", "place",
    "places", "placed", "share", "shares", "deal", "deals", "dealt", "told", "untold", "noted", "given", "moment", "moments",
    "senses", "presence", "story", "worn", "dark", "tie", "climb", "rung",
})  # fmt: skip
#: Parts of names that are plain English or the field's own. ``share_min`` and ``share_max`` bound a share of the time.
PHRASES = ("look_up", "stand_in", "in_place", "out_of_place", "share_min", "share_max")
#: Whole names that are not ours to choose.
FIELD = {
    "board_part_number": "NVML's name (nvmlDeviceGetBoardPartNumber)",
    "board_limit_seconds": "NVML's name (NVML_PERF_POLICY_BOARD_LIMIT)",
    "nic_board": "one printed circuit with several adapters",
}


def tracked() -> list[str]:
    run = subprocess.run(
        [
            "git",
            "ls-files",
            "-z",
            "-co",
            "--exclude-standard",
            "agent",
            "tests",
            "release",
            "slurm",
            "playbooks",
            "templates",
            "docs",
            ".ci",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(name for name in run.stdout.split("\0") if name and (ROOT / name).is_file())


def room_of(file: str) -> str:
    """``agent/fairlead/cli``, ``tests/cli``, ``release``, ``slurm``."""
    parts = file.split("/")
    return "/".join(parts[: {"agent": 3, "tests": 2}.get(parts[0], 1)])


def words(name: str) -> list[str]:
    """The words of a snake_case or CamelCase name, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


@cache
def retired(name: str) -> set[str]:
    """The retired words in a name."""
    if name in FIELD:
        return set()
    joined = f"_{'_'.join(words(name))}_"
    for phrase in PHRASES:
        joined = joined.replace(f"_{phrase}_", "_")
    return RETIRED & set(joined.split("_"))


class Contents(NamedTuple):
    """Of a Python file, with their lines: the functions, classes, parameters and attributes that it defines, the classes among
    them, and each text with a space in it that is no docstring."""

    names: list[tuple[int, str]]
    classes: list[str]
    texts: list[tuple[int, str]]


def contents(text: str) -> Contents:
    found = Contents([], [], [])
    docstrings: set[ast.AST] = set()
    for node in ast.walk(ast.parse(text)):  # a body comes before what is in it
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.names.append((node.lineno, node.name))
            case ast.arg():
                found.names.append((node.lineno, node.arg))
            case ast.Attribute(ctx=ast.Store()):
                found.names.append((node.lineno, node.attr))
            case ast.Constant(value=str(value)) if " " in value and node not in docstrings:
                found.texts.append((node.lineno, value))
        if isinstance(node, ast.ClassDef):
            found.classes.append(node.name)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body and isinstance(node.body[0], ast.Expr):
            docstrings.add(node.body[0].value)
        if isinstance(node, ast.ClassDef | ast.Module):
            for statement in node.body:
                if isinstance(statement, ast.Assign | ast.AnnAssign):
                    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                    found.names.extend((statement.lineno, target.id) for target in targets if isinstance(target, ast.Name))
    return found


@cache
def contents_of(path: Path) -> Contents:
    """Of a file of the package, which several tests read."""
    return contents(path.read_text())


def names(file: str, text: str) -> Iterator[tuple[int, str]]:
    """The names of a file: its folder and itself, what Python defines in it, what begins with ``fl_`` in shell, C and Lua."""
    named = file.split("/")
    named = named[-1:] if named[0] == "templates" else named  # its folders are those of a node, such as /usr/share
    yield from ((0, Path(part).stem) for part in named)
    if file.endswith(".py") or text.startswith("#!/usr/bin/env python3"):
        found = contents_of(ROOT / file) if file.startswith("agent/") else contents(text)
        yield from ((line, name) for line, name in found.names if not name.startswith("test_"))
    elif file.endswith((".c", ".h", ".lua", ".sh")) or text.startswith(("#!/bin/sh", "#!/bin/bash")):
        for number, line in enumerate(text.splitlines(), 1):
            yield from ((number, name) for name in re.findall(r"\bfl_\w+", line))


def violations(files: Iterable[str]) -> dict[str, list[str]]:
    """``file:line name`` by room."""
    found: dict[str, list[str]] = {}
    for file in files:
        try:
            text = (ROOT / file).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            text = ""  # an archive or a picture: its own name alone
        bad = [f"{file}:{line} {name}" for line, name in names(file, text) if retired(name)]
        if bad:
            found.setdefault(room_of(file), []).extend(bad)
    return found


def test_no_name_has_a_retired_word() -> None:
    new = {room: sorted(set(bad)) for room, bad in violations(tracked()).items()}
    assert not new, f"these words are retired ({GLOSSARY.relative_to(ROOT)} says what to write): {new}"


def test_the_glossary_says_what_to_write_for_each_retired_word() -> None:
    rows = [line.split("|")[1] for line in GLOSSARY.read_text().splitlines() if line.startswith("| `")]
    listed = {word for row in rows for word in re.findall(r"`(\w+)`", row)}
    assert listed >= RETIRED, f"without a row: {sorted(RETIRED - listed)}"


def test_the_glossary_has_each_term_once_and_in_order() -> None:
    tables = GLOSSARY.read_text().partition("## Retired words")[0].split("\n## ")[1:]
    terms = [re.findall(r"^\| (?!term \|)([^|]+?) \|", table, re.MULTILINE) for table in tables]
    assert all(table and table == sorted(table, key=str.lower) for table in terms)
    every = [term for table in terms for term in table]
    assert len(every) == len(set(every)), sorted(term for term in every if every.count(term) > 1)


@pytest.mark.parametrize("name", ["Board", "_board", "nvml_places", "HELD_MAX", "fl_dealt", "LookForGpus", "told2", "NVMLPlace"])
def test_a_planted_name_is_found(name: str) -> None:
    assert retired(name)


@pytest.mark.parametrize(
    "name",
    ["placeholder", "shared", "dashboard", "understand", "catalogue.look_up", "busbw_in_place", "ideal", "standby", "shareable"],
)
def test_plain_english_stays(name: str) -> None:
    assert not retired(name)


def test_every_kind_of_name_is_read(tmp_path: Path) -> None:
    python = """
held = 1
class Look:
    stood: int = 0
    def place(self, told, *, noted=1):
        self.moment = told
        local = lambda given: given
def test_what_was_told(share): ...
"""
    found = [name for _, name in names("tests/story.py", python) if retired(name)]
    assert sorted(found) == sorted(["story", "held", "Look", "stood", "place", "told", "noted", "moment", "given", "share"])
    assert [name for _, name in names("slurm/x.c", "static int fl_dealt; int held;") if retired(name)] == ["fl_dealt"]


# -- docs and messages --------------------------------------------------------------------------------

#: Retired words that have a plain meaning too, which docs and messages may use.
PLAIN = frozenset({
    "board", "boards", "given", "held", "look", "looked", "looks", "moment", "place", "placed", "places", "share", "shares",
    "stand", "told",
})  # fmt: skip
#: Uses of these that have no plain meaning.
PRIVATE = (
    r"thorough looks?", r"(?:each|every|one|last|next|second) look", r"LOOKED", r"stopped looking",
    r"held (?:node|drain|finding)s?", r"(?:next|drain|finding|order) is held", r"(?:its|of the|a) share of",
)  # fmt: skip
_PROSE = re.compile(rf"\b(?:{'|'.join([*sorted(RETIRED - PLAIN), *PRIVATE])})\b")


def doc_texts() -> Iterator[tuple[str, str]]:
    """Each line of the docs, with its file and number, without code and links."""
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    for page in sorted(pages):
        if page.name in ("glossary.md", "CHANGELOG.md", "LICENSE.md"):
            continue
        for number, line in enumerate(page.read_text().splitlines(), 1):
            yield f"{page.relative_to(ROOT)}:{number}", re.sub(r"`[^`]*`|\]\([^)]*\)", "", line)


def messages() -> Iterator[tuple[str, str]]:
    """Each text of the package with a space in it that is no docstring: messages, reasons, help."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield from ((f"{path.relative_to(ROOT)}:{line}", text) for line, text in contents_of(path).texts)


@pytest.mark.parametrize("texts", [doc_texts, messages])
def test_no_text_for_people_has_a_retired_word(texts: Callable[[], Iterator[tuple[str, str]]]) -> None:
    bad = [f"{where}: {found[0]}" for where, text in texts() if (found := _PROSE.search(text))]
    assert not bad, f"these words are retired ({GLOSSARY.relative_to(ROOT)} says what to write): {bad}"


@pytest.mark.parametrize("text", ["one thorough look later", "the next is held", "a drain that stands", "LOOKED", "it was noted"])
def test_a_planted_text_is_found(text: str) -> None:
    assert _PROSE.search(text)


# -- one name, one thing ------------------------------------------------------------------------------

#: Files in these folders have the name of what a site or a user writes: a command, a check, a setting, a measurement.
SITE_NAMED = {"cli", "checks", "settings", "measure/tools"}


def modules() -> dict[str, set[str]]:
    """The folders below agent/fairlead that have a file of each name. A command may be called as a check or a setting is."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        folder = path.parent.relative_to(PACKAGE).as_posix()
        if not path.stem.startswith("__"):
            found.setdefault(path.stem, set()).add(folder)
    return {name: folders for name, folders in found.items() if not (folders <= SITE_NAMED and _site_named(name, folders))}


def _site_named(name: str, folders: set[str]) -> bool:
    return "cli" not in folders or name in COMMANDS


#: Classes that each check or setting has under the same name, by the recipes.
OF_EACH_FILE = {"Params", "Observed"}


def classes() -> dict[str, set[str]]:
    """The files below agent/fairlead that define a class of each name."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for name in set(contents_of(path).classes) - OF_EACH_FILE:
            found.setdefault(name, set()).add(path.relative_to(PACKAGE).as_posix())
    return found


#: Files of tests that have the name of what a person types, or of the part of a node that their rows are about.
ROWS_NAMED = {"tests/bench", "tests/scorecard/faults"}


def imported_by_tests() -> dict[str, set[str]]:
    """The folders of tests that have a file of each name, of the files that other tests import."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "tests").rglob("*.py"):
        folder = path.parent.relative_to(ROOT).as_posix()
        if not path.stem.startswith(("__", "test_", "conftest")) and folder not in ROWS_NAMED:
            found.setdefault(path.stem, set()).add(folder)
    return found


@pytest.mark.parametrize("find", [modules, classes, imported_by_tests])
def test_no_name_is_there_twice(find: Callable[[], dict[str, set[str]]]) -> None:
    double = {name: sorted(folders) for name, folders in find().items() if len(folders) > 1}
    assert not double, f"say in the name what it is of: {double}"
