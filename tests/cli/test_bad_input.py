"""What a person gets for bad input: one line that names file and key, the right exit code, and what to do next."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead import config
from fairlead.cli import main
from tests.lab.trees import MACHINES

PROJECT = Path(__file__).resolve().parents[2]
TREE = str(MACHINES / "hgx-h100")
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one good document, good.json, and an empty tree."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tree").mkdir()
    data = config.to_data(config.profile_document("n1", "hgx-h100"))
    data["agent"] |= {"state_dir": str(tmp_path / "state"), "run_dir": str(tmp_path / "run")}
    del data["hash"]
    good = config.decode_document(msgspec.json.encode(data), "good.json")
    (tmp_path / "good.json").write_bytes(config.encode_document(good))
    return tmp_path


def broken(folder: Path, change: Change) -> str:
    data = config.to_data(config.profile_document("n1", "hgx-h100"))
    del data["hash"]
    change(data)
    (folder / "node.json").write_bytes(msgspec.json.encode(data))
    return "node.json"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit code and the error, which is one line and at most one hint."""
    code = main(words)
    lines = capsys.readouterr().err.splitlines()
    assert lines, f"{words}: nothing said, ended with {code}"
    assert lines[0].startswith(f"fairlead {words[0]}: "), lines
    assert len(lines) == 1 or (len(lines) == 2 and lines[1].startswith("  next: ")), lines
    return code, lines[0]


COMMANDS = [
    ("config", "check", "node.json"),
    ("config", "show", "node.json"),
    ("check", "--root", TREE, "--document", "node.json"),
    ("agent", "--root", TREE, "--once", "--document", "node.json"),
    ("apply", "--root", "tree", "--dry-run", "--document", "node.json"),
    ("drain", "--reason", "x", "--document", "node.json"),
    ("resume", "--document", "node.json"),
    ("ack", "--all", "--reason", "x", "--document", "node.json"),
    ("clear", "--all", "--reason", "x", "--document", "node.json"),
]
DOCUMENTS: dict[str, tuple[Change, str]] = {
    "unknown section": (lambda d: d.update(agents={}), "node.json: agents: unknown key"),
    "unknown key": (lambda d: d["agent"].update(intervall_seconds=3), "node.json: agent.intervall_seconds: unknown key"),
    "unknown check": (lambda d: d["checks"].update(gpu_cuont={}), "node.json: checks.gpu_cuont: unknown key"),
    "unknown setting": (lambda d: d["settings"].update(numa={}), "node.json: settings.numa: unknown key"),
    "key of a check": (lambda d: d["checks"]["xid"].update(confrim=1), "node.json: checks.xid.confrim: unknown key"),
    "wrong type": (lambda d: d["agent"].update(interval_seconds="soon"), "node.json: agent.interval_seconds: Expected"),
    "list for a table": (lambda d: d.update(agent=[]), "node.json: agent: Expected"),
    "schema": (lambda d: d.update(schema=99), "node.json: schema: 99"),
    "number of a check": (
        lambda d: d["checks"]["gpu_count"].update(confirm="two"),
        "node.json: checks.gpu_count.confirm: Expected",
    ),
    "choice": (lambda d: d["hooks"].update(on_stale="maybe"), "node.json: hooks.on_stale: "),
}


@pytest.mark.parametrize("words", COMMANDS, ids=[" ".join(w[:2]) if w[0] == "config" else w[0] for w in COMMANDS])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents(here: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], name: str) -> None:
    change, expected = DOCUMENTS[name]
    broken(here, change)
    code, line = run(capsys, *words)
    assert (code, expected in line) == (78, True), line


@pytest.mark.parametrize("words", COMMANDS, ids=[" ".join(w[:2]) if w[0] == "config" else w[0] for w in COMMANDS])
@pytest.mark.parametrize(
    "text", [b"", b'{"schema": 1,', b"[]", b"\xff\xfe\x00", b"7", b'{"schema": 1}', b"{" * 5000], ids=lambda t: repr(t[:8])
)
def test_no_document_at_all(here: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], text: bytes) -> None:
    (here / "node.json").write_bytes(text)
    code, line = run(capsys, *words)
    assert (code, "node.json: " in line) == (78, True), line


