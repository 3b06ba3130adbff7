"""An admin machine without internet: what the bundle's README says to type, typed where nothing can be reached but the nodes.

The wheels are fetched once, from the index that pip is configured with on this machine; without one the test is skipped.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contracts.documented_commands import blocks
from tests.driver.apt_node import environment
from tests.lab import roots
from tests.lab.ledger import own_name
from tests.lab.rack import Rack

QUICKSTART = Path(__file__).parents[2] / "docs/tutorial/without-internet.md"

pytestmark = [pytest.mark.rack, pytest.mark.slow, pytest.mark.timeout(1500)]
CLEAN = ("env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8", "PIP_CONFIG_FILE=/dev/null")
REACH = "import socket; socket.create_connection(('198.51.100.1', 443), 5)"  # an address for documentation (RFC 5737)


def text_of(words: list[str], *, cwd: Path | None = None, code: int = 0) -> str:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_node_is_provisioned_by_an_admin_machine_that_has_only_the_bundle(tmp_path: Path) -> None:
    bundle, admin, site = tmp_path / "bundle", tmp_path / "admin", tmp_path / "site.toml"
    with Rack(nodes_wanted=1, name=own_name("airgap")) as rack:
        site.write_text(f"""\
schema = 1
generation = 1
[classes.a]
nodes = "gpu1"
[classes.a.settings.numa_balancing]
[ansible]
private_key = "{roots.ssh_key()}"
ssh_args = "-F {rack.ssh_config} -o ControlMaster=no -o ControlPath=none"
[ansible.hosts]
gpu1 = "{rack.nodes[0].address}"
""")
        make = [sys.executable, "-m", "fairlead", "bundle", "--site", str(site), "--output", str(bundle)]
        done = subprocess.run(make, env=environment(), capture_output=True, text=True, timeout=900, check=False)
        if done.returncode == 69 and "pip download" in done.stderr:
            pytest.skip(f"no index to fetch wheels from: {done.stderr.strip()}")
        assert done.returncode == 0, done.stderr
        names = [p.name for p in (*(bundle / "admin").iterdir(), *(bundle / "wheelhouse").iterdir())]
        assert names and all(name.endswith(".whl") for name in names), "nothing that has to be compiled there"
        readme = (bundle / "README.md").read_text()
        assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in readme

        away = [*rack.enter, *CLEAN]
        assert not text_of([*away, "ip", "route", "show", "default"])
        unreachable = subprocess.run(
            [*away, "/usr/bin/python3", "-c", REACH], capture_output=True, text=True, check=False, timeout=60
        )
        assert unreachable.returncode and "unreachable" in unreachable.stderr, unreachable
        typed = [line.strip().partition("#")[0] for line in readme.splitlines() if line.startswith("    ")]
        words = [line.split()[0].rpartition("/")[2] for line in typed]
        assert words == ["find", "sha256sum", "python3", "pip", "pip", "fairlead"]
        shown = [line for _, lines, language in blocks(QUICKSTART.read_text()) if language == "sh" for line in lines]
        written = [re.sub(r"fairlead-\S+\.whl", "fairlead-*.whl", " ".join(line.split())) for line in typed[:-1]]
        assert shown[1:-1] == written, "the README's lines"
        assert shown[0] == "fairlead bundle --site site.toml --output bundle --python 3.11"
        assert shown[-1].split()[1:] == ["provision", "--site", "../site.toml", "--bundle", "."]
        for line in typed[:-1]:
            here = line.replace("python3 -m", f"{sys._base_executable} -m").replace("/opt/fairlead-admin", str(admin))  # type: ignore[attr-defined]
            said = text_of([*away, "sh", "-ec", here], cwd=bundle)
            assert not said or not line.startswith(("find", "sha256sum")), said
        provision = [*typed[-1].replace("/opt/fairlead-admin", str(admin)).replace("SITE.toml", str(site)).split(), "--json"]
        first = json.loads(text_of([*away, *provision], cwd=bundle))["nodes"][0]
        assert first["state"] == "changed" and "fairlead" in " ".join(first["changes"]), first
        again = json.loads(text_of([*away, *provision], cwd=bundle))["nodes"][0]
        assert (again["state"], again["changes"]) == ("same", []), again
