#!/usr/bin/python3
"""Behaves like all_reduce_perf of nccl-tests, with times whose truth is known, and like a GEMM loop. It needs no GPU.

Called by its name (a link): all_reduce_perf, or gemm_loop. The file truth.json beside the link's folder says what is true:

    noise, tails, drift   as in tests/nccl/played_launches.py
    gains                 by "NAME=VALUE" in the environment, and by size in bytes: how much faster that is
    gemm                  by "NAME=VALUE": how much faster the GEMM loop is then
    wrong, crash, hang, cut, unchecked  a "NAME=VALUE" with which the test has a wrong value, and so on
    nccl                  the version that it says; version_of: by "NAME=VALUE"

Format: NVIDIA/nccl-tests src/util.cu; NCCL's lines: NCCL 2.30.7 src/init.cc. No line is copied from anybody's run.
"""

import fcntl
import json
import math
import os
import random
import signal
import sys
import time

HERE = os.path.dirname(os.path.abspath(sys.argv[0]))
with open(os.path.join(HERE, "..", "truth.json")) as file:
    TRUTH = json.load(file)
RANK, RANKS = int(os.environ.get("SLURM_PROCID", "0")), int(os.environ.get("SLURM_STEP_NUM_TASKS", "2"))
#: What runs beside the GEMM loop, what it has printed rates beside, and the file that it locks while it runs.
BESIDE, PRINTED, RUNS = (os.path.join(HERE, "..", name) for name in ("beside", "printed", "runs"))
NODES = int(os.environ.get("SLURM_STEP_NUM_NODES", "1"))


def true(name: str) -> bool:
    """Is the setting of TRUTH[name], such as NCCL_ALGO=Tree, in the environment? "" is always true."""
    setting = TRUTH.get(name)
    return setting is not None and is_set(setting)


def is_set(setting: str) -> bool:
    name, _, value = setting.partition("=")
    return not setting or os.environ.get(name) == value


def counted() -> int:
    """The number of this launch, counted in a file as long as that number."""
    path = os.path.join(HERE, "..", "launches")
    with open(path, "a") as counter:
        counter.write(".")
        return counter.tell()


def size(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1].upper()] if text[-1].upper() in units else int(text)


def say(text: str) -> None:
    print(text, flush=True)


def all_reduce() -> None:
    options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))
    say_info = os.environ.get("NCCL_DEBUG") == "INFO"
    if say_info:
        node = os.environ.get("SLURMD_NODENAME", "gpu1")
        local = f"localRanks {max(1, RANKS // NODES)} localRank 0 MNNVL 0"
        say(f"{node}:71:80 [0] NCCL INFO Using network {TRUTH.get('net', 'IB')}")
        say(f"{node}:71:80 [0] NCCL INFO comm 0x5581 rank {RANK} nRanks {RANKS} nNodes {NODES} {local}")
    if RANK:
        return
    chance, number = (
        random.Random(TRUTH.get("seed", 0) * 100_003 + counted()),
        os.path.getsize(os.path.join(HERE, "..", "launches")),
    )
    noise = TRUTH.get("noise", 0.005)
    common = chance.gauss(0, noise) + math.log1p(TRUTH.get("drift", 0.0)) * number / 50
    if chance.random() < TRUTH.get("tails", 0.0):
        common += math.log(1 / (1 - chance.uniform(0.05, 0.30)))
    gains = {}
    for setting, by_size in TRUTH.get("gains", {}).items():
        gains.update(by_size if is_set(setting) else {})
    version = next((v for s, v in TRUTH.get("version_of", {}).items() if is_set(s)), TRUTH.get("nccl", "2.29.3+cuda13.1"))
    least, most, factor = size(options.get("-b", "8K")), size(options.get("-e", "1G")), int(options.get("-f", "4"))
    say("# nccl-tests version 2.17.9 nccl-headers=22903 nccl-library=22903")
    say("# Collective test starting: all_reduce_perf")
    say(f"# nThread 1 nGpus 1 minBytes {least} maxBytes {most} step: {factor}(factor) warmup iters: 1 iters: 20 validation: 1")
    for rank in range(RANKS):
        where = f"on       gpu1 device {rank:2d} [0000:{27 + rank:02x}:00] NVIDIA H100 80GB HBM3"
        say(f"#  Rank {rank:2d} Group  0 Pid {1000 + rank:6d} {where}")
    say(f"NCCL version {version}\n#")
    say(
        f"# {'size':>10}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}  "
        + "  ".join(["time   algbw   busbw  #wrong"] * 2)
    )
    if true("crash"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if true("hang"):
        time.sleep(3600)
    bytes_ = least
    while bytes_ <= most:
        sides = ""
        for _ in range(2):
            time_us = (10 + bytes_ / 4e5) * math.exp(common + chance.gauss(0, noise / 2)) / (1 + gains.get(str(bytes_), 0.0))
            wrong = "N/A" if true("unchecked") else "2" if true("wrong") and bytes_ == least else "0"
            sides += f"  {time_us:8.3f}  {bytes_ / time_us / 1000:6.2f}  {bytes_ / time_us / 1000:6.2f}  {wrong:>6}"
        say(f"{bytes_:12d}  {bytes_ // 4:12d}  {'float':>8}  {'sum':>6}  {-1:6d}{sides}")
        bytes_ *= factor
        if true("cut") and bytes_ > 1 << 20:
            return
    say(f"# Out of bounds values : {2 if true('wrong') else 0} {'FAILED' if true('wrong') else 'OK'}")
    say("# Avg bus bandwidth    : 123.4\n#\n# Collective test concluded: all_reduce_perf")
    sys.exit(1 if true("wrong") else 0)


def read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return ""


def write(path: str, text: str) -> None:
    with open(f"{path}.{os.getpid()}", "w") as file:
        file.write(text)
    os.replace(file.name, path)


def loop_runs() -> bool:
    """Whether a GEMM loop holds its lock."""
    lock = os.open(RUNS, os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def gemm_loop() -> None:
    """Print a rate, and then rates beside the launch that comes, until SIGTERM comes. They depend on what that launch has set."""
    chance, known, printed = random.Random(counted()), read(BESIDE), 0
    running = known
    lock = os.open(RUNS, os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_SH)
    while True:
        if running != known or not printed:
            gain = TRUTH["gemm"].get(running.partition(" ")[2] if running != known else "", 0.0)
            say(f"{430_000 * (1 + gain) * math.exp(chance.gauss(0, 0.002)):.0f} Gflop/s")
            printed += 1
        if printed == 11:
            write(PRINTED, running)
        time.sleep(0.01)
        running = read(BESIDE)


if os.path.basename(sys.argv[0]) == "gemm_loop":
    gemm_loop()
if "gemm" in TRUTH:
    mine = f"{os.getpid()}.{time.time_ns()} {next(filter(is_set, TRUTH['gemm']), '')}"
    if RANK == 0:
        write(BESIDE, mine)
    while RANK == 0 and loop_runs() and read(PRINTED) != mine:  # it prints ten rates beside this, however busy the machine is
        time.sleep(0.01)
all_reduce()
