"""The checks of GPUs under load on what `nvidia-smi -q` said of real machines, idle and loaded: none of them finds a fault."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.checks import (
    gpu_clocks,
    gpu_fabric,
    gpu_leftovers,
    gpu_power_brake,
    gpu_power_limit,
    gpu_temperature,
    gpu_throttle,
)
from fairlead.model.check_definition import Past
from fairlead.model.facts import Gpu, GpuProcess, Missing
from fairlead.model.finding import Finding
from fairlead.model.gpu_load import REASONS, GpuFabric, GpuLoad, ProcessOwner
from fairlead.model.gpu_state import MigDevice
from tests.checks.nodes import NA, gpu, node

DATA = Path(__file__).resolve().parents[2].parent / "shared/data/nvsmi"
MODULES = (gpu_clocks, gpu_fabric, gpu_leftovers, gpu_power_brake, gpu_power_limit, gpu_temperature, gpu_throttle)
REASON_WORDS = {
    "Idle": "gpu_idle", "Applications Clocks Setting": "applications_clocks_setting", "SW Power Cap": "sw_power_cap",
    "HW Slowdown": "hw_slowdown", "HW Thermal Slowdown": "hw_thermal_slowdown",
    "HW Power Brake Slowdown": "hw_power_brake_slowdown", "Sync Boost": "sync_boost",
    "SW Thermal Slowdown": "sw_thermal_slowdown", "Display Clock Setting": "display_clock_setting",
}  # fmt: skip
BITS = {name: bit for bit, name in REASONS}


def sections(text: str) -> list[dict[str, str]]:
    """Each GPU of each `nvidia-smi -q` in it: values by "Section/Name", the innermost heading only."""
    found: list[dict[str, str]] = []
    headings: dict[int, str] = {}
    for line in text.splitlines():
        if re.match(r"^GPU [0-9A-F]{8}:", line):
            found.append({})
            headings = {}
            continue
        match = re.match(r"^( {4,})(\S.*?)\s*(?::\s(.*))?$", line)
        if not match or not found:
            continue
        depth, name, value = len(match[1]), match[2], match[3]
        headings = {d: h for d, h in headings.items() if d < depth}
        if value is None:
            headings[depth] = name
        else:
            above = headings[max(headings)] if headings else ""
            found[-1].setdefault(f"{above}/{name}", value.strip())
    return [each for each in found if any(key.startswith("Clocks") for key in each)]


def number(said: dict[str, str], *keys: str) -> int | Missing:
    """The first of these that is a number; "*/NAME" is of any heading (r610 has more of them)."""
    every = [k for key in keys for k in (said if key.startswith("*") else [key]) if k.endswith(key.lstrip("*"))]
    for key in every:
        match = re.match(r"^(-?\d+)(?:\.\d+)? \S", said.get(key, ""))
        if match:
            return int(match[1])
    return NA


def facts(said: dict[str, str]) -> Gpu:
    """A GPU of the fact model, as the capture describes it."""
    mask = 0
    for key, value in said.items():
        name = REASON_WORDS.get(key.rpartition("/")[2], "")
        if name and value == "Active":
            mask |= BITS[name]
    limit = number(said, "*/Current Power Limit", "Power Readings/Power Limit")
    default = number(said, "*/Default Power Limit")
    clock, most = number(said, "Clocks/SM"), number(said, "Max Clocks/SM")
    state = {"Completed": 3, "In Progress": 2, "Not Started": 1}.get(said.get("Fabric/State", ""))
    memory = number(said, "FB Memory Usage/Used")
    load = GpuLoad(
        margin_celsius=number(said, "Temperature/GPU T.Limit Temp"),
        slowdown_celsius=number(said, "Temperature/GPU Slowdown Temp"),
        memory_celsius=number(said, "Temperature/Memory Current Temp"),
        memory_max_celsius=number(said, "Temperature/Memory Max Operating Temp"),
        clock_sm_max_hertz=most if isinstance(most, Missing) else most * 10**6,
        power_default_watts=default if isinstance(default, Missing) else float(default),
        fabric=NA if state is None else GpuFabric(state=state, status=0, clique=0, cluster="0" * 32),
    )
    return replace(
        gpu(0),
        throttle_reasons=mask,
        utilization_percent=number(said, "Utilization/GPU", "Utilization/Gpu"),
        mig_current=said.get("MIG Mode/Current") == "Enabled",
        temperature_celsius=number(said, "Temperature/GPU Current Temp"),
        power_limit_watts=limit if isinstance(limit, Missing) else float(limit),
        clock_sm_hertz=clock if isinstance(clock, Missing) else clock * 10**6,
        memory_used_bytes=memory if isinstance(memory, Missing) else memory << 20,
        processes=(GpuProcess(1, 1, ProcessOwner(job=1)),) if "/Process ID" in " ".join(said) else (),
        load=load,
    )


def mig_devices(text: str) -> tuple[MigDevice, ...]:
    """The MIG devices of a capture of one GPU, as often as nvidia-smi said them."""
    found = []
    for block in text.split("    MIG Device\n")[1:]:
        own = block.partition("Shared BAR1")[0]
        values = {key: int(value) for key, value in re.findall(r"^ +(\S.*?) +: (\d+)(?: MiB)?$", own, re.MULTILINE)}
        found.append(
            MigDevice(
                uuid=f"MIG-{len(found)}",
                gi=values["GPU Instance ID"],
                ci=values["Compute Instance ID"],
                memory_total_bytes=values["Total"] << 20,
                memory_used_bytes=values["Used"] << 20,
                sram_uncorrected=values["SRAM Uncorrectable"],
                processes=(),
            )
        )
    return tuple(found)


def test_recorded_mig_devices_are_read() -> None:
    capture = DATA / "linux-x86_64__nvidia-h200-mig__590.48.01.txt"
    if not capture.exists():
        pytest.skip(f"{capture} is absent")
    devices = mig_devices(capture.read_text())
    assert [(d.gi, d.ci) for d in devices] == [(2, 0), (2, 1), (3, 0), (9, 0), (10, 0)] * 2
    assert [d.memory_used_bytes for d in devices[:3]] == [22 << 20, 22 << 20, 17 << 20], "an idle instance is not empty"


CAPTURES = sorted(p for p in DATA.glob("*") if "Clocks" in p.read_text(errors="replace")) if DATA.is_dir() else []


def test_captures_are_there() -> None:
    if not DATA.is_dir():
        pytest.skip(f"no recorded nvidia-smi outputs: {DATA} is absent")
    assert len(CAPTURES) >= 8


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda p: p.name)
def test_recorded_gpus_are_quiet(capture: Path) -> None:
    text = capture.read_text(errors="replace")
    gpus = [replace(facts(said), mig_devices=mig_devices(text)) for said in sections(text)]
    assert gpus
    assert any(isinstance(g.throttle_reasons, int) and isinstance(g.temperature_celsius, int) for g in gpus)
    for each in gpus:
        found: list[Finding] = []
        for module in MODULES:
            one: Any = module
            found += one.check.findings(node(gpus=(each,)), Past(available=True), one.Params())
        assert [f.summary for f in found] == []
