"""Slurm's own slurmd, asked once what it detects (`slurmd -C`, `slurmd -G`), and its NVML plug-in, both unmodified.

It runs in a mount namespace of its own, which takes all of it away: a writable layer over one of the lab's roots, with what a
test puts in, and device files of a local major. The plug-in is Debian's (contrib, slurm-wlm-nvml-plugin; Debian testing has none
for its Slurm). Only its one file is used, unpacked: the package itself asks for NVIDIA's driver.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.lab import roots
from tests.lab.hardware import nvml_plugin
from tests.lab.nvml.mig_input import slot_value

PLUGIN = "usr/lib/x86_64-linux-gnu/slurm-wlm/gpu_nvml.so"
# $1 root, $2 layer, $3 what to put in, then a command.
LAYER = """
set -e
mount -t tmpfs tmpfs "$2"
mkdir "$2/up" "$2/work" "$2/root"
cp -a "$3/." "$2/up"
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/up,workdir=$2/work" "$2/root"
cd "$2/root"
mount -t proc proc proc
mount --rbind /sys sys
mount -t tmpfs tmpfs dev
mknod dev/null c 1 3
mknod dev/urandom c 1 9
for minor in 0 1 2 3 4 5 6 7; do mknod "dev/nvidia$minor" c 240 "$minor"; done
if [ -d mig/nvidia-caps ]; then
  mount --bind mig proc/driver
  mkdir dev/nvidia-caps
  while read -r _ minor; do mknod "dev/nvidia-caps/nvidia-cap$minor" c 241 "$minor"; done <mig/nvidia-caps/mig-minors
fi
mkdir -p var/spool/slurmd
chroot . chown -R slurm /etc/slurm
shift 3
exec chroot . "$@"
"""


def detect(suite: str, content: Path, layer: Path, *argv: str, env: tuple[str, ...] = ()) -> str:
    """What slurmd prints, on both streams; ``layer`` is left empty. ``env``: NAME=VALUE for it."""
    layer.mkdir(exist_ok=True)
    (content / "etc/slurm").mkdir(parents=True, exist_ok=True)
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", LAYER, "detect", roots.root(suite), layer, content]
    done = subprocess.run([*command, "env", *env, "slurmd", *argv], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


IDS = 15  # ids of GPU instances, see tests/lab/nvml/mig.c


def divide(content: Path, gpus: Sequence[int], slots: Sequence[tuple[int, int]]) -> None:
    """Divide these GPUs of the simulated library's input, each into instances: (row of its table of profiles, first memory slice)
    of tests/lab/nvml/mig.c. Slurm finds the device files of instances in the driver's list of minor numbers."""
    conf, minors = content / "etc/fairlead-sim/nvml.conf", content / "mig/nvidia-caps/mig-minors"
    lines = []
    for gpu in gpus:
        lines.append(f"gpu.{gpu}.mig_mode.current=1\ngpu.{gpu}.mig_mode.pending=1\n")
        for slot, (row, start) in enumerate(slots):
            lines.append(f"gpu.{gpu}.mig.slot.{slot}={slot_value(row, start)}\n")
    conf.write_text(conf.read_text() + "".join(lines))
    minors.parent.mkdir(parents=True)
    minors.write_text(mig_minors(gpus))


def mig_minors(gpus: Sequence[int]) -> str:
    """The driver's list of the numbers N of /dev/nvidia-caps/nvidia-capN, with all instances that can be made on these GPUs."""
    parts = [f"gpu{gpu}/gi{gi}" for gpu in gpus for gi in range(IDS)]
    names = [f"{part}{compute}/access" for part in parts for compute in ("", "/ci0")]
    return "".join(f"{name} {number}\n" for number, name in enumerate(names, 1))


def put_nvml(content: Path, suite: str, library: Path) -> None:
    """Slurm's plug-in and the simulated library, where slurmd looks for them."""
    libraries = content / Path(PLUGIN).parent.parent
    (content / PLUGIN).parent.mkdir(parents=True)
    found = nvml_plugin(suite)
    assert found is not None, f"no package slurm-wlm-nvml-plugin of {suite}"
    (content / PLUGIN).write_bytes(found.read_bytes())
    for name in ("libnvidia-ml.so.1", "libnvidia-ml.so"):  # Slurm 22.05 asks for the name without version only
        (libraries / name).write_bytes(library.read_bytes())
