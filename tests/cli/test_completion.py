"""A TAB in a real shell completes commands, options and values; names of nodes are left to whoever types."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import completion_scripts, docs_write

SCRIPTS = {
    "bash": docs_write.ROOT / "templates/usr/share/bash-completion/completions/fairlead",
    "zsh": docs_write.ROOT / "docs/completion/_fairlead",
    "fish": docs_write.ROOT / "docs/completion/fairlead.fish",
}
#: What is typed, and what one TAB behind it makes of the last word.
ONE_ANSWER = [
    ("provi", "provision"),
    ("check --prof", "--profile"),
    ("check --only nvml_r", "nvml_responsive"),
    ("check --only setting.pcie_as", "setting.pcie_aspm"),
    ("topology --profile l40", "l40s-pcie"),
    ("config prof", "profiles"),
    ("config profiles l40", "l40s-pcie"),
    ("explain row_r", "row_remap"),
    ("explain setting pcie_ac", "pcie_acs"),
    ("explain xid 79", "79"),
    ("xid dec", "decode"),
    ("xid decode kern", "kernel.log"),
    ("lint --fabric tc", "tcp"),
    ("replay --policy kern", "kernel.log"),
    ("slurm-config topo", "topology"),
    ("help slurm-c", "slurm-config"),
    ("ack nvml_r", "nvml_responsive"),
]
NO_ANSWER = ["drain --reason kern", "fleet kern", "why kern", "version kern"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "kernel.log").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shell(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed here: tests/lab/apt.sh installs it")
    return found


# ---- bash and zsh: a person's keys, on a terminal


class Typed:
    """An interactive shell on a terminal of its own, in which ``fairlead`` prints its words in angle brackets."""

    def __init__(self, command: list[str], setup: str) -> None:
        self.main_end, other = pty.openpty()
        env = {"PATH": os.environ["PATH"], "HOME": os.getcwd(), "TERM": "dumb", "LC_ALL": "C.UTF-8", "INPUTRC": "/dev/null"}
        self.process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=env, start_new_session=True)
        os.close(other)
        self.text = ""
        self.write(setup + "\nfairlead() { printf '<%s>' \"$@\"; printf '<end>\\n'; }\n")
        self.run("ready")

    def write(self, text: str) -> None:
        os.write(self.main_end, text.encode())

    def run(self, typed: str) -> list[str]:
        """Type a line and Enter. Return the words that the command has got."""
        before = self.text.count("<end>\r\n")
        self.write(f"fairlead {typed}\n")
        deadline = time.monotonic() + 60
        while self.text.count("<end>\r\n") == before:
            ready, _, _ = select.select([self.main_end], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{typed!r}: {self.text[-2000:]!r}"
            self.text += os.read(self.main_end, 65536).decode("utf-8", "replace")
        answer = self.text.split("<end>\r\n")[-2]
        return re.findall(r"<([^<>]*)>", answer[answer.rindex("\n") + 1 :] if "\n" in answer else answer)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.main_end)


def bash() -> Typed:
    setup = f"bind 'set bell-style none'; PS1='> '; . {SCRIPTS['bash']}"
    return Typed([shell("bash"), "--noprofile", "--norc", "-i"], setup)


def zsh() -> Typed:
    setup = f"PS1='> '; unsetopt beep; fpath=({SCRIPTS['zsh'].parent} $fpath); autoload -Uz compinit; compinit -u -D"
    return Typed([shell("zsh"), "-f", "-i"], setup)


@pytest.mark.parametrize("start", [bash, zsh], ids=["bash", "zsh"])
def test_keys_on_a_terminal(start: Callable[[], Typed], here: Path) -> None:
    typed = start()
    try:
        for line, last in ONE_ANSWER:
            assert typed.run(f"{line}\t")[-1:] == [last], line
        for line in NO_ANSWER:
            assert typed.run(f"{line}\t")[-1:] == [line.split()[-1]], line
        assert typed.run("topology --profile=l40\t")[-1:] == ["--profile=l40s-pcie"]
        assert typed.run("apply --only nccl,pcie_as\t")[-1:] == ["nccl,pcie_aspm"]
    finally:
        typed.close()


# ---- fish says itself what it would complete


def test_fish_completes(here: Path) -> None:
    fish = shell("fish")

    def answers(line: str) -> list[str]:
        words = f"source {SCRIPTS['fish']}; complete -C {completion_scripts.quoted('fairlead ' + line)}"
        env = {"PATH": os.environ["PATH"], "HOME": str(here), "LC_ALL": "C.UTF-8"}
        done = subprocess.run([fish, "--no-config", "-c", words], capture_output=True, text=True, env=env, timeout=60, check=True)
        assert not done.stderr, done.stderr
        return [answer.partition("\t")[0] for answer in done.stdout.splitlines()]

    for line, last in ONE_ANSWER:
        assert answers(line) == [last], line
    for line in NO_ANSWER:
        assert answers(line) == [], line
    assert "nccl,pcie_aspm" in answers("apply --only nccl,pcie_as")


def test_completing_starts_no_program(here: Path) -> None:
    """With an empty PATH there is no python and no fairlead to ask: the words are in the script."""
    line = f'. {SCRIPTS["bash"]}; COMP_WORDS=(fairlead explain xid 14); COMP_CWORD=3; _fairlead; echo "${{COMPREPLY[*]}}"'
    done = subprocess.run([shell("bash"), "--norc", "-c", line], capture_output=True, text=True, env={"PATH": ""}, check=True)
    assert done.stdout.split() == ["14", *(str(code) for code in range(140, 150) if str(code) in done.stdout)]
    assert not done.stderr
