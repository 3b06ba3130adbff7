#!/usr/bin/python3
"""Behaves like the programs that `fairlead accept` runs, with their options and in their output formats, without a GPU.

Called by their names (links): all_reduce_perf and its like, nvbandwidth, gpu_burn, dcgmi, ib_write_bw, nvidia-smi. What it
does is in the file modes/NODE/TOOL beside the link's folder: a mode and its argument, such as "slow 30"; "ok" where there is
none. Formats: NVIDIA/nccl-tests src/util.cu, NVIDIA/nvbandwidth README.md, wilicc/gpu-burn gpu_burn-drv.cpp, NVIDIA/DCGM
nvvs/include/NvvsJsonStrings.h, linux-rdma/perftest src/perftest_parameters.h. No line is copied from anybody's run.

Its Python is that of the lab's root: nothing but the standard library.
"""

import getopt
import json
import os
import signal
import sys
import time

NODE = os.environ.get("SLURMD_NODENAME", "none")
HERE = os.path.dirname(os.path.abspath(sys.argv[0]))
TOOL = os.path.basename(sys.argv[0])
GPUS = 8
BUSBW = {"all_reduce": 476.0, "all_gather": 362.0, "reduce_scatter": 363.0}


def mode() -> tuple[str, float]:
    try:
        with open(os.path.join(HERE, "..", "modes", NODE, TOOL)) as file:
            words = file.read().split()
    except FileNotFoundError:
        return "ok", 0.0
    return words[0], float(words[1]) if len(words) > 1 else 0.0


MODE, ARGUMENT = mode()
SPEED = 1 - ARGUMENT / 100 if MODE == "slow" else 1.0


def say(text: str = "", end: str = "\n") -> None:
    print(text, end=end, flush=True)


def gone_wrong(at: str) -> None:
    """The modes that end a program in its midst."""
    if MODE == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if MODE == "hang":
        say(at)
        signal.signal(signal.SIGTERM, signal.SIG_IGN if ARGUMENT else signal.SIG_DFL)
        while True:
            time.sleep(3600)
    if MODE == "exit":
        sys.exit(int(ARGUMENT))


def size(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1].upper()] if text[-1].upper() in units else int(text)


def nccl_tests(collective: str) -> None:
    letters = "t:g:b:e:i:f:n:m:w:N:p:I:K:c:o:d:r:z:y:T:hG:C:a:R:x:D:V:J:S:M:u:"
    given, _ = getopt.gnu_getopt(sys.argv[1:], letters)
    options = {name[1:]: value for name, value in given}
    least, most, factor = size(options.get("b", "32M")), size(options.get("e", "32M")), int(options.get("f", "1"))
    processes, rank = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")), int(os.environ.get("SLURM_PROCID", "0"))
    if "SLURM_STEP_ID" not in os.environ or os.environ["SLURM_STEP_ID"].startswith(("-", "42949672")):
        processes, rank = 1, 0  # the batch step: SLURM_PROCID is 0 there too
    ranks = int(options.get("g", "1")) * processes
    checked = int(options.get("c", "1"))
    if ranks > GPUS - (ARGUMENT if MODE == "lost" else 0):
        print(f"Invalid number of GPUs: {ranks} requested but only {GPUS - 1} were found.", file=sys.stderr)
        sys.exit(1)
    if MODE == "rank" and rank == int(ARGUMENT):
        print(f"{NODE}: Test NCCL failure common.cu:1108 'unhandled cuda error'", file=sys.stderr)
        print(f" .. {NODE} pid {os.getpid()}: Test failure common.cu:1281", file=sys.stderr, flush=True)
        sys.exit(3)
    if rank:
        return  # only the first rank prints
    if MODE == "noise":
        print("Authorization required, but no authorization protocol specified", file=sys.stderr)
    say("# nccl-tests version 2.17.9 nccl-headers=22903 nccl-library=22903")
    say(f"# Collective test starting: {collective}_perf")
    say(f"# nThread 1 nGpus {options.get('g', '1')} minBytes {least} maxBytes {most} step: {factor}(factor) warmup iters: 1")
    say("#\n# Using devices")
    for each in range(ranks):
        where = f"{NODE:>10} device {each:2d} [0000:{27 + each:02x}:00] NVIDIA H100 80GB HBM3"
        say(f"#  Rank {each:2d} Group  0 Pid {os.getpid():6d} on {where}")
    say("NCCL version 2.29.3+cuda13.1\n#")
    sides = "  ".join(["   time   algbw   busbw  #wrong"] * 2)
    say(f"# {'size':>10}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}  {sides}")
    bytes_, done = least, 0
    while bytes_ <= most:
        bus = BUSBW[collective] * SPEED * (1 + (hash_of(NODE) % 7 - 3) / 1000)
        algorithm = bus * ranks / (2 * (ranks - 1)) if collective == "all_reduce" else bus * ranks / (ranks - 1)
        side = f"  {bytes_ / algorithm / 1000:7.1f}  {algorithm:6.2f}  {bus:6.2f}"
        wrong = "N/A" if not checked else "3" if MODE == "wrong" and done == 1 else "0"
        row = f"{bytes_:12d}  {bytes_ // 4:12d}  {'float':>8}  {'sum':>6}  {-1:6d}{side}  {wrong:>6}{side}  {wrong:>6}"
        say(row.replace("  float", "\x00\x07fl##t") if MODE == "corrupt" and done == 1 else row)
        if done == 1:
            gone_wrong(row[:40])
        bytes_, done = bytes_ * factor if factor > 1 else most + 1, done + 1
    if MODE == "nofooter":
        return
    bad = 3 if MODE == "wrong" else 0
    say(f"# Out of bounds values : {bad} {'FAILED' if bad else 'OK'}")
    say(f"# Avg bus bandwidth    : {BUSBW[collective] * SPEED:g}\n#\n# Collective test concluded: {collective}_perf")
    sys.exit(1 if bad else 0)


