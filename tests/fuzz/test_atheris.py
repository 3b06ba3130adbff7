"""Coverage-guided fuzzing of every parser, bounded in time: no crash, no hang, no memory growth."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.targets import SEEDS, TARGETS

PROJECT = Path(__file__).resolve().parents[2]
SECONDS = int(os.environ.get("FAIRLEAD_FUZZ_SECONDS", "15"))  # for each target


def fuzz(target: str, corpus: Path, seconds: int) -> subprocess.CompletedProcess[str]:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip(f"atheris has no wheel for Python {sys.version_info.major}.{sys.version_info.minor} on this machine")
    corpus.mkdir()
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz.run", target, str(seconds), str(corpus)],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": f"{PROJECT / 'agent'}:{PROJECT}"},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds + 120,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_fuzz(target: str, tmp_path: Path) -> None:
    done = fuzz(target, tmp_path / "corpus", SECONDS)
    bad = [
        f"{p.name}: {p.read_bytes()[:200]!r}"
        for p in (tmp_path / "corpus").iterdir()
        if re.match("crash|timeout|oom|leak|slow", p.name)
    ]
    assert done.returncode == 0 and not bad, "\n".join([*bad, *done.stderr.splitlines()[-25:]])
    runs = re.search(r"Done (\d+) runs", done.stderr)
    assert runs is not None and int(runs[1]) > 100, done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "left"),
    [("raise KeyError(data)", "crash-"), ("grow(forever=True)", "timeout-"), ("KEPT.append(bytearray(1 << 20))", "oom-")],
)
def test_the_fuzzer_finds_what_it_looks_for(body: str, left: str, tmp_path: Path) -> None:
    """A crash, a hang and a growth, planted."""
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris has no wheel for this Python on this machine")
    (tmp_path / "planted.py").write_text(
        "import sys\nfrom tests.fuzz import run, targets\nKEPT = []\n"
        "def grow(forever=False):\n    while forever:\n        pass\n    KEPT.append(bytearray(1 << 20))\n"
        f"def planted(data):\n    if data[:1] == b'x' or KEPT:\n        {body}\n"
        "targets.TARGETS['planted'], targets.SEEDS['planted'] = planted, (b'x',)\nrun.HANG_SECONDS = 2\nrun.main()\n"
    )
    (tmp_path / "corpus").mkdir()
    done = subprocess.run(
        [sys.executable, str(tmp_path / "planted.py"), "planted", "60", str(tmp_path / "corpus")],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": f"{PROJECT / 'agent'}:{PROJECT}"},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=200,
        check=False,
    )
    assert done.returncode != 0 and list((tmp_path / "corpus").glob(f"{left}*")), done.stderr[-2000:]


def test_every_target_has_seeds() -> None:
    assert set(SEEDS) == set(TARGETS)
