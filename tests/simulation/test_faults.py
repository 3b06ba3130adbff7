"""Every fault of the control file, as a client sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pynvml as n
import pytest

from tests.lab.faults import Faults, main


def settle() -> None:
    """The library looks at its files at most once in a millisecond."""
    time.sleep(0.003)


def client(machine, body: str) -> subprocess.Popen:
    """A Python process with the library loaded; `body` may use `n` (pynvml), `h` (handles) and `say`."""
    code = (
        "import sys, pynvml as n\n"
        "def say(*words): print(*words, flush=True)\n"
        "n.nvmlInit(); h = [n.nvmlDeviceGetHandleByIndex(i) for i in range(8)]\n" + body
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], env=machine.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_value_is_set_and_stepped_and_made_unreadable(gpus, machine):
    machine.faults.set(2, "temperature.gpu_celsius", 91)
    machine.faults.step(2, "ecc.volatile_corrected", 5)
    machine.faults.step(2, "ecc.volatile_corrected", 2)
    machine.faults.set(3, "ecc", {"error": n.NVML_ERROR_UNKNOWN})
    machine.faults.set(4, "ecc.volatile_corrected", {"error": n.NVML_ERROR_NOT_SUPPORTED})
    machine.faults.set(5, "name", "NVIDIA  H100 with  spaces")
    settle()
    assert n.nvmlDeviceGetTemperature(gpus[2], 0) == 91
    assert n.nvmlDeviceGetTotalEccErrors(gpus[2], 0, 0) == 7
    assert n.nvmlDeviceGetTotalEccErrors(gpus[3], 1, 1) == 0  # a value of its own hides the parent's error
    with pytest.raises(n.NVMLError_NotSupported):
        n.nvmlDeviceGetTotalEccErrors(gpus[4], 0, 0)
    assert n.nvmlDeviceGetName(gpus[5]) == "NVIDIA  H100 with  spaces"
    assert n.nvmlDeviceGetTemperature(gpus[1], 0) == 34


def test_a_lost_gpu_keeps_its_identity_only(gpus, machine):
    machine.faults.lost(3)
    settle()
    for call in (
        n.nvmlDeviceGetName, n.nvmlDeviceGetPowerUsage, n.nvmlDeviceGetMemoryInfo, n.nvmlDeviceGetRemappedRows,
        lambda h: n.nvmlDeviceGetFieldValues(h, [1]), lambda h: n.nvmlDeviceGetTopologyCommonAncestor(h, gpus[0]),
    ):  # fmt: skip
        with pytest.raises(n.NVMLError_GpuIsLost):
            call(gpus[3])
    assert n.nvmlDeviceGetUUID(gpus[3]) == machine.gpus[3]["uuid"]
    assert n.nvmlDeviceGetCount() == 8
    assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByIndex(3)) == 3
    machine.faults.handle_lost(3)
    settle()
    for find, by in ((n.nvmlDeviceGetHandleByIndex, 3), (n.nvmlDeviceGetHandleByUUID, machine.gpus[3]["uuid"])):
        with pytest.raises(n.NVMLError_GpuIsLost):
            find(by)
    assert n.nvmlDeviceGetName(gpus[2]) == machine.gpus[2]["name"]


@pytest.mark.parametrize("named", ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", "*"])
def test_an_error_hits_the_named_call_on_the_named_gpu(named, gpus, machine):
    machine.faults.error(1, named, n.NVML_ERROR_UNKNOWN)
    settle()
    with pytest.raises(n.NVMLError_Unknown):
        n.nvmlDeviceGetMemoryInfo(gpus[1], n.nvmlMemory_v2)
    n.nvmlDeviceGetMemoryInfo(gpus[0], n.nvmlMemory_v2)
    machine.faults.error(1, named, 0)
    settle()
    n.nvmlDeviceGetMemoryInfo(gpus[1], n.nvmlMemory_v2)


def test_an_error_hits_calls_that_have_no_gpu(gpus, machine):
    machine.faults.error(None, "nvmlInit", n.NVML_ERROR_DRIVER_NOT_LOADED)
    machine.faults.error(None, "nvmlDeviceGetCount", n.NVML_ERROR_IRQ_ISSUE)
    settle()
    with pytest.raises(n.NVMLError_IrqIssue):
        n.nvmlDeviceGetCount()
    with pytest.raises(n.NVMLError_DriverNotLoaded):
        n.nvmlInit()
    machine.faults.clear()
    settle()
    assert n.nvmlDeviceGetCount() == 8


def test_a_delay_is_at_least_as_long_as_asked_and_only_there(gpus, machine):
    machine.faults.delay("nvmlDeviceGetPowerUsage", 60, gpu=6)
    settle()
    begun = time.monotonic()
    n.nvmlDeviceGetPowerUsage(gpus[6])
    assert time.monotonic() - begun >= 0.06
    others = threading.Thread(target=n.nvmlDeviceGetPowerUsage, args=(gpus[6],))
    others.start()
    assert n.nvmlDeviceGetPowerUsage(gpus[5]) == 70000  # not held up by the one that waits
    others.join()


def test_a_hang_leaves_other_calls_alone_and_can_be_lifted(machine):
    machine.faults.hang("nvmlDeviceGetTemperature", gpu=4)
    with client(machine, "say('ready'); n.nvmlDeviceGetTemperature(h[3], 0); say('other'); "
                "n.nvmlDeviceGetTemperature(h[4], 0); say('back')") as process:  # fmt: skip
        assert process.stdout.readline() == "ready\n"
        assert process.stdout.readline() == "other\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        machine.faults.lift()
        assert process.stdout.readline() == "back\n"
        assert process.wait(90) == 0


def test_a_hung_client_dies_of_sigkill(machine):
    machine.faults.hang("*")
    with client(machine, "") as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.kill()
        assert process.wait(90) == -signal.SIGKILL


def test_a_hang_in_one_thread_leaves_the_others_free(gpus, machine):
    machine.faults.hang("nvmlDeviceGetName", gpu=0)
    settle()
    hung = threading.Thread(target=n.nvmlDeviceGetName, args=(gpus[0],))
    hung.start()
    machine.faults.set(1, "temperature.gpu_celsius", 77)
    settle()
    assert n.nvmlDeviceGetTemperature(gpus[1], 0) == 77
    assert hung.is_alive()
    machine.faults.lift()
    hung.join(90)
    assert not hung.is_alive()


def test_a_crash_ends_the_client_in_the_call(machine):
    machine.faults.crash("nvmlDeviceGetSerial", gpu=1)
    with client(machine, "n.nvmlDeviceGetSerial(h[0]); say('one'); n.nvmlDeviceGetSerial(h[1]); say('two')") as process:
        output, _ = process.communicate(timeout=90)
        assert (output, process.returncode) == ("one\n", -signal.SIGABRT)


def test_xid_events_come_once_in_order_with_their_gpu(gpus, machine):
    machine.faults.xid(0, 31)  # before registration: lost, as with the driver
    settle()
    events = n.nvmlEventSetCreate()
    for gpu in gpus[:7]:
        n.nvmlDeviceRegisterEvents(gpu, n.nvmlEventTypeXidCriticalError, events)
    machine.faults.xid(7, 13)  # not registered
    machine.faults.xid(3, 79)
    machine.faults.clear()  # what happened has happened
    machine.faults.xid(5, 48)
    seen = [n.nvmlEventSetWait_v2(events, 5000) for _ in range(2)]
    assert [(n.nvmlDeviceGetIndex(e.device), e.eventType, e.eventData) for e in seen] == [(3, 8, 79), (5, 8, 48)]
    with pytest.raises(n.NVMLError_Timeout):
        n.nvmlEventSetWait_v2(events, 20)
    n.nvmlEventSetFree(events)
    with pytest.raises(n.NVMLError_InvalidArgument):
        n.nvmlEventSetWait_v2(events, 20)


def test_clear_gives_the_machine_of_the_tree_again(gpus, machine):
    faults = machine.faults
    faults.lost(0)
    faults.error(None, "*", 999)
    faults.set(1, "pcie.width_current", 4)
    settle()
    faults.clear()
    faults.step(2, "pcie.replays", 3)  # what follows holds
    settle()
    assert n.nvmlDeviceGetName(gpus[0]) == machine.gpus[0]["name"]
    assert n.nvmlDeviceGetCurrPcieLinkWidth(gpus[1]) == 16
    assert n.nvmlDeviceGetPcieReplayCounter(gpus[2]) == 3


def test_a_new_client_sees_the_faults_that_are_there(machine):
    machine.faults.set(0, "temperature.gpu_celsius", 99)
    with client(machine, "say(n.nvmlDeviceGetTemperature(h[0], 0))") as process:
        assert process.communicate(timeout=90)[0] == "99\n"


def test_a_removed_control_file_is_a_fresh_machine(gpus, machine):
    machine.faults.lost(0)
    settle()
    with pytest.raises(n.NVMLError_GpuIsLost):
        n.nvmlDeviceGetName(gpus[0])
    machine.faults.control.unlink()
    settle()
    assert n.nvmlDeviceGetName(gpus[0]) == machine.gpus[0]["name"]


def test_half_a_line_waits_for_its_end_and_nonsense_is_ignored(gpus, machine):
    with machine.faults.control.open("a", buffering=1) as control:
        control.write("nonsense\n\nlost\nerror nvmlDeviceGetName\nset gpu.0.temperature.gpu_celsius 5")
        control.flush()
        settle()
        assert n.nvmlDeviceGetTemperature(gpus[0], 0) == 34
        control.write("5\n")
        control.flush()
        settle()
        assert n.nvmlDeviceGetTemperature(gpus[0], 0) == 55
    assert n.nvmlDeviceGetName(gpus[0]) == machine.gpus[0]["name"]


def test_no_content_of_its_files_brings_a_client_down(machine):
    """Hostile values and lines, many times over, in a process of its own."""
    body = (
        "import os, random, time\n"
        "chance = random.Random(7)\n"
        "conf, control = os.environ['FAIRLEAD_SIM_NVML'], os.environ['FAIRLEAD_SIM_CONTROL']\n"
        "good = open(conf).read()\n"
        "verbs = ['set', 'step', 'lost', 'handle-lost', 'error', 'lift', 'dstate', 'xid', 'clear', 'nonsense']\n"
        "words = ['0', '-1', '9' * 30, '*', 'nvmlX', 'gpu.0.name', 'gpu.1.ecc', 'a' * 300, '=', 'error', '%s%n', '\\0']\n"
        "for turn in range(30):\n"
        "    text = good if turn % 3 else ''.join(chance.choice(good + '=.\\0') for _ in range(3000))\n"
        "    open(conf, 'w').write(text)\n"
        "    open(control, 'w').write('')\n"
        "    for _ in range(10):\n"
        "        with open(control, 'a') as file:\n"
        "            for _ in range(chance.randrange(5)):\n"
        "                line = [chance.choice(verbs)] + [chance.choice(words) for _ in range(chance.randrange(5))]\n"
        "                file.write(' '.join(line) + chance.choice(['\\n', '\\n\\n', '']))\n"
        "        time.sleep(0.0015)\n"
        "        for call in (n.nvmlDeviceGetName, n.nvmlDeviceGetMemoryInfo, n.nvmlDeviceGetRemappedRows):\n"
        "            try: call(h[chance.randrange(8)])\n"
        "            except (n.NVMLError, UnicodeDecodeError): pass\n"
        "say('done')\n"
    )
    with client(machine, body) as process:
        output, errors = process.communicate(timeout=150)
        assert output == "done\n", errors


def test_a_setter_is_seen_by_every_process_and_read_back(gpus, machine):
    if os.geteuid() != 0:
        pytest.skip("the driver lets only root change persistence mode, and so does the simulation")
    assert machine.gpus[0]["persistence_mode"] == 1
    n.nvmlDeviceSetPersistenceMode(gpus[0], 0)
    n.nvmlDeviceSetPowerManagementLimit(gpus[0], 500000)
    assert n.nvmlDeviceGetPersistenceMode(gpus[0]) == 0
    with client(machine, "say(n.nvmlDeviceGetPersistenceMode(h[0]), n.nvmlDeviceGetEnforcedPowerLimit(h[0]))") as other:
        assert other.communicate(timeout=90)[0] == "0 500000\n"
    with pytest.raises(n.NVMLError_InvalidArgument):
        n.nvmlDeviceSetPowerManagementLimit(gpus[0], 900000)


def test_a_child_of_fork_and_its_parent_both_go_on(machine):
    body = (
        "import os, threading\n"
        "stop = []\n"
        "def poll():\n"
        "    while not stop: n.nvmlDeviceGetTemperature(h[0], 0)\n"
        "threads = [threading.Thread(target=poll) for _ in range(2)]\n"
        "[t.start() for t in threads]\n"
        "for _ in range(20):\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        os._exit(0 if n.nvmlDeviceGetPowerUsage(h[1]) == 70000 else 1)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "stop.append(1); [t.join() for t in threads]; say('done')\n"
    )
    with client(machine, body) as process:
        assert process.communicate(timeout=150)[0] == "done\n"


def test_faults_refuse_what_the_library_would_not_understand(tmp_path):
    faults = Faults(tmp_path / "control")
    for bad in (
        lambda: faults.hang("rm -rf"), lambda: faults.set(0, "two words", 1), lambda: faults.set(0, "name", "a\nlost 0"),
        lambda: faults.lost(-1), lambda: faults.set(0, "name", ""),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            bad()
    assert not faults.control.exists()


def test_the_command_line_writes_the_same_lines(tmp_path, capsys):
    control = tmp_path / "control"
    for words in ("lost 3", "set 1 ecc.volatile_corrected error:999", "hang nvmlDeviceGetName", "error * nvmlInit 9",
                  "delay nvmlDeviceGetName 20 4", "xid 2 79", "lift"):  # fmt: skip
        assert main([str(control), *words.split()]) == 0
    assert control.read_text().splitlines() == [
        "lost 3", "set gpu.1.ecc.volatile_corrected error 999", "hang nvmlDeviceGetName *", "error nvmlInit 9 *",
        "delay nvmlDeviceGetName 20 4", "xid 2 79", "lift",
    ]  # fmt: skip
    for words in ("", "burn 3", "lost x", "lost 1 2", "lost"):
        assert main([str(control), *words.split()]) == 64
    assert "usage" in capsys.readouterr().err
