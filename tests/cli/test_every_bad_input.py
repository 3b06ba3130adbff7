"""Every command with every kind of bad input: no traceback, one line with file and next step, a documented exit code."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from fairlead import config
from fairlead.cli import COMMANDS, main
from fairlead.errors import ExitCode
from tests.cli.bad_inputs import COMMAND_LINES, KINDS, TREE, WRITER, X, end_pipe, is_tried

pytestmark = pytest.mark.heavy  # many hundred command lines
PROJECT = Path(__file__).resolve().parents[2]
SITE = 'schema = 1\n[classes.a]\nnodes = "n1"\nprofile = "l40s-pcie"\n[settings.driver]\ninstall = ["nvidia-open"]\n'
DOCUMENTED = set(ExitCode)
MEMORY_BYTES = 3 << 30
PARTS = 6


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """A command that reads an endless device without a bound gets a MemoryError here, and takes no memory of the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a document, a site, a log, a tree and a slurm.conf that are right; ``bad/`` for those that are not."""
    for name in ("bad", "tree/sys", "tree/proc"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    data = config.to_data(config.profile_document("n1", "l40s-pcie"))
    data["agent"] |= {"state_dir": str(tmp_path / "state"), "run_dir": str(tmp_path / "run"), "metrics_textfile": ""}
    del data["hash"]
    good = config.decode_document(msgspec.json.encode(data), "good.json")
    (tmp_path / "good.json").write_bytes(config.encode_document(good))
    (tmp_path / "site.toml").write_text(SITE)
    (tmp_path / "log").write_text("[    1.500000] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")
    (tmp_path / "slurm.conf").write_text("ClusterName=x\nSlurmctldHost=a\nNodeName=n1\nPartitionName=p Nodes=n1\n")
    return tmp_path


def judged(words: tuple[str, ...], code: int, err: str, out: str = "") -> list[str]:
    """Return what is wrong with how a command has ended."""
    lines = err.splitlines()
    wrong = []
    if "Traceback" in err or code == ExitCode.BUG:
        wrong.append("a traceback")
    if code not in DOCUMENTED:
        wrong.append(f"exit code {code} is not documented")
    if code >= 64 and code != 77:
        errors = [line for line in lines if line.startswith(("fairlead: ", f"fairlead {words[0]}: "))]
        if not errors and not (code in (68, 69) and out):  # a report names each node or setting that failed
            wrong.append("no line that begins with the command's name")
        most = 3 if words[0] in ("maintain", "lock") else 2  # which drains a lost journal hides; that package lists are read
        if len(lines) > most and not lines[0].startswith("usage: ") and words[:2] != ("config", "check"):  # all mistakes at once
            wrong.append(f"{len(lines)} lines")
    if "\x1b" in err:
        wrong.append("an escape sequence")
    return wrong


Tried = Callable[[tuple[str, ...], Iterable[str]], str]


@pytest.fixture
def tried(here: Path, capsys: pytest.CaptureFixture[str]) -> Tried:
    """Run a command line with each of these kinds of bad input. Return what is wrong with the answers, as a text."""

    def each(words: tuple[str, ...], kinds: Iterable[str]) -> str:
        wrong = ""
        for kind in (kind for kind in kinds if is_tried(kind, words)):
            folder = here / "bad" / kind.replace(" ", "-").replace(".", "")
            folder.mkdir()
            bad = KINDS[kind](folder)
            line = tuple(bad if word == X else word for word in words)
            code = main(line)
            said = capsys.readouterr()
            if problems := judged(line, code, said.err, said.out):
                wrong += f"--- {kind}: {code}: {problems}: {said.err[-1500:]}\n"
            end_pipe(folder)
        return wrong

    return each


@pytest.mark.parametrize("words", COMMAND_LINES, ids=" ".join)
def test_bad_input(words: tuple[str, ...], tried: Tried) -> None:
    """Each command line with a sixth of the kinds, the next one with the next sixth; `make test-all` tries every pair."""
    at = COMMAND_LINES.index(words)
    wrong = tried(words, list(KINDS)[at % PARTS :: PARTS])
    assert not wrong, wrong


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("words", COMMAND_LINES, ids=" ".join)
def test_every_pair(words: tuple[str, ...], tried: Tried) -> None:
    wrong = tried(words, KINDS)
    assert not wrong, wrong


@pytest.mark.parametrize("kind", ["empty pipe", "binary pipe"])
def test_the_writer_of_a_pipe_ends_with_it(kind: str, tmp_path: Path) -> None:
    """One that went on would take the processor from all tests after it."""
    for number in range(50):
        (folder := tmp_path / str(number)).mkdir()
        with open(KINDS[kind](folder), "rb") as reader:
            reader.read()
        end_pipe(folder)
    deadline = time.monotonic() + 60
    while left := [thread for thread in threading.enumerate() if thread.name == WRITER]:
        assert time.monotonic() < deadline, f"{len(left)} of 50 go on"
        time.sleep(0.01)
    assert list(tmp_path.glob("*/pipe")) == []


def test_every_command_is_tried() -> None:
    assert {words[0] for words in COMMAND_LINES} >= set(COMMANDS)
    pairs = [(kind, words) for at, words in enumerate(COMMAND_LINES) for kind in list(KINDS)[at % PARTS :: PARTS]]
    assert len([pair for pair in pairs if is_tried(*pair)]) >= 250


SAMPLE = [
    ("check", "--root", TREE, "--document", X),
    ("lint", X),
    ("xid", "decode", X),
    ("replay", X),
    ("config", "check", X),
    ("doctor", "--slurm-conf", X),
]


@pytest.mark.parametrize("kind", ["missing", "binary", "directory", "read fails", "zero characters", "link in a circle"])
@pytest.mark.parametrize("words", SAMPLE, ids=lambda words: words[0])
def test_bad_input_of_a_real_process(words: tuple[str, ...], kind: str, here: Path) -> None:
    bad = KINDS[kind](here / "bad")
    line = [bad if word == X else word for word in words]
    env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "fairlead", *line], capture_output=True, text=True, env=env, timeout=120, check=False
    )
    assert not judged(tuple(line), done.returncode, done.stderr), done
    assert done.returncode >= 64 and bad in done.stderr, done
