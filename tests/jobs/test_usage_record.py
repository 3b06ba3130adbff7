"""A usage record is read back as it was written, and every other text is refused in one line."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.jobs.usage_record import (
    RECORD_MAX_BYTES,
    BadRecord,
    GpuUsage,
    HostUsage,
    NicUsage,
    UsageRecord,
    decoded,
    encoded,
    known_part,
)

RECORD = UsageRecord(
    job=1234567,
    node="gpu007",
    boot_id="5f0c7a3e-0000-4000-8000-000000000001",
    begin_unix=1790000000.25,
    begin_boot=3600.5,
    written_unix=1790000060.25,
    alloc_seconds=60.0,
    uid=1001,
    gpus=(
        GpuUsage(uuid="GPU-1", pci="0000:1b:00.0", busy_seconds=12.5, seen_seconds=60.0, throttled_seconds={"sw_power_cap": 1.0}),
    ),
    host=HostUsage(cpu_seconds=30.0, cpus=8),
)


def test_what_was_written_is_read() -> None:
    text = encoded(RECORD)
    assert decoded(text) == RECORD
    assert msgspec.json.decode(text)["schema"] == "job-record/1"


def test_a_record_that_was_read_is_written_with_each_key_once() -> None:
    """The next agent continues the record of a killed one, and writes it again."""

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(found)) == len(found), [key for key, _ in found]
        return dict(found)

    for record in (RECORD, decoded(encoded(RECORD)), decoded(encoded(decoded(encoded(RECORD))))):
        assert next(iter(json.loads(encoded(record), object_pairs_hook=pairs))) == "schema"


def test_what_is_not_known_is_not_in_the_file() -> None:
    gpu = msgspec.json.decode(encoded(RECORD))["gpus"][0]
    assert "energy_joules" not in gpu
    assert "sm_active_seconds" not in gpu


def test_it_has_sums_and_peaks_and_no_percentage_or_mean() -> None:
    """A percentage or a mean is made when it is printed."""
    for kind in (UsageRecord, GpuUsage, HostUsage, NicUsage):
        for field in msgspec.structs.fields(kind):
            assert not {"percent", "mean", "average", "ratio", "rate"} & set(field.name.split("_")), field.name


@given(cut=st.integers(min_value=0, max_value=10_000))
def test_a_torn_record_is_refused(cut: int) -> None:
    text = encoded(RECORD)
    with pytest.raises(BadRecord):
        decoded(text[: cut % (len(text) - 1)])


@given(text=st.binary(max_size=300))
def test_no_text_breaks_the_reader(text: bytes) -> None:
    with pytest.raises(BadRecord):
        decoded(text)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "job-record/2"}, 'has the schema "job-record/2"'),
        ({"schema": "\x1b[31mjob"}, 'has the schema "[31mjob"'),
        ({"job": 0}, "job"),
        ({"job": "1"}, "job"),
        ({"node": "gpu\x1b[2J"}, "node"),
        ({"alloc_seconds": -1}, "alloc_seconds"),
        ({"gap_seconds": 1e300}, "gap_seconds"),
        ({"surprise": 1}, "surprise"),
        ({"gpus": [{"uuid": "x", "pci": "y", "busy_seconds": "much"}]}, "busy_seconds"),
        ({"gpus": [{"uuid": "x" * 200, "pci": "y"}]}, "uuid"),
    ],
)
def test_a_wrong_value_is_named(change: dict[str, object], said: str) -> None:
    text = msgspec.json.encode({**msgspec.json.decode(encoded(RECORD)), **change}) + b"\n"
    with pytest.raises(BadRecord, match=said.replace("[", r"\[")):
        decoded(text)


def test_a_record_without_a_schema_is_refused() -> None:
    data = msgspec.json.decode(encoded(RECORD))
    del data["schema"]
    with pytest.raises(BadRecord, match="schema"):
        decoded(msgspec.json.encode(data) + b"\n")


def test_a_huge_text_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(BadRecord, match="longer"):
        decoded(b"{" + b" " * RECORD_MAX_BYTES + b"}\n")


def test_what_this_release_knows_of_a_newer_record() -> None:
    """Only the agent reads a record in this way, to go on with it after a rollback."""
    data = msgspec.json.decode(encoded(RECORD))
    newer = {**data, "colour": "red", "gpus": [{**data["gpus"][0], "more": [1]}], "host": {**data["host"], "x": None}}
    text = msgspec.json.encode(newer) + b"\n"
    assert known_part(text) == RECORD == known_part(encoded(RECORD))
    with pytest.raises(BadRecord, match="not a usage record"):
        decoded(text)


@given(
    st.binary(max_size=200)
    | st.sampled_from([b'{"schema":"job-record/2"}\n', b'{"schema":"job-record/1","job":"x"}\n', b"[{}\n"])
)
def test_no_text_but_a_record_has_a_known_part(text: bytes) -> None:
    with pytest.raises(BadRecord) as found:
        known_part(text)
    assert "\n" not in str(found.value)
