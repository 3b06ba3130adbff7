"""The payload is what the readers of JS1 need, and is recognised as fairlead's own."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.jobs.jobstats_payload import PAYLOAD_MAX, decoded, encoded, is_own, payload
from fairlead.jobs.usage_merge import merged
from fairlead.jobs.usage_record import HostUsage, JobFinding, UsageRecord
from tests.jobs.job_reports import BEGIN, GIB, gpu_of, record_of, run_of

NOW = BEGIN + 90_000.0
CPU_KEYS = {"total_memory", "used_memory", "total_time", "cpus"}


def as_readers_do(text: str) -> dict[str, Any]:
    """Decode as job_defense_shield and jobstats do."""
    assert text.startswith("JS1:H4s")
    data: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(text[4:])))
    return data


def made(nodes: int = 1, records: list[UsageRecord] | None = None, **changes: Any) -> str:
    run = run_of(nodes, **changes)
    return payload(merged(run, [record_of(n) for n in run.nodes] if records is None else records, NOW)[0])


def test_a_whole_payload() -> None:
    data = as_readers_do(made())
    node = data["nodes"]["gpu001"]
    assert (data["total_time"], data["gpus"]) == (3600, 8)
    assert (node["total_memory"], node["used_memory"], node["cpus"]) == (500 * GIB, 100 * GIB, 64)
    assert node["total_time"] == 3600 * 32
    assert node["gpu_utilization"] == {str(n): 70.0 for n in range(8)}
    assert node["gpu_used_memory"].keys() == node["gpu_total_memory"].keys() == node["gpu_utilization"].keys()
    assert data["fl"] == {
        "v": 1,
        "def": "busy/1",
        "kj": 14400.0,
        "sm": 45.0,
        "tc": 22.0,
        "dram": 30.0,
        "zero_h": 0.8,
        "cov": 100.0,
        "nodes": [1, 1],
    }


def test_no_text_of_a_node_gets_into_it() -> None:
    """The node's root may be hostile. The names of nodes are those of Slurm, and all else are numbers and keys of ours."""
    text = {"uuid": "EVIL-1", "pci": "EVIL-2", "mig": "", "name": "EVIL-3", "throttled_seconds": {"EVIL-4": 1.0}}
    finding = JobFinding(check="EVIL-5", level="EVIL-6", pci="EVIL-2")
    record = msgspec.structs.replace(
        record_of(),
        gpus=tuple(gpu_of(n, **text) for n in range(8)),
        boot_id="EVIL-7",
        agent_version="EVIL-8",
        findings=(finding,),
    )
    data = as_readers_do(made(records=[record]))
    assert data["nodes"]["gpu001"]["gpu_utilization"] != {} and "EVIL" not in json.dumps(data)


def test_the_same_report_is_always_the_same_text() -> None:
    assert made(3) == made(3)


@pytest.mark.parametrize(("seconds", "text"), [(0, "JS1:Short"), (59, "JS1:Short")])
def test_a_short_job(seconds: int, text: str) -> None:
    assert made(seconds=seconds) == text


def test_a_job_without_any_record() -> None:
    assert made(records=[]) == "JS1:None"


@pytest.mark.parametrize(
    "host",
    [
        HostUsage(),
        HostUsage(cpu_seconds=1.0, cpus=4, memory_max_bytes=1),
        HostUsage(cpus=4, memory_max_bytes=1, memory_limit_bytes=2),
        HostUsage(cpu_seconds=1.0, memory_max_bytes=1, memory_limit_bytes=2),
        HostUsage(cpu_seconds=1.0, cpus=4, memory_limit_bytes=2),
    ],
)
def test_a_node_without_the_cpu_keys_is_left_out(host: HostUsage) -> None:
    """jobstats stops with a TypeError otherwise."""
    data = as_readers_do(made(2, [record_of("gpu001", host=host), record_of("gpu002")]))
    assert data["nodes"].keys() == {"gpu002"}
    assert data["fl"]["nodes"] == [2, 2]
    assert made(1, [record_of(host=host)]) == "JS1:None"


