"""Slurm's own NVML plugin, unmodified, sees the simulated GPUs as the machine tree describes them.

The plugin is Debian's (contrib, slurm-wlm-nvml-plugin; Debian testing has none for its Slurm). Only its one file is
used, unpacked: the package itself asks for NVIDIA's driver.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
from pathlib import Path

import pytest
from tests.lab import roots
from tests.lab.machines import gres_conf, slurm_node, write_machine
from tests.lab.nvml.library import write_conf

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a Debian root with Slurm, mounted in a namespace of its own"),
]

PLUGIN = "usr/lib/x86_64-linux-gnu/slurm-wlm/gpu_nvml.so"

# In a mount namespace of its own, which takes all of it away: a writable layer over the lab's root, with the simulated
# library, device files of a local major, and slurmd asked only what it detects. $1 root, $2 layer, $3 what to put in.
DETECT = """
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
mkdir -p var/spool/slurmd
chroot . chown -R slurm /etc/slurm
exec chroot . slurmd -G -f /etc/slurm/slurm.conf
"""


def plugin(suite: str, root: Path) -> Path:
    """Slurm's gpu_nvml.so of a suite, fetched once and kept with the lab's other builds."""
    kept = roots.lab_dir() / "build" / f"slurm-nvml-{suite}"
    if (kept / PLUGIN).is_file():
        return kept / PLUGIN
    with roots.locked(f"slurm-nvml-{suite}"):
        if (kept / PLUGIN).is_file():
            return kept / PLUGIN
        lists = kept / "lists"
        (lists / "partial").mkdir(parents=True, exist_ok=True)
        mirror = roots.mirror() or "http://deb.debian.org/debian"
        key = root / "usr/share/keyrings/debian-archive-keyring.gpg"
        (kept / "sources.list").write_text(f"deb [signed-by={key}] {mirror} {suite} contrib\n")
        settings = {
            "Dir::Etc::sourcelist": kept / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State::Lists": lists,
            "Dir::Cache": kept,
            "Dir::Cache::pkgcache": "",
            "Dir::Cache::srcpkgcache": "",
            "APT::Sandbox::User": "root",
        }
        options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        for words in (["update"], ["download", "slurm-wlm-nvml-plugin"]):
            subprocess.run(["apt-get", "-qq", *options, *words], cwd=kept, check=True, timeout=120)
        (package,) = kept.glob("slurm-wlm-nvml-plugin_*.deb")
        subprocess.run(["dpkg-deb", "--extract", package, kept], check=True, timeout=60)
    return kept / PLUGIN


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_slurmd_detects_the_gpus_of_the_tree(suite, library, tmp_path):
    root = roots.root(suite)
    tree = write_machine(tmp_path / "node", "hgx-h100", cpus=max(2, os.cpu_count() or 2))
    layer, content = tmp_path / "layer", tmp_path / "content"
    libraries = content / Path(PLUGIN).parent.parent
    (content / PLUGIN).parent.mkdir(parents=True)
    layer.mkdir()
    (content / PLUGIN).write_bytes(plugin(suite, root).read_bytes())
    for name in ("libnvidia-ml.so.1", "libnvidia-ml.so"):  # Slurm 22.05 asks for the name without version only
        (libraries / name).write_bytes(library.read_bytes())
    write_conf(tree, content / "etc/fairlead-sim/nvml.conf")
    configuration = content / "etc/slurm"
    configuration.mkdir()
    name = socket.gethostname()
    own_key = "" if roots.SUITES[suite] == "22.05" else "AuthType=auth/slurm\nCredType=cred/slurm\n"  # no munged runs here
    (configuration / "slurm.key").write_bytes(os.urandom(1024))
    (configuration / "slurm.key").chmod(0o600)
    (configuration / "gres.conf").write_text("AutoDetect=nvml\n")
    (configuration / "slurm.conf").write_text(
        f"ClusterName=lab\nSlurmctldHost={name}\nSlurmUser=slurm\n{own_key}GresTypes=gpu\n"
        f"SlurmdParameters=config_overrides\n{slurm_node(tree).line(name)}\nPartitionName=all Nodes={name}\n"
    )
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", DETECT, "detect", root, layer, content]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    output = done.stdout + done.stderr
    assert "8 GPU system device(s) detected" in output
    found = re.findall(
        r"Gres (Name=gpu Type=h100) Count=1 Index=\d ID=\d+ (File=\S+) (Cores=\S+) CoreCnt=\d+ Links=(\S+)", output
    )
    assert [" ".join(words[:3]) for words in found] == gres_conf(tree).splitlines()
    # Behind NVSwitches no link ends at another GPU: Slurm sees none, as on the real machines.
    assert [words[3] for words in found] == [",".join("-1" if n == m else "0" for m in range(8)) for n in range(8)]
    assert not list(layer.iterdir())
