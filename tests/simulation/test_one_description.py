"""One tree describes a node for all: the agent's worker under the library, and a snapshot, give the same tree again."""

from __future__ import annotations

import re

import pytest

from fairlead import settings
from fairlead.host.nvml import Worker
from fairlead.host.root import Root
from fairlead.host.tree_snapshot import snapshot, without_activity
from fairlead.model.sysctl_files import proc_path
from fairlead.settings import sysctl
from tests.lab.faultytrees import committed
from tests.lab.machines import read_nvml
from tests.lab.trees import MACHINES
from tests.simulation.test_trees import differing


@pytest.mark.parametrize("name", sorted(committed()))
def test_the_worker_under_the_library_reads_the_nvml_json_of_the_tree(name, machine_of, monkeypatch):
    machine = machine_of(name)
    for key in ("LD_LIBRARY_PATH", "FAIRLEAD_SIM_NVML", "FAIRLEAD_SIM_CONTROL"):
        monkeypatch.setenv(key, machine.environment[key])
    worker = Worker(30)
    try:
        raw = worker.sweep().raw
    finally:
        worker.close()
    assert isinstance(raw, dict), raw
    said = read_nvml(machine.tree)
    assert {key: raw.get(key) for key in said if key != "gpus"} == {key: said[key] for key in said if key != "gpus"}
    assert without_activity(raw)["gpus"] == said["gpus"]


@pytest.mark.parametrize("name", ["hgx-a100", "l40s-pcie", "hgx-h100.tuned", "hgx-h100.xid79"])
def test_a_snapshot_of_the_tree_is_the_tree(name, tmp_path):
    tree = MACHINES / name
    reads = [path for setting in settings.load().values() for path in setting.reads]
    reads += [proc_path(key) for key in (*sysctl.RANGES, *sysctl.TRIPLES)]  # as `fairlead snapshot` does
    snapshot(Root(str(tree)), read_nvml(tree), tmp_path / name, redact=False, reads=reads)
    # The links back from a driver to its devices say nothing that the devices' own links do not.
    lost = {key for key in differing(tree, tmp_path / name) if not re.match(r"sys/bus/pci/drivers/[^/]+/0000:", key)}
    assert lost <= {"README.md", "proc/sys/kernel/hostname"}
