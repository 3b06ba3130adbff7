"""`fairlead fleet` on real Slurm where each node's root says another hostile thing: the whole command, and what it prints."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ClusterShell")

from tests.lab.cluster import Cluster
from tests.playbooks.hostile import strange
from tests.provision.desk import Desk
from tests.provision.test_hostile_table import ATTACKS, SHOWN, answers_as, statuses
from tests.slurm.conftest import NODES
from tests.slurm.test_roster import words

pytestmark = pytest.mark.slurm
*SAYING, ENDLESS = ATTACKS  # seven that end, on n1 to n7; n8 is honest


def fleet(cluster: Cluster, desk: Desk, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fairlead", *words(cluster, "--ssh", str(desk.ssh), "--each", *more)]
    return subprocess.run(
        command, env=desk.environment, cwd=desk.folder, capture_output=True, text=True, timeout=200, check=False
    )


def by_node(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert strange(done.stdout + done.stderr) == []
    return {name: row for row in json.loads(done.stdout)["nodes"] for name in [row["node"]]}


@pytest.mark.one_release
def test_a_hostile_node_is_one_row_and_the_others_are_as_they_were(cluster: Cluster, tmp_path: Path) -> None:
    desk = Desk(tmp_path, nodes=0)
    honest = NODES[-1]
    for attack, name in {**dict(zip(SAYING, NODES, strict=False)), "": honest}.items():
        answers_as(desk, name, statuses(name, honest)[attack or "extra keys"])
    found = by_node(fleet(cluster, desk, "--timeout", "90", "--json"))
    assert list(found) == list(NODES)
    for attack, name in zip(SAYING, NODES, strict=False):
        expected = "ok" if attack in SHOWN else "unreachable"
        assert found[name]["word"] == expected, (attack, found[name])
    assert found[honest]["word"] == "ok"

    table = fleet(cluster, desk, "--timeout", "90")
    assert table.returncode == 0 and strange(table.stdout + table.stderr) == []
    assert [line.split()[0] for line in table.stdout.splitlines()[1:-1]].count(honest) == 1

    (pages := tmp_path / "pages").mkdir()
    written = fleet(cluster, desk, "--timeout", "90", "--html", str(pages))
    assert written.returncode == 0 and "Traceback" not in written.stderr, written.stderr
    assert {path.stem for path in (pages / "node").iterdir()} == set(NODES)
    for path in pages.rglob("*.html"):
        page = path.read_text()
        assert strange(page) == [] and len(re.findall("<script", page)) == (path.name == "index.html"), path
    tiles = re.findall(r'<li data-word="(\w+)".*?href="node/(\w+)\.html"', (pages / "index.html").read_text())
    assert {name: word for word, name in tiles} == {name: row["word"] for name, row in found.items()}


@pytest.mark.one_release
def test_a_node_whose_answer_never_ends_costs_the_others_nothing(cluster: Cluster, tmp_path: Path) -> None:
    desk = Desk(tmp_path, nodes=0)
    for name in NODES[1:]:
        answers_as(desk, name, statuses(name, name)["extra keys"])
    desk.says(NODES[0], b"#!/bin/sh\nexec yes endless\n")
    found = by_node(fleet(cluster, desk, "--timeout", "60", "--json"))
    assert {name: row["word"] for name, row in found.items()} == {**dict.fromkeys(NODES, "ok"), NODES[0]: "unreachable"}, ENDLESS
