"""What of a look at the node is remembered: boards, what could be read, and that nothing is written without a folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.config import profile_document
from fairlead.daemon.loop import history_update
from fairlead.history.memory import History
from fairlead.model.verdict import State
from tests.checks.nodes import ADDRESSES, node
from tests.daemon.conftest import PROJECT, Agent
from tests.lab.trees import MACHINES


def test_history_without_a_folder_writes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    history = History("", "b")
    history.event("x", "y")
    history.add_gpu_cards({"0000:1b:00.0": "1"})
    assert not history.on_disk and history.trouble == "" and history.past().gpu_cards
    history.close()
    assert list(tmp_path.iterdir()) == []


def test_boards_are_known_as_first_seen_until_a_repair(tmp_path: Path) -> None:
    history = History(str(tmp_path), "b")
    history.add_gpu_cards({"0000:1b:00.0": "1", "0000:43:00.0": "2"})
    history.add_gpu_cards({"0000:1b:00.0": "9"})
    history.add_readable(frozenset({"1/x", "2/x"}))
    history.close()
    again = History(str(tmp_path), "next boot")
    assert again.past().gpu_cards == {"0000:1b:00.0": "1", "0000:43:00.0": "2"}
    again.forget(["0000:1b:00.0"])
    again.add_gpu_cards({"0000:1b:00.0": "9"})
    assert again.past().gpu_cards == {"0000:1b:00.0": "9", "0000:43:00.0": "2"} and "2/x" in again.past().readable
    again.forget((), everything=True)
    assert again.past().gpu_cards == {} and again.past().readable == frozenset()
    again.close()


def test_another_driver_begins_anew_with_what_can_be_read(tmp_path: Path) -> None:
    history, document = History(str(tmp_path), "b"), profile_document("n1", "hgx-h100")
    history_update.before_judging(history, node())
    history_update.after_judging(history, document, node(), 10.0, ran=None, thorough=True)
    known = history.past()
    assert "1651223002/ecc.volatile_corrected" in known.readable and known.gpu_cards[ADDRESSES[2]] == "1651223002"
    history_update.before_judging(history, node())
    assert history.past().readable == known.readable
    other = replace(node().driver, library_version="999.1")
    history_update.before_judging(history, node(driver=other))
    assert history.past().readable == frozenset() and history.past().gpu_cards == known.gpu_cards
    history.close()


def test_over_a_restart_a_swapped_board_and_a_fact_that_went_dark_are_named_until_cleared(
    agents: Callable[..., Agent], tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(MACHINES / "hgx-h100.tuned", tree, symlinks=True)
    agent = agents(tree).start()
    assert agent.verdict().state is State.OK
    agent.end()
    nvml = json.loads((tree / "nvml.json").read_text())
    nvml["gpus"][0] |= {"serial": "1650000000000", "uuid": "GPU-00000000-1111-4222-8333-444444444444"}
    nvml["gpus"][1]["performance_state"] = {"error": 3}
    (tree / "nvml.json").write_text(json.dumps(nvml))
    agent = agents(tree).start()
    agent.until(lambda: agent.status()["findings"] != [], "findings")
    found = {(f["check"], f["device"]): f["level"] for f in agent.status()["findings"]}
    swapped, dark = (str(gpu["pci"]) for gpu in nvml["gpus"][:2])
    assert found == {("gpu_identity", swapped): "warn", ("gpu_readings", dark): "unknown"}
    assert agent.verdict().state is State.UNKNOWN and "performance_state" in agent.verdict().text
    agent.end()
    for device in (swapped, dark):
        clear = ["clear", device, "--reason", "replaced", "--document", str(agent.document)]
        subprocess.run([sys.executable, "-m", "fairlead", *clear], check=True, cwd=PROJECT, env=os.environ, capture_output=True)
    agent = agents(tree).start()
    agent.until(lambda: agent.status()["findings"] == [], "an account without findings")
    assert agent.verdict().state is State.OK


def test_counters_are_collected_once_a_minute() -> None:
    history = History("", "b")
    assert history.samples_due(5.0)
    history.add_samples(5.0, [])
    assert history.samples_due(6.0), "nothing could be read: asked again"
    history.add_samples(6.0, [("gpu", "x", 1.0)])
    assert [history.samples_due(t) for t in (6.0, 65.9, 66.0, 2.0)] == [False, False, True, True]
