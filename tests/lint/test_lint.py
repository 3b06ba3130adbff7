"""The linters are tests: what a laptop and CI run is the same."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def tracked(*patterns: str) -> list[str]:
    out = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [f for f in out.split("\0") if f and (ROOT / f).is_file()]


def run(*argv: str | Path, env: dict[str, str] | None = None) -> None:
    done = subprocess.run([str(a) for a in argv], cwd=ROOT, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, f"{' '.join(map(str, argv))}\n{done.stdout}{done.stderr}"[-6000:]


def test_ruff_check() -> None:
    run(BIN / "ruff", "check", "agent", "tests", "playbooks", "slurm", "release")


def test_ruff_format() -> None:
    run(BIN / "ruff", "format", "--check", "agent", "tests", "release")


def test_mypy_strict() -> None:
    run(BIN / "mypy")


def test_import_contracts() -> None:
    run(BIN / "lint-imports", "--no-cache")


def test_shell_scripts() -> None:
    scripts = [f for f in tracked() if is_shell(ROOT / f)]
    assert scripts
    run(BIN / "shellcheck", "-x", *scripts)


def is_shell(path: Path) -> bool:
    with path.open("rb") as f:
        first = f.readline(80)
    return first.startswith(b"#!") and first.split(b"/")[-1].split()[-1] in {b"sh", b"bash"}


def test_yaml() -> None:
    files = tracked("*.yml", "*.yaml")
    if not files:
        pytest.fail("no YAML files are tracked; the playbooks are missing")
    run(BIN / "yamllint", "--strict", *files)


def test_ansible_lint_production() -> None:
    import os

    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "ANSIBLE_HOME": str(ROOT / ".cache" / "ansible")}
    run(BIN / "ansible-lint", "--offline", "--profile", "production", "playbooks", env=env)


SCREEN_LINES = 60


def test_functions_fit_a_screen() -> None:
    long = []
    for file in tracked("agent/*.py", "release/*.py", "playbooks/*.py", "slurm/*.py"):
        for f in ast.walk(ast.parse((ROOT / file).read_text())):
            lines = (f.end_lineno or 0) - f.lineno if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef) else 0
            if lines >= SCREEN_LINES:
                long.append(f"{file}:{f.lineno} {f.name}")
    assert not long, f"functions over {SCREEN_LINES} lines: {long}"
