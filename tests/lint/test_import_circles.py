"""No two files of the package import each other, not even for type checking only: a circle can only be read as a whole."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "agent/fairlead"


def sources() -> dict[str, str]:
    """The text of every module of the package, by dotted name; a package has the name of its folder."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = ("fairlead", *path.relative_to(PACKAGE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return found


@cache
def imports_and_calls(text: str) -> tuple[ast.Import | ast.ImportFrom | ast.Call, ...]:
    """Each statement that imports, and each call, wherever it is in a text. tests/rooms.py reads the same texts."""
    return tuple(node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom | ast.Call))


def imports(text: str, modules: Mapping[str, str], folder: str = "") -> set[str]:
    """The modules that a text imports: at its top, inside a function, or below ``if TYPE_CHECKING``. folder: the package that the
    text is in, for relative imports."""
    found = set()
    for node in imports_and_calls(text):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level < 2, "imports from a parent folder are not followed here"
            module = ".".join(filter(None, [folder if node.level else "", node.module]))
            submodules = {f"{module}.{name.name}" for name in node.names} & modules.keys()
            found |= submodules if len(submodules) == len(node.names) else {*submodules, module}
    return found & modules.keys()


def circles(modules: Mapping[str, str]) -> list[frozenset[str]]:
    """The sets of modules that import each other, directly or over others; each as large as it can be."""
    direct = {name: imports(text, modules, name.rpartition(".")[0]) - {name} for name, text in modules.items()}
    reached = {name: _reach(name, direct) for name in direct}
    found = {frozenset(other for other in reached[name] if name in reached[other]) for name in direct if name in reached[name]}
    return sorted(found, key=sorted)


def _reach(start: str, direct: Mapping[str, set[str]]) -> set[str]:
    """All modules that can be come to from ``start``, itself only by a circle."""
    reached: set[str] = set()
    edge = direct[start]
    while edge:
        reached |= edge
        edge = set().union(*(direct[name] for name in edge)) - reached
    return reached


def test_no_circle() -> None:
    assert not circles(sources()), f"these files import each other: {[sorted(c) for c in circles(sources())]}"


def test_a_circle_is_found_however_it_is_imported() -> None:
    """At the top, in a function, for type checking only; over three files; by a name that the other file defines."""
    modules = {
        "a": "import b",
        "b": "def f():\n    from c import thing",
        "c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a import Name",
        "d": "import a",
        "room": "",
        "room.e": "from room import f",
        "room.f": "from room.e import name",
        "room.g": "from .h import name",
        "room.h": "from . import g",
    }
    rooms = [frozenset({"room.e", "room.f"}), frozenset({"room.g", "room.h"})]
    assert circles(modules) == [frozenset("abc"), *rooms]
    assert circles(modules | {"c": ""}) == rooms