@pytest.mark.parametrize("words", COMMANDS, ids=[" ".join(w[:2]) if w[0] == "config" else w[0] for w in COMMANDS])
def test_missing_and_unreadable_documents(here: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert run(capsys, *words)[0] == 66
    assert "node.json: no such file" in run(capsys, *words)[1]
    (here / "node.json").mkdir()
    code, line = run(capsys, *words)
    assert (code, "node.json: Is a directory" in line) == (66, True), line


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("check", "--root", TREE, "--profile", "hgx-h1000"), 66, "profile 'hgx-h1000': no such profile"),
        (("config", "profiles", "hgx-h1000"), 66, "profile 'hgx-h1000': no such profile"),
        (("topology", "--root", TREE, "--profile", "x/../y"), 66, "profile 'x/../y': no such profile"),
        (("check", "--root", "none"), 66, "none is not a machine tree"),
        (("apply", "--root", "none", "--document", "good.json"), 66, "none: no such tree"),
        (("topology", "--root", "none"), 66, "none is not a machine tree"),
        (("snapshot", "--root", "none", "out"), 66, "none is not a machine tree"),
        (("snapshot", "--root", TREE, "."), 64, ". exists already"),
        (("snapshot", "--root", TREE, "key.toml/folder"), 69, "key.toml/folder"),
        (("check", "--root", "halfjson"), 65, "halfjson/nvml.json: not JSON"),
        (("topology", "--root", "halfjson"), 65, "halfjson/nvml.json: not JSON"),
        (("check", "--root", "listjson"), 65, "listjson/nvml.json: not a JSON object"),
        (("check", "--root", TREE, "--only", "xids"), 64, "--only xids: no such check"),
        (("config", "check"), 64, "config check needs a FILE"),
        (("config", "check", "none.toml"), 66, "none.toml: no such file"),
        (("config", "check", "bad.toml"), 78, "bad.toml: "),
        (("config", "check", "key.toml"), 78, "key.toml: classes.a.profil: unknown key"),
        (("config", "check", "profile.toml"), 66, "profile.toml: classes.a.profile: profile 'hgx-h1000': no such profile"),
        (("config", "show", "--site", "key.toml"), 64, "needs --node"),
        (("hold",), 64, "hold needs --reason TEXT, --release or --show"),
        (("hold", "--reason", "x", "--until", "soon", "--dry-run"), 64, "--until 'soon': not a time"),
        (("hold", "--reason", "x", "--until", "2020-01-01", "--dry-run"), 64, "--until 2020-01-01 is in the past"),
        (("hold", "--release", "--until", "2h"), 64, "--until does not go with --release"),
        (("ack", "xid", "--document", "good.json"), 64, "ack needs --reason TEXT"),
        (("ack", "--reason", "x", "--document", "good.json"), 64, "ack needs CHECK or CHECK/DEVICE, or --all"),
        (("ack", "xid", "--all", "--reason", "x", "--document", "good.json"), 64, "ack needs CHECK or CHECK/DEVICE, or --all"),
        (("ack", "--all", "--reason", "x", "--document", "good.json"), 66, "there is no status of the agent"),
        (("clear", "--all", "--document", "good.json"), 64, "clear needs DEVICE, SERIAL or --all, and --reason TEXT"),
        (("clear", "--reason", "x", "--document", "good.json"), 64, "clear needs DEVICE, SERIAL or --all, and --reason TEXT"),
        (("clear", "x", "--all", "--reason", "x"), 64, "clear needs DEVICE, SERIAL or --all, and --reason TEXT"),
        (("clear", "0000:1b:00.0", "--reason", "x", "--document", "good.json"), 66, "there is no status of the agent"),
        (("audit", "--since", "yesterday"), 64, "--since 'yesterday': not a time"),
        (("audit", "--state-dir", "good.json"), 66, "good.json/audit.jsonl: Not a directory"),
        (("explain", "no-such-thing"), 66, "no-such-thing"),
        (("provision", "--site", "none.toml"), 66, "none.toml: no such file"),
        (("provision", "--site", "key.toml"), 78, "key.toml: classes.a.profil: unknown key"),
    ],
    ids=lambda value: " ".join(value).replace(TREE, "TREE") if isinstance(value, tuple) else "",
)
def test_table(here: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, expected: str) -> None:
    for name, text in (("halfjson", '{"gpus":'), ("listjson", "[1]")):
        (here / name / "sys").mkdir(parents=True)
        (here / name / "nvml.json").write_text(text)
    (here / "bad.toml").write_text("schema = \n")
    (here / "key.toml").write_text('schema = 1\ngeneration = 1\n[classes.a]\nnodes = "n1"\nprofil = "hgx-h100"\n')
    (here / "profile.toml").write_text('schema = 1\ngeneration = 1\n[classes.a]\nnodes = "n1"\nprofile = "hgx-h1000"\n')
    assert run(capsys, *words)[0] == code
    assert expected in run(capsys, *words)[1]


