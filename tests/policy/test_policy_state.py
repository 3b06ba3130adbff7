"""The stored state: what earlier versions wrote is read, whatever its fields are called in the code."""

from __future__ import annotations

import json

import msgspec

from fairlead.model.finding import Action, Finding, Level
from fairlead.policy.policy_state import PolicyState

STORED = {
    "boot_id": "b0",
    "tracks": {"ecc/0000:1b:00.0": {"level": 2, "window": [3], "confirmed": 3, "bad": [], "found": [], "job": 7}},
    "acknowledged": ["xid/#b0:1"],
    "ran": ["ecc"],
    "clean_sweeps": 2,
    "clean_looks": 1,
    "strikes": {"1651": [5.0]},
    "drained_for": ["ecc/0000:1b:00.0"],
    "boards": {"0000:1b:00.0": "1651"},
    "ladder": {"ecc/1651": {"key": "ecc/0000:1b:00.0", "step": "reset_gpu", "taken": 1, "tied": True, "drained": True}},
    "reboots": [4.0],
    "drained": True,
    "repairs": [{"boot_id": "b0", "sequence": 9, "boot_seconds": 3.0, "devices": ["1651"]}],
    "requests": ["aaaaaaaa"],
}


def test_a_state_that_was_stored_is_read_with_every_field_and_written_with_the_same_keys() -> None:
    state = msgspec.json.decode(json.dumps(STORED), type=PolicyState)
    fields = PolicyState.__struct_fields__
    assert len(fields) == len(STORED) and all(getattr(state, name) != getattr(PolicyState(), name) for name in fields)
    written = json.loads(msgspec.json.encode(state))
    assert written.keys() == STORED.keys()
    escalation = written["ladder"]["ecc/1651"]
    assert escalation.items() >= STORED["ladder"]["ecc/1651"].items()
    assert escalation.keys() == {"key", "step", "open", "taken", "since_seconds", "why", "tied", "drained"}
    assert msgspec.json.decode(json.dumps(written), type=PolicyState) == state


def test_a_track_is_written_with_the_same_keys() -> None:
    state = msgspec.json.decode(json.dumps(STORED), type=PolicyState)
    track = json.loads(msgspec.json.encode(state))["tracks"]["ecc/0000:1b:00.0"]
    assert track.keys() == {
        "level", "window", "confirmed", "clean", "floor", "bad", "found", "since_seconds", "jobs", "job", "earlier",
        "confirmed_earlier",
    }  # fmt: skip
    finding = Finding(check="ecc", level=Level.DRAIN, summary="s", action=Action.RESET_GPU)
    assert json.loads(msgspec.json.encode(finding)).keys() >= {"check", "level", "summary", "action"}
