"""Unmodified outside clients agree with the machine tree: nvitop and gpustat."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


def run(machine, *command: str) -> str:
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]], env=machine.environment | {"COLUMNS": "100"},
        capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.mark.parametrize("tree", ["hgx-h100", "hgx-a100", "l40s-pcie"])
def test_gpustat_agrees(tree, machine_of):
    machine = machine_of(tree)
    shown = json.loads(run(machine, "gpustat", "--json"))["gpus"]
    assert [(g["index"], g["uuid"], g["name"], g["memory.total"], g["memory.used"], g["temperature.gpu"]) for g in shown] == [
        (g["index"], g["uuid"], g["name"], g["memory"]["total_bytes"] >> 20, g["memory"]["used_bytes"] >> 20,
         g["temperature"]["gpu_celsius"])
        for g in machine.gpus
    ]  # fmt: skip


@pytest.mark.parametrize("tree", ["hgx-h100", "hgx-a100", "l40s-pcie"])
def test_nvitop_agrees(tree, machine_of):
    machine = machine_of(tree)
    machine.faults.set(2, "memory.used_bytes", 8 << 30)
    machine.faults.set(5, "temperature.gpu_celsius", 83)
    shown = run(machine, "nvitop", "-1", "--no-unicode")
    addresses = re.findall(r"^\|\s+(\d+)\s.*?([0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.\d)", shown, re.MULTILINE)
    assert [(int(index), bdf[4:].lower()) for index, bdf in addresses] == [(g["index"], g["pci"]) for g in machine.gpus]
    total = machine.gpus[0]["memory"]["total_bytes"]
    used = re.findall(r"\|\s+(\S+) / (\S+)GiB \|", shown)
    assert [u for u, _ in used] == ["0B", "0B", "8192MiB", "0B", "0B", "0B", "0B", "0B"]
    assert [float(t) for _, t in used] == pytest.approx([total / 2**30] * 8, abs=0.06)
    assert re.findall(r"(\d+)C ", shown) == ["34"] * 5 + ["83"] + ["34"] * 2


def test_nvitop_and_gpustat_show_a_lost_gpu_and_go_on(machine):
    machine.faults.lost(3)
    shown = run(machine, "nvitop", "-1", "--no-unicode")
    assert re.search(rf"^\|   3  N/A +N/A \| 0000{machine.gpus[3]['pci'].upper()} N/A ", shown, re.MULTILINE)
    assert shown.count(" H100 80GB HBM3 ") == 7
    names = [g["name"] for g in json.loads(run(machine, "gpustat", "--json"))["gpus"]]
    assert len(names) == 8 and names[4] == machine.gpus[4]["name"] and "GPU is lost" in names[3]
    machine.faults.handle_lost(3)
    assert re.search(r"^\|   3  ERROR: GPU is Lost ", run(machine, "nvitop", "-1", "--no-unicode"), re.MULTILINE)
