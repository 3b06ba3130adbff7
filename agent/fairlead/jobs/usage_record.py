"""Defines the usage record (``job-record/1``): what one job used on one node. The agent writes one file for each job.

A usage record holds sums of seconds, joules and bytes, and peaks. It holds no mean and no percentage: these are computed when
they are printed. A value that is not known is absent (None), and never 0. Times with ``_unix`` are seconds of the system clock.
Times with ``_boot`` are seconds of CLOCK_BOOTTIME in the boot ``boot_id``.
"""

from __future__ import annotations

from typing import Annotated, Any, get_args, get_origin

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

SCHEMA = "job-record/1"
RECORD_MAX_BYTES = 256 * 1024
GPUS_MAX = 1024
FINDINGS_MAX = 64
BINS = 11  # 0 %, then over 0 to 10 %, ... over 90 to 100 %
NICS_MAX = 64
#: The widths of the bins of the other histograms. The number of a bin, multiplied with the width, is the middle of the bin.
CLOCK_BIN_HERTZ, POWER_BIN_WATTS, PERCENT_BIN = 15e6, 20.0, 5.0

Text = Annotated[str, Meta(max_length=128, pattern=r"^[A-Za-z0-9_.:+/ -]*$")]
Seconds = Annotated[float, Meta(ge=0, le=1e10)]
Amount = Annotated[float, Meta(ge=0, le=1e18)]
Count = Annotated[int, Meta(ge=0, le=1 << 62)]
Histogram = Annotated[dict[Annotated[int, Meta(ge=0, le=1023)], Seconds], Meta(max_length=256)]
Counts = Annotated[dict[Text, Count], Meta(max_length=64)]


