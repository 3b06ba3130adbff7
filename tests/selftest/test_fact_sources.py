"""The self-test reads everything that the agent reads, and counts what is missing as missing."""

from __future__ import annotations

import time

from fairlead.config import profile_document
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.host_facts import Host, Space
from fairlead.model.missing import Why
from fairlead.selftest.fact_sources import FILES, NVML, SOURCES, Reading, count, read_files, row, serials

#: Fields of Node that are no facts, or that the worker and the gatherer add: they come from no source of their own.
NO_SOURCE = {"name", "stuck", "thorough", "host", "nvml_released"}


def test_every_fact_of_the_agent_comes_from_a_source() -> None:
    """A new field of Node or Host fails here until a source of the self-test reads it."""
    fields = [field for source in (*SOURCES, FILES, NVML) for field in source.fields]
    wanted = {*Node.__struct_fields__} - NO_SOURCE | {f"host.{name}" for name in Host.__struct_fields__}
    assert sorted(fields) == sorted(wanted)


def test_names_are_those_of_a_report() -> None:
    names = [source.name for source in (*SOURCES, FILES, NVML)]
    assert len(set(names)) == len(names)


def test_missing_is_never_read() -> None:
    io_error = unreadable("Input/output error")
    space = Space(path="/", total_bytes=1, available_bytes=io_error, total_inodes=5, free_inodes=io_error)
    assert count(space)[1] == ["Input/output error"] * 2
    assert row("x", io_error, time.monotonic())["state"] == "missing"
    assert row("x", (space,), time.monotonic())["state"] == "partly"
    assert row("x", (1, "two"), time.monotonic()) | {"milliseconds": 0} == {
        "name": "x", "state": "read", "count": 2, "missing": 0, "reasons": [], "milliseconds": 0,
    }  # fmt: skip


def test_what_the_hardware_does_not_have_is_not_missing() -> None:
    assert count(Missing(Why.UNSUPPORTED, "no ECC")) == (0, [])


def test_a_value_that_contains_itself_ends() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert count(endless) == (1, [])


def test_serial_numbers_are_found_wherever_nvml_puts_them() -> None:
    raw = {"gpus": [{"serial": "1650123", "board": {"board_serial": "ABCDEF1"}, "name": "H100"}], "serial": "x"}
    assert serials(raw) == ["1650123", "ABCDEF1"]
    assert serials(Missing(Why.UNREADABLE, "no library")) == []


def test_the_files_of_all_checks_and_settings_are_read() -> None:
    said = list(read_files(Reading(profile_document("localhost"))))
    read = {message["doing"] for message in said if "doing" in message}
    assert {"read /proc/modules", "read /@packages", "read /etc/nccl.conf"} <= read
    assert said[-1]["name"] == "files" and said[-1]["count"] > 20
    assert "/sys/kernel/mm/transparent_hugepage/enabled" in said[-2]["digests"]
