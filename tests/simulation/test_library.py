"""The library's binary interface: names, sizes, and what it says to callers that do things wrong."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pynvml as n
import pytest

from tests.lab.nvml.library import build, implemented
from tests.lab.nvml.nvml_layout import entry_points


def exported(library: Path) -> set[str]:
    output = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return {line.split()[2] for line in output.splitlines() if " T " in line}


def test_it_exports_every_name_of_the_binding_and_nothing_else(library):
    assert exported(library) == set(entry_points())
    assert implemented() <= set(entry_points())
    assert len(implemented()) > 130


def test_it_is_found_by_both_names(library):
    dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    assert re.search(r"SONAME.*\[libnvidia-ml\.so\.1\]", dynamic)
    bare = library.parent / "libnvidia-ml.so"
    assert bare.is_symlink() and bare.resolve() == library.resolve()


def test_it_needs_no_newer_c_library_than_debian_12_has(library):
    symbols = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True).stdout
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"@GLIBC_([\d.]+)", symbols)}
    assert versions and max(versions) <= (2, 36)


def test_building_again_changes_nothing(library):
    before = library.stat()
    assert build(library.parent) == library
    assert library.stat().st_mtime_ns == before.st_mtime_ns


def test_before_init_every_call_says_uninitialised(machine):
    code = (
        "import ctypes, sys, json\n"
        "lib = ctypes.CDLL('libnvidia-ml.so.1')\n"
        "room = ctypes.create_string_buffer(4096)\n"
        "print(json.dumps({name: getattr(lib, name)(room, room, room, room, room) for name in sys.argv[1:]}))\n"
    )
    names = [name for name in entry_points() if not name.startswith("nvmlInit") and name != "nvmlErrorString"]
    output = subprocess.run(
        [sys.executable, "-c", code, *names], env=machine.environment, capture_output=True, text=True, timeout=60
    )
    assert output.returncode == 0, output.stderr
    answers = json.loads(output.stdout)
    assert {name for name in names if answers[name] != n.NVML_ERROR_UNINITIALIZED} == set()


def test_bad_handles_and_null_pointers_never_crash_a_client(machine):
    """Every device call with handles that are none, and with a good one and null pointers."""
    code = (
        "import ctypes, sys, json\n"
        "lib = ctypes.CDLL('libnvidia-ml.so.1'); V = ctypes.c_void_p\n"
        "assert lib.nvmlInit_v2() == 0\n"
        "good = V(); assert lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(good)) == 0\n"
        "last = V(); lib.nvmlDeviceGetHandleByIndex_v2(7, ctypes.byref(last))\n"
        "one = (last.value - good.value) // 7\n"
        "bad = [0, 1, good.value + 1, good.value - one, last.value + one, last.value + 100 * one, 2**64 - 1]\n"
        "out = {}\n"
        "for name in sys.argv[1:]:\n"
        "    call = getattr(lib, name)\n"
        "    out[name] = [[call(V(h), V(), V(), V(), V()) for h in bad], call(good, V(), V(), V(), V())]\n"
        "print(json.dumps(out))\n"
    )
    # Lookups take no handle, and those whose other arguments are plain numbers have no null pointer to refuse.
    names = sorted(x for x in implemented() if x.startswith("nvmlDevice") and "GetHandleBy" not in x and "GetCount" not in x)
    output = subprocess.run(
        [sys.executable, "-c", code, *names], env=machine.environment, capture_output=True, text=True, timeout=60
    )
    assert output.returncode == 0, output.stderr
    answers = json.loads(output.stdout)
    assert {name for name in names if set(answers[name][0]) != {n.NVML_ERROR_INVALID_ARGUMENT}} == set()
    refused = (n.NVML_ERROR_INVALID_ARGUMENT, n.NVML_ERROR_NOT_SUPPORTED, n.NVML_ERROR_INSUFFICIENT_SIZE)
    no_pointer = {x for x in names if x.startswith(("nvmlDeviceSet", "nvmlDeviceReset")) or x == "nvmlDeviceValidateInforom"}
    assert {name for name in names if answers[name][1] not in refused} <= no_pointer


def test_what_is_not_simulated_is_not_supported(gpus):
    with pytest.raises(n.NVMLError_NotSupported):
        n.nvmlDeviceGetGspFirmwareVersion(gpus[0])
    with pytest.raises(n.NVMLError_NotSupported):
        n.nvmlSystemGetConfComputeState()


def test_short_buffers_are_refused_and_not_overrun(gpus, machine):
    library = n.nvmlLib
    room = ctypes.create_string_buffer(b"#" * 32, 32)
    length = len(machine.gpus[0]["uuid"])
    assert library.nvmlDeviceGetUUID(gpus[0], room, 8) == n.NVML_ERROR_INSUFFICIENT_SIZE
    assert library.nvmlDeviceGetName(gpus[0], room, 21) == n.NVML_ERROR_INSUFFICIENT_SIZE  # its text has 21 letters
    assert room.raw == b"#" * 32
    assert library.nvmlDeviceGetName(gpus[0], room, 22) == n.NVML_SUCCESS and length > 21
    assert room.value == b"NVIDIA H100 80GB HBM3"


def test_a_structure_of_an_unknown_version_is_refused(gpus):
    info = n.c_nvmlGpuFabricInfo_v2_t()
    info.version = 0
    with pytest.raises(n.NVMLError):
        n.nvmlDeviceGetGpuFabricInfoV(gpus[0], n.byref(info))
    for known, layout in (
        (n.nvmlGpuFabricInfo_v2, n.c_nvmlGpuFabricInfo_v2_t),
        (n.nvmlGpuFabricInfo_v3, n.c_nvmlGpuFabricInfo_v3_t),
    ):
        info = layout()
        info.version = known
        n.nvmlDeviceGetGpuFabricInfoV(gpus[0], n.byref(info))
        assert (info.version, info.state) == (known, 3)


def test_a_node_without_the_values_is_a_node_without_a_driver(machine, load):
    load(machine)
    machine.conf.unlink()
    with pytest.raises(n.NVMLError_DriverNotLoaded):
        n.nvmlInit()
    with pytest.raises(n.NVMLError_Uninitialized):
        n.nvmlDeviceGetCount()


def test_init_and_shutdown_are_counted(machine, load):
    load(machine)
    n.nvmlInit()
    n.nvmlInit()
    n.nvmlShutdown()
    assert n.nvmlDeviceGetCount() == 8
    n.nvmlShutdown()
    with pytest.raises(n.NVMLError_Uninitialized):
        n.nvmlShutdown()


def test_the_trace_names_each_entry_point_once(machine, tmp_path):
    trace = tmp_path / "trace"
    code = "import pynvml as n; n.nvmlInit(); n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByIndex(5)); n.nvmlShutdown()"
    environment = machine.environment | {"FAIRLEAD_SIM_TRACE": str(trace)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as process:
        assert process.wait(20) == 0
    lines = [line.split() for line in trace.read_text().splitlines()]
    assert {line[0] for line in lines} == {str(process.pid)}
    assert [line[1:] for line in lines] == [
        ["nvmlInitWithFlags"], ["nvmlDeviceGetHandleByIndex_v2"], ["nvmlDeviceGetName", "5"], ["nvmlShutdown"],
    ]  # fmt: skip


def test_processes_of_a_gpu_are_listed(gpus, machine):
    machine.conf.write_text(
        machine.conf.read_text().replace("gpu.2.processes.count=0", "gpu.2.processes.count=2")
        + f"gpu.2.processes.0.pid={os.getpid()}\ngpu.2.processes.0.used_bytes=1048576\n"
        "gpu.2.processes.1.pid=7\ngpu.2.processes.1.type=G\n"
    )
    n.nvmlInit()
    (compute,) = n.nvmlDeviceGetComputeRunningProcesses(gpus[2])
    assert (compute.pid, compute.usedGpuMemory) == (os.getpid(), 1048576)
    (graphics,) = n.nvmlDeviceGetGraphicsRunningProcesses(gpus[2])
    assert (graphics.pid, graphics.usedGpuMemory) == (7, None)
    assert n.nvmlDeviceGetComputeRunningProcesses(gpus[3]) == []
