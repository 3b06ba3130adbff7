"""A program in place of ssh whose nodes have the hardware of machine trees: it runs the command on the files of a tree."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.lab.trees import MACHINES

_PROGRAM = """#!{python}
import json, re, subprocess, sys
address, command = sys.argv[-2:]
tree = json.loads({trees!r}).get(address)
if tree is None:
    sys.exit(f"ssh: connect to host {{address}} port 22: No route to host")
said = subprocess.run(re.sub(r" /(sys|proc)/", rf" {{tree}}/\\1/", command), shell=True, stdout=subprocess.PIPE)
sys.stdout.buffer.write(said.stdout.replace(f"==> {{tree}}".encode(), b"==> "))
sys.exit(said.returncode)
"""


def program(folder: Path, trees: Mapping[str, str | Path]) -> Path:
    """Write the program. ``trees``: the tree of each address, by its name in tests/machines or as a folder."""
    paths = {address: str(MACHINES / tree) if isinstance(tree, str) else str(tree) for address, tree in trees.items()}
    made = folder / "ssh"
    made.write_text(_PROGRAM.format(python=sys.executable, trees=json.dumps(paths)))
    made.chmod(0o755)
    return made
