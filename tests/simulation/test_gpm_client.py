"""A client of GPM that we did not write agrees with the simulated load: the system monitor of wandb, which asks NVML itself.

wandb comes from the package index at the version of ``gpm_client.txt``, into a virtual environment in the lab's folder. It runs
without network (mode offline) and writes what it read into a file. That is a log in LevelDB's format (blocks of 32 KiB, and
records with a head of 7 bytes), whose records are protobuf messages of wandb.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.accounting.readers import ReaderMissing, environment
from tests.simulation.conftest import Machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
#: argv: the folder, and for how many seconds it watches. It prints the values of each metric.
CLIENT = """
import collections, glob, json, struct, sys, time
import wandb
from wandb.proto.wandb_internal_pb2 import Record
folder, seconds = sys.argv[1], float(sys.argv[2])
wandb.init(project="x", settings=wandb.Settings(mode="offline", x_stats_sampling_interval=1.0, console="off", root_dir=folder))
time.sleep(seconds)
wandb.finish()
(path,) = glob.glob(folder + "/wandb/offline-*/*.wandb")
text, at, part, found = open(path, "rb").read(), 7, b"", collections.defaultdict(list)
while at + 7 <= len(text):
    if 32768 - at % 32768 < 7:
        at += 32768 - at % 32768
        continue
    _, size, kind = struct.unpack("<IHB", text[at : at + 7])
    part = (part if kind in (3, 4) else b"") + text[at + 7 : at + 7 + size]
    at += 7 + size
    if kind in (1, 4):
        for item in Record.FromString(part).stats.item:
            found[item.key].append(json.loads(item.value_json))
print(json.dumps(found))
"""


def test_wandb_reads_the_same_load(machine: Machine, tmp_path: Path) -> None:
    machine.faults.work(0, "busy")
    machine.faults.work(1, "fake")
    machine.faults.work(2, "busy", 500, 1000)
    try:
        python = environment(Path(__file__).with_name("gpm_client.txt")) / "bin/python"
    except ReaderMissing as missing:
        pytest.skip(str(missing))
    quiet = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true", "HOME": str(tmp_path)}
    env = {key: value for key, value in machine.environment.items() if key != "PYTHONPATH"} | quiet
    words = [str(python), "-c", CLIENT, str(tmp_path), "8"]
    done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for gpu, wanted in enumerate(((80, 40, 50), (1, 0, 0), (40, 20, 25), (0, 0, 0))):
        for name, percent in zip(("smActive", "pipeTensorActive", "dramActive"), wanted, strict=True):
            values = found[f"gpu.{gpu}.{name}"]
            assert len(values) >= 2 and sum(values) / len(values) == pytest.approx(percent, abs=12 if gpu == 2 else 1), (
                gpu,
                name,
            )
    assert {found[f"gpu.{gpu}.gpu"][-1] for gpu in (0, 1)} == {100.0}, "only GPM tells work and a loop apart"