def test_odd_trees_are_judged_and_never_a_bug(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Facts of the wrong kind are missing facts: findings, not tracebacks."""
    for number, text in enumerate(('{"gpus": 7}', '{"gpus": [7]}', '{"gpus": [{}]}', "{}", '{"gpus": [{"pci": 5}]}')):
        tree = here / f"tree{number}"
        (tree / "sys").mkdir(parents=True)
        (tree / "proc").mkdir()
        (tree / "nvml.json").write_text(text)
        assert main(["check", "--root", str(tree), "--profile", "hgx-h100", "--json"]) in (2, 3), text
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.root
@pytest.mark.parametrize(
    "words",
    [
        ("apply",),
        ("hold", "--reason", "x"),
        ("drain", "--reason", "x"),
        ("resume",),
        ("ack", "--all", "--reason", "x"),
        ("clear", "--all", "--reason", "x"),
    ],
    ids=lambda words: words[0],
)
def test_without_root(here: Path, words: tuple[str, ...]) -> None:
    """77 and one line, for what only root may do."""
    if os.geteuid():
        pytest.skip("needs root, to become somebody else")
    document = () if words[0] == "hold" else ("--document", str(here / "good.json"))
    # nobody, who can read all files: this interpreter may lie in root's home
    become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    become += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    done = subprocess.run(
        [*become, sys.executable, "-m", "fairlead", *words, *document],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT / "agent"), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 77, done
    assert done.stderr.startswith(f"fairlead {words[0]}: ") and "root" in done.stderr and "Traceback" not in done.stderr


def test_a_dry_release_of_a_hold_names_the_hold_that_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state, run = tmp_path / "state", tmp_path / "run"
    for folder in (state, run):
        folder.mkdir()
    words = ["hold", "--release", "--dry-run", "--state-dir", str(state), "--run-dir", str(run)]
    assert main(words) == 0 and "not on hold" in capsys.readouterr().out
    (run / "hold").write_text("{}")  # where the disk took nothing
    assert main(words) == 0 and capsys.readouterr().out == f"would remove {run / 'hold'}\n"
    assert main([*words, "--json"]) == 0 and str(run / "hold") in capsys.readouterr().out


def test_a_kernel_log_that_cannot_be_read_is_no_health(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for part in ("sys", "proc", "nvml.json"):
        (tree / part).symlink_to(f"{TREE}/{part}")
    (tree / "dev" / "kmsg").mkdir(parents=True)  # as little to be read as /dev/kmsg is without root
    assert main(["check", "--root", str(tree), "--profile", "hgx-h100", "--only", "xid"]) == 3
    assert "the kernel log cannot be read" in capsys.readouterr().out