class GpuUsage(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Holds what happened on one GPU, or on one MIG device, while a job had it.

    uuid: of the GPU, or of the MIG device. gres_index: Slurm's index. pci and minor: of the GPU (the parent GPU of a MIG device).
    mig: "" or "GI/CI/PROFILE". shared: other jobs may have used the same GPU (shards, MPS), so that the values are those of the
    GPU and not of this job alone.
    seen_seconds: the time in which the agent knows the utilisation. gap_seconds: the rest of the time that the job had the GPU
    until this record was written. busy_seconds, spot_seconds and the sums of GPM: as in ``model.gpu_activity.GpuActivity``.
    zero_seconds: the time between readings in which the GPU was not busy at all. longest_zero_seconds: the longest such time
    without a break. first_busy_seconds: the time from the job's begin to the end of the first reading in which the GPU was busy;
    absent if the GPU was never busy. histogram_seconds: the seconds by the utilisation between two readings, in ``BINS`` bins.
    memory_byte_seconds / memory_seconds is the mean of the used memory.
    throttled_seconds: by reason (``model.gpu_load.REASONS``).
    readings: how often something was added to a histogram. clock_histogram_seconds: the seconds under load by the SM clock at the
    reading. sm_histogram_seconds, power_histogram_seconds: the seconds by SM activity and by power between two readings.
    error_counts: by how much counters of errors grew between readings. Records of older agents have none of these five.
    """

    uuid: Text
    pci: Text
    gres_index: Count | None = None
    minor: Count | None = None
    mig: Text = ""
    name: Text = ""
    shared: bool = False
    seen_seconds: Seconds = 0.0
    gap_seconds: Seconds = 0.0
    busy_seconds: Seconds | None = None
    spot_seconds: Seconds = 0.0
    zero_seconds: Seconds | None = None
    longest_zero_seconds: Seconds | None = None
    first_busy_seconds: Seconds | None = None
    histogram_seconds: Annotated[tuple[Seconds, ...], Meta(max_length=BINS)] = ()
    gpm_seconds: Seconds = 0.0
    sm_active_seconds: Seconds | None = None
    tensor_active_seconds: Seconds | None = None
    dram_active_seconds: Seconds | None = None
    energy_joules: Amount | None = None
    energy_gap_seconds: Seconds = 0.0
    memory_total_bytes: Count | None = None
    memory_max_bytes: Count | None = None
    memory_byte_seconds: Amount | None = None
    memory_seconds: Seconds = 0.0
    pcie_transmit_bytes: Count | None = None
    pcie_receive_bytes: Count | None = None
    nvlink_transmit_bytes: Count | None = None
    nvlink_receive_bytes: Count | None = None
    throttled_seconds: Annotated[dict[Text, Seconds], Meta(max_length=16)] = {}
    readings: Count = 0
    clock_histogram_seconds: Histogram = {}
    sm_histogram_seconds: Histogram = {}
    power_histogram_seconds: Histogram = {}
    error_counts: Counts = {}


class NicUsage(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Holds what went over one network interface, or over one port of an RDMA device, while the job ran, whoever sent it.

    name: ``eth0``, or ``mlx5_0/1`` for a port. error_counts: by how much its counters of errors, losses and waits grew.
    """

    name: Text
    receive_bytes: Count | None = None
    transmit_bytes: Count | None = None
    error_counts: Counts = {}


class HostUsage(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Holds what the job's control group used of the node, and what the node as a whole went through meanwhile.

    cpus: the number of CPUs in the job's cpuset. memory_limit_bytes is absent if there is no limit.

    pressure_histogram_seconds: of the whole node, for "cpu", "io" and "memory": the seconds by the part of the time in which some
    task waited (PSI). node_seconds: the time that these histograms and ``nics`` cover. event_counts: by how much counters of the
    node grew, such as retransmitted TCP segments.
    """

    cpu_seconds: Amount | None = None
    cpus: Count | None = None
    memory_max_bytes: Count | None = None
    memory_limit_bytes: Count | None = None
    memory_total_bytes: Count | None = None
    node_seconds: Seconds = 0.0
    pressure_histogram_seconds: Annotated[dict[Text, Histogram], Meta(max_length=8)] = {}
    event_counts: Counts = {}
    nics: Annotated[tuple[NicUsage, ...], Meta(max_length=NICS_MAX)] = ()


class JobFinding(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Names a finding on this node, or on a GPU of the job, that was there while the job ran. pci: "" for the node."""

    check: Text
    level: Text
    pci: Text = ""
    at_unix: Seconds = 0.0


class UsageRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Holds what one job used on one node from its prolog to its epilog.

    end_unix and end_boot are absent while the job runs. ended_by: "epilog", or "lost" if no epilog ended the job (the node was
    booted again, or the job record is gone). alloc_seconds: from the begin to the end, or to written_unix. gap_seconds: the part
    of alloc_seconds in which no agent read the node (it was killed, or the node was down). clock_steps: how often the system
    clock was set in that time.
    """

    schema: Text = SCHEMA
    job: Annotated[int, Meta(ge=1, le=1 << 32)]
    node: Text
    boot_id: Text
    begin_unix: Seconds
    begin_boot: Seconds
    written_unix: Seconds
    alloc_seconds: Seconds
    sluid: Text = ""
    uid: Count | None = None
    end_unix: Seconds | None = None
    end_boot: Seconds | None = None
    ended_by: Text = ""
    gap_seconds: Seconds = 0.0
    clock_steps: Count = 0
    gpus: Annotated[tuple[GpuUsage, ...], Meta(max_length=GPUS_MAX)] = ()
    host: HostUsage = HostUsage()
    findings: Annotated[tuple[JobFinding, ...], Meta(max_length=FINDINGS_MAX)] = ()
    agent_version: Text = ""


class BadRecord(ValueError):
    """Says in one line why a text is no usage record."""


_DECODER = msgspec.json.Decoder(UsageRecord)
_ENCODER = msgspec.json.Encoder()


def encoded(record: UsageRecord) -> bytes:
    """Return the record as one line of JSON."""
    return _with_schema(_ENCODER.encode(record)) + b"\n"


def decoded(text: bytes) -> UsageRecord:
    """Return the record in a text. Raises BadRecord if the text is torn, too long, of another schema, or not consistent."""
    if len(text) > RECORD_MAX_BYTES:
        raise BadRecord(f"is longer than {RECORD_MAX_BYTES} bytes")
    if not text.endswith(b"}\n"):
        raise BadRecord("is torn: its end is missing")
    try:
        named = _NAMED.decode(text).schema
        if named != SCHEMA:
            raise BadRecord(_other_schema(named))
        return _DECODER.decode(text)
    except msgspec.MsgspecError as e:
        raise BadRecord(f"is not a usage record: {str(e)[:200]}") from None
    except RecursionError:
        raise BadRecord("is not a usage record: too deep") from None


def known_part(text: bytes) -> UsageRecord:
    """Return the record of a newer agent without the keys that this release does not know, so that an agent can go on with it
    after a rollback. Raises BadRecord for anything else that is no usage record."""
    try:
        return decoded(text)
    except BadRecord:
        if len(text) > RECORD_MAX_BYTES or not text.endswith(b"}\n"):
            raise
    try:
        data = msgspec.json.decode(text)
        if isinstance(data, dict) and data.get("schema") != SCHEMA:
            raise BadRecord(_other_schema(str(data.get("schema", ""))))
        return _DECODER.decode(_ENCODER.encode(_without_unknown(data, UsageRecord)))  # only from text are keys numbers
    except (msgspec.MsgspecError, RecursionError) as e:
        raise BadRecord(f"is not a usage record: {str(e)[:200]}") from None


def _without_unknown(value: Any, kind: Any) -> Any:
    """Return decoded JSON without the keys that the type does not have."""
    inner = get_args(kind)
    if get_origin(kind) is Annotated:
        return _without_unknown(value, inner[0])
    if isinstance(value, list) and get_origin(kind) is tuple:
        return [_without_unknown(each, inner[0]) for each in value]
    if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, Struct):
        fields = ((field.encode_name, field.type) for field in msgspec.structs.fields(kind))
        return {name: _without_unknown(value[name], of) for name, of in fields if name in value}
    return value


def without_histograms(record: UsageRecord) -> UsageRecord:
    """Return the record without what only the comparison of nodes needs, which is the larger part of it."""
    bare: dict[str, Any] = {"clock_histogram_seconds": {}, "sm_histogram_seconds": {}, "power_histogram_seconds": {}}
    bare |= {"readings": 0, "error_counts": {}}
    host = replace(record.host, pressure_histogram_seconds={}, event_counts={}, nics=(), node_seconds=0.0)
    return replace(record, gpus=tuple(replace(gpu, **bare) for gpu in record.gpus), host=host)


class _Named(Struct):
    schema: str = ""


_NAMED = msgspec.json.Decoder(_Named)


def _other_schema(named: str) -> str:
    shown = "".join(c for c in named[:32] if c.isascii() and c.isprintable())
    return f'has the schema "{shown}", and this fairlead reads "{SCHEMA}"'


def _with_schema(text: bytes) -> bytes:
    """Put the schema in front. ``omit_defaults`` leaves it out, but not that of a record that was read from a text."""
    return text if text.startswith(b'{"schema":') else b'{"schema":"' + SCHEMA.encode() + b'",' + text[1:]
