"""An admin host whose ssh reaches programs of a test in place of nodes: real commands, real Ansible, no machine behind them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.playbooks.hostile import line, report

PROJECT = Path(__file__).resolve().parents[2]
#: As ssh(1) reads its words: an option's value may be in the next one. A ProxyCommand is run, whoever has said it.
SSH = """#!{python} -IS
import os, sys
words, options = sys.argv[1:], []
while words and words[0].startswith("-"):
    word = words.pop(0)
    if word[1] in "bcDEeFIiJLlmOopQRSWw":
        options.append((word[1], word[2:] or words.pop(0)))
    elif word == "-G":
        sys.exit(0)
for key, value in options:
    if key == "o" and value.lower().startswith("proxycommand"):
        os.system(value.partition("=")[2])
if any(key == "O" for key, _ in options):
    sys.exit(0)
os.execv("/bin/sh", ["sh", "{folder}/nodes/" + words[0].rpartition("@")[2], *words[1:]])
"""


class Desk:
    """``nodes``: how many, gpu1 and so on; each is honest until ``says`` another thing."""

    def __init__(self, folder: Path, nodes: int = 3) -> None:
        self.folder, self.site, self.bin = folder, folder / "site.toml", folder / "bin"
        self.names = [f"gpu{n}" for n in range(1, nodes + 1)]
        for sub in ("nodes", "bin", "said", "home"):
            (folder / sub).mkdir()
        self.ssh = self.bin / "ssh"
        self.ssh.write_text(SSH.format(python=sys.executable, folder=folder))
        self.ssh.chmod(0o755)
        for name in self.names:
            self.says(name, line(report(name)))
        self.write_site()

    def write_site(self, ansible: str = "", more: str = "") -> None:
        nodes = f'[classes.a]\nnodes = "gpu[1-{len(self.names)}]"\n'
        self.site.write_text(f"schema = 1\n{nodes}{more}\n[ansible]\npython = '{sys.executable}'\n{ansible}\n")

    def says(self, name: str, said: bytes) -> None:
        """What this node says to whatever it is asked; what begins with #! is a program that says it."""
        if said.startswith(b"#!"):
            (self.folder / "nodes" / name).write_bytes(said)
            return
        (self.folder / "said" / name).write_bytes(said)
        (self.folder / "nodes" / name).write_text(f"cat > /dev/null\nexec cat {self.folder}/said/{name}\n")

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE")}
        path = f"{self.bin}:{kept.get('PATH', '/usr/bin:/bin')}"
        return kept | {"PATH": path, "PYTHONPATH": str(PROJECT / "agent"), "HOME": str(self.folder / "home")}

    def run(self, *words: str, seconds: float = 280) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fairlead", *words]
        return subprocess.run(
            command,
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def results(self, *words: str) -> tuple[dict[str, dict[str, Any]], subprocess.CompletedProcess[str]]:
        """What a command's JSON says by node."""
        done = self.run(*words, "--site", str(self.site), "--json")
        assert done.returncode in (0, 68, 69, 75), done.stdout + done.stderr
        return {n["node"]: n for n in json.loads(done.stdout)["nodes"]}, done
