"""The whole proof in a short form on a simulated machine, and what it says when something is not as it should be."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.gpu.__main__ import run_part
from tests.gpu.conftest import Machine
from tests.gpu.proof import Proof
from tests.gpu.report import Part, Report, Result
from tests.gpu.target import Target

PARTS = ["calls", "snapshot", "clients", "counters", "agent", "load", "worker", "settings"]


@pytest.fixture
def smi(machine: Machine, tmp_path: Path) -> Path:
    """An nvidia-smi that prints one line of CSV: what the machine tree says, or what a test has put into LIE (NAME=VALUE)."""
    script = tmp_path / "nvidia-smi"
    script.write_text("""#!/bin/sh
# nvidia-smi -i PCI --query-gpu=A,B,C --format=...
names=$(printf '%s' "${3#--query-gpu=}" | tr ',' ' ')
line=
for name in $names; do
    case $name in
    temperature.gpu) value=34 ;;
    power.draw) value=70.00 ;;
    power.limit | power.default_limit) value=700.00 ;;
    clocks.sm) value=345 ;;
    clocks.max.sm) value=1980 ;;
    memory.used) value=0 ;;
    memory.total) value=81559 ;;
    pstate) value=P0 ;;
    persistence_mode | ecc.mode.current) value=Enabled ;;
    mig.mode.current) value=Disabled ;;
    ecc.errors.* | utilization.gpu) value=0 ;;
    pcie.link.gen.*) value=5 ;;
    pcie.link.width.*) value=16 ;;
    *) value='[N/A]' ;;
    esac
    case ${LIE-} in "$name="*) value=${LIE#*=} ;; esac
    line="$line, $value"
done
printf '%s\\n' "${line#, }"
""")
    script.chmod(0o755)
    return script


@pytest.mark.root
@pytest.mark.heavy
@pytest.mark.trees
def test_the_whole_proof_agrees_on_a_healthy_machine_and_its_report_has_each_part(machine: Machine, smi: Path) -> None:
    before = machine.faults.control.read_text()
    done = machine.run("--smi", str(smi))
    assert done.returncode == 0, done.stderr
    report = machine.report()
    assert list(report["parts"]) == PARTS and report["complete"] and report["alarms"] == []
    assert {part["result"] for part in report["parts"].values()} == {"agrees"}
    calls, clients, load = (report["parts"][name]["data"] for name in ("calls", "clients", "load"))
    assert calls["calls"]["nvmlDeviceGetPowerUsage"]["0"]["median"] > 0
    assert calls["calls"]["nvmlDeviceGetTemperatureThreshold(2)"].keys() == {"3"}, "the simulated GPU has no such threshold"
    assert sum(row["agrees"] is True for row in clients["nvidia-smi"]) >= 18
    assert sum(row["agrees"] is True for row in clients["nvitop"]) >= 11
    assert report["parts"]["agent"]["data"]["cpu_percent"] > 0
    assert report["parts"]["agent"]["data"]["pss_kib"] > 10_000 and report["parts"]["agent"]["data"]["findings"] == []
    assert load["counters"]["gpm"]["metrics"]["sm_percent"] == 99 and load["counters"]["samples"]["gpu_percent"]["most"] == 99
    assert load["product"]["right"] and load["product"]["products"] > 0 and load["findings"] == []
    assert report["parts"]["settings"]["data"].keys() == {
        "persistence", "power_limit_milliwatts", "locked_clocks", "application_clocks",
    }  # fmt: skip
    assert "nvml persistence_mode: recorded 1, written by hand 0" in report["parts"]["snapshot"]["data"]["differences"]
    assert (machine.report_folder / "machine.tar.gz").stat().st_size > 10_000
    assert not (machine.report_folder / "changed-settings.json").exists()
    text = machine.text()
    assert "simulated: yes" in text and "finding" not in text.split("== agent")[1].split("== worker")[0]
    assert machine.faults.control.read_text() != before, "the settings were really changed"
    assert machine.set_values("power.limit_milliwatts") == ["650000", "700000"]


def test_a_client_that_says_another_value_is_named(machine: Machine, smi: Path) -> None:
    machine.environment["LIE"] = "power.limit=650.00"
    done = machine.run("--parts", "clients", "--smi", str(smi))
    assert done.returncode == 1
    part = machine.report()["parts"]["clients"]
    assert part["result"] == "differs"
    assert "nvidia-smi says 650.0 for power_limit_watts" in part["why"]
    assert [row["metric"] for row in part["data"]["nvidia-smi"] if row["agrees"] is False] == ["power_limit_watts"]


@pytest.mark.slow
@pytest.mark.parametrize(("script", "words"), [("exit 9", "ended with 9"), ("echo no devices", "printed 'no devices'")])
def test_a_client_that_fails_differs_and_the_other_one_is_compared(machine: Machine, smi: Path, script: str, words: str) -> None:
    smi.write_text(f"#!/bin/sh\n{script}\n")
    done = machine.run("--parts", "clients", "--smi", str(smi))
    part = machine.report()["parts"]["clients"]
    assert done.returncode == 1 and "nvidia-smi was not compared" in part["why"] and words in part["why"]
    assert len(part["data"]["nvitop"]) > 10


@pytest.mark.slow
def test_a_release_of_a_client_that_does_not_know_a_name_is_asked_for_the_others(machine: Machine, smi: Path) -> None:
    known = smi.read_text()
    refuse = (
        "case $3 in *power.default_limit*) echo 'Field \"power.default_limit\" is not a valid field to query.'; exit 2 ;; esac"
    )
    smi.write_text(known.replace("line=\n", f"line=\n{refuse}\n", 1))
    assert machine.run("--parts", "clients", "--smi", str(smi)).returncode == 0
    rows = {row["name"]: row["agrees"] for row in machine.report()["parts"]["clients"]["data"]["nvidia-smi"]}
    assert rows["power.default_limit"] is None and rows["power.limit"] is True


@pytest.mark.slow
def test_a_machine_without_nvidia_smi_is_compared_with_nvitop(machine: Machine) -> None:
    assert machine.run("--parts", "clients", "--smi", "/nonexistent").returncode == 0
    assert list(machine.report()["parts"]["clients"]["data"]) == ["nvitop"]
    assert "nvidia-smi: not compared: it cannot be run: No such file" in machine.text()


@pytest.mark.slow
def test_a_finding_of_the_agent_is_for_a_person_to_judge(machine: Machine) -> None:
    machine.faults.set(0, "remap.failed", 1)
    done = machine.run("--parts", "agent")
    part = machine.report()["parts"]["agent"]
    assert (done.returncode, part["result"]) == (1, "differs")
    assert any(finding["device"] == "0000:1b:00.0" for finding in part["data"]["findings"]) and "to judge: " in part["why"]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "words"), [("wrong", "ended with 1"), ("absent", "libcuda.so.1: cannot open")])
def test_a_matrix_product_that_is_wrong_or_not_possible_is_said(
    machine: Machine, nvml_folder: Path, fault: str, words: str
) -> None:
    machine.environment["FAIRLEAD_SIM_CUDA"] = fault
    if fault == "absent":
        machine.environment["LD_LIBRARY_PATH"] = str(nvml_folder)
    done = machine.run("--parts", "load")
    part = machine.report()["parts"]["load"]
    assert (done.returncode, part["result"]) == (1, "not run" if fault == "absent" else "failed")
    assert words in part["why"]


def test_a_call_that_is_refused_is_named(machine: Machine) -> None:
    machine.faults.error(None, "nvmlDeviceGetPowerUsage", 999)
    done = machine.run("--parts", "calls")
    part = machine.report()["parts"]["calls"]
    assert (done.returncode, part["why"]) == (1, "nvmlDeviceGetPowerUsage answers NVML UNKNOWN (999)")


@pytest.mark.slow
def test_a_call_of_20_ms_is_named(machine: Machine) -> None:
    machine.faults.delay("nvmlDeviceGetTemperature", 21)
    done = machine.run("--parts", "calls")
    assert done.returncode == 1 and "nvmlDeviceGetTemperature(0) takes 2" in machine.report()["parts"]["calls"]["why"]


def test_a_driver_that_crashes_in_one_part_does_not_end_the_run(machine: Machine) -> None:
    machine.faults.crash("nvmlDeviceGetTotalEnergyConsumption")  # the agent's worker does not make this call
    done = machine.run("--parts", "counters", "calls")
    parts = machine.report()["parts"]
    assert done.returncode == 1 and parts["counters"]["why"] == "the reading was ended by SIGABRT"
    assert parts["calls"]["result"] == "agrees"


def test_a_part_that_meets_what_nobody_expected_fails_alone_and_says_where(tmp_path: Path) -> None:
    def surprised(_proof: Proof, _part: Part) -> None:
        raise KeyError("a value that no driver has left out so far")

    proof = Proof(Target("0000:1b:00.0", {}, {}), tmp_path)
    report = Report(tmp_path)
    run_part(proof, report, "surprised", surprised)
    run_part(proof, report, "usual", lambda _, part: part.lines.append("fine"))
    assert [part.result for part in report.parts] == [Result.FAILED, Result.AGREES]
    assert "KeyError" in report.parts[0].why and "in surprised" in (tmp_path / "report.txt").read_text()


def test_a_run_that_takes_too_long_ends_itself_and_leaves_what_it_has(machine: Machine) -> None:
    machine.faults.hang("nvmlDeviceGetTotalEnergyConsumption")
    done = machine.run("--parts", "calls", "counters", "--limit-seconds", "23")
    assert done.returncode == 1 and "OUT OF TIME" in done.stderr
    report = machine.report()
    assert not report["complete"] and report["parts"]["calls"]["result"] == "agrees"
    assert (report["parts"]["counters"]["result"], report["parts"]["counters"]["why"]) == ("failed", "ended before its end")


@pytest.mark.slow
def test_a_killed_run_leaves_the_parts_that_it_has(machine: Machine) -> None:
    machine.faults.hang("nvmlDeviceGetTotalEnergyConsumption")
    process = machine.start("--parts", "calls", "counters")
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("gpu: counters"):
            break
    process.kill()
    process.communicate(timeout=20)
    report = machine.report()
    assert report["parts"]["calls"]["result"] == "agrees" and "has not reached its end" in machine.text()
    found = subprocess.run(["pgrep", "-f", f"tests.gpu.counters.*{process.pid}"], capture_output=True, check=False)
    assert found.returncode == 1
