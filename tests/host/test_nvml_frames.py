"""What the NVML worker says from one sweep to the next, and what its parent makes of it."""

from __future__ import annotations

import copy
import random
from typing import Any

import msgspec
import pytest

from fairlead.host import gpu as gpu_facts
from fairlead.host.nvml_frames import SentParts, after
from tests.lab.trees import MACHINES

H100 = msgspec.json.decode((MACHINES / "hgx-h100/nvml.json").read_bytes())


def _sent(sent: SentParts, known: dict[str, Any], snapshot: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """The frame's kind, and the snapshot that the parent knows then."""
    kind, payload = sent.frame(snapshot)
    said = msgspec.json.decode(msgspec.json.encode(payload))
    return kind, after(known, said) if kind == b"D" else said


def test_only_what_changed_is_said_and_the_rest_stays_the_same_object() -> None:
    sent, snapshot = SentParts(), copy.deepcopy(H100)
    assert sent.frame(snapshot)[0] == b"S"
    assert sent.frame(snapshot) == (b"D", {"gpus": {}})
    snapshot = copy.deepcopy(snapshot)  # what was told is not changed any more
    snapshot["gpus"][3]["power"]["draw_milliwatts"] += 1
    snapshot["gpus"][5]["nvlink"][2]["active"] = {"error": 15}
    kind, news = sent.frame(snapshot)
    assert kind == b"D"
    assert {n: set(parts) for n, parts in news["gpus"].items()} == {"3": {"power"}, "5": {"nvlink"}}
    before = copy.deepcopy(H100)
    made = after(before, news)
    assert made == snapshot
    assert made["gpus"][0] is before["gpus"][0]
    assert made["gpus"][3]["ecc"] is before["gpus"][3]["ecc"]
    assert before == H100


def test_other_gpus_other_parts_or_a_failure_are_said_whole() -> None:
    sent, snapshot = SentParts(), copy.deepcopy(H100)
    sent.frame(snapshot)
    assert sent.frame(snapshot | {"driver_version": "1"})[0] == b"S"
    assert sent.frame(snapshot)[0] == b"S"
    less = snapshot | {"gpus": snapshot["gpus"][:7]}
    assert sent.frame(less) == (b"S", less)
    assert sent.frame({"schema": 1, "error": 9, "call": "nvmlInit_v2"})[0] == b"S"
    assert sent.frame({"schema": 1, "error": 9, "call": "nvmlInit_v2"})[0] == b"S"
    assert sent.frame(snapshot)[0] == b"S"
    snapshot = copy.deepcopy(snapshot)
    del snapshot["gpus"][0]["mig_mode"]
    assert sent.frame(snapshot)[0] == b"S"
    assert sent.frame(snapshot)[0] == b"D"


@pytest.mark.parametrize("seed", range(5))
def test_the_parent_knows_what_the_worker_knows(seed: int) -> None:
    chance = random.Random(seed)
    sent, snapshot, converter = SentParts(), copy.deepcopy(H100), gpu_facts.Converter()
    known: dict[str, Any] = {}
    for _ in range(60):
        snapshot = copy.deepcopy(snapshot)
        gpu = chance.choice(snapshot["gpus"])
        part = chance.choice(sorted(gpu))
        match chance.randrange(5):
            case 0:
                gpu[part] = {"error": chance.choice((3, 15, 999))}
            case 1 if isinstance(gpu[part], dict) and gpu[part]:
                gpu[part][chance.choice(sorted(gpu[part]))] = chance.randrange(9)
            case 2 if isinstance(gpu.get("nvlink"), list):
                chance.choice(gpu["nvlink"])["active"] = chance.randrange(2)
            case 3:
                del gpu[part]
            case _:
                gpu.update(copy.deepcopy(chance.choice(H100["gpus"])))
        _, known = _sent(sent, known, snapshot)
        assert known == snapshot
        assert converter.gpus(known) == gpu_facts.gpus(known)  # nothing of what it made before is stale


@pytest.mark.parametrize("news", [{}, {"gpus": {"8": {}}}, {"gpus": {"x": {}}}, {"gpus": {"0": 3}}, {"gpus": []}])
def test_what_no_worker_says_is_an_error(news: dict[str, Any]) -> None:
    with pytest.raises((LookupError, TypeError, ValueError, AttributeError)):
        after(copy.deepcopy(H100), news)
