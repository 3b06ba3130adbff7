"""A whole `fairlead maintain` with a hostile node among good ones: it ends, those are done, and the hostile one has failed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.maintain.maintain_admin import Admin, provisioned
from tests.playbooks.hostile import ESCAPES, FOLDER, answering, item, line, program, put, report, strange

pytestmark = [pytest.mark.rack, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    with provisioned(3, tmp_path_factory.mktemp("hostile")) as admin:
        yield admin


@pytest.mark.parametrize("way", ["answer", pytest.param("flood", marks=pytest.mark.slow), "status"])
def test_one_hostile_node_spoils_its_own_maintenance_and_nothing_else(rack: Admin, way: str) -> None:
    """gpu1 lies to the apply, never ends its answer to it, or lies to the look at its agent."""
    host = rack.node(1)
    said = item(state="failed", message=ESCAPES, hint=ESCAPES)
    bad = line({**report("gpu1", items=[said]), "changes": [{"what": ESCAPES, "why": ESCAPES}] * 2000})
    text = ESCAPES.replace("\ud800", "")
    told = {"slurm_node": "gpu1", "findings": [{"check": text, "summary": text, "level": "drain", "mode": "enforce"}]}
    each = f'echo; echo "==> $f <=="; case $f in *status.json) cat {FOLDER}.told ;; *) cat $f ;; esac'
    head = f"#!/bin/sh\nfor f; do case $f in /*) {each} ;; esac; done 2> /dev/null\n"
    put(host, f"{FOLDER}.told", json.dumps(told).encode())
    lies = {
        "answer": lambda: answering(host, bad),
        "flood": lambda: answering(host, b"#!/bin/sh\nprintf 'FAIRLEAD-REPLY \"'\nexec yes endless\n"),
        "status": lambda: program(host, "/usr/bin/head", head),
    }
    before = len(rack.said()) if rack.output.exists() else 0
    try:
        with lies[way]():
            code = rack.run("gpu[1-3]", "--reason", "kernel 6.12", "--batch", "3", "--max-failed", "3", "--verify-wait", "20s")
            assert rack.run("--show") in (0, 69)
    finally:
        rack.rack.scontrol("update", "nodename=gpu1", "state=resume", check=False)
        host.run(f"rm -f {FOLDER}.told")
    shown = rack.output.read_bytes().decode()[before:]
    assert code == 69 and rack.steps() == {"gpu1": "failed", "gpu2": "done", "gpu3": "done"}, shown
    assert strange(shown) == [], shown
    assert re.search(r"^gpu1: failed", shown, re.MULTILINE), shown
    assert not [row for row in shown.splitlines() if row.startswith(("all nodes", "[red]"))], "a line of the node's own"