@pytest.mark.parametrize(
    "changes",
    [
        {"mig": "1/0/1g.10gb"},
        {"shared": True},
        {"minor": None},
        {"busy_seconds": None},
        {"seen_seconds": 0.0, "busy_seconds": 0.0, "zero_seconds": 0.0},
        {"memory_max_bytes": None},
        {"minor": 1},
    ],
)
def test_a_value_of_a_gpu_that_is_not_known_blames_nobody(changes: dict[str, Any]) -> None:
    record = msgspec.structs.replace(record_of("gpu001", 3600.0, 0), gpus=(gpu_of(0, **changes), gpu_of(1)))
    node = as_readers_do(made(records=[record], gpus=2))["nodes"]["gpu001"]
    assert node["gpu_utilization"] == {}
    assert node.keys() == CPU_KEYS | {"gpu_utilization"}


def test_a_job_without_gpus_has_no_gpu_maps() -> None:
    assert as_readers_do(made(records=[record_of("gpu001", 3600.0, 0)], gpus=0))["nodes"]["gpu001"].keys() == CPU_KEYS


def test_large_jobs_stay_below_the_columns_size() -> None:
    sizes = {nodes: made(nodes) for nodes in (128, 129, 2000)}
    assert as_readers_do(sizes[128])["nodes"]["gpu128"]["gpu_utilization"]
    assert as_readers_do(sizes[129])["nodes"]["gpu129"]["gpu_utilization"] == {}
    assert all(len(text) <= PAYLOAD_MAX for text in sizes.values())


def noisy(node: str, number: int) -> UsageRecord:
    host = HostUsage(
        cpu_seconds=number * 7919.123 % 100000,
        cpus=64,
        memory_max_bytes=(number * 104729**3) % (400 * GIB),
        memory_limit_bytes=500 * GIB,
    )
    return record_of(node, host=host)


def test_above_the_limit_totals_are_written_only() -> None:
    run = run_of(6000)
    records = [noisy(node, number) for number, node in enumerate(run.nodes)]
    text = made(6000, records)
    assert len(text) <= PAYLOAD_MAX
    data = as_readers_do(text)
    (name,) = data["nodes"]
    assert name == "gpu[001-6000]" or name.endswith("nodes")
    assert data["nodes"][name]["cpus"] == 64 * 6000
    assert data["nodes"][name]["total_time"] == pytest.approx(sum(r.host.cpu_seconds or 0 for r in records), rel=1e-4)
    assert data["gpus"] == 48000 and data["fl"]["nodes"] == [6000, 6000]


def test_own_text_is_told_from_that_of_others() -> None:
    assert is_own(made())
    theirs = {"nodes": {}, "total_time": 1, "gpus": 0}
    for text in (
        encoded(theirs),
        encoded({**theirs, "fl": 1}),
        "JS1:Short",
        "JS1:None",
        "",
        "note: fl",
        "JS1:",
        made()[:-8],
        made() + " x",
    ):
        assert not is_own(text)


def test_a_payload_that_inflates_without_end_is_not_read() -> None:
    bomb = "JS1:" + base64.b64encode(gzip.compress(b'{"fl":{"v":1},"x":"' + b"a" * (32 << 20) + b'"}')).decode()
    assert decoded(bomb) is None


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    assert decoded(text) is None or isinstance(decoded(text), dict)
    assert decoded("JS1:" + text) is None or isinstance(decoded("JS1:" + text), dict)


def test_a_gpu_that_no_record_names_blames_nobody() -> None:
    """A job with GPUs of several types: the mean of those of one type would be taken for that of the job."""
    report = merged(run_of(2, gpus=20), [record_of("gpu001"), record_of("gpu002")], BEGIN + 3700.0)[0]
    data = decoded(payload(report))
    assert data is not None and data["gpus"] == 20
    assert [node["gpu_utilization"] for node in data["nodes"].values()] == [{}, {}]
    assert not any("gpu_used_memory" in node for node in data["nodes"].values())
