"""The quickstart for one node, typed as it is shown. tests/playbooks and tests/driver type the other two."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contracts.documented_commands import ROOT, blocks
from tests.lab import wheels

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]


def test_one_node(wheel: Path, tmp_path: Path) -> None:
    """Nothing but the page's lines; pip takes the wheels of this checkout and of the lock instead of asking an index."""
    house = wheels.wheelhouse_of(f"{sys.version_info.major}.{sys.version_info.minor}")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").symlink_to(sys._base_executable)  # type: ignore[attr-defined]
    kernel_log = "[    1.500000] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    (tmp_path / "bin/dmesg").write_text(f"#!/bin/sh\necho '{kernel_log}'\n")  # this machine's own has no Xid, or is not allowed
    (tmp_path / "bin/dmesg").chmod(0o755)
    here = tmp_path / "empty"
    here.mkdir()
    text = (ROOT / "docs/tutorial/one-node.md").read_text()
    lines = [line for _, shown, language in blocks(text) if language == "sh" for line in shown]
    assert len(lines) == 15
    env = {
        **{name: os.environ[name] for name in ("HOME", "LANG", "LC_ALL") if name in os.environ},
        "PATH": f"{tmp_path}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": f"{house} {wheel.parent}",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    script = "\n".join(f'{line}\ncode=$?; echo "== $code"; [ $code -le 3 ] || exit 9' for line in lines)
    done = subprocess.run(["bash", "-c", script], cwd=here, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr, f"{done.stdout[-3000:]}\n{done.stderr}"
    parts = re.split(r"^== (\d+)\n", done.stdout, flags=re.MULTILINE)
    of, codes = dict(zip(lines, parts[::2], strict=False)), [int(code) for code in parts[1::2]]
    assert len(codes) == len(lines) and codes[0] == codes[1] == 0
    assert "nothing says what this machine should be" in of["fairlead check --root this-node"]
    assert "Xid 79" in of["fairlead xid decode log"] and "size-suffix" in of["fairlead lint job.sh"]
    assert codes[lines.index("fairlead lint job.sh")] == 2
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        assert codes[lines.index("fairlead check --root this-node --profile hgx-h100")] == 2, "as the page says"
    assert (here / "selftest.json").stat().st_size > 1000