def hash_of(text: str) -> int:
    return sum(map(ord, text))


def nvbandwidth() -> None:
    say("nvbandwidth Version: v0.8\nBuilt from Git version: v0.8\n\nCUDA Runtime Version: 12080\nDriver Version: 580.95.05\n")
    base = {"host_to_device_memcpy_ce": 55.2, "device_to_host_memcpy_ce": 54.8, "device_to_device_memcpy_read_ce": 391.0}
    for name in sys.argv[sys.argv.index("-t") + 1 :]:
        say(f"Running {name}.")
        gone_wrong("memcpy CE CPU(row)")
        if MODE == "error":
            say(f"[CUDA_ERROR_ILLEGAL_ADDRESS] an illegal memory access was encountered in {name}")
            sys.exit(1)
        pairs = name.startswith("device_to_device")
        say(
            "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)"
            if pairs
            else "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)"
        )
        say("  " + "".join(f"{gpu:10d}" for gpu in range(GPUS)))
        total = 0.0
        for row in range(GPUS if pairs else 1):
            cells = []
            for column in range(GPUS):
                slow = SPEED if MODE == "slow" and column == 3 else 1.0  # one GPU of the node
                value = base[name] * slow * (1 + (column - 4) / 2000)
                total += value if not pairs or row != column else 0
                cells.append("       N/A" if pairs and row == column else f"{value:10.2f}")
            say(f"{row:2d}{''.join(cells)}")
        say(f"\nSUM {name} {total:.2f}\n")


def gpu_burn() -> None:
    seconds = int(sys.argv[-1])
    say(f"Using compare file: compare.ptx\nBurning for {seconds} seconds.")
    for percent in range(10, 101, 10):
        if percent == 60:
            gone_wrong("\tSummary at:")
        calcs = " - ".join(f"{percent * 30} ({int(431000 * SPEED + gpu * 100)} Gflop/s) " for gpu in range(GPUS))
        errors = " - ".join("4  (WARNING!)" if MODE == "wrong" and gpu == 5 and percent == 70 else "0 " for gpu in range(GPUS))
        temps = " - ".join("61 C " for _ in range(GPUS))
        say(f"\r{percent:.1f}%  proc'd: {calcs}  errors: {errors}  temps: {temps}", end="")
    say("\nKilling processes with SIGTERM (soft kill)\ndone\n\nTested 8 GPUs:")
    for gpu in range(GPUS):
        say(f"\tGPU {gpu}: {'FAULTY' if MODE == 'wrong' and gpu == 5 else 'OK'}")


def dcgmi() -> None:
    gone_wrong("")
    if MODE == "refused":
        say("Error: unable to establish a connection to the specified host: localhost\nError: Unable to connect to host engine.")
        sys.exit(255)
    results = []
    for name in ("software", "memory", "pcie"):
        entities = []
        for gpu in range(GPUS):
            entity = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu, "status": "Pass"}
            if MODE == "fail" and name == "memory" and gpu == 2:
                text = "GPU 2 has 4 uncorrectable memory errors"
                warning = {"error_category": 7, "error_id": 29, "error_severity": 2, "warning": text}
                entity.update(status="Fail", warnings=[warning])
            entities.append(entity)
        worst = "Fail" if MODE == "fail" and name == "memory" else "Pass"
        results.append({"name": name, "results": entities, "test_summary": {"status": worst}})
    report = {
        "DCGM Diagnostic": {"test_categories": [{"category": "Deployment", "tests": results}]},
        "metadata": {"version": "4.4.1", "Driver Version Detected": "580.95.05"},
    }
    say(json.dumps(report, indent=1))
    sys.exit(226 if MODE == "fail" else 0)


def ib_write_bw() -> None:
    if sys.argv[-1] != "localhost":
        return  # the server; the client here needs none
    gone_wrong("")
    size_ = sys.argv[sys.argv.index("-s") + 1]
    say("-" * 87 + "\n                    RDMA_Write BW Test\n Dual-port       : OFF\t\tDevice         : mlx5_0\n" + "-" * 87)
    say(" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]")
    say(f" {size_:<7}    {5000:<10}       {394.1 * SPEED:<7.2f}            {393.7 * SPEED:<7.2f}\t\t     {0.005866:<7.6f}")
    say("-" * 87)


def nvidia_smi() -> None:
    if "-L" in sys.argv:
        for gpu in range(GPUS):
            say(f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-{hash_of(NODE):08d}-0000-0000-0000-{gpu:012d})")
        return
    gone_wrong("")
    for gpu in range(GPUS):
        uuid = f"GPU-{hash_of(NODE):08d}-0000-0000-0000-{gpu:012d}"
        say(f"{gpu}, {uuid}, 16{hash_of(NODE):06d}{gpu:03d}, 00000000:{27 + gpu:02X}:00.0, NVIDIA H100 80GB HBM3, 580.95.05")


def main() -> None:
    if TOOL.endswith("_perf"):
        nccl_tests(TOOL.removesuffix("_perf"))
    else:
        {"nvbandwidth": nvbandwidth, "gpu_burn": gpu_burn, "dcgmi": dcgmi, "ib_write_bw": ib_write_bw, "nvidia-smi": nvidia_smi}[
            TOOL
        ]()


main()
