"""`ansible-test sanity` of the built collection, without docker. Its tools are downloaded at the first run, by pip.

ansible-test fetches get-pip.py from Ansible's own server. A file of that name in its cache, which runs pip from a wheel, does
the same.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ansible")

from release import galaxy
from tests.lab import roots

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(1200)]
PROJECT = Path(__file__).resolve().parents[2]
PIP = "24.2"  # the version that ansible-test of ansible-core 2.19 asks for
GET_PIP = """\
import sys
sys.path.insert(0, {wheel!r})
from pip._internal.cli.main import main
sys.exit(main(["install", *(word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel"))]))
"""


def home() -> Path:
    """A home folder for ansible-test that outlasts the test, because it keeps an environment for each of its tests there."""
    folder = roots.lab_dir() / "ansible-test"
    cache = folder / ".ansible/test/cache"
    with roots.locked("ansible-test"):
        cache.mkdir(parents=True, exist_ok=True)
        pip = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), f"pip=={PIP}")
        if not (wheels := list(folder.glob("pip-*.whl"))):
            subprocess.run(pip, check=True, timeout=300)
            wheels = list(folder.glob("pip-*.whl"))
        (cache / f"get_pip_{PIP.replace('.', '_')}.py").write_text(GET_PIP.format(wheel=str(wheels[0])))
    return folder


def test_ansible_test_finds_nothing(tmp_path: Path) -> None:
    galaxy.build_collection(PROJECT, tmp_path, tmp_path, 1)
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV") and not k.startswith("ANSIBLE")}
    env |= {"HOME": str(home()), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    words = ["ansible-test", "sanity", "--local", "--python", python, "--requirements"]
    folder = tmp_path / "ansible_collections/fairlead/nodes"
    with roots.locked("ansible-test"):
        done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=1100, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-6000:]
    ran = set(re.findall(r'Running sanity test "([a-z0-9-]+)"', said))
    assert ran >= {"ansible-doc", "import", "pylint", "validate-modules", "yamllint", "changelog", "action-plugin-docs"}, ran
    print(f"\n{len(ran)} tests: {', '.join(sorted(ran))}")
