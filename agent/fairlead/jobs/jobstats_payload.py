"""Writes a job's report as jobstats keeps it in AdminComment: ``JS1:`` and base64(gzip(JSON)), with one key ``fl`` of fairlead.

Readers of this text are jobstats, reportseff and job_defense_shield. What each of them needs was read in their sources
(PrincetonUniversity/jobstats@dfc9aa0, job_defense_shield@cb31166, troycomi/reportseff@7d586b7):
- jobstats stops with a TypeError if a node lacks one of the four CPU keys. A node without these values is left out.
- jobstats divides by the sum of gpu_total_memory, and job_defense_shield looks up each key of gpu_used_memory in the other two
  maps. So the two maps of memory are either both there with all GPUs of gpu_utilization, or both left out.
- ``gpu_utilization: {}`` is "GPU utilization is unknown" to jobstats, and it writes no note of blame then.

Node names come from Slurm, and the keys of the GPU maps are minor numbers. No text of a record gets into the payload.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import msgspec

from fairlead.jobs.usage_merge import JobReport, TimePart
from fairlead.jobs.usage_record import GpuUsage, UsageRecord
from fairlead.model.nodelist import fold

PREFIX = "JS1:"
SHORT, NONE = "JS1:Short", "JS1:None"
SHORT_SECONDS = 60  # twice jobstats' sampling period (SAMPLING_PERIOD 30 s)
NODES_WITH_GPUS = 128  # above this number of nodes, the values of each GPU are left out
PAYLOAD_MAX = 60_000  # the database's column has room for 65,535 bytes, and a longer text is cut
KEY, VERSION, DEFINITION = "fl", 1, "busy/1"
_INFLATED_MAX = 16 << 20  # the most bytes that a payload is inflated to


def payload(report: JobReport) -> str:
    """Return the text for AdminComment."""
    run = report.run
    seconds = run.seconds(report.at_unix)
    if seconds < SHORT_SECONDS:
        return SHORT
    records = [record for record in report.records if _cpu_keys(record) is not None]
    if not records:
        return NONE
    data = {"total_time": int(seconds), "gpus": run.gpus, KEY: own_key(report)}
    with_gpus = run.gpus > 0
    # A mean over some of a job's GPUs would be taken for that of the whole job.
    none: dict[str, Any] = {"gpu_utilization": {}}
    maps = {r.node: none if report.unnamed_gpus else _gpu_maps(r, len(run.nodes)) for r in records}
    each = {r.node: {**(_cpu_keys(r) or {}), **(maps[r.node] if with_gpus else {})} for r in records}
    text = encoded({"nodes": each, **data})
    if len(text) > PAYLOAD_MAX:
        sums: dict[str, Any] = {}
        for record in records:
            for key, value in (_cpu_keys(record) or {}).items():
                sums[key] = round(sums.get(key, 0) + value, 1)
        names = fold(record.node for record in records)
        together = names if len(names) <= 256 else f"{len(records)} nodes"
        text = encoded({"nodes": {together: {**sums, **({"gpu_utilization": {}} if with_gpus else {})}}, **data})
    return text


def own_key(report: JobReport) -> dict[str, Any]:
    """Return fairlead's own key. An unknown value is left out.

    v, def: the version of this key and of the definitions. kj: energy of the GPUs in kJ. sm, tc, dram: activity in percent of the
    time that GPM knows. zero_h: GPU-hours in which a GPU was not busy at all. cov: the measured part of the time in percent.
    nodes: the number of nodes with a record, and of all nodes.
    """
    totals = report.totals
    energy, zero = totals.energy_joules, totals.zero_seconds
    values = {
        "kj": round(energy.value / 1000, 1) if energy is not None else None,
        "sm": _percent(totals.sm),
        "tc": _percent(totals.tensor),
        "dram": _percent(totals.dram),
        "zero_h": round(zero.value / 3600, 2) if zero is not None else None,
        "cov": round(report.coverage_percent, 1) if report.coverage_percent is not None else None,
    }
    known = {key: value for key, value in values.items() if value is not None}
    return {"v": VERSION, "def": DEFINITION, **known, "nodes": [len(report.records), len(report.run.nodes)]}


def _percent(part: TimePart | None) -> float | None:
    percent = part.percent if part is not None else None
    return round(percent, 1) if percent is not None else None


def _cpu_keys(record: UsageRecord) -> dict[str, float] | None:
    """Return the four CPU keys of a node, or None if one of them is not known. A job without a limit may use the whole memory."""
    host = record.host
    limit = host.memory_limit_bytes if host.memory_limit_bytes is not None else host.memory_total_bytes
    if limit is None or host.memory_max_bytes is None or host.cpu_seconds is None or not host.cpus or not limit:
        return None
    return {
        "total_memory": limit,
        "used_memory": min(limit, host.memory_max_bytes),
        "total_time": round(host.cpu_seconds, 1),
        "cpus": host.cpus,
    }


def _gpu_maps(record: UsageRecord, nodes: int) -> dict[str, dict[str, float]]:
    values = [_gpu_values(gpu) for gpu in record.gpus]
    known = [value for value in values if value is not None]
    minors = [minor for minor, *_ in known]
    if nodes > NODES_WITH_GPUS or not known or len(known) < len(values) or len(set(minors)) < len(minors):
        return {"gpu_utilization": {}}
    return {
        "gpu_total_memory": {minor: total for minor, _, _, total in known},
        "gpu_used_memory": {minor: used for minor, _, used, _ in known},
        "gpu_utilization": {minor: percent for minor, percent, _, _ in known},
    }


def _gpu_values(gpu: GpuUsage) -> tuple[str, float, int, int] | None:
    """Return minor number, utilisation in percent, used and total memory. Return None if one of them is not known, and for a GPU
    that is shared or a MIG device: jobstats would blame the job for the work of others."""
    if gpu.mig or gpu.shared or gpu.minor is None or gpu.busy_seconds is None or gpu.seen_seconds <= 0:
        return None
    if gpu.memory_max_bytes is None or not gpu.memory_total_bytes:
        return None
    percent = min(100.0, 100 * gpu.busy_seconds / gpu.seen_seconds)
    return str(gpu.minor), round(percent, 1), gpu.memory_max_bytes, gpu.memory_total_bytes


def encoded(data: dict[str, Any]) -> str:
    """Return the text of some data. The same data always gives the same text (the time in gzip's head is 0)."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return PREFIX + base64.b64encode(packer.compress(msgspec.json.encode(data)) + packer.flush()).decode("ascii")


def decoded(text: str) -> dict[str, Any] | None:
    """Return the data of an AdminComment, or None if it is no JS1 payload with data. Never raises."""
    if not text.startswith(PREFIX) or text in (SHORT, NONE) or len(text) > 1 << 20:
        return None
    try:
        packed = base64.b64decode(text.removeprefix(PREFIX), validate=True)
        unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
        data = msgspec.json.decode(unpacker.decompress(packed, _INFLATED_MAX))
    except (ValueError, zlib.error, msgspec.MsgspecError, RecursionError):
        return None
    return data if isinstance(data, dict) and unpacker.eof else None


def is_own(text: str) -> bool:
    """Return whether an AdminComment was written by fairlead, and by no newer one: a JS1 payload with the key ``fl``.
    ``JS1:Short`` and ``JS1:None`` do not say who wrote them, and so are nobody's."""
    data = decoded(text)
    mark = data.get(KEY) if data is not None else None
    return isinstance(mark, dict) and isinstance(version := mark.get("v"), int) and version <= VERSION
