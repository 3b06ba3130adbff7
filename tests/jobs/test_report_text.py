"""The text of a report says what is known, and says of the rest that it is not known."""

from __future__ import annotations

import msgspec

from fairlead.jobs.report_text import bytes_text, energy_text, report_text, span_text
from fairlead.jobs.usage_merge import merged
from fairlead.jobs.usage_record import HostUsage, JobFinding
from tests.jobs.job_reports import BEGIN, gpu_of, record_of, run_of

NOW = BEGIN + 90_000.0


def test_a_whole_report() -> None:
    text = report_text(merged(run_of(2), [record_of("gpu001"), record_of("gpu002")], NOW)[0]).splitlines()
    assert text[0] == "job 17  COMPLETED  2 nodes, 16 x NVIDIA H100 80GB HBM3  01:00:00 of 02:00:00  coverage 100.0 %"
    assert text[1] == (
        "  busy 70 %   SM active 45 %   tensor 22 %   DRAM 30 %   memory peak 61 GiB of 80 GiB"
        "   energy 8 kWh (GPUs; node not measured)"
    )
    assert text[2].startswith("  0 % for 1.6 GPU-h, longest 3 min (gpu00")
    assert "throttled 0.4 %" in text[2] and "NVLink 186 GiB/s per GPU" in text[2]
    assert text[3] == "  128 CPUs busy 50 %  memory peak of a node 100 GiB"
    assert text[4].startswith("  gpu001   0: 70 %   1: 70 %")


def test_what_is_not_known_is_said_to_be_not_known() -> None:
    bare = gpu_of(0, busy_seconds=None, zero_seconds=None, gpm_seconds=0.0, energy_joules=None, memory_max_bytes=None)
    bare = msgspec.structs.replace(bare, sm_active_seconds=None, tensor_active_seconds=None, dram_active_seconds=None)
    record = msgspec.structs.replace(record_of("gpu001", 3600.0, 0), gpus=(bare,), host=HostUsage())
    text = report_text(merged(run_of(gpus=1), [record], NOW)[0])
    assert "busy not known   SM active not known" in text
    assert "energy not known" in text and "memory peak not known" in text and "time at 0 %: not known" in text
    assert "CPUs: not known" in text
    assert "0: not known" in text
    assert "0 % for" not in text and "busy 0 %" not in text


def test_missing_nodes_are_named() -> None:
    text = report_text(merged(run_of(4), [record_of("gpu001")], NOW)[0])
    assert "coverage 25.0 %" in text
    assert "no record yet from 3 of 4 nodes: gpu[002-004]" in text


def test_a_job_without_any_record_says_so() -> None:
    text = report_text(merged(run_of(1), [], NOW)[0])
    assert "GPUs: not known" in text and "no record yet from 1 of 1 nodes: gpu001" in text


def test_a_gpu_that_differs_is_marked() -> None:
    gpus = (gpu_of(0), gpu_of(1), gpu_of(2), gpu_of(3, 3600.0, 41.0, longest_zero_seconds=2280.0))
    text = report_text(merged(run_of(gpus=4), [msgspec.structs.replace(record_of(), gpus=gpus)], NOW)[0])
    assert "3: 41 % <- differs: 38 min at 0 %" in text


def test_shared_gpus_and_findings() -> None:
    finding = JobFinding(check="xid", level="drain", pci="0000:1b:00.0", at_unix=BEGIN + 60.0)
    record = msgspec.structs.replace(record_of(), gpus=(gpu_of(0, shared=True),), findings=(finding,))
    text = report_text(merged(run_of(gpus=1), [record], NOW)[0])
    assert "1 of 1 GPUs were shared with other jobs" in text
    assert "0: shared" in text and "busy" not in text.split("CPUs busy")[0]
    assert "gpu001 0000:1b:00.0: xid (drain) while the job ran" in text


def test_units() -> None:
    assert (span_text(86290), span_text(172800)) == ("23:58:10", "2-00:00:00")
    assert (bytes_text(0), bytes_text(3 << 29), bytes_text(61 << 30)) == ("0 B", "1.5 GiB", "61 GiB")
    assert (energy_text(6.2e8), energy_text(1000.0)) == ("172 kWh", "1 kJ")


def test_gpus_that_no_record_names_are_counted_and_named() -> None:
    """slurmd shows the prolog of a job with several types of GPUs only those of the last type."""
    report = merged(run_of(2, gpus=20), [record_of("gpu001"), record_of("gpu002")], BEGIN + 3700.0)[0]
    assert report.unnamed_gpus == 4
    words = (
        "  the records name 16 of the 20 GPUs: of a job with several types of GPUs they have only one type, and the rest is not"
    )
    assert any(line.startswith(words) for line in report_text(report).splitlines())
    whole = merged(run_of(2), [record_of("gpu001"), record_of("gpu002")], BEGIN + 3700.0)[0]
    some = merged(run_of(2, gpus=20), [record_of("gpu001")], BEGIN + 3700.0)[0]
    assert whole.unnamed_gpus == some.unnamed_gpus == 0, "GPUs of a node without a record are not counted twice"
    assert "the records name" not in report_text(whole) + report_text(some)
