"""One rack for all tests of this folder: its files run one after the other, in the order of their names."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.ledger import own_name
from tests.lab.rack import Rack
from tests.playbooks.admin import PROJECT, Admin


@pytest.fixture(scope="session")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    name = own_name("converge")
    up = f"from tests.lab.rack import Rack; Rack(nodes_wanted=3, name={name!r}).up()"
    subprocess.run([sys.executable, "-c", up], cwd=PROJECT, check=True, timeout=180)  # its own process: the rack outlives it
    rack = Rack.find(name)
    made = Admin(rack, tmp_path_factory.mktemp("admin"))
    try:
        yield made
    finally:
        rack.down()
    left = [path for pid in made.pids for path in Path("/dev/shm").glob(f"fairlead-provision.{pid}.*")]
    assert made.pids and not left, "the private folder is wiped"
