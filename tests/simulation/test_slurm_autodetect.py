"""Slurm's own NVML plugin, unmodified, sees the simulated GPUs as the machine tree describes them."""

from __future__ import annotations

import os
import re
import socket

import pytest

from tests.lab import roots
from tests.lab.machines import gres_conf, slurm_node, write_machine
from tests.lab.nvml.library import write_conf
from tests.lab.slurmd import detect, put_nvml

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a Debian root with Slurm, mounted in a namespace of its own"),
]


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_slurmd_detects_the_gpus_of_the_tree(suite, library, tmp_path):
    tree = write_machine(tmp_path / "node", "hgx-h100", cpus=max(2, os.cpu_count() or 2))
    layer, content = tmp_path / "layer", tmp_path / "content"
    put_nvml(content, suite, library)
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
    output = detect(suite, content, layer, "-G", "-f", "/etc/slurm/slurm.conf")
    assert "8 GPU system device(s) detected" in output
    found = re.findall(
        r"Gres (Name=gpu Type=h100) Count=1 Index=\d ID=\d+ (File=\S+) (Cores=\S+) CoreCnt=\d+ Links=(\S+)", output
    )
    assert [" ".join(words[:3]) for words in found] == gres_conf(tree).splitlines()
    # Behind NVSwitches no link ends at another GPU: Slurm sees none, as on the real machines.
    assert [words[3] for words in found] == [",".join("-1" if n == m else "0" for m in range(8)) for n in range(8)]
    assert not list(layer.iterdir())
