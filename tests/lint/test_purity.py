"""Rooms that judge are pure: no file, process, clock, network or chance. Read from the syntax tree, as a list of what is allowed.

A list of what is forbidden misses what nobody thought of: a check with ``open()``, ``fcntl``, ``mmap`` and
``import_module("time")`` passed the linters when they forbade a list of modules.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

AGENT = Path(__file__).resolve().parents[2] / "agent"
#: Rooms and files below agent/fairlead.
PURE = (
    "model",
    "slurm_config",
    "topology",
    "nccl",
    "xid",
    "checks",
    "settings",
    "policy",
    "jobenv",
    "jobs",
    "measure/pairs",
    "measure/tool.py",
    "measure/judge_figure.py",
    "measure/nccl_plan.py",
    "fleet",
    "host/busy_time.py",
    "host/gpu_reader.py",
    "host/gpu_details_reader.py",
    "host/gpu_health_reader.py",
    "host/gpu_state_reader.py",
    "host/mig_devices_reader.py",
    "provision/maintain/maintenance_steps.py",
    "provision/maintain/node_verification.py",
    "provision/maintain/begin_limits.py",
)
#: Whole modules that a pure room may import. None of them reads or writes anything outside the process.
ALLOWED = {
    "__future__", "base64", "bisect", "collections", "collections.abc", "dataclasses", "difflib", "enum", "fnmatch", "functools",
    "ipaddress", "itertools", "math", "msgspec", "msgspec.json", "msgspec.structs", "re", "statistics", "textwrap",
    "typing", "unicodedata", "xml.sax.saxutils", "zlib",
}  # fmt: skip
ALLOWED_OURS = {"fairlead.errors"}
#: The lists of checks and of settings: they import each module of their own folder, by its name.
LOADERS = {"checks/__init__.py": {"importlib", "pkgutil"}, "settings/__init__.py": {"importlib", "pkgutil"}}
#: Builtins that reach outside, or that reach a module or a name without naming it.
FORBIDDEN_NAMES = {
    "open", "eval", "exec", "compile", "input", "print", "breakpoint", "__import__", "__builtins__", "__loader__", "globals",
    "locals", "vars", "exit", "quit", "help", "memoryview",
}  # fmt: skip
FORBIDDEN_ATTRIBUTES = {"__builtins__", "__globals__", "__import__", "__subclasses__", "__loader__", "__spec__", "modules"}


def files() -> list[Path]:
    below = [AGENT / "fairlead" / name for name in PURE]
    return [file for path in below for file in ([path] if path.suffix else sorted(path.rglob("*.py")))]


def is_pure(module: str) -> bool:
    """Whether a module of ours lies in a pure room."""
    path = module.replace(".", "/").removeprefix("fairlead/")
    return any(path == name.removesuffix(".py") or path.startswith(f"{name}/") for name in PURE)


def imported(node: ast.AST) -> list[str]:
    """The modules that a statement names; for ``from a import b`` also ``a.b``, where that is a module of ours."""
    if isinstance(node, ast.Import):
        return [name.name for name in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    module = "." * node.level + (node.module or "")
    if module == "fairlead":
        return [f"fairlead.{name.name}" for name in node.names]
    return [module]


def modules_through(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The modules of Python's library that a text takes out of a module that has imported them: ``fnmatch.os``."""
    bound: set[str] = set()  # names that a module is bound to
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            bound |= {name.asname or name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                if _of_ours(whole):
                    bound.add(name.asname or name.name)
                elif name.name in sys.stdlib_module_names and whole not in ALLOWED:
                    yield node.lineno, whole
    through = [
        n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id in bound
    ]
    dotted = [(n.lineno, n.attr, ast.unparse(n)) for n in through]
    yield from ((line, whole) for line, name, whole in dotted if name in sys.stdlib_module_names and whole not in ALLOWED)


def _of_ours(module: str) -> bool:
    path = AGENT / module.replace(".", "/")
    return module.startswith("fairlead.") and (path.is_dir() or path.with_suffix(".py").is_file())


def impurities(text: str, file: str) -> Iterator[str]:
    """What a file of a pure room must not have; ``file`` is its path below agent/fairlead."""
    tree = ast.parse(text)
    yield from (f"{file}:{line}: takes the module {module}" for line, module in modules_through(tree))
    for node in ast.walk(tree):
        line = f"{file}:{getattr(node, 'lineno', 0)}"
        for module in imported(node):
            ours = module == "fairlead" or module.startswith("fairlead.")
            fine = module in ALLOWED_OURS or is_pure(module) if ours else module in ALLOWED | LOADERS.get(file, set())
            if not fine:
                yield f"{line}: imports {module}"
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in FORBIDDEN_NAMES:
            yield f"{line}: uses {node.id}"
        if isinstance(node, ast.Attribute) and node.attr in FORBIDDEN_ATTRIBUTES:
            yield f"{line}: uses .{node.attr}"


@pytest.mark.parametrize("file", [str(file.relative_to(AGENT / "fairlead")) for file in files()])
def test_a_room_that_judges_is_pure(file: str) -> None:
    assert not list(impurities((AGENT / "fairlead" / file).read_text(), file))


def test_every_pure_room_is_there() -> None:
    assert all((AGENT / "fairlead" / name).exists() for name in PURE)


def test_a_file_that_calls_itself_pure_is_on_the_list() -> None:
    """The words of a docstring hold nobody. A folder says it in its ``__init__.py``."""
    said = re.compile(r"\b(?:is|are) (?:all )?pure\b|pure functions")
    package = AGENT / "fairlead"
    claims = {str(p.relative_to(package)) for p in package.rglob("*.py") if said.search(ast.get_docstring(_tree(p)) or "")}
    assert not claims - {str(file.relative_to(package)) for file in files()}, "add it to PURE, or leave the word out"


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


PLANTED = {
    "open": "def judge(node):\n    return open('/etc/passwd').read()\n",
    "fcntl": "import fcntl\n",
    "mmap": "def judge(node):\n    import mmap\n    return mmap\n",
    "import_module": "from importlib import import_module\ntime = import_module('time')\n",
    "__import__": "time = __import__('time')\n",
    "eval": "judge = eval('lambda node: open(node)')\n",
    "exec": "exec('import time')\n",
    "os": "import os.path\n",
    "time": "from time import time\n",
    "random": "import random as r\n",
    "type checking": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import socket\n",
    "a room that is not pure": "from fairlead.host.root import Root\n",
    "the whole package": "import fairlead\n",
    "another room through the package": "from fairlead import host\n",
    "a relative import": "from ..host import root\n",
    "the builtins of a module": "f = re.__builtins__['open']\n",
    "a module that an allowed module has imported": "from fnmatch import os\n",
    "the same by a dot": "import fnmatch\nfound = fnmatch.os.listdir('/')\n",
    "the same by another name": "import statistics as s\nchance = s.random.random\n",
    "a module that a list of ours has imported": "from fairlead.checks import importlib\n",
    "the same of ours by a dot": "from fairlead import checks\nt = checks.importlib.import_module('time')\n",
    "sys.modules of an allowed module": "import re\nt = re.enum.sys.modules['time']\n",
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_impurity_is_found(name: str) -> None:
    assert list(impurities(PLANTED[name], "checks/planted.py"))


def test_what_judging_needs_is_allowed() -> None:
    text = "from fairlead.model.check_definition import Check\nfrom fairlead import checks\nimport re\nopen: bool = True\n"
    assert not list(impurities(text, "checks/planted.py"))
